"""The middle of a turn: one append for the publishes, then the answers that wait for its ticket.

Owns: the order of a batch. Must not touch: what is published (``publishing``), when a ticket
settles (the log's port), what a session's record says (``state``).
Invariants: an answer to a publish or to a step of QoS 2 leaves only when its ticket has settled. In
an append, the mark of a message comes before the message, and so does the copy of a retained
message: a client that subscribes meanwhile gets the message live, or as a retained message, or
both, but never misses it.
Spec: MQTT 5.0 sections 3.3.1.3, 4.3 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

from motelog.gateway.log.log_port import LACKING, LogPort
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import PINGRESP
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.turn import Turn


class Commit:
    """Appends what the turn of one gateway has collected, and answers it."""

    def __init__(
        self,
        turn: Turn,
        log: LogPort,
        journal: SessionJournal,
        exchanges: Exchanges,
        answers: Answers,
        output: Output,
        metrics: GatewayMetrics,
    ) -> None:
        self._turn = turn
        self._log_port = log
        self._journal = journal
        self._exchanges = exchanges
        self._answers = answers
        self._output = output
        self._metrics = metrics

    def run(self) -> None:
        """Append what the turn has collected so far; this may happen several times in a turn."""
        turn = self._turn
        if turn.messages:
            self._append(turn)
        if turn.repeated:
            repeated, turn.repeated = turn.repeated, []
            self._answers.answer_behind(PacketType.PUBREC, repeated)
        if turn.steps:
            steps, turn.steps = turn.steps, {}
            ticket = self._journal.commit()
            for kind, acks in steps.items():
                self._answers.answer(kind, acks, ticket)
        if turn.pings:
            # After the append: a PINGRESP also says that the log has taken earlier publishes.
            for number in turn.pings:
                self._output.send(number, PINGRESP)
            turn.pings.clear()

    def _append(self, turn: Turn) -> None:
        messages, metrics = turn.messages, self._metrics
        count = len(messages)
        metrics.publishes_received += count
        if turn.marks:
            marks, turn.marks = turn.marks, []
            messages[:0] = [self._journal.received_marks(marks)]
        if turn.retained:
            messages[:0] = [written.record for written in turn.retained]
        ticket = self._log_port.append(messages)
        if ticket.error is None:
            metrics.messages_appended += count
        else:  # QoS 0 only: the others are counted when their answers refuse them
            metrics.publishes_refused += count - len(turn.acks) - len(turn.recs)
        # The lists are cleared in place: the hot loop keeps using them across a commit.
        messages.clear()
        if turn.retained:
            for written in turn.retained:
                written.ticket = ticket
            turn.retained.clear()
        if turn.taken:
            self._exchanges.appended(ticket)
        if turn.acks:
            acks = turn.acks.copy()
            turn.acks.clear()
            self._answers.answer(PacketType.PUBACK, acks, ticket, turn.began_ns)
        if turn.recs:
            recs = turn.recs.copy()
            turn.recs.clear()
            self._answers.answer(PacketType.PUBREC, recs, ticket, turn.began_ns)

    def lose(self) -> None:
        """Drop what was collected: it is not appended, and the clients send it again."""
        turn = self._turn
        self._exchanges.lose()
        for written in turn.retained:
            written.ticket = LACKING
        turn.retained.clear()
        for collected in (turn.messages, turn.acks, turn.recs, turn.pings):
            collected.clear()
