"""An MQTT server that acknowledges and delivers at once, and misbehaves on request.

Owns: BenchServer, on a thread and a reactor of its own. Must not touch: anything stored; it is what
the benches are tried on.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from motelog.core.net.reactor import Framing, Reactor, Turn
from motelog.gateway.mqtt.connect import encode_connack
from motelog.gateway.mqtt.frames import encode_publish, split
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.subscribe import decode_subscribe, encode_suback
from motelog.gateway.mqtt.topics import matches
from tests.support.reactor_loop import listening

ACKNOWLEDGEMENTS = {1: b"\x40\x02\0\0", 2: b"\x50\x02\0\0"}


@dataclass
class Faults:
    """What goes wrong; each number N means every Nth, 0 never."""

    connack: int = 0
    connack_times: int = 1_000_000
    """How many CONNECTs are refused so; then all are taken."""
    granted_qos: int | None = None
    acknowledgement_lost: int = 0
    acknowledgement_doubled: int = 0
    delivery_lost: int = 0
    delivery_doubled: int = 0
    closes_after: int = 0
    """Publishes after which the first publisher's connection is aborted."""
    ignores_pings: bool = False


class BenchServer:
    """Serves until ``stop``; the version is that of the first CONNECT's level byte."""

    def __init__(self, version: int, faults: Faults) -> None:
        self.version = version
        self.faults = faults
        self.publishes = 0
        self.pings = 0
        self.topic_names: set[bytes] = set()
        self._deliveries = 0
        self._subscriptions: list[tuple[int, str, int]] = []
        self._next_id: dict[int, int] = {}
        self._reactor = Reactor()
        sock = listening()
        self.port: int = sock.getsockname()[1]
        self._reactor.listen(sock, Framing.MQTT, frame_bytes_max=1 << 20, first_frame_s=0)
        self._stopping = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        self._reactor.shut_down()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._reactor, select.POLLIN)
        while not self._stopping:
            turn = self._reactor.poll(1)
            if turn:
                self._handle(turn)
            elif not turn.more:
                poll.poll(5)

    def _handle(self, turn: Turn) -> None:
        for connection, _, _ in turn.opened:
            self._reactor.set_variant(connection, self.version)
        gone = {connection for connection, _ in turn.closed}
        self._subscriptions = [s for s in self._subscriptions if s[0] not in gone]
        for connection, first_byte, topic, body, packet_id, _ in split(turn.data, turn.index):
            if topic is not None:
                self._publish(connection, first_byte, topic, body, packet_id)
                continue
            match first_byte >> 4:
                case PacketType.CONNECT:
                    code = self.faults.connack if self.faults.connack_times else 0
                    self._reactor.send(connection, encode_connack(self.version, code))
                    if code:
                        self.faults.connack_times -= 1
                        self._reactor.close(connection)
                case PacketType.SUBSCRIBE:
                    subscribe = decode_subscribe(self.version, first_byte, body)
                    entry = subscribe.entries[0]
                    qos = self.faults.granted_qos
                    qos = entry.qos if qos is None else qos
                    self._subscriptions.append((connection, entry.topic_filter, qos))
                    self._reactor.send(
                        connection, encode_suback(self.version, subscribe.packet_id, [qos])
                    )
                case PacketType.PINGREQ if not self.faults.ignores_pings:
                    self.pings += 1
                    self._reactor.send(connection, b"\xd0\x00")
                case PacketType.PUBREL:
                    self._number(b"\x70\x02\0\0", connection, packet_id)
                case PacketType.PUBREC:
                    self._number(b"\x62\x02\0\0", connection, packet_id)

    def _publish(
        self, connection: int, first_byte: int, topic: bytes, payload: bytes, packet_id: int
    ) -> None:
        self.publishes += 1
        self.topic_names.add(topic)
        if self.publishes == self.faults.closes_after:
            self._reactor.abort(connection)
        qos = first_byte >> 1 & 3
        if qos:
            for _ in range(times(self.publishes, self.faults, "acknowledgement")):
                self._number(ACKNOWLEDGEMENTS[qos], connection, packet_id)
        for subscriber, topic_filter, granted in self._subscriptions:
            if not matches(topic_filter, topic.decode()):
                continue
            self._deliveries += 1
            packet, id_at = encode_publish(topic, payload, 0x30 | granted << 1, self.version, None)
            for _ in range(times(self._deliveries, self.faults, "delivery")):
                if granted:
                    number = self._next_id.get(subscriber, 0) % 65_535 + 1
                    self._next_id[subscriber] = number
                    self._reactor.send_numbered(packet, id_at, [(subscriber, number)])
                else:
                    self._reactor.send(subscriber, packet)

    def _number(self, answer: bytes, connection: int, packet_id: int) -> None:
        self._reactor.send_numbered(answer, 2, [(connection, packet_id)])


def times(count: int, faults: Faults, what: str) -> int:
    """Return how often the ``count``-th acknowledgement or delivery is sent."""
    lost: int = getattr(faults, f"{what}_lost")
    doubled: int = getattr(faults, f"{what}_doubled")
    if lost and count % lost == 0:
        return 0
    return 2 if doubled and count % doubled == 0 else 1


@contextmanager
def bench_server(version: int = 4, faults: Faults | None = None) -> Iterator[BenchServer]:
    server = BenchServer(version, faults or Faults())
    try:
        yield server
    finally:
        server.stop()
