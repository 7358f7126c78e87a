"""Answers that wait for the log: when they are sent, and what is sent instead of them.

Owns: PUBACKs and PUBRECs of appended publishes, PUBRELs and PUBCOMPs of marked steps, refusals,
Receive Maximum. Must not touch: appends (``commit``), when a ticket settles (the log's port).
Invariants: a publish is acknowledged only after its ticket has settled without an error. A refused
publish is never acknowledged later. Answers of one kind leave in the order of the packets that they
answer. An answer goes only to the connection that it is for, never to a later connection with the
same number.
Spec: MQTT 5.0 sections 3.4 to 3.7, 4.3, 4.6 and 4.9; 3.1.1 likewise.

With a log of several brokers tickets settle in any order. Then the answers of a connection wait for
each other, and those of other connections do not: a broker that is away delays only the answers to
the clients that have published to it.

An answer is a tuple (connection, packet identifier); the answers of one append stay together.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError, StoredError, StoreFullError
from motelog.core.limited_log import LimitedByKey, LimitedLog
from motelog.core.spare_memory import NO_MEMORY
from motelog.gateway.log.log_port import (
    SETTLED,
    LogPort,
    OutcomeUnknownError,
    Settled,
    Then,
    Ticket,
)
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.packing import numbered
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.output import Output
from motelog.gateway.sessions.publish_rules import refuse_publish
from motelog.gateway.turn import Acks, AnswerKind, NotFound, Turn

logger = logging.getLogger(__name__)


#: The answers as bytes, with the packet identifier at position 2. With reason "success" they are
#: the same in every version.
_PACKETS: Final[Mapping[AnswerKind, bytes]] = {
    PacketType.PUBACK: b"\x40\x02\x00\x00",
    PacketType.PUBREC: b"\x50\x02\x00\x00",
    PacketType.PUBREL: b"\x62\x02\x00\x00",
    PacketType.PUBCOMP: b"\x70\x02\x00\x00",
    NotFound.PUBREL: bytes((0x62, 3, 0, 0, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    NotFound.PUBCOMP: bytes((0x70, 3, 0, 0, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
}
_NUMBER_AT: Final = 2
#: The kinds whose answers wait for each other if tickets settle in any order. The others are for
#: steps whose records are in one queue, so that their tickets keep the order of the packets.
_IN_LINE: Final = frozenset({PacketType.PUBACK, PacketType.PUBREC})

_NO_ANSWER: Final = "a client gets no answer because memory is lacking: free memory"


@dataclass(frozen=True, slots=True)
class Owed:
    """Answers of one kind that wait: for their ticket, or for the connection's answers before them.

    ``connections`` has the connection of each of ``acks``; ``counted`` has those to which Receive
    Maximum applies. If ``refusal`` is set, the publishes are refused however the ticket settles.
    ``began_ns`` is when the publishes were read, 0 if their time is not measured.
    """

    kind: AnswerKind
    acks: Acks
    connections: list[Connection | None]
    counted: list[Connection]
    ticket: Ticket
    refusal: GatewayError | None = None
    began_ns: int = 0


class Answers:
    """Answers one gateway's peers; state changes between two awaits of its callers."""

    def __init__(
        self,
        turn: Turn,
        log: LogPort,
        output: Output,
        metrics: GatewayMetrics,
        *,
        receive_maximum: int,
        clock: Clock,
    ) -> None:
        self._withdraw = log.withdraw
        #: Whether tickets settle in any order.
        self._is_apart = log.append_apart is not None
        self._turn = turn
        self._output = output
        self._metrics = metrics
        self._connections = turn.connections
        self._receive_maximum = receive_maximum
        self._faults = LimitedLog(logger)
        self._refusals = LimitedByKey(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        #: Ticket -> the answers and callbacks that wait for it. All waiting answers of a connection
        #: are at one ticket, in their order: at the one in ``_places`` if tickets settle in any
        #: order. When it has settled, those that must wait longer move to their own tickets.
        self._waiting: dict[Ticket, list[Owed | Then]] = {}
        self._places: dict[Connection | None, Ticket] = {}

    # --- what waits ----------------------------------------------------------------------

    def answer(self, kind: AnswerKind, acks: Acks, ticket: Ticket, began_ns: int = 0) -> None:
        """Send the answers of one append or mark, now or when its ticket settles.

        ``began_ns`` is when the publishes were read, for the histogram of acknowledge times.
        """
        if self._is_apart and kind in _IN_LINE:
            self.answer_apart(kind, acks, repeat(ticket), began_ns=began_ns)
        elif ticket.is_settled:  # then no earlier ticket waits: they settle in order
            if not acks:
                return
            if ticket.error is not None:
                self.refuse(kind, acks, ticket.error)
            else:
                self._send(kind, acks)
                if began_ns:
                    took_us = (perf_counter_ns() - began_ns) // 1000
                    self._metrics.acknowledge_us.observe(took_us, len(acks))
        elif acks:
            self._wait(kind, acks, ticket, ticket, began_ns=began_ns)

    def answer_behind(
        self, kind: AnswerKind, acks: Acks, refusal: GatewayError | None = None
    ) -> None:
        """Answer messages that the log has already, or refuse publishes, after what waits.

        [MQTT-4.6.0-2]
        """
        if self._is_apart:
            self.answer_apart(kind, acks, repeat(SETTLED), refusal)
        elif self._waiting:
            self._wait(kind, acks, next(reversed(self._waiting)), SETTLED, refusal)
        else:
            self._finish(kind, acks, SETTLED, refusal)

    def answer_apart(
        self,
        kind: AnswerKind,
        acks: Acks,
        tickets: Iterable[Ticket],
        refusal: GatewayError | None = None,
        *,
        began_ns: int = 0,
    ) -> None:
        """Send answers that each have a ticket, and whose tickets settle in any order.

        An answer waits for those before it of its own connection [MQTT-4.6.0-2], and for no others.
        """
        places = self._places
        ready: Acks = []
        own: dict[Ticket, Acks] = {}
        for ack, ticket in zip(acks, tickets, strict=False):
            connection = self._connections[ack[0]]
            if connection is None:
                continue  # it ended in this turn
            place = places.get(connection)
            if place is None and not ticket.is_settled:
                place = places[connection] = ticket
            if place is ticket:
                own.setdefault(ticket, []).append(ack)
            elif place is not None:
                self._wait_each(kind, own, refusal, began_ns)  # one of them may be before this one
                self._wait(kind, [ack], place, ticket, refusal, began_ns)
            elif refusal is None and ticket.error is None:
                ready.append(ack)
            else:
                self._finish(kind, ready, SETTLED, None, began_ns)
                ready = []
                self._finish(kind, [ack], ticket, refusal)
        self._finish(kind, ready, SETTLED, None, began_ns)
        self._wait_each(kind, own, refusal, began_ns)

    def after(self, ticket: Ticket, then: Then) -> None:
        """Call ``then`` with the ticket's error, now or when the ticket settles.

        If ``then`` runs out of memory, the other callbacks are still called.
        """
        if ticket.is_settled:
            try:
                then(ticket.error)
            except NO_MEMORY:
                self._faults.fault(_NO_ANSWER)
        else:
            self._waiting.setdefault(ticket, []).append(then)

    def _finish(
        self,
        kind: AnswerKind,
        acks: Acks,
        ticket: Ticket,
        refusal: GatewayError | None,
        began_ns: int = 0,
    ) -> None:
        """Send answers, or refuse publishes, that need no longer wait."""
        if refusal is not None:
            for number, packet_id in acks:
                connection = self._connections[number]
                if connection is not None:
                    self._refuse(kind, connection, packet_id, refusal)
        elif ticket.error is not None:
            self.refuse(kind, acks, ticket.error)
        elif acks:
            self._send(kind, acks)
            self._took(began_ns, len(acks))

    def _took(self, began_ns: int, count: int) -> None:
        """Record how long the publishes that are acknowledged now have taken."""
        if began_ns:
            self._metrics.acknowledge_us.observe((perf_counter_ns() - began_ns) // 1000, count)

    def _wait_each(
        self,
        kind: AnswerKind,
        own: dict[Ticket, Acks],
        refusal: GatewayError | None,
        began_ns: int,
    ) -> None:
        """Have the answers of ``own`` wait for their tickets, and clear it."""
        for ticket, acks in own.items():
            self._wait(kind, acks, ticket, ticket, refusal, began_ns)
        own.clear()

    def _wait(
        self,
        kind: AnswerKind,
        acks: Acks,
        place: Ticket,
        ticket: Ticket,
        refusal: GatewayError | None = None,
        began_ns: int = 0,
    ) -> None:
        """Have answers to ``ticket`` wait at ``place``, which is not settled."""
        connections = self._connections_of(acks)
        if None in connections:
            # It ended in this turn. When the ticket settles, its number may belong to another.
            acks = [ack for ack, one in zip(acks, connections, strict=True) if one is not None]
            connections = self._connections_of(acks)
        counted: list[Connection] = []
        if kind is PacketType.PUBACK:
            counted = [c for c in connections if c is not None and c.version == 5]
        owed = Owed(kind, acks, connections, counted, ticket, refusal, began_ns)
        self._waiting.setdefault(place, []).append(owed)
        for connection in counted:
            connection.unacknowledged += 1
            if connection.unacknowledged > self._receive_maximum:  # [MQTT-3.3.4-9]
                code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
                self._turn.end(connection, code, "Receive Maximum exceeded")

    # --- refusals ------------------------------------------------------------------------

    def refuse(self, kind: AnswerKind, acks: Acks, error: MotelogError) -> None:
        """Refuse publishes, because the log has not taken the messages or cannot keep them."""
        for client_id, count in Counter(map(_client_id, self._connections_of(acks))).items():
            self._refusals.warning(
                client_id,
                "the log refuses publishes; their client must send them again client_id=%r "
                "reason=%s publishes=%d",
                client_id, error, count=count,
            )  # fmt: skip
        is_full = isinstance(error, StoreFullError)
        code = ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        refusal = GatewayError(str(error), reason_code=code)
        is_unknown = _is_unknown(kind, error)
        for number, packet_id in acks:
            connection = self._connections[number]
            if connection is None:
                self._metrics.publishes_refused += 1
            elif is_unknown or _may_be_stored(kind, connection, packet_id):
                # The message may be in the log, so no answer would be true. When the client
                # reconnects, it sends all unacknowledged messages again in order. Until then, what
                # it has sent after this message must not be accepted.
                self._metrics.publishes_refused += 1
                self._end(connection, code, str(error))
            else:
                self._refuse(kind, connection, packet_id, refusal)

    def _refuse(
        self, kind: AnswerKind, connection: Connection, packet_id: int, error: GatewayError
    ) -> None:
        """Refuse one publish. For MQTT 3 the only way is to end the connection."""
        session = connection.session
        if session is None:
            return  # ended meanwhile
        packet: bytes | None = None
        if kind in (PacketType.PUBACK, PacketType.PUBREC):
            self._metrics.publishes_refused += 1
            packet = refuse_publish(connection, kind, packet_id, error.reason_code, str(error))
            if packet is not None and kind is PacketType.PUBREC:
                # The exchange has ended. Without an answer the client sends the message again.
                session.particulars.received.pop(packet_id, None)
        if packet is None:
            self._end(connection, error.reason_code, str(error))
        else:
            self._output.send(connection.number, packet)

    def _end(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection because of a refusal; its client sends what was not answered again."""
        if connection.host:
            self._withdraw(connection.host)
        self._turn.end(connection, reason_code, why)

    def _connections_of(self, acks: Acks) -> list[Connection | None]:
        connections = self._connections
        return [connections[number] for number, _ in acks]

    def _send(self, kind: AnswerKind, acks: Acks) -> None:
        packet = _PACKETS[kind]
        skipped = self._output.send_numbered(packet, _NUMBER_AT, acks)
        if skipped:
            _send_anyway(self._output, packet, acks, skipped)

    # --- tickets that have waited --------------------------------------------------------

    def settled(self, settled: Settled) -> None:
        """Send the answers whose tickets have settled, in the order of the tickets."""
        ready: dict[AnswerKind, Acks] = {}
        for ticket, error in settled:
            waiting = self._waiting.pop(ticket, ())  # nothing waits for publishes at QoS 0
            if self._is_apart:
                self._leave(waiting)
            has_gone_on = False
            for owed in waiting:
                if not isinstance(owed, Owed):
                    try:
                        owed(error)
                    except NO_MEMORY:
                        self._faults.fault(_NO_ANSWER)
                    continue
                acks = self._still_open(owed)
                is_behind = has_gone_on or owed.ticket is not ticket
                if is_behind and self._is_apart and owed.kind in _IN_LINE:
                    # It may have to wait longer, and then so do later ones of its connection.
                    has_gone_on = True
                    self._send_ready(ready)
                    own, began_ns = repeat(owed.ticket), owed.began_ns
                    self.answer_apart(owed.kind, acks, own, owed.refusal, began_ns=began_ns)
                elif owed.refusal is None and owed.ticket.error is None:
                    ready.setdefault(owed.kind, []).extend(acks)
                    self._took(owed.began_ns, len(acks))
                else:
                    self._send_ready(ready)
                    self._finish(owed.kind, acks, owed.ticket, owed.refusal)
        self._send_ready(ready)

    def _leave(self, waiting: Iterable[Owed | Then]) -> None:
        """Note that the answers at a settled ticket need no longer wait there."""
        leave = self._places.pop
        for owed in waiting:
            if isinstance(owed, Owed) and owed.kind in _IN_LINE:
                for connection in owed.connections:
                    leave(connection, None)

    def _send_ready(self, ready: dict[AnswerKind, Acks]) -> None:
        for kind, acks in ready.items():
            if acks:
                self._send(kind, acks)
        ready.clear()

    def _still_open(self, owed: Owed) -> Acks:
        """Return the answers whose connection still exists."""
        for connection in owed.counted:
            connection.unacknowledged -= 1
        # Nearly always all connections still exist. Comparing lists of the same objects is fast.
        if self._connections_of(owed.acks) == owed.connections:
            return owed.acks
        return [
            ack
            for ack, connection in zip(owed.acks, owed.connections, strict=True)
            if connection is not None and self._connections[ack[0]] is connection
        ]


def _send_anyway(output: Output, packet: bytes, acks: Acks, skipped: Container[int]) -> None:
    """Send acknowledgements to connections above their output mark, which take no more messages.

    They are few, as such a connection is not read from either.
    """
    for number, packet_id in acks:
        if number in skipped:
            output.send(number, numbered(packet, _NUMBER_AT, packet_id))


def _may_be_stored(kind: AnswerKind, connection: Connection, packet_id: int) -> bool:
    """Whether the log has a refused message, or may have it from an earlier connection."""
    session = connection.session
    if session is None or not session.has_particulars:
        return False
    if kind is PacketType.PUBACK:
        return session.particulars.has_sent_again
    if kind is not PacketType.PUBREC or not session.expiry_s:
        return False
    # It was found in the log, and cannot be marked as received again.
    received = session.particulars.received
    return packet_id in received and received[packet_id] is None


def _client_id(connection: Connection | None) -> str:
    session = connection.session if connection is not None else None
    return session.client_id if session is not None else ""


def _is_unknown(kind: AnswerKind, error: MotelogError) -> bool:
    """Return whether a message may be in the log, or is there and must not come a second time."""
    is_twice = kind is PacketType.PUBREC and isinstance(error, StoredError)
    return is_twice or isinstance(error, OutcomeUnknownError)
