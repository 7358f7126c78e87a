"""A listener with its clients and delivery over a log in memory, played turn by turn.

Owns: Stage. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from motelog.core.clock import ManualClock, SteadyClock
from motelog.core.limited_log import Boundary, LimitedLog
from motelog.core.net.config import ListenerConfig
from motelog.core.net.reactor import CloseReason, Fault, Turn
from motelog.core.records.decode import decode
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.access.access import Access
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.assembly import Surroundings, assemble, random_skip
from motelog.gateway.config import GatewayConfig
from motelog.gateway.metrics import PLAIN, GatewayMetrics
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.gateway.mqtt.varint import decode_varint
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.view import IN_MEMORY, View
from tests.support.fake_log import FakeLog
from tests.support.memory_output import MemoryOutput
from tests.support.mqtt_wire import varint
from tests.support.reasons import without_reason


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


class _Through(Boundary):
    """Lets a fault of the gateway fail the test."""

    def __exit__(self, *_: object) -> Literal[False]:
        return False


class Stage:
    """One listener with its surroundings; ``turn`` plays one turn of the reactor.

    A second stage on the same ``log`` is the gateway after a restart; with another ``name``, it is
    another gateway.
    """

    def __init__(
        self,
        config: GatewayConfig | None = None,
        *,
        log: FakeLog | None = None,
        connections_max: int = 16,
        name: str = "stage",
        clock: ManualClock | None = None,
        steady: SteadyClock | None = None,
        access: AccessConfig | None = None,
        listeners: Sequence[ListenerConfig] = (),
    ) -> None:
        self.log = log or FakeLog()
        self.output = MemoryOutput()
        #: The Reason Strings that ``sent`` has taken out of answers.
        self.reasons: list[str] = []
        self.clock = clock or ManualClock(self.log.now_ms)
        self.metrics = GatewayMetrics(listeners=(PLAIN, *(one.name for one in listeners)))
        self.access: Access | None = None
        if access is not None:
            self.access = Access(
                access,
                clock=self.clock,
                count_login=self.metrics.count_login,
                listeners=listeners,
            )
            self.access.read()
        #: Whether it has been asked to have another turn begin.
        self.is_woken = False
        #: Whether it has been asked to have ``clients.read_back`` called.
        self.wants_to_meet = False
        #: By how much packet identifiers go on that a client may have; None: as in a server.
        self.skips: int | None = 0
        view = self.view = View(IN_MEMORY)
        view.open()
        self.steady = steady or SteadyClock(self.clock)
        self.journal = SessionJournal(self.log, view, self.steady, gateway=name)
        while self.journal.refresh(1000) or not self.journal.is_current:
            pass
        self.retained = RetainedStore(self.log, view, self.steady)
        while self.retained.refresh(1000) or not self.retained.is_current:
            pass
        parts = assemble(
            Surroundings(
                config or GatewayConfig(),
                self.log,
                self.journal,
                self.retained,
                self.output,
                self.metrics,
                self.clock,
                self.access,
            ),
            connections_max=connections_max,
            wake=self._wake,
            meet=self._meet,
            random_skip=lambda: random_skip() if self.skips is None else self.skips,
        )
        self.turn_under_way = parts.turn
        self.connections = parts.turn.connections
        self.answers = parts.answers
        self.delivery = parts.delivery
        self.clients = parts.clients
        self.sessions = parts.sessions
        #: The gateway's own, for a test of what a fault of it leads to.
        self.boundary = parts.clients.boundary
        parts.clients.boundary = _Through(LimitedLog(logging.getLogger(__name__)), "", ())
        self.listener = parts.listener
        self.operator = parts.operator
        self.rates = parts.rates
        self.memory = parts.memory
        self.configure = parts.configure

    def _wake(self) -> None:
        self.is_woken = True

    def _meet(self) -> None:
        self.wants_to_meet = True

    def turn(
        self,
        *frames: tuple[int, bytes],
        opened: Sequence[int] = (),
        closed: Sequence[tuple[int, CloseReason]] = (),
        **what: Any,
    ) -> None:
        self.listener.handle_turn(self.made(*frames, opened=opened, closed=closed, **what))

    def made(
        self,
        *frames: tuple[int, bytes],
        opened: Sequence[int] = (),
        closed: Sequence[tuple[int, CloseReason]] = (),
        **what: Any,
    ) -> Turn:
        """Return the turn that ``turn`` plays."""
        for connection in opened:
            self.output.open(connection)
        for connection, _ in closed:
            self.output.end(connection)
        data, index = b"", b""
        for connection, frame in frames:
            variant = self.output.variants.get(connection, 0)
            index += struct.pack("=4I", connection, variant, len(data), len(data) + len(frame))
            data += frame
        made = FakeTurn(
            data,
            index,
            len(frames),
            opened=[(number, 0, self.output.peer(number)) for number in opened],
            closed=[*self.output.take_ended(), *closed],
            **what,
        )
        return cast("Turn", made)

    def carry(self) -> None:
        """Do what a server does when it is woken, but for deliveries."""
        if self.is_woken:
            self.is_woken = False
            self.listener.during(lambda: None)

    def tick(self) -> bool:
        """Play what a server does each second."""
        return self.listener.during(self.clients.tick)

    def read_back(self, limit: int) -> bool:
        """Read back what gateways have written, as a server does; return whether there is more."""
        return self.listener.during(partial(self.clients.read_back, limit))

    def recheck(self) -> bool:
        """Look at sessions after a change of rights, as a server does."""
        return self.listener.during(self.clients.recheck)

    def connect(self, connection: int, version: int = 4) -> None:
        connect = Connect(
            version=version, clean_start=True, keep_alive_s=60, client_id=f"c{connection}"
        )
        self.turn((connection, encode_connect(connect)), opened=[connection])
        assert self.sent(connection)[0][0] == 0x20

    def check_passwords(self) -> None:
        """Do what threads do for logins that wait."""
        assert self.access is not None
        while (job := self.access.logins.next()) is not None:
            self.access.logins.done(job, job.slow.work())
        self.carry()

    def sent(self, connection: int) -> list[bytes]:
        """Return what a client was sent; Reason Strings are taken out, into ``reasons``.

        What waits for the next turn is carried before, as in a server.
        """
        self.carry()
        packets = []
        for packet in self.output.sent.pop(connection, []):
            if self.output.variants.get(connection) == 5 or packet[0] == 0x20:
                packet, reason = without_reason(packet)
                if reason:
                    self.reasons.append(reason)
            packets.append(packet)
        return packets

    def packets(self, connection: int) -> list[bytes]:
        """Return the packets that a client was sent, also those that it was sent in one piece."""
        data = b"".join(self.sent(connection))
        found = []
        while data:
            decoded = decode_varint(data, 1, len(data))
            assert decoded is not None
            remaining, begin = decoded
            found.append(data[: begin + remaining])
            data = data[begin + remaining :]
        return found

    def stored(self) -> list[tuple[Any, ...]]:
        """Return the messages in the log, but for the gateway's own state."""
        return [
            decode(record)[0]
            for key in sorted(self.log.records)
            if key[0] not in GATEWAY_TOPICS
            for record in self.log.records[key]
        ]


def publish(
    topic: str, payload: bytes, packet_id: int = 0, *, version: int = 4, block: bytes = b""
) -> bytes:
    """Return a PUBLISH; ``block`` is its properties without their length."""
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    if packet_id:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += varint(len(block)) + block
    body += payload
    return bytes([0x32 if packet_id else 0x30]) + varint(len(body)) + body
