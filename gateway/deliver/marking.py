"""QoS 2 messages to sessions that outlive their connection: marked in the log, then sent.

Owns: the messages that wait for their marks. Must not touch: which message a session gets
(``sender``).
Invariant: a message is sent after its packet identifier is in the log, so that it has the same one
after a crash. [MQTT-4.3.3-1]
Spec: MQTT 5.0 section 4.3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from motelog.core.errors import MotelogError
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.packing import numbered
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.inflight import read_flight
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import Mark, MarkKind
from motelog.gateway.turn import Turn


class Waiting(NamedTuple):
    """A message whose mark is on its way to the log."""

    connection: Connection
    packet: bytes
    number_at: int
    packet_id: int


class Marking:
    """Marks one gateway's QoS 2 messages before it sends them."""

    def __init__(
        self,
        turn: Turn,
        queues: WatchedQueues,
        journal: SessionJournal,
        metrics: GatewayMetrics,
        *,
        output_bytes_high: int,
        random_skip: Callable[[], int],
    ) -> None:
        """``random_skip`` returns where to continue if a client may hold packet identifiers."""
        self._turn = turn
        self._queues = queues
        self._journal = journal
        self._metrics = metrics
        self.output_bytes_high = output_bytes_high
        self._random_skip = random_skip
        #: Messages that ``send`` will send.
        self.waiting: list[Waiting] = []
        #: Connection -> bytes of ``waiting`` for it.
        self._bytes: dict[Connection, int] = {}

    def take(self, session: Session, packet: bytes, number_at: int, flight: int) -> bool:
        """Take a QoS 2 message that ``send`` will send; False if it must wait for room."""
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        waiting_bytes = self._bytes.get(connection, 0)
        if (
            waiting_bytes + connection.output.output_bytes(connection.number)
            > self.output_bytes_high
        ):
            return False
        window = session.inflight
        if not window.has_skipped:
            # A log that lost its end, as in a power cut, may lack identifiers that the client has
            # not released: the client takes a message under one of these for a repetition.
            # [MQTT-4.3.3-10] So they do not continue where they may have continued before.
            window.skip(self._random_skip())
        packet_id = window.allocate(flight)
        if not packet_id:
            return False
        place = read_flight(flight)
        name = self._queues.places[place.queue_number][1]
        self._journal.mark(
            Mark(MarkKind.SENT, session.client_id, packet_id, name, place.queue_offset)
        )
        self.waiting.append(Waiting(connection, packet, number_at, packet_id))
        self._bytes[connection] = waiting_bytes + len(packet)
        return True

    def send(self) -> None:
        """Put the marks of this slice into the log, then send the messages that they mark."""
        waiting, self.waiting = self.waiting, []
        self._bytes = {}

        def marked(error: MotelogError | None) -> None:
            if error is None:
                self._send_marked(waiting)
                return
            # They stay in flight and are sent first after the next reconnect.
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            for connection in dict.fromkeys(one.connection for one in waiting):
                self._turn.end(connection, code, f"a message cannot be marked as sent: {error}")

        self._journal.after(self._journal.commit(), marked)

    def _send_marked(self, waiting: list[Waiting]) -> None:
        for connection, packet, number_at, packet_id in waiting:
            if connection.session is not None:
                # ``take`` has promised it room.
                data = numbered(packet, number_at, packet_id)
                connection.output.send(connection.number, data)
                self._metrics.messages_delivered += 1
