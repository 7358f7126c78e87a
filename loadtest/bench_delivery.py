"""``pipe`` and ``fanout``: how many messages a second reach subscribers, and their latency.

Owns: windows of undelivered messages, sequence numbers. Must not touch: connections and phases.

    payload   send time u64 (monotonic ns) | publisher u32 | sequence u32 | filler

A publisher is identified by the number of the run and its own, so that messages of another run are
ignored.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final, TypeAlias

from motelog.gateway.mqtt.acks import PACKET_ID_AT
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.loadtest.bench_client import Bench, Client, Frame
from motelog.loadtest.bench_pub import FAILED, PUBREL, publish_packet
from motelog.loadtest.bench_report import BenchOptions

STAMP: Final = Struct(">QII")
PUBACK: Final = b"\x40\x02\x00\x00"
PUBREC: Final = b"\x50\x02\x00\x00"
PUBCOMP: Final = b"\x70\x02\x00\x00"


class Publisher:
    """One publisher and its subscribers; ``undelivered`` counts copies still to arrive."""

    __slots__ = ("client", "free", "head", "key", "late", "sent", "subscribers", "undelivered")

    def __init__(
        self, client: Client, key: int, head: bytes, window: int, subscribers: list[Subscriber]
    ) -> None:
        self.client = client
        self.key = key
        self.head = head  # the PUBLISH up to the packet identifier
        self.free = set(range(1, 2 * window + 1))  # packet identifiers
        self.late: deque[int] = deque()  # with a rate: due times of messages that are not sent yet
        self.sent = 0
        self.undelivered = 0
        self.subscribers = subscribers


#: Of one subscriber: publisher's key -> the next sequence number, after its first message.
Subscriber: TypeAlias = dict[int, int]


class DeliveryBench(Bench):
    """Each publisher keeps a window of undelivered messages; a message counts when delivered."""

    def __init__(
        self, options: BenchOptions, *, publishers: int, subscribers: int | None = None
    ) -> None:
        """``subscribers`` of all publishers, or None for one per publisher."""
        self.publishers_count = publishers
        self.subscribers_count = publishers if subscribers is None else subscribers
        self._is_fan_out = subscribers is not None
        self._copies = subscribers or 1
        packet, _ = publish_packet(options, publishers)
        super().__init__(options, output_bytes=2 * options.window * len(packet))
        self._publishing = False
        self._publishers: dict[int, Publisher] = {}
        self._in_turn: list[Publisher] = []
        self._by_key: dict[int, Publisher] = {}
        self._subscribers: dict[int, Subscriber] = {}
        # After the topic: packet identifier (QoS > 0), empty properties (v5), payload.
        between = ("H" if options.qos else "") + ("x" if options.version == 5 else "")
        self._tail = Struct(f">{between}QII")
        self._filler = b"x" * (options.payload_bytes - STAMP.size)

    def make_clients(self) -> list[Client]:
        """Return subscribers first, so that they miss no message."""
        prefix = self.options.topic_prefix
        if self._is_fan_out:
            filters = [f"{prefix}/+/telemetry"] * self.subscribers_count
        else:
            filters = [f"{prefix}/{i}/telemetry" for i in range(self.publishers_count)]
        subscribers = [self.client("sub", i, f) for i, f in enumerate(filters)]
        return subscribers + [self.client("pub", i) for i in range(self.publishers_count)]

    def begin(self) -> None:
        self._publishing = True
        for client in self.clients[: self.subscribers_count]:
            self._subscribers[client.connection] = {}
        subscribers = list(self._subscribers.values())
        for i, client in enumerate(self.clients[self.subscribers_count :]):
            packet, _ = publish_packet(self.options, i)
            head = packet[: len(packet) - len(self._filler) - self._tail.size]
            mine = subscribers if self._is_fan_out else subscribers[i : i + 1]
            key = self.run_id + i
            publisher = Publisher(client, key, head, self.options.window, mine)
            self._publishers[client.connection] = self._by_key[key] = publisher
            self._fill(publisher)
        self._in_turn = list(self._publishers.values())

    def send_due(self, number: int, due_ns: int) -> None:
        self._in_turn[number].late.append(due_ns)
        self._fill(self._in_turn[number])

    def handle(self, frames: list[Frame]) -> None:
        now_ns = self.now_ns
        waited_ns: list[int] = []
        answers: dict[bytes, list[tuple[int, int]]] = {}
        touched: dict[int, Publisher] = {}
        qos = self.options.qos
        received = PUBACK if qos == 1 else PUBREC
        read_stamp = STAMP.unpack_from
        for connection, first_byte, topic, payload, packet_id, reason_code in frames:
            if topic is not None:
                subscriber = self._subscribers[connection]
                sent_ns, key, sequence = read_stamp(payload)
                if packet_id:
                    answers.setdefault(received, []).append((connection, packet_id))
                publisher = self._by_key.get(key)
                if publisher is None:
                    continue  # another run's message
                expected = subscriber.get(key, 0)
                if sequence < expected:
                    self.duplicates += 1
                    continue
                self.lost += sequence - expected
                subscriber[key] = sequence + 1
                publisher.undelivered -= 1
                waited_ns.append(now_ns - sent_ns)
                touched[publisher.client.connection] = publisher
                continue
            match first_byte >> 4:
                case PacketType.PUBACK | PacketType.PUBCOMP:
                    self._publishers[connection].free.add(packet_id)
                    touched[connection] = self._publishers[connection]
                    if reason_code >= FAILED:
                        self.fail(f"PUBLISH was refused with code 0x{reason_code:02x}")
                case PacketType.PUBREC:
                    answers.setdefault(PUBREL, []).append((connection, packet_id))
                case PacketType.PUBREL:
                    answers.setdefault(PUBCOMP, []).append((connection, packet_id))
                case PacketType.PINGRESP:
                    pass
                case packet_type:
                    self.fail(f"unexpected packet of type {packet_type}")
        for answer, receivers in answers.items():
            self.reactor.send_numbered(answer, PACKET_ID_AT, receivers)
        if waited_ns:
            self.progressed_ns = now_ns
            if self.is_measuring:
                self.messages += len(waited_ns)
                self.latency.add_all(waited_ns)
        if self._publishing:
            for publisher in touched.values():
                self._fill(publisher)

    def stalled(self) -> None:
        """Stop waiting for missing messages; a gap in the sequence reveals them later."""
        for publisher in self._publishers.values():
            publisher.undelivered = 0
            self._fill(publisher)

    def drain(self) -> None:
        self._publishing = False
        super().drain()

    def unfinished(self) -> bool:
        return any(
            subscriber.get(publisher.key, 0) < publisher.sent
            for publisher in self._publishers.values()
            for subscriber in publisher.subscribers
        )

    def finish(self) -> None:
        for publisher in self._publishers.values():
            for subscriber in publisher.subscribers:
                self.lost += publisher.sent - subscriber.get(publisher.key, 0)

    def _fill(self, publisher: Publisher) -> None:
        """Publish until a window of messages is undelivered; with a rate, only those due."""
        undelivered = max(0, publisher.undelivered)
        count = self.options.window - -(-undelivered // self._copies)
        qos = self.options.qos
        if qos:
            count = min(count, len(publisher.free))
        if self.pace is not None:
            count = min(count, len(publisher.late))
        if count <= 0:
            return
        publisher.undelivered = undelivered + count * self._copies
        parts: list[bytes] = []
        for sequence in range(publisher.sent, publisher.sent + count):
            sent_ns = self.now_ns if self.pace is None else publisher.late.popleft()
            stamp = (sent_ns, publisher.key, sequence)
            tail = self._tail.pack(publisher.free.pop(), *stamp) if qos else self._tail.pack(*stamp)
            parts += (publisher.head, tail, self._filler)
        publisher.sent += count
        self.reactor.send(publisher.client.connection, b"".join(parts))
