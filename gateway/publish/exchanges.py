"""QoS 2 exchanges: which messages of a client are new, and the steps of both directions.

Owns: the marks of a turn, the answers to PUBREC and PUBREL. Must not touch: appends of messages
(``reactor_listener``), sending of messages (``deliver``).
Invariants: a client's message is in the log once, however often it is sent: its packet identifier
is kept from the PUBLISH to the PUBREL [MQTT-4.3.3-10]. For a session that outlives its connection,
each step is in the log before it is answered.
Spec: MQTT 5.0 and 3.1.1 section 4.3.3.

    PUBLISH -> mark RECEIVED, message    one append -> PUBREC
    PUBREL  -> mark FORGOTTEN                       -> PUBCOMP
    PUBREC  -> mark RELEASED                        -> PUBREL
    PUBCOMP -> mark COMPLETED

A gateway that dies between the mark and the message has not answered, and neither has one whose
append has failed: the log may have the message or not. So a client that sends the message again has
it looked up in the log, wherever only the mark is known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.message import MQTT_CLIENT_ID, MQTT_PACKET_ID, decode_properties
from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.deliver.outgoing import TOPIC_PROPERTY
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle, Ticket
from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import Acks, Answers
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import Mark, MarkKind, Received

#: Records behind a mark among which its message is looked for: more than one append takes.
LOOK_UP_COUNT_MAX: Final = 65_536
_LOOK_UP_BYTES: Final = 1_048_576


class Exchanges:
    """The QoS 2 exchanges of one gateway."""

    def __init__(
        self,
        log: LogPort,
        output: Output,
        journal: SessionJournal,
        delivery: Delivery,
        answers: Answers,
        *,
        clock: Clock,
        receive_maximum: int,
        disconnect: Callable[[Connection, int, str], None],
    ) -> None:
        self._log_port = log
        self._clock = clock
        self._output = output
        self._journal = journal
        self._delivery = delivery
        self._answers = answers
        self._receive_maximum = receive_maximum
        self._disconnect = disconnect
        # Collected in this turn.
        self._marks: list[Mark] = []
        self._rels: Acks = []
        self._comps: Acks = []
        self._repeated: Acks = []
        self._taken: list[tuple[Session, Received]] = []
        self._taken_again: Acks = []
        #: (client identifier, packet identifier) -> what its message's append waits for; None in
        #: the turn that takes the message.
        self._appending: dict[tuple[str, int], Ticket | None] = {}

    # --- messages from clients -----------------------------------------------------------

    def take(self, connection: Connection, packet_id: int, queue: QueueHandle) -> bytes | None:
        """Return what to add to the message's property text, None if it is not to be appended.

        It is not if the log has it already: then PUBREC is sent again.
        """
        session = connection.session
        if session is None:
            return None  # ended in this turn
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
                self._disconnect(connection, ReasonCode.SERVER_BUSY, why)
                return None
            if is_stored:
                received[packet_id] = None
                self._repeated.append((connection.number, packet_id))
                return None
        elif connection.version == 5 and len(received) >= self._receive_maximum:
            code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED  # [MQTT-3.3.4-9]
            self._disconnect(connection, code, "Receive Maximum exceeded")
            return None
        if not session.expiry_s:
            received[packet_id] = None
            return b""
        name = self._log_port.describe(queue)
        tail = self._log_port.tail(queue) or 0
        now_ms = self._clock.now_ms()
        received[packet_id] = taken = Received(packet_id, name, tail, now_ms)
        self._taken.append((session, taken))
        self._appending[session.client_id, packet_id] = None
        self._marks.append(
            Mark(MarkKind.RECEIVED, session.client_id, packet_id, name, tail, now_ms)
        )
        return f"{MQTT_PACKET_ID}\x01{_exchange(packet_id, now_ms)}\x02".encode()

    def take_marks(self) -> list[tuple[Any, ...]]:
        """Return the record of this turn's marks, to be appended before their messages."""
        if not self._marks:
            return []
        marks, self._marks = self._marks, []
        return [self._journal.received_marks(marks)]

    def _answer_with(self, ticket: Ticket | None, ack: tuple[int, int]) -> None:
        if ticket is None:
            self._taken_again.append(ack)
        else:
            self._answers.answer(PacketType.PUBREC, [ack], ticket)

    def appended(self, ticket: Ticket) -> None:
        """Note what becomes of the messages that were taken in this turn: ``ticket`` tells it."""
        if not self._taken:
            return
        taken, self._taken = self._taken, []
        again, self._taken_again = self._taken_again, []
        for session, received in taken:
            self._appending[session.client_id, received.packet_id] = ticket
        self._answers.after(ticket, partial(self._settled, taken))
        self._answers.answer(PacketType.PUBREC, again, ticket)

    def _settled(self, taken: list[tuple[Session, Received]], error: MotelogError | None) -> None:
        for session, mark in taken:
            packet_id = mark.packet_id
            self._appending.pop((session.client_id, packet_id), None)
            received = session.particulars.received
            if error is None and received.get(packet_id) is mark:
                received[packet_id] = None

    def _has_message(self, client_id: str, known: Received, queue: QueueHandle) -> bool | None:
        """Return whether the log has the message of a mark that an earlier process wrote.

        None if that cannot be said now, as the records are not at hand. ``queue`` is where the
        message would go now: an earlier process that created the topic did not know its queues.
        """
        log = self._log_port
        handle = log.find_queue(known.queue) or log.find_queue(log.describe(queue))
        return None if handle is None else self._is_in(handle, client_id, known)

    def _is_in(self, handle: QueueHandle, client_id: str, known: Received) -> bool | None:
        exchange = _exchange(known.packet_id, known.taken_ms)
        at = known.queue_offset
        while at < known.queue_offset + LOOK_UP_COUNT_MAX:
            read = self._log_port.read(handle, at, count_max=2048, bytes_max=_LOOK_UP_BYTES)
            if not isinstance(read, LogRead):
                self._log_port.when_at_hand(read, _go_on)
                return None
            for record in decode_brief(read.records, TOPIC_PROPERTY):
                properties = decode_properties(record[3])
                if (
                    properties.get(MQTT_PACKET_ID) == exchange
                    and properties.get(MQTT_CLIENT_ID) == client_id
                ):
                    return True
            if not read.is_more:
                return False
            at = read.next_offset
        return False

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
            flight = session.inflight.get(packet_id)
            if flight is not None and flight < 0:
                self._end(session, packet_id)

    def _released(self, connection: Connection, session: Session, packet_id: int) -> None:
        received = session.particulars.received
        if packet_id in received:
            del received[packet_id]
            self._mark(session, MarkKind.FORGOTTEN, packet_id)
            self._comps.append((connection.number, packet_id))
        else:
            # Its PUBCOMP was lost, or it has never been here. [MQTT-4.3.3-11]
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if connection.version == 5 else 0
            packet = encode_ack(PacketType.PUBCOMP, connection.version, packet_id, code)
            self._output.send(connection.number, packet)

    def _received(
        self, connection: Connection, session: Session, packet_id: int, reason_code: int
    ) -> None:
        flight = session.inflight.get(packet_id)
        if flight is None:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if connection.version == 5 else 0
            packet = encode_ack(PacketType.PUBREL, connection.version, packet_id, code)
            self._output.send(connection.number, packet)
        elif flight >= 0 and flight & 3 != 2:
            why = "PUBREC for a message with QoS 1"
            self._disconnect(connection, ReasonCode.PROTOCOL_ERROR, why)
        elif reason_code >= 0x80:  # the client does not take it [MQTT-4.4.0-2]
            self._end(session, packet_id)
        else:
            session.inflight.release(packet_id)
            self._mark(session, MarkKind.RELEASED, packet_id)
            self._rels.append((connection.number, packet_id))

    def _end(self, session: Session, packet_id: int) -> None:
        session.inflight.ack(packet_id)
        self._mark(session, MarkKind.COMPLETED, packet_id)
        self._delivery.acknowledged(session)

    def _mark(self, session: Session, kind: MarkKind, packet_id: int) -> None:
        if session.expiry_s:
            self._journal.mark(Mark(kind, session.client_id, packet_id))

    def commit(self) -> None:
        """Append this turn's marks; the answers leave when their ticket has settled."""
        if self._repeated:
            repeated, self._repeated = self._repeated, []
            self._answers.answer_behind(PacketType.PUBREC, repeated)
        if self._rels or self._comps:
            rels, self._rels = self._rels, []
            comps, self._comps = self._comps, []
            ticket = self._journal.commit()
            self._answers.answer(PacketType.PUBREL, rels, ticket)
            self._answers.answer(PacketType.PUBCOMP, comps, ticket)


def _exchange(packet_id: int, taken_ms: int) -> str:
    """Return what names a QoS 2 exchange of one client: identifiers are used again."""
    return f"{packet_id}@{taken_ms}"


def _go_on() -> None:
    """Nobody waits: the client sends its message again."""
