"""QoS 2 exchanges: which messages of a client are new, and the steps of both directions.

Owns: which messages are new, what PUBREC, PUBREL and PUBCOMP lead to. Must not touch: appends
(``commit``), sending of messages (``deliver``).
Invariants: a client's message is in the log once, however often it is sent: its packet identifier
is kept from the PUBLISH to the PUBREL [MQTT-4.3.3-10]. For a session that outlives its connection,
each step is in the log before it is answered: also one that is answered because it has been read
there, as what is read may not be on the disk yet. So that step is marked once more.
Spec: MQTT 5.0 and 3.1.1 section 4.3.3.

    PUBLISH -> mark RECEIVED, message    one append -> PUBREC
    PUBREL  -> mark FORGOTTEN                       -> PUBCOMP
    PUBREC  -> mark RELEASED                        -> PUBREL
    PUBCOMP -> mark COMPLETED

    PUBLISH that the log has    -> mark RECEIVED    -> PUBREC
    PUBREL that stands for none -> mark FORGOTTEN   -> PUBCOMP
    PUBREC that stands for none -> mark COMPLETED   -> PUBREL

A gateway that dies between the mark and the message has not answered, and neither has one whose
append has failed: the log may have the message or not. So a client that sends the message again has
it looked up in the log (``look_up``), wherever only the mark is known. Until then it is sent away,
and comes back. An append that is on its way is waited for in the same manner.
"""

from __future__ import annotations

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

#: Of clients that come back: what is looked up for them, and what has been appended after all.
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
        #: (client identifier, packet identifier) -> what its message's append waits for; None in
        #: the turn that takes the message.
        self._appending: dict[tuple[str, int], Ticket | None] = {}
        self._look_ups: dict[tuple[str, Received], LookUp] = {}
        #: What has been stored only after the connection had ended.
        self._stored_late: dict[tuple[str, Received], None] = {}

    # --- messages from clients -----------------------------------------------------------

    def take(self, connection: Connection, packet_id: int, queue: QueueHandle) -> bytes | None:
        """Return what to add to the message's property text, None if it is not to be appended.

        It is not if the log has it already: then PUBREC is sent again.
        """
        session = connection.session
        assert session is not None, "a PUBLISH comes after CONNECT"
        received = session.particulars.received
        if packet_id in received:
            known = received[packet_id]
            exchange = session.client_id, packet_id
            if exchange in self._appending:
                # Sent again before the log has told of the first.
                self._answer_with(self._appending[exchange], (connection.number, packet_id))
                return None
            is_stored = known is None or self._has_message(session.client_id, known, queue)
            if is_stored is None:
                # The client comes back and sends it again; by then the records are at hand.
                why = "the log is not at hand to look up a message that is sent again"
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
        tail = self._log_port.tail(queue) or 0
        now_ms = self._clock.now_ms()
        received[packet_id] = taken = Received(packet_id, name, tail, now_ms)
        self._turn.taken.append((session, taken))
        self._appending[session.client_id, packet_id] = None
        self._turn.marks.append(
            Mark(MarkKind.RECEIVED, session.client_id, packet_id, name, tail, now_ms)
        )
        return f"{MQTT_PACKET_ID}\x01{exchange_name(packet_id, now_ms)}\x02".encode()

    def _answer_with(self, ticket: Ticket | None, ack: tuple[int, int]) -> None:
        if ticket is None:
            self._turn.taken_again.append(ack)
        else:
            self._answers.answer(PacketType.PUBREC, [ack], ticket)

    def appended(self, ticket: Ticket) -> None:
        """Note what becomes of the messages that the turn has taken: ``ticket`` says it."""
        turn = self._turn
        taken, turn.taken = turn.taken, []
        again, turn.taken_again = turn.taken_again, []
        for session, received in taken:
            self._appending[session.client_id, received.packet_id] = ticket
        self._answers.after(ticket, partial(self._settled, taken))
        self._answers.answer(PacketType.PUBREC, again, ticket)

    def lose(self) -> None:
        """Forget what the turn has taken, as it is not appended: it is sent again."""
        turn = self._turn
        for session, received in turn.taken:
            session.particulars.received.pop(received.packet_id, None)
            self._appending.pop((session.client_id, received.packet_id), None)
        for collected in (turn.taken, turn.taken_again, turn.marks):
            collected.clear()

    def _settled(self, taken: list[tuple[Session, Received]], error: MotelogError | None) -> None:
        for session, mark in taken:
            packet_id = mark.packet_id
            self._appending.pop((session.client_id, packet_id), None)
            received = session.particulars.received
            if error is None and received.get(packet_id) is mark:
                received[packet_id] = None
                if session.connection is None:  # it was stored with the place of the mark
                    _keep(self._stored_late, (session.client_id, mark), None)

    def resumed(self, session: Session) -> None:
        """Begin to look up what the client of a stored session may send again."""
        for known in session.particulars.received.values():
            handle = None if known is None else self._log_port.find_queue(known.queue)
            if known is not None and handle is not None:
                self._look_up(handle, session.client_id, known)

    def knows(self, stored: StoredSession) -> bool:
        """Return whether it is known which messages the log has that the client may send again.

        Else that is looked up meanwhile.
        """
        return all(
            known.queue == "" or self._is_known(stored.client_id, known)
            for known in stored.received
        )

    def _is_known(self, client_id: str, known: Received) -> bool:
        handle = self._log_port.find_queue(known.queue)
        if handle is None or (client_id, known) in self._stored_late:
            return True  # without a queue it can be looked up only where the message would go now
        look_up = self._look_up(handle, client_id, known)
        if look_up.is_over and self._is_stored(look_up, known) is None:
            del self._look_ups[client_id, known]
        return look_up.is_over and (client_id, known) in self._look_ups

    def _is_stored(self, look_up: LookUp, known: Received) -> bool | None:
        # A clock that was put back does not keep the client waiting.
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
        """Return whether the log has the message of a mark.

        None if that cannot be said now: records are not at hand, or the append may still be on its
        way. ``queue`` is where the message would go now: an earlier process that created the topic
        did not know its queues.
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
        """Take PUBREC, PUBREL or PUBCOMP."""
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
            # Its PUBCOMP was lost, or it has never been here. [MQTT-4.3.3-11]
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
            why = "PUBREC refuses a message that an earlier one has taken"
            self._turn.end(connection, ReasonCode.PROTOCOL_ERROR, why)
        elif is_refused:  # the client does not take it [MQTT-4.4.0-2]
            self._end(session, packet_id)
        else:
            session.inflight.release(packet_id)
            self._step(session, MarkKind.RELEASED, PacketType.PUBREL, ack)

    def _completed(self, connection: Connection, session: Session, packet_id: int) -> None:
        flight = session.inflight.get(packet_id)
        if flight is None:
            return  # it is over already
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
        """Mark a step, and owe its answer to the end of the turn."""
        self._mark(session, mark, ack[1])
        self._turn.steps.setdefault(kind, []).append(ack)

    def _mark(self, session: Session, kind: MarkKind, packet_id: int) -> None:
        if session.expiry_s:
            self._journal.mark(Mark(kind, session.client_id, packet_id))


def _keep(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep the newest entries alone."""
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
