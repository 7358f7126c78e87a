"""A log in memory behind the gateway's LogPort, which can be as slow as a remote one.

Owns: one list of records per queue, encoded by the real record kernel. Must not touch:
expectations.

Everything happens at once until a test says otherwise. ``settles_at_once``, ``creates_at_once``,
``knows_tails`` and ``cold`` (queue offsets that are not at hand) make parts of it wait for
``settle``, ``created``, ``tell_tails`` and ``paged_in``; ``error`` refuses the next appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import trio

from motelog.core.errors import BrokerError, MotelogError
from motelog.core.message import (
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_OUT_MS,
    decode_properties,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.records.decode import decode_brief
from motelog.core.topic_names import TIMER_TOPIC
from motelog.gateway.log.growth import NotedGrowth
from motelog.gateway.log.log_port import (
    AppendApart,
    LogRead,
    Moved,
    QueueHandle,
    Settled,
    Ticket,
    Waiting,
    choose_queue,
)

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
#: A read waits this often for the same place; then it is answered in any case.
TRIES_MAX: Final = 3


@dataclass(frozen=True)
class Address:
    """The handle for appends to a topic whose queue count is not known yet."""

    topic: str
    selector: str


@dataclass
class ColdRead:
    """What a read waits for."""

    tries: int = 0


class FakeLog:
    """LogPort without a disk."""

    append_apart: AppendApart | None = None

    def __init__(self) -> None:
        #: How many queues may be read, and how many written to where these are not as many.
        self.queue_counts: dict[str, int] = {}
        self.write_counts: dict[str, int] = {}
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.begin_offsets: dict[tuple[str, int], int] = {}
        self.error: MotelogError | None = None
        self.cold: set[int] = set()
        #: Queues to which publishers have moved; a test calls ``report`` then.
        self.moved: dict[QueueHandle, Moved] = {}
        self.paging_in: list[Callable[[], None]] = []
        self.settles_at_once = True
        self.settle_requests = 0
        self.creates_at_once = True
        self.creating: dict[str, int] = {}
        self.refused_topics: dict[str, BrokerError] = {}
        self.knows_tails = True
        self.append_ms_max = 0
        #: What ``least_tail`` returns, without ``knows_tails``.
        self.least_tails = 0
        self.now_ms = 1_000_000
        self.withdrawn: list[bytes] = []
        self.end_offset = 0
        self._tails: dict[tuple[str, int], QueueTail] = {}
        #: Taken and not yet written: behind a batch that waits for its topic, everything does.
        self._held: deque[tuple[Ticket, list[Any]]] = deque()
        self._unsettled: deque[Ticket] = deque()
        self._asked_tails: list[tuple[QueueHandle, Callable[[int], None]]] = []
        self._delivered: set[int] = set()
        self._asked_offsets: list[tuple[QueueHandle, int, Callable[[int], None]]] = []
        self._growth: list[NotedGrowth] = []
        self._created: list[Callable[[str], None]] = []
        self._refused: list[Callable[[str], None]] = []
        self._settled: list[Callable[[Settled], None]] = []

    def withdraw(self, publisher: bytes) -> None:
        self.withdrawn.append(publisher)

    # --- topics and queues ---------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        return topic in self.creating or self._write_count(topic) > 0

    def create_topic(self, topic: str, queue_count: int) -> None:
        if topic in self.refused_topics:
            raise self.refused_topics[topic]
        if not self.has_topic(topic) and topic not in self.queue_counts:
            self.creating[topic] = queue_count
            if self.creates_at_once:
                self.created(topic)

    def report(self, topic: str) -> None:
        """Tell the listeners that a topic's queues have changed."""
        for listener in self._created:
            listener(topic)

    def created(self, topic: str, error: BrokerError | None = None) -> None:
        """Have the creation of ``topic`` succeed, or fail with ``error``."""
        queue_count = self.creating.pop(topic)
        if error is None:
            self.queue_counts[topic] = queue_count
            for listener in self._created:
                listener(topic)
        else:
            self.refused_topics[topic] = error
            for listener in self._refused:
                listener(topic)
        self._write_held()
        if self.settles_at_once:
            self.settle()

    def topics(self) -> Sequence[str]:
        return list(self.queue_counts)

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        if topic in self.queue_counts:
            return self.queue_tail(topic, choose_queue(selector, self._write_count(topic)))
        assert topic in self.creating
        return Address(topic, selector)

    def moved_from(self, queue: QueueHandle) -> Moved | None:
        return self.moved.get(queue)

    def append_queues(self, topic: str) -> Sequence[QueueHandle]:
        return [self.queue_tail(topic, n) for n in range(self._write_count(topic))]

    def _write_count(self, topic: str) -> int:
        return self.write_counts.get(topic, self.queue_counts.get(topic, 0))

    def change_queues(self, topic: str, *, read: int, write: int) -> None:
        """Have a topic have so many queues to read and to write to."""
        self.queue_counts[topic], self.write_counts[topic] = read, write
        for listener in self._created:
            listener(topic)

    def delete_topic(self, topic: str) -> None:
        """Have a topic gone, and what is in its queues."""
        del self.queue_counts[topic]
        self.write_counts.pop(topic, None)
        for key in [key for key in self.records if key[0] == topic]:
            del self.records[key], self._tails[key]
        for listener in self._created:
            listener(topic)

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        return [self.queue_tail(topic, n) for n in range(self.queue_counts.get(topic, 0))]

    def queue_tail(self, topic: str, queue_id: int) -> QueueTail:
        key = (topic, queue_id)
        if key not in self._tails:
            self._tails[key] = QueueTail(topic.encode(), queue_id, 0)
            self.records[key] = []
        return self._tails[key]

    def describe(self, queue: QueueHandle) -> str:
        return "{}/{}".format(*_key(queue))

    def find_queue(self, name: str) -> QueueHandle | None:
        topic, _, queue_id = name.rpartition("/")
        is_there = queue_id.isdecimal() and (topic, int(queue_id)) in self.records
        return self.queue_tail(topic, int(queue_id)) if is_there else None

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        self._created.append(listener)

    def on_topic_refused(self, listener: Callable[[str], None]) -> None:
        self._refused.append(listener)

    # --- append --------------------------------------------------------------------------

    def append(self, messages: list[Any]) -> Ticket:
        ticket = Ticket(self.error)
        self._unsettled.append(ticket)
        if self.error is None:
            self._held.append((ticket, list(messages)))
            self._write_held()
        is_next = self._unsettled[0] is ticket and not self._held
        if is_next and (self.settles_at_once or ticket.error is not None):
            self._unsettled.popleft().is_settled = True
        return ticket

    def delayed(self, message: Any, delay_ms: int) -> Any:
        topic, queue_id = _key(message[0])
        due_ms = self.now_ms + delay_ms
        told = {REAL_TOPIC: topic, REAL_QID: str(queue_id), TIMER_OUT_MS: str(due_ms)}
        waits = self.queue_tail(TIMER_TOPIC, 0)
        return (waits, message[1], message[2] + encode_properties(told), due_ms, *message[4:])

    def deliver_due(self) -> None:
        """Write the delayed messages that are due by now to their queues."""
        waiting = self.records.get((TIMER_TOPIC, 0), [])
        for number, record in enumerate(waiting):
            body, text = decode_brief(record, b"")[0][4], decode_brief(record, b"")[0][3]
            pairs = decode_properties(text)
            if number not in self._delivered and int(pairs[TIMER_OUT_MS]) <= self.now_ms:
                self._delivered.add(number)
                tail = self.queue_tail(pairs[REAL_TOPIC], int(pairs[REAL_QID]))
                self._write([(tail, body, text, _tag_code(record), 0, HOST, 0, 0, 0, 0)])

    def refusal(self, queue: QueueHandle) -> MotelogError | None:
        return None

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        self._settled.append(listener)

    def fence(self, run: Callable[[], int]) -> None:
        pass

    def settle_soon(self) -> None:
        self.settle_requests += 1

    def settle(self, count: int = 1 << 30, error: MotelogError | None = None) -> None:
        """Settle the first tickets, those that are in the log, with ``error`` unless it is None."""
        held = {id(ticket) for ticket, _ in self._held}
        settled: list[tuple[Ticket, MotelogError | None]] = []
        while self._unsettled and len(settled) < count and id(self._unsettled[0]) not in held:
            ticket = self._unsettled.popleft()
            ticket.error = ticket.error or error
            ticket.is_settled = True
            settled.append((ticket, ticket.error))
        if settled:
            for listener in self._settled:
                listener(settled)

    def _write_held(self) -> None:
        while self._held:
            ticket, messages = self._held[0]
            addresses = [message[0] for message in messages if isinstance(message[0], Address)]
            if any(address.topic in self.creating for address in addresses):
                return
            self._held.popleft()
            refused = [a.topic for a in addresses if a.topic not in self.queue_counts]
            if refused:
                ticket.error = self.refused_topics[refused[0]]
            else:
                self._write(messages)

    def _write(self, messages: list[Any]) -> None:
        dirty: list[QueueTail] = []
        begin = self.end_offset
        for message in messages:
            handle = message[0]
            if isinstance(handle, Address):
                handle = self.queue_of(handle.topic, handle.selector)
            buffer = bytearray(70_000 + len(message[1]))
            end = encode_batch(
                buffer, 0, len(buffer), self.end_offset, [(handle, *message[1:])], 0, self.now_ms,
                HOST, dirty, None, begin,
            )[1]  # fmt: skip
            self.records[_key(handle)].append(bytes(buffer[:end]))
            self.end_offset += end
        for tail in dirty:
            tail.drop(tail.next_offset)
        for growth in self._growth:
            growth.note(dirty)

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
        key = _key(queue)
        records = self.records[key]
        waiting = waited if isinstance(waited, ColdRead) else ColdRead()
        if queue_offset in self.cold and waiting.tries < TRIES_MAX:
            return waiting
        begin = max(queue_offset, self.begin_offsets.get(key, 0))
        found: list[bytes] = []
        for record in records[begin : begin + count_max]:
            if found and sum(map(len, found)) + len(record) > bytes_max:
                break
            found.append(record)
        end = min(begin + len(found), len(records))
        if tag_codes is not None:
            found = [record for record in found if _tag_code(record) in tag_codes]
        return LogRead(b"".join(found), begin, end, end < len(records))

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        assert isinstance(waiting, ColdRead)
        waiting.tries += 1
        self.paging_in.append(then)
        return True

    def paged_in(self, *, is_warm: bool = True) -> None:
        """Tell those whose reads wait that they may read again."""
        if is_warm:
            self.cold.clear()
        waiting, self.paging_in = self.paging_in, []
        for then in waiting:
            then()

    def tail(self, queue: QueueHandle, then: Callable[[int], None] | None = None) -> int | None:
        if self.knows_tails:
            return len(self.records[_key(queue)])
        if then is not None:
            self._asked_tails.append((queue, then))
        return None

    def least_tail(self, queue: QueueHandle) -> int:
        return len(self.records[_key(queue)]) if self.knows_tails else self.least_tails

    def newest_tail(self, queue: QueueHandle, then: Callable[[int], None]) -> None:
        if self.knows_tails:
            then(len(self.records[_key(queue)]))
        else:
            self._asked_tails.append((queue, then))

    @property
    def is_asked(self) -> bool:
        """Whether something waits for ``tell_tails``."""
        return bool(self._asked_tails or self._asked_offsets)

    def tell_tails(self, *, but: QueueHandle | None = None) -> None:
        """Tell the tails that were asked for, as they are now, ``but`` not that of one queue."""
        asked, self._asked_tails = self._asked_tails, []
        for queue, then in asked:
            if queue is but:
                self._asked_tails.append((queue, then))
            else:
                then(len(self.records[_key(queue)]))
        searched, self._asked_offsets = self._asked_offsets, []
        for queue, time_ms, search in searched:
            if queue is but:
                self._asked_offsets.append((queue, time_ms, search))
            else:
                search(self._offset_at(queue, time_ms))

    def offset_at(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None]
    ) -> int | None:
        if self.knows_tails:
            return self._offset_at(queue, time_ms)
        self._asked_offsets.append((queue, time_ms, then))
        return None

    def _offset_at(self, queue: QueueHandle, time_ms: int) -> int:
        records = self.records[_key(queue)]
        begin = self.begin_offsets.get(_key(queue), 0)
        is_late = (decode_brief(record, b"")[0][6] >= time_ms for record in records[begin:])
        return next((begin + n for n, late in enumerate(is_late) if late), len(records))

    def follow(self, wake: Callable[[], None]) -> NotedGrowth:
        growth = NotedGrowth(wake)
        self._growth.append(growth)
        return growth

    def gather(self, topic: str, pause_s: Callable[[], float]) -> None:
        """Do nothing: growth is noted when a test says so."""

    # --- life ----------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def close(self) -> None:
        self._unsettled.clear()
        self._held.clear()
        self._settled.clear()

    def resume(self, key: tuple[str, int], records: Sequence[bytes]) -> None:
        """Begin with these records in a queue."""
        self._tails[key] = QueueTail(key[0].encode(), key[1], len(records))
        self.records[key] = list(records)
        self.end_offset = max(self.end_offset, sum(map(len, records)))

    def killed(self) -> None:
        """Forget what only the process knew that used the log; its records stay."""
        self.close()
        self.creating.clear()
        self.paging_in.clear()
        self._asked_tails.clear()
        self._growth.clear()
        self._created.clear()
        self._refused.clear()


def topic_of(queue: QueueHandle) -> str:
    """Return the topic of a handle for appends."""
    return queue.topic if isinstance(queue, Address) else _key(queue)[0]


def _tag_code(record: bytes) -> int:
    properties = decode_properties(decode_brief(record, b"")[0][3])
    return tags_code(properties.get(TAGS, ""))


def _key(queue: QueueHandle) -> tuple[str, int]:
    assert isinstance(queue, QueueTail)
    return queue.topic.decode(), queue.queue_id
