"""QoS 2 exchanges: which messages of a client are new, and the steps of both directions.

Owns: which messages are new, what PUBREC, PUBREL and PUBCOMP lead to. Must not touch: appends
(``commit``), sending of messages (``deliver``).
Invariants: a client's message is in the log once, however often it is sent: its packet identifier
is kept from PUBLISH to PUBREL [MQTT-4.3.3-10]. For a session that outlives its connection, each
step is in the log before it is answered. This also holds for a step that was found in the log: what
is read may not be on the disk yet, so the step is marked again.
Spec: MQTT 5.0 and 3.1.1 section 4.3.3.

    PUBLISH -> mark RECEIVED, message    one append -> PUBREC
    PUBREL  -> mark FORGOTTEN                       -> PUBCOMP
    PUBREC  -> mark RELEASED                        -> PUBREL
    PUBCOMP -> mark COMPLETED

    PUBLISH that the log has    -> mark RECEIVED    -> PUBREC
    PUBREL of unknown exchange  -> mark FORGOTTEN   -> PUBCOMP
    PUBREC of unknown exchange  -> mark COMPLETED   -> PUBREL

A gateway that dies between the mark and the message has not answered, nor has a gateway whose
append has failed. In both cases the log may or may not have the message. So if only the mark is
known when the client sends the message again, the message is looked up in the log (``look_up``).
Until the result is known, the client is disconnected and tries again. The same is done while an
append may still be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, TypeVar

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.message import MQTT_PACKET_ID
from motelog.gateway.log.log_port import LogPort, QueueHandle, Ticket
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.look_up import LookUp, exchange_name
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import Mark, MarkKind, Received, StoredSession
from motelog.gateway.turn import AnswerKind, NotFound, Turn

_K = TypeVar("_K")
_V = TypeVar("_V")

#: How many look-ups for returning clients are kept, and how many messages that were stored late.
KEPT_MAX: Final = 10_000


class Exchanges:
    """The QoS 2 exchanges of one gateway."""

    def __init__(
        self,
        turn: Turn,
        log: LogPort,
        journal: SessionJournal,
        answers: Answers,
        *,
        clock: Clock,
        receive_maximum: int,
    ) -> None:
        self._turn = turn
        self._log_port = log
        self._clock = clock
        self._journal = journal
        self._answers = answers
        self._receive_maximum = receive_maximum
        #: (client identifier, packet identifier) -> the ticket of its message; None in the turn
        #: that takes the message.
        self._appending: dict[tuple[str, int], Ticket | None] = {}
        self._look_ups: dict[tuple[str, Received], LookUp] = {}
        #: Messages whose tickets settled only after the connection had ended.
        self._stored_late: dict[tuple[str, Received], None] = {}

    # --- messages from clients -----------------------------------------------------------

    def take(self, connection: Connection, packet_id: int, queue: QueueHandle) -> bytes | None:
        """Return what to add to the message's property text, None if it must not be appended.

        It must not be appended if the log already has it; then PUBREC is sent again.
        """
        session = connection.session
        assert session is not None, "a PUBLISH comes after CONNECT"
        received = session.particulars.received
        if packet_id in received:
            known = received[packet_id]
            exchange = session.client_id, packet_id
            if exchange in self._appending:
                # Sent again before the ticket of the first has settled.
                ack, ticket = (connection.number, packet_id), self._appending[exchange]
                if ticket is None:
                    self._turn.taken_again.append((exchange, ack))
                else:
                    self._answers.answer(PacketType.PUBREC, [ack], ticket)
                return None
            is_stored = known is None or self._has_message(session.client_id, known, queue)
            if is_stored is None:
                # The client reconnects and sends it again; by then the records are in memory.
                why = "the log cannot be read now to look up a message that is sent again"
                self._turn.end(connection, ReasonCode.SERVER_BUSY, why)
                return None
            if is_stored:
                received[packet_id] = None
                ack = connection.number, packet_id
                if session.expiry_s:
                    self._step(session, MarkKind.RECEIVED, PacketType.PUBREC, ack)
                else:
                    self._turn.repeated.append(ack)
                return None
        elif connection.version == 5 and len(received) >= self._receive_maximum:
            code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED  # [MQTT-3.3.4-9]
            self._turn.end(connection, code, "Receive Maximum exceeded")
            return None
        if not session.expiry_s:
            received[packet_id] = None
            return b""
        name = self._log_port.describe(queue)
        tail = self._log_port.least_tail(queue)
        now_ms = self._clock.now_ms()
        received[packet_id] = taken = Received(packet_id, name, tail, now_ms)
        self._turn.taken.append((session, taken))
        self._turn.marked.append(len(self._turn.messages))
        self._appending[session.client_id, packet_id] = None
        self._turn.marks.append(
            Mark(MarkKind.RECEIVED, session.client_id, packet_id, name, tail, now_ms)
        )
        return f"{MQTT_PACKET_ID}\x01{exchange_name(packet_id, now_ms)}\x02".encode()

    def appended(self, tickets: Iterable[Ticket]) -> None:
        """Note the ticket of each message that the turn has taken."""
        turn = self._turn
        taken, turn.taken = turn.taken, []
        again, turn.taken_again = turn.taken_again, []
        by_ticket: dict[Ticket, list[tuple[Session, Received]]] = {}
        for one, ticket in zip(taken, tickets, strict=False):
            session, received = one
            self._appending[session.client_id, received.packet_id] = ticket
            by_ticket.setdefault(ticket, []).append(one)
        for exchange, ack in again:
            settled_later = self._appending[exchange]
            assert settled_later is not None, "it was just appended"
            self._answers.answer(PacketType.PUBREC, [ack], settled_later)
        for ticket, some in by_ticket.items():
            self._answers.after(ticket, partial(self._settled, some))

    def lose(self) -> None:
        """Forget the messages that the turn has taken: they are not appended, but sent again."""
        turn = self._turn
        for session, received in turn.taken:
            session.particulars.received.pop(received.packet_id, None)
            self._appending.pop((session.client_id, received.packet_id), None)
        for collected in (turn.taken, turn.taken_again, turn.marks, turn.marked):
            collected.clear()

    def _settled(self, taken: list[tuple[Session, Received]], error: MotelogError | None) -> None:
        for session, mark in taken:
            packet_id = mark.packet_id
            self._appending.pop((session.client_id, packet_id), None)
            received = session.particulars.received
            if error is None and received.get(packet_id) is mark:
                received[packet_id] = None
                if session.connection is None:  # the stored session still has the mark's place
                    _keep(self._stored_late, (session.client_id, mark), None)

    def resumed(self, session: Session) -> None:
        """Start to look up the messages that the client of a resumed session may send again."""
        for known in session.particulars.received.values():
            handle = None if known is None else self._log_port.find_queue(known.queue)
            if known is not None and handle is not None:
                self._look_up(handle, session.client_id, known)

    def knows(self, stored: StoredSession) -> bool:
        """Return whether it is known which of the messages that may be sent again the log has.

        If it is not known, a look-up is started or in progress.
        """
        return all(
            known.queue == "" or self._is_known(stored.client_id, known)
            for known in stored.received
        )

    def _is_known(self, client_id: str, known: Received) -> bool:
        handle = self._log_port.find_queue(known.queue)
        if handle is None or (client_id, known) in self._stored_late:
            return True  # without this queue, the look-up needs the queue of the message sent again
        look_up = self._look_up(handle, client_id, known)
        if look_up.is_over and self._is_stored(look_up, known) is None:
            del self._look_ups[client_id, known]
        return look_up.is_over and (client_id, known) in self._look_ups

    def _is_stored(self, look_up: LookUp, known: Received) -> bool | None:
        # If the clock was set back, the client does not have to wait.
        is_young = 0 <= look_up.begun_ms - known.taken_ms < self._log_port.append_ms_max
        return None if look_up.is_stored is False and is_young else look_up.is_stored

    def _look_up(self, handle: QueueHandle, client_id: str, known: Received) -> LookUp:
        key = client_id, known
        look_up = self._look_ups.get(key)
        if look_up is None:
            now_ms = self._clock.now_ms()
            look_up = LookUp(self._log_port, handle, client_id, known, begun_ms=now_ms)
            _keep(self._look_ups, key, look_up)
        return look_up

    def _has_message(self, client_id: str, known: Received, queue: QueueHandle) -> bool | None:
        """Return whether the log has the message of a mark, None if this is not known now.

        It is not known if records are not in memory, or if the append may still be on its way.
        ``queue`` is where the message would go now: an earlier process that created the topic may
        not have known its queues.
        """
        log = self._log_port
        key = client_id, known
        if key in self._stored_late:
            return True
        handle = log.find_queue(known.queue) or log.find_queue(log.describe(queue))
        if handle is None:
            return None
        look_up = self._look_up(handle, client_id, known)
        if look_up.is_over:
            del self._look_ups[key]
        return self._is_stored(look_up, known)

    # --- acknowledgements of both directions ---------------------------------------------

    def go_on(
        self, connection: Connection, packet_type: int, packet_id: int, reason_code: int
    ) -> None:
        """Handle PUBREC, PUBREL or PUBCOMP."""
        session = connection.session
        assert session is not None, "the caller has looked"
        if packet_type == PacketType.PUBREL:
            self._released(connection, session, packet_id)
        elif packet_type == PacketType.PUBREC:
            self._received(connection, session, packet_id, reason_code)
        else:
            self._completed(connection, session, packet_id)

    def _released(self, connection: Connection, session: Session, packet_id: int) -> None:
        received = session.particulars.received
        if packet_id in received:
            del received[packet_id]
            kind: AnswerKind = PacketType.PUBCOMP
        else:
            # Its PUBCOMP was lost, or the exchange has never existed. [MQTT-4.3.3-11]
            kind = NotFound.PUBCOMP if connection.version == 5 else PacketType.PUBCOMP
        self._step(session, MarkKind.FORGOTTEN, kind, (connection.number, packet_id))

    def _received(
        self, connection: Connection, session: Session, packet_id: int, reason_code: int
    ) -> None:
        flight = session.inflight.get(packet_id)
        ack = connection.number, packet_id
        is_refused = reason_code >= 0x80
        if flight is None:
            if not is_refused:  # else the exchange has ended, and no PUBREL is due
                kind = NotFound.PUBREL if connection.version == 5 else PacketType.PUBREL
                self._step(session, MarkKind.COMPLETED, kind, ack)
        elif flight >= 0 and flight & 3 != 2:
            why = "PUBREC for a message with QoS 1"
            self._turn.end(connection, ReasonCode.PROTOCOL_ERROR, why)
        elif is_refused and flight < 0:
            why = "PUBREC refuses a message that an earlier PUBREC has accepted"
            self._turn.end(connection, ReasonCode.PROTOCOL_ERROR, why)
        elif is_refused:  # the client does not accept the message [MQTT-4.4.0-2]
            self._end(session, packet_id)
        else:
            session.inflight.release(packet_id)
            self._step(session, MarkKind.RELEASED, PacketType.PUBREL, ack)

    def _completed(self, connection: Connection, session: Session, packet_id: int) -> None:
        flight = session.inflight.get(packet_id)
        if flight is None:
            return  # the exchange has already ended
        if flight < 0:
            self._end(session, packet_id)
        else:
            due = "PUBREC" if flight & 3 == 2 else "PUBACK"
            why = f"PUBCOMP for a message whose {due} has not come"
            self._turn.end(connection, ReasonCode.PROTOCOL_ERROR, why)

    def _end(self, session: Session, packet_id: int) -> None:
        session.inflight.ack(packet_id)
        self._mark(session, MarkKind.COMPLETED, packet_id)
        self._turn.have_room[session] = None

    def _step(
        self, session: Session, mark: MarkKind, kind: AnswerKind, ack: tuple[int, int]
    ) -> None:
        """Mark a step; it is answered after the turn's append."""
        self._mark(session, mark, ack[1])
        self._turn.steps.setdefault(kind, []).append(ack)

    def _mark(self, session: Session, kind: MarkKind, packet_id: int) -> None:
        if session.expiry_s:
            self._journal.mark(Mark(kind, session.client_id, packet_id))


def _keep(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Add an entry, and drop the oldest one if there are more than KEPT_MAX."""
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
