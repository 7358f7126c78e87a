"""LogPort on a broker in this process.

Owns: the translation of BrokerApi into LogPort: tickets on the process's one answer queue, and when
a read may wait for the disk. Must not touch: the store; that is the broker's.
Invariants: a topic exists as soon as it is created, and a queue's tail is always known. When
the log need not be synced, a ticket waits only for the next CommitLog file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from motelog.core.broker.acknowledge import AnswerQueue
from motelog.core.broker.api import BrokerApi, NotInMemoryError, Pageable, PageIns, ReadStatus
from motelog.core.errors import NoSlaveError, StoreError
from motelog.core.records.append import QueueTail
from motelog.core.topic_names import TIMER_TOPIC
from motelog.gateway.log.log_port import (
    SETTLED,
    Growth,
    LogRead,
    Moved,
    QueueHandle,
    Settled,
    Ticket,
    Waiting,
    choose_queue,
    no_listener,
)


class PagingIn:
    """A read of cold places: the missing ones, and how often places were paged in."""

    __slots__ = ("missing", "page_ins")

    def __init__(self) -> None:
        self.missing: Sequence[Pageable] = ()
        self.page_ins = PageIns()


class LocalLog:
    """The log of a broker that runs in this process and thread. Its handles are QueueTails."""

    append_apart = None
    append_ms_max = 0
    knows_tails = True

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        # Queues whose tail was requested, named as the broker names queues that readers wait for.
        self._awaited: set[tuple[bytes, int]] = set()
        # The hot calls go straight to the broker.
        self._append = api.line.append
        self._wait = api.line.wait
        self._read = api.read
        self.topics = api.topics
        self.on_topic_created = api.on_topic_created
        self.delayed = api.delayed
        self._settled_listener: Callable[[Settled], None] = no_listener
        self._answers: AnswerQueue[Ticket] = AnswerQueue(
            api.acknowledge, clock=api.clock, answer=self._answer, refuse=self._refuse
        )
        self.settle_soon = self._answers.want
        self.run = self._answers.run

    def withdraw(self, publisher: bytes) -> None:
        """Do nothing: what was appended is in the log."""

    # --- topics and queues ---------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        return self._api.topic_queue_count(topic) is not None

    def create_topic(self, topic: str, queue_count: int) -> None:
        self._api.create_topic(topic, queue_count)

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        queue_count = self._api.topic_queue_count(topic)
        assert queue_count is not None, "the topic exists"
        return self._api.queue_tail(topic, choose_queue(selector, queue_count))

    def append_queues(self, topic: str) -> Sequence[QueueHandle]:
        return self._first_queues(topic, self._api.topic_queue_count(topic) or 0)

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        return self._first_queues(topic, self._api.topic_read_queue_count(topic))

    def _first_queues(self, topic: str, count: int) -> Sequence[QueueHandle]:
        return [self._api.queue_tail(topic, queue_id) for queue_id in range(count)]

    def describe(self, queue: QueueHandle) -> str:
        return "{}/{}".format(*_place(queue))

    def find_queue(self, name: str) -> QueueHandle | None:
        topic, _, queue_id = name.rpartition("/")
        if not queue_id.isdecimal():
            return None
        is_there = topic == TIMER_TOPIC or self._api.has_queue(topic, int(queue_id))
        return self._api.queue_tail(topic, int(queue_id)) if is_there else None

    def moved_from(self, queue: QueueHandle) -> Moved | None:
        """Return None: of a topic whose number of queues changes, the order is not kept."""

    def on_topic_refused(self, listener: Callable[[str], None]) -> None:
        """Do nothing: the broker refuses a topic at once or not at all."""

    # --- append --------------------------------------------------------------------------

    def append(self, messages: list[Any]) -> Ticket:
        answers = self._answers
        try:
            end_offset = self._append(messages)
        except StoreError as exc:
            return self._failed(Ticket(), exc)
        if end_offset is None:
            return self._wait_in_line(messages)
        if answers.may_answer(end_offset):
            return SETTLED
        ticket = Ticket()
        answers.add(end_offset, ticket)
        return ticket

    def _wait_in_line(self, messages: list[Any]) -> Ticket:
        ticket = Ticket()
        self._wait(
            messages.copy(),
            appended=partial(self._appended_late, ticket),
            refused=partial(self._refused_late, ticket),
        )
        return ticket

    def _appended_late(self, ticket: Ticket, end_offset: int) -> None:
        if self._answers.may_answer(end_offset):
            self._settle([ticket], None)
        else:
            self._answers.add(end_offset, ticket)
            self._answers.want()

    def _refused_late(self, ticket: Ticket, error: StoreError) -> None:
        if self._failed(ticket, error).is_settled:
            self._settled_listener([(ticket, error)])

    def _failed(self, ticket: Ticket, error: StoreError) -> Ticket:
        """Return the ticket of a failed append: settled, or queued after those that wait."""
        ticket.error = error
        if self._answers.is_waiting:
            self._answers.add_behind(ticket)
        else:
            ticket.is_settled = True
        return ticket

    def refusal(self, queue: QueueHandle) -> None:
        """Return None: a message and its copy are one append."""

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        self._settled_listener = listener

    def fence(self, run: Callable[[], int]) -> None:
        """Do nothing: no message waits for its mark."""

    def follow(self, wake: Callable[[], None]) -> Growth:
        return self._api.follow(self._awaited, wake)

    def gather(self, topic: str, pause_s: Callable[[], float]) -> None:
        """Do nothing: growth is noted within the append."""

    def _answer(self, tickets: list[Ticket]) -> None:
        self._settle(tickets, None)

    def _refuse(self, tickets: list[Ticket], error: StoreError) -> None:
        # Without a slave the broker has them alone, and goes on (slaves_min).
        self._settle(tickets, None if isinstance(error, NoSlaveError) else error)

    def _settle(self, tickets: list[Ticket], error: StoreError | None) -> None:
        for ticket in tickets:
            ticket.is_settled = True
            # A ticket whose append failed keeps that error.
            ticket.error = ticket.error or error
        self._settled_listener([(ticket, ticket.error) for ticket in tickets])

    def close(self) -> None:
        self._answers.close()
        self._settled_listener = no_listener  # tickets that wait in line settle later

    # --- read ----------------------------------------------------------------------------

    def read(
        self,
        queue: QueueHandle,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: AbstractSet[int] | None = None,
        waited: Waiting | None = None,
    ) -> LogRead | Waiting:
        topic, queue_id = _place(queue)
        assert waited is None or isinstance(waited, PagingIn)
        try:
            found = self._read(
                topic,
                queue_id,
                queue_offset,
                count_max=count_max,
                bytes_max=bytes_max,
                tag_codes=tag_codes,
                may_wait=waited is not None and waited.page_ins.may_wait,
            )
        except NotInMemoryError as cold:
            waiting = waited or PagingIn()
            waiting.missing = cold.missing
            return waiting
        if found.status is ReadStatus.OFFSET_TOO_SMALL:
            begin_offset = next_offset = found.min_offset
        else:
            begin_offset, next_offset = queue_offset, found.next_offset
        return LogRead(found.records, begin_offset, next_offset, next_offset < found.max_offset)

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        assert isinstance(waiting, PagingIn)
        if not self._api.cold_reads.page_in(waiting.missing, then):
            return False
        waiting.page_ins.note(waiting.missing)
        return True

    def tail(self, queue: QueueHandle, then: Callable[[int], None] | None = None) -> int | None:
        topic, queue_id = _place(queue)
        self._awaited.add((topic.encode(), queue_id))
        return self._api.max_offset(topic, queue_id)

    def least_tail(self, queue: QueueHandle) -> int:
        return self._api.max_offset(*_place(queue))

    def newest_tail(self, queue: QueueHandle, then: Callable[[int], None]) -> None:
        then(self._api.max_offset(*_place(queue)))

    def offset_at(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None]
    ) -> int | None:
        return self._search(queue, time_ms, then, PageIns())

    def _search(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None], page_ins: PageIns
    ) -> int | None:
        """Search, and repeat the search each time that places it needs have been paged in."""

        def again() -> None:
            found = self._search(queue, time_ms, then, page_ins)
            if found is not None:
                then(found)

        if not time_ms:
            return self._api.min_offset(*_place(queue))
        search = partial(self._api.offset_by_time, *_place(queue), time_ms)
        try:
            return search(may_wait=page_ins.may_wait)
        except NotInMemoryError as cold:
            page_ins.note(cold.missing)
            if self._api.cold_reads.page_in(cold.missing, again):
                return None
        # Too many reads wait. The rest of the search reads only a few records, so it may wait for
        # the disk.
        return search(may_wait=True)


def _place(queue: QueueHandle) -> tuple[str, int]:
    assert isinstance(queue, QueueTail)
    return queue.topic.decode(), queue.queue_id
