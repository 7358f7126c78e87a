"""``pub``: how many messages a second the server acknowledges.

Owns: windows of unacknowledged messages. Must not touch: connections and phases (Bench).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from motelog.gateway.mqtt.acks import PACKET_ID_AT
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.loadtest.bench_client import PINGREQ, Bench, Client, Frame
from motelog.loadtest.bench_report import BenchOptions

BATCHES_IN_FLIGHT: Final = 2  # of QoS 0
PUBREL: Final = b"\x62\x02\x00\x00"
ACKNOWLEDGED: Final = {1: 0x40, 2: 0x70}  # first byte of what ends an exchange, by QoS
FAILED: Final = 0x80


class Publisher:
    """One client's window: when each packet identifier in flight was sent."""

    __slots__ = (
        "batches",
        "connection",
        "free",
        "id_at",
        "in_flight",
        "late",
        "name_number",
        "packet",
    )

    def __init__(self, connection: int, number: int, packet: bytes, id_at: int) -> None:
        self.connection = connection
        self.name_number = number  # of the next message's topic name, if there are many names
        self.packet = packet
        self.id_at = id_at
        self.in_flight: dict[int, int] = {}
        #: With a rate: free identifiers, and due times of messages that wait for one.
        self.free: list[int] = []
        self.late: deque[int] = deque()
        self.batches: list[int] = []  # QoS 0: when each was sent

    def take_due(self, packet_ids: list[int]) -> list[int]:
        """Return identifiers, and take those for the messages that can be sent now."""
        self.free += packet_ids
        taken = [self.free.pop() for _ in range(min(len(self.free), len(self.late)))]
        self.in_flight.update((packet_id, self.late.popleft()) for packet_id in taken)
        return taken


class PubBench(Bench):
    """Keeps every window full; a message counts when it is acknowledged."""

    def __init__(self, options: BenchOptions) -> None:
        packet, _ = publish_packet(options, max(options.connections, options.names))
        super().__init__(options, output_bytes=BATCHES_IN_FLIGHT * options.window * len(packet))
        self.publishers_count = options.connections
        self._publishing = False
        self._publishers: dict[int, Publisher] = {}
        self._in_turn: list[Publisher] = []

    def make_clients(self) -> list[Client]:
        return [self.client("pub", i) for i in range(self.options.connections)]

    def begin(self) -> None:
        self._publishing = True
        for i, client in enumerate(self.clients[: self.options.connections]):
            publisher = Publisher(client.connection, i, *publish_packet(self.options, i))
            self._publishers[client.connection] = publisher
            if self.options.qos == 0:
                self._send_batches(publisher)
            else:
                self._publish(publisher, list(range(1, self.options.window + 1)))
        self._in_turn = list(self._publishers.values())

    def send_due(self, number: int, due_ns: int) -> None:
        self._in_turn[number].late.append(due_ns)
        self._publish(self._in_turn[number], [])

    def handle(self, frames: list[Frame]) -> None:
        if self.options.qos == 0:
            self._handle_pings(frames)
            return
        final = ACKNOWLEDGED[self.options.qos]
        now_ns = self.now_ns
        waited_ns: list[int] = []
        releases: list[tuple[int, int]] = []
        # In a turn the frames of a connection are adjacent. So the acknowledged identifiers are
        # collected, and the next messages are sent with them in one call per connection.
        publisher = None
        acknowledged: list[int] = []
        for connection, first_byte, _, _, packet_id, reason_code in frames:
            if publisher is None or connection != publisher.connection:
                if publisher is not None and acknowledged:
                    self._publish(publisher, acknowledged)
                    acknowledged = []
                publisher = self._publishers[connection]
            if first_byte == final:
                sent_ns = publisher.in_flight.pop(packet_id, None)
                if sent_ns is None:
                    self.duplicates += 1
                    continue
                if reason_code >= FAILED:
                    self.fail(f"PUBLISH was refused with code 0x{reason_code:02x}")
                waited_ns.append(now_ns - sent_ns)
                acknowledged.append(packet_id)
            elif first_byte >> 4 == PacketType.PUBREC:
                releases.append((connection, packet_id))
            elif first_byte >> 4 != PacketType.PINGRESP:
                self.fail(f"unexpected packet of type {first_byte >> 4}")
        if publisher is not None and acknowledged:
            self._publish(publisher, acknowledged)
        if releases:
            self.reactor.send_numbered(PUBREL, PACKET_ID_AT, releases)
        if waited_ns:
            self.progressed_ns = now_ns
            if self.is_measuring:
                self.messages += len(waited_ns)
                self.latency.add_all(waited_ns)

    def drain(self) -> None:
        self._publishing = False
        super().drain()

    def unfinished(self) -> bool:
        return any(p.in_flight or p.batches for p in self._publishers.values())

    def finish(self) -> None:
        for publisher in self._publishers.values():
            self.lost += len(publisher.in_flight) + len(publisher.batches) * self.options.window

    def _publish(self, publisher: Publisher, packet_ids: list[int]) -> None:
        """Send a message with each of these identifiers; with a rate, only those due."""
        if self._publishing:
            connection, now_ns = publisher.connection, self.now_ns
            if self.pace is None:
                publisher.in_flight.update(dict.fromkeys(packet_ids, now_ns))
            else:
                packet_ids = publisher.take_due(packet_ids)
                if not packet_ids:
                    return
            if self.options.names:
                self.reactor.send(connection, self._under_next_names(publisher, packet_ids))
                return
            receivers = [(connection, packet_id) for packet_id in packet_ids]
            self.reactor.send_numbered(publisher.packet, publisher.id_at, receivers)

    def _under_next_names(self, publisher: Publisher, packet_ids: Iterable[int]) -> bytes:
        """Return messages with the publisher's next topic names, one for each identifier."""
        packets = []
        for packet_id in packet_ids:
            number = publisher.name_number % self.options.names
            packet, id_at = publish_packet(self.options, number)
            if id_at:
                packet = packet[:id_at] + packet_id.to_bytes(2, "big") + packet[id_at + 2 :]
            packets.append(packet)
            publisher.name_number += self.options.connections
        return b"".join(packets)

    def _send_batches(self, publisher: Publisher) -> None:
        window = self.options.window
        batch = publisher.packet * window
        while len(publisher.batches) < BATCHES_IN_FLIGHT:
            publisher.batches.append(self.now_ns)
            if self.options.names:
                batch = self._under_next_names(publisher, range(window))
            self.reactor.send(publisher.connection, batch + PINGREQ)

    def _handle_pings(self, frames: list[Frame]) -> None:
        for connection, first_byte, *_ in frames:
            publisher = self._publishers[connection]
            if first_byte >> 4 != PacketType.PINGRESP or not publisher.batches:
                self.fail(f"unexpected packet of type {first_byte >> 4}")
                continue
            sent_ns = publisher.batches.pop(0)
            self.progressed_ns = self.now_ns
            if self.is_measuring:
                self.messages += self.options.window
                self.latency.add(self.now_ns - sent_ns, self.options.window)
            if self._publishing:
                self._send_batches(publisher)


def publish_packet(options: BenchOptions, number: int) -> tuple[bytes, int]:
    """Return the PUBLISH of a publisher or topic name, and the index of its packet identifier."""
    topic = f"{options.topic_prefix}/{number}/telemetry".encode()
    payload = b"x" * options.payload_bytes
    return encode_publish(topic, payload, 0x30 | options.qos << 1, options.version, None)
