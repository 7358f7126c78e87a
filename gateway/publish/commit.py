"""The middle of a turn: one append for what was published, then what waits for its ticket.

Owns: the order of a batch. Must not touch: what is published (``publishing``), when a ticket
settles (the log's port), what a session's record says (``state``).
Invariants: an answer leaves only when its ticket has settled. A mark lies before its message in the
same append, and so does the copy of a message that is retained: whoever subscribes meanwhile gets
it live, or retained, or both ways, and never neither.
Spec: MQTT 5.0 sections 3.3.1.3, 4.3 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.errors import GatewayError
from motelog.gateway.log.log_port import LogPort, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import PINGRESP
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.turn import Turn

#: The ticket of what is not appended, as there is no memory for it.
LOST: Final = Ticket(GatewayError("there is no memory for it"), is_settled=True)


class Commit:
    """Appends what one gateway's turn has collected, and answers it."""

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
        """Append what has been collected so far; a turn may do so more than once."""
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
        else:  # the others have answers to be refused by
            metrics.publishes_refused += count - len(turn.acks) - len(turn.recs)
        # The lists are emptied in place: the hot loop keeps using them across a commit.
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
        """Forget what has been collected: it is not appended, and its clients send it again."""
        turn = self._turn
        self._exchanges.lose()
        for written in turn.retained:
            written.ticket = LOST
        turn.retained.clear()
        for collected in (turn.messages, turn.acks, turn.recs, turn.pings):
            collected.clear()
