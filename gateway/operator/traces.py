"""Live traces: the packets that one client sends and receives, for an operator to watch.

Owns: which clients are traced, the traced packets. Must not touch: payloads, what a packet leads
to.
Invariants: a trace ends by itself, after its time or its number of packets, or when its connection
ends. Its packets are kept for RESULT_KEPT_MS after the end. A client that is not traced has no
overhead: its bytes do not go through an observer.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final

from motelog.core.clock import Clock
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_heads import PacketHead, PacketHeads
from motelog.gateway.operator.answers import Trace, TracedPacket
from motelog.gateway.operator.sessions import OperatorSessions
from motelog.gateway.sessions.connection import Connection

#: Most traces of one gateway process that run at once, and most traces including finished ones.
RUNNING_MAX: Final = 4
KEPT_MAX: Final = 8
SECONDS_MAX: Final = 600
PACKETS_MAX: Final = 10_000
RESULT_KEPT_MS: Final = 120_000
#: Most packets in one answer.
PART_MAX: Final = 500


class TraceRefusedError(GatewayError):
    """A trace cannot begin: the client already has one, or the limit of traces is reached."""


class Traces:
    """The traces of one gateway process; ``tick`` is called each second."""

    def __init__(self, sessions: OperatorSessions, *, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._traces: dict[str, _Running] = {}

    def start(self, client_id: str, seconds: int, packets: int) -> Trace | None:
        """Start a trace; None if the client is not connected here. TraceRefusedError."""
        live = self._sessions.live(client_id)
        if live is None:
            return None
        self.tick()
        running = [one for one in self._traces.values() if one.over is None]
        if any(one.client_id == client_id for one in running):
            raise TraceRefusedError("the client is being traced already")
        if len(running) >= RUNNING_MAX:
            raise TraceRefusedError(f"{RUNNING_MAX} clients are being traced already")
        connection = live[1]
        observer = _Observer(connection.version, self._clock, min(packets, PACKETS_MAX))
        connection.output.observe(connection.number, observer)
        seconds = min(seconds, SECONDS_MAX)
        now_ms = self._clock.now_ms()
        trace = _Running(
            secrets.token_hex(8),
            client_id,
            connection,
            observer,
            began_ms=now_ms,
            ends_ms=now_ms + seconds * 1000,
            due_ms=self._clock.monotonic_ms() + seconds * 1000,
        )
        while len(self._traces) >= KEPT_MAX:
            del self._traces[next(name for name, one in self._traces.items() if one.over)]
        self._traces[trace.name] = trace
        return trace.answer(0)

    def read(self, name: str, after: int) -> Trace | None:
        """Return packets after number ``after``; None if there is no such trace."""
        trace = self._traces.get(name)
        if trace is None:
            return None
        self._look_at(trace)
        return trace.answer(after)

    def end(self, name: str) -> bool:
        """End a trace; return False if there is none. Its packets can still be read."""
        trace = self._traces.get(name)
        if trace is None:
            return False
        if trace.over is None:
            self._end(trace, "it was ended")
        return True

    def tick(self) -> None:
        """End the traces that are due, and forget those that ended RESULT_KEPT_MS ago."""
        for trace in self._traces.values():
            self._look_at(trace)
        now_ms = self._clock.monotonic_ms()
        self._traces = {
            name: one
            for name, one in self._traces.items()
            if one.over is None or now_ms - one.due_ms < RESULT_KEPT_MS
        }

    def _look_at(self, trace: _Running) -> None:
        if trace.over is not None:
            return
        live = self._sessions.live(trace.client_id)
        if live is None or live[1] is not trace.connection:
            trace.over = "the connection has ended"
            trace.due_ms = self._clock.monotonic_ms()
        elif trace.observer.is_full:
            self._end(trace, "it has reached its number of packets")
        elif self._clock.monotonic_ms() >= trace.due_ms:
            self._end(trace, "its time is over")

    def _end(self, trace: _Running, why: str) -> None:
        trace.over = why
        trace.due_ms = self._clock.monotonic_ms()
        live = self._sessions.live(trace.client_id)
        if live is not None and live[1] is trace.connection:
            trace.connection.output.observe(trace.connection.number, None)


class _Observer:
    """The packets that one connection has received and sent since the trace began."""

    def __init__(self, version: int, clock: Clock, packets_max: int) -> None:
        self._received = PacketHeads(version, from_server=False)
        self._sent = PacketHeads(version, from_server=True)
        #: Topic names of aliases, as far as the trace has seen them: the client's, and ours.
        self._aliases: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self._clock = clock
        self.packets_max = packets_max
        self.packets: list[TracedPacket] = []

    @property
    def is_full(self) -> bool:
        return len(self.packets) >= self.packets_max

    def begin(self, received: bytes, waiting_bytes: int) -> None:
        self._sent.skip(waiting_bytes)
        self.received(received)

    def received(self, data: bytes) -> None:
        self._note("in", self._received, data)

    def sent(self, data: bytes) -> None:
        self._note("out", self._sent, data)

    def _note(self, direction: str, heads: PacketHeads, data: bytes) -> None:
        if self.is_full:
            return
        aliases = self._aliases[direction == "out"]
        at_ms = self._clock.now_ms()
        for head in heads.feed(data):
            if self.is_full:
                return
            if head.topic_alias is not None:
                _resolve(head, aliases)
            self.packets.append(
                TracedPacket(
                    number=len(self.packets) + 1,
                    at_ms=at_ms,
                    direction="in" if direction == "in" else "out",
                    type=head.type,
                    packet_bytes=head.packet_bytes,
                    topic=head.topic,
                    topic_alias=head.topic_alias,
                    qos=head.qos,
                    retain=head.retain,
                    dup=head.dup,
                    packet_id=head.packet_id,
                    filters=head.filters,
                    reason_codes=head.reason_codes,
                )
            )


def _resolve(head: PacketHead, aliases: dict[int, str]) -> None:
    """Fill in the topic name of an alias, if the trace has seen it."""
    assert head.topic_alias is not None
    if head.topic:
        aliases[head.topic_alias] = head.topic
    else:
        head.topic = aliases.get(head.topic_alias, "")


@dataclass(slots=True)
class _Running:
    """A trace, running or ended. ``over`` is why it ended, ``due_ms`` when it ends or ended."""

    name: str
    client_id: str
    connection: Connection
    observer: _Observer
    began_ms: int
    ends_ms: int
    due_ms: int
    over: str | None = field(default=None)

    def answer(self, after: int) -> Trace:
        packets = self.observer.packets[after : after + PART_MAX]
        is_last = after + len(packets) >= len(self.observer.packets)
        return Trace(
            trace=self.name,
            client_id=self.client_id,
            began_ms=self.began_ms,
            ends_ms=self.ends_ms,
            packets_max=self.observer.packets_max,
            packets=packets,
            over=self.over if is_last else None,
        )
