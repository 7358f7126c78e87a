"""The middle of a turn: one append for the publishes, then the answers that wait for its ticket.

Owns: the order of a batch. Must not touch: what is published (``publishing``), when a ticket
settles (the log's port), what a session's record says (``state``).
Invariants: an answer to a publish or to a step of QoS 2 leaves only when its ticket has settled.
The mark of a message is in the log before the message, and so is the copy of a retained message: a
client that subscribes meanwhile gets the message live, or as a retained message, or both, but never
misses it. In a log of one broker they are one append, in this order. In a log of several brokers
each message is sent when its own mark and copy are stored, and has a fate of its own.
Spec: MQTT 5.0 sections 3.3.1.3, 4.3 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

from itertools import repeat

from motelog.gateway.log.log_port import LACKING, AppendApart, LogPort, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import PINGRESP
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.routes import qos_of
from motelog.gateway.sessions.output import Output
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
        self._append_apart = log.append_apart
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

    def refuse(self, kind: PacketType, ack: tuple[int, int], refusal: GatewayError) -> None:
        """Refuse one publish, after the answers to those before it. [MQTT-4.6.0-2]"""
        self.run()
        self._answers.answer_behind(kind, [ack], refusal)

    def _append(self, turn: Turn) -> None:
        messages, metrics = turn.messages, self._metrics
        count = len(messages)
        metrics.publishes_received += count
        if self._append_apart is not None:
            self._append_to_brokers(turn, self._append_apart)
            return
        if turn.marks:
            marks, turn.marks = turn.marks, []
            turn.marked.clear()
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
            turn.copied.clear()
        if turn.taken:
            self._exchanges.appended(repeat(ticket))
        if turn.acks:
            acks = turn.acks.copy()
            turn.acks.clear()
            self._answers.answer(PacketType.PUBACK, acks, ticket, turn.began_ns)
        if turn.recs:
            recs = turn.recs.copy()
            turn.recs.clear()
            self._answers.answer(PacketType.PUBREC, recs, ticket, turn.began_ns)

    def _append_to_brokers(self, turn: Turn, append_apart: AppendApart) -> None:
        """Append to a log of several brokers: what one of them refuses, the others may store."""
        messages, append = turn.messages, self._log_port.append
        behind: dict[int, tuple[Ticket, ...]] = {}
        if turn.marks:
            marks = append([self._journal.received_marks(turn.marks)])
            behind = dict.fromkeys(turn.marked, (marks,))
        for place, written in zip(turn.copied, turn.retained, strict=True):
            written.ticket = append([written.record])
            behind[place] = (*behind.get(place, ()), written.ticket)
        tickets = append_apart(messages, behind)
        self._metrics.messages_appended += len(messages)
        if any(ticket.error is not None for ticket in set(tickets)):
            refused = [m for m, t in zip(messages, tickets, strict=True) if t.error is not None]
            self._metrics.messages_appended -= len(refused)
            self._metrics.publishes_refused += sum(not qos_of(message) for message in refused)
        if turn.taken:
            self._exchanges.appended(tickets[place] for place in turn.marked)
        for qos, kind, acks in (
            (1, PacketType.PUBACK, turn.acks),
            (2, PacketType.PUBREC, turn.recs),
        ):
            own = tickets
            if acks and len(acks) < len(messages):
                own = [t for m, t in zip(messages, tickets, strict=True) if qos_of(m) == qos]
            self._answers.answer_apart(kind, acks, own, began_ns=turn.began_ns)
        for collected in (messages, turn.marks, turn.marked, turn.retained, turn.copied):
            collected.clear()
        turn.acks.clear()
        turn.recs.clear()

    def lose(self) -> None:
        """Drop what was collected: it is not appended, and the clients send it again."""
        turn = self._turn
        self._exchanges.lose()
        for written in turn.retained:
            written.ticket = LACKING
        turn.retained.clear()
        for collected in (turn.messages, turn.copied, turn.acks, turn.recs, turn.pings):
            collected.clear()
