"""One slice of records to the members of a group: each record to one of them.

Owns: which member gets a message, the packets of a slice for each member.
Must not touch: cursors (``shares``), who is a member (``sharing``).
Invariants: the member with the most room in its window gets a message; equals take turns. Nothing
is sent beyond a window or an output's mark. All messages of a slice for one member are sent
together, because a call for each message would cost more than the message.
Spec: MQTT 5.0 section 4.8.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from motelog.gateway.deliver.batch import Batch
from motelog.gateway.deliver.outgoing import (
    BriefRecord,
    OutgoingMessage,
    body_and_block,
    identifier_property,
    message_qos,
)
from motelog.gateway.deliver.sender import Outcome, Sender
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.groups import Group, Member
from motelog.gateway.sessions.inflight import flight_of
from motelog.gateway.sessions.subscriptions import QOS_MASK, RETAIN_AS_PUBLISHED
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import Mark, MarkKind

#: A record that the group's filter matches, with its topic name.
Matched: TypeAlias = tuple[bytes, BriefRecord]

#: Client identifier -> (group, queue number, queue offset) -> packet identifier, for messages that
#: were given back.
Had: TypeAlias = Mapping[str, Mapping[tuple[str, int, int], int]]
_NONE_HAD: Final[Had] = {}

#: Used in the marks of a group, which has no packet identifiers.
_NO_PACKET_ID: Final = 0


class Handing:
    """Hands out the messages of one gateway's groups."""

    def __init__(
        self,
        queues: WatchedQueues,
        sender: Sender,
        journal: SessionJournal,
        metrics: GatewayMetrics,
    ) -> None:
        self.queues = queues
        self.sender = sender
        self.journal = journal
        self.metrics = metrics

    def room(self, group: Group) -> int:
        """Return how many messages a sample of members can take; 0 if no member can take any."""
        for sample in group.samples():
            room = sum(
                member.session.inflight.room
                for member in sample
                if self.output_bytes(member) <= self.sender.output_bytes_high
            )
            if room:
                return room
        return 0

    def output_bytes(self, member: Member) -> int:
        """Return how many bytes wait to be sent to a member; above the mark if it takes nothing."""
        session = member.session
        connection = session.connection
        assert connection is not None, "only members that are connected are served"
        if session.has_particulars and session.particulars.resend:
            # Messages that were in flight before its reconnect come first.
            return self.sender.output_bytes_high + 1
        return connection.output.output_bytes(connection.number)

    def hand_out(
        self,
        group: Group,
        queue_number: int,
        records: Sequence[Matched],
        now_ms: int,
        had: Had = _NONE_HAD,
    ) -> int | None:
        """Hand each record to one member; return the offset of the first that must wait.

        ``had`` has the packet identifiers under which members received some of them before.
        """
        if not records:
            return None
        part = group.recorded_by(self.queues.parts[queue_number])
        if part is not None and part.is_stored:
            self.sender.note_change(part)
        slice_ = _Slice(self, group, queue_number, now_ms, had)
        waits: int | None = None
        for name, record in records:
            if not slice_.hand_out(name, record):
                waits = record[0]
                break
        slice_.send()
        return waits


class _Batch(Batch):
    """The messages of a slice for one member."""

    __slots__ = ("member", "qos")

    def __init__(self, member: Member, waiting_bytes: int, bytes_high: int) -> None:
        super().__init__(member.session, waiting_bytes, bytes_high)
        self.member = member
        self.qos = member.options & QOS_MASK
        if member.identifier or member.options & RETAIN_AS_PUBLISHED:
            self.plain_qos = -1


