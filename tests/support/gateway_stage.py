"""A listener with its clients and delivery over a log in memory, played turn by turn.

Owns: Stage. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, cast

from motelog.core.clock import ManualClock
from motelog.core.net.reactor import CloseReason, Fault, Reactor, Turn
from motelog.core.records.decode import decode
from motelog.gateway.clients import Clients
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.publish.acknowledge import PublishAcks
from motelog.gateway.publish.reactor_listener import ReactorListener
from motelog.gateway.publish.routes import Routes
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from tests.support.fake_log import FakeLog, FakeReactor
from tests.support.mqtt_wire import varint


@dataclass
class FakeTurn:
    """What the listener reads of a Turn."""

    data: bytes = b""
    index: bytes = b""
    frames: int = 0
    opened: list[tuple[int, int, tuple[str, int]]] = field(default_factory=list)
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    closed: list[tuple[int, CloseReason]] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)


class Stage:
    """One listener with its surroundings; ``turn`` plays one turn of the reactor."""

    def __init__(self, config: GatewayConfig | None = None) -> None:
        config = config or GatewayConfig()
        self.log = FakeLog()
        self.fake = FakeReactor()
        reactor = cast("Reactor", self.fake)
        self.metrics = GatewayMetrics()
        self.sessions: list[Session | None] = [None] * 16
        tree: SubscriptionTree[Session] = SubscriptionTree()
        mapping = TopicMapping(config.topic_map, default_topic=config.default_topic)
        self.log.create_topic(config.default_topic, 4)
        delivery = Delivery(
            self.log,
            reactor,
            mapping,
            tree,
            self.metrics,
            sessions=self.sessions,
            wake=lambda: None,
        )
        clients = Clients(config, reactor, tree, delivery, self.metrics, sessions=self.sessions)
        routes = Routes(
            mapping,
            self.log,
            create_topics=config.create_topics,
            topics_max=config.topics_max,
            topic_queue_count=config.topic_queue_count,
            topic_bytes_max=config.topic_bytes_max,
        )
        self.clock = ManualClock()
        self.acks = PublishAcks(
            reactor,
            self.log.acknowledge,
            self.metrics,
            clock=self.clock,
            sessions=self.sessions,
            receive_maximum=config.receive_maximum,
            disconnect=clients.disconnect,
        )
        self.listener = ReactorListener(
            reactor,
            self.log,
            routes,
            clients,
            delivery,
            self.metrics,
            sessions=self.sessions,
            acks=self.acks,
        )

    def turn(self, *frames: tuple[int, bytes], **what: Any) -> None:
        data, index = b"", b""
        for connection, frame in frames:
            variant = self.fake.variants.get(connection, 0)
            index += struct.pack("=4I", connection, variant, len(data), len(data) + len(frame))
            data += frame
        turn = FakeTurn(data, index, len(frames), **what)
        self.listener.handle_turn(cast("Turn", turn))

    def connect(self, connection: int, version: int = 4) -> None:
        connect = Connect(
            version=version, clean_start=True, keep_alive_s=60, client_id=f"c{connection}"
        )
        opened = [(connection, 0, ("127.0.0.1", 4000 + connection))]
        self.turn((connection, encode_connect(connect)), opened=opened)
        assert self.sent(connection)[0][0] == 0x20

    def sent(self, connection: int) -> list[bytes]:
        return self.fake.sent.pop(connection, [])

    def stored(self) -> list[tuple[Any, ...]]:
        return [
            decode(record)[0]
            for key in sorted(self.log.records)
            for record in self.log.records[key]
        ]


def publish(topic: str, payload: bytes, packet_id: int = 0, *, version: int = 4) -> bytes:
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    if packet_id:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += b"\x00"
    body += payload
    return bytes([0x32 if packet_id else 0x30]) + varint(len(body)) + body