class _Slice:
    """Records of one queue, on their way to the members of one group."""

    __slots__ = (
        "_batches",
        "_group",
        "_had",
        "_handing",
        "_has_spare",
        "_last",
        "_now_ms",
        "_queue_number",
        "_takers",
    )

    def __init__(
        self, handing: Handing, group: Group, queue_number: int, now_ms: int, had: Had
    ) -> None:
        self._had = had
        self._handing = handing
        self._group = group
        self._queue_number = queue_number
        self._now_ms = now_ms
        self._batches: dict[Member, _Batch] = {}
        self._last: Member | None = None
        self._takers = self._in_turn()
        #: Whether some member without room in its window may take QoS 0 messages.
        self._has_spare = True

    def hand_out(self, name: bytes, record: BriefRecord) -> bool:
        """Give a record to one member, or drop it by a rule; return False if it must wait."""
        metrics = self._handing.metrics
        body, block = body_and_block(record, self._now_ms, metrics.count_left_out)
        if body is None:
            metrics.messages_undeliverable += 1
            return True
        if block is None:
            metrics.messages_expired += 1
            return True
        qos = message_qos(record[3])
        for batch in self._takers:
            sent_qos = qos if qos < batch.qos else batch.qos
            if sent_qos <= batch.plain_qos:
                if self._add(batch, name, body, block, sent_qos, record[0]):
                    return True
            else:
                outcome = self._offer(batch, name, record, sent_qos)
                if outcome is Outcome.SENT:
                    return True
                if outcome is Outcome.TOO_LARGE:
                    outcome = self._give_any(name, body, block, qos, record)
                    metrics.messages_dropped_too_large += outcome is Outcome.TOO_LARGE
                    return outcome is not Outcome.NO_ROOM
            batch.is_full = True
        if qos:
            return False
        if self._has_spare:
            self._has_spare = self._give_any(name, body, block, 0, record) is Outcome.SENT
        metrics.messages_dropped_qos0 += not self._has_spare
        return True

    def send(self) -> None:
        """Send the members their messages."""
        if self._last is not None:
            self._group.took(self._last)
        for batch in self._batches.values():
            self._handing.metrics.messages_delivered += batch.send()

    # --- which member gets a message -----------------------------------------------------

    def _in_turn(self) -> Iterator[_Batch]:
        """Yield the batch that gets the next message, until no member has room."""
        has_room = True
        while has_room:
            has_room = False
            for sample in self._group.samples():
                batches = [self._batch(member) for member in sample]
                by_room = [(batch.window.room, batch) for batch in batches if not batch.is_full]
                by_room.sort(key=itemgetter(0), reverse=True)
                # Those with the most room take one each; then those with one less join them.
                equals: list[_Batch] = []
                begin = 0
                level = by_room[0][0] if by_room else 0
                while level > 0:
                    while begin < len(by_room) and by_room[begin][0] >= level:
                        equals.append(by_room[begin][1])
                        begin += 1
                    for batch in equals:
                        if not batch.is_full:
                            has_room = True
                            yield batch
                    equals = [batch for batch in equals if not batch.is_full]
                    if not equals:
                        level = by_room[begin][0] if begin < len(by_room) else 0
                    else:
                        level -= 1

    def _batch(self, member: Member) -> _Batch:
        batch = self._batches.get(member)
        if batch is None:
            waiting_bytes = self._handing.output_bytes(member)
            batch = _Batch(member, waiting_bytes, self._handing.sender.output_bytes_high)
            self._batches[member] = batch
        return batch

    # --- one message to one member -------------------------------------------------------

    def _give_any(
        self, name: bytes, body: bytes, block: bytes | None, qos: int, record: BriefRecord
    ) -> Outcome:
        """Give a message to any member; if none takes it, return whether one might later."""
        refusal = Outcome.TOO_LARGE
        for sample in self._group.samples():
            for member in sample:
                batch = self._batch(member)
                outcome = Outcome.NO_ROOM
                if not batch.is_full:
                    sent_qos = min(qos, batch.qos)
                    if sent_qos > batch.plain_qos:
                        outcome = self._offer(batch, name, record, sent_qos)
                    elif self._add(batch, name, body, block, sent_qos, record[0]):
                        outcome = Outcome.SENT
                if outcome is Outcome.SENT:
                    return outcome
                if outcome is Outcome.NO_ROOM:
                    refusal = outcome
        return refusal

    def _add(
        self,
        batch: _Batch,
        name: bytes,
        body: bytes,
        block: bytes | None,
        qos: int,
        queue_offset: int,
    ) -> bool:
        """Add a packet to the member's part of this slice; return False if there is no room."""
        flight = flight_of(self._queue_number, queue_offset, qos, self._group.number) if qos else 0
        again = self._packet_id_before(batch, qos, queue_offset)
        if not batch.add(name, body, block, qos, flight, again=again):
            return False
        self._last = batch.member
        if qos == 2:
            self._mark(queue_offset)
        return True

    def _packet_id_before(self, batch: _Batch, qos: int, queue_offset: int) -> int:
        """Return the packet identifier under which a member received a message before, or 0."""
        if qos != 1 or not self._had:
            return 0
        had = self._had.get(batch.member.session.client_id, {})
        return had.get((self._group.name, self._queue_number, queue_offset), 0)

    def _offer(self, batch: _Batch, name: bytes, record: BriefRecord, qos: int) -> Outcome:
        """Send a message whose packet is specific to the member, or that must be marked first."""
        identifier = batch.member.identifier
        outcome = self._handing.sender.offer(
            batch.member.session,
            batch.member.options,
            OutgoingMessage(record, name, self._now_ms),
            self._queue_number,
            record[0],
            identifiers=identifier_property(identifier) if identifier else b"",
            group_number=self._group.number,
            again=self._packet_id_before(batch, qos, record[0]),
        )
        if outcome is Outcome.SENT:
            self._last = batch.member
            if qos == 2:
                self._mark(record[0])
        return outcome

    def _mark(self, queue_offset: int) -> None:
        """Mark that the group has handed out a QoS 2 message, without waiting for the next tick.

        After a crash another member must not get it. [MQTT-4.8.2-5]
        """
        handing = self._handing
        part = self._group.recorded_by(handing.queues.parts[self._queue_number])
        if part is None or not part.is_stored:
            return
        name = part.client_id
        queue_name = handing.queues.places[self._queue_number][1]
        sent = Mark(MarkKind.SENT, name, _NO_PACKET_ID, queue_name, queue_offset)
        handing.journal.mark(sent)
        handing.journal.mark(Mark(MarkKind.COMPLETED, name, _NO_PACKET_ID))
