"""Pops: messages of any queue of a topic, taken into work for a time; now, or when there are some.

Owns: request codes 200050 (pop), 200052 (peek), 200054 (is there anything), 200055 (how many wait),
holding them, their answers. Must not touch: messages in work and their next delivery
(core.broker.pop), acknowledgements (pop_ack), what a pop may ask for (pop_request), what its queues
have (pop_reads).
Spec: RocketMQ PopMessageProcessor, PopLongPollingService, NotificationProcessor.

    pop -> read queue after queue -> found -> checkpoints -> appended -> answer 0
                                  -> in order: noted, answer 0
                                  -> nothing -> hold -> a queue grew | a queue is free -> read again
                                                     -> deadline -> answer 210, full: 209

Each message wakes one pop of a group, and the next only if that found something: so a hundred
waiting consumers do not all read for one message. Nothing is changed before all queues are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, cast

import trio

from motelog.core.broker.api import QueueTail
from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.records import with_topic
from motelog.core.broker.pop.service import PopService
from motelog.core.broker.processors.pop_reads import Found, PopReads
from motelog.core.broker.processors.pop_request import Pop, PopRequests
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.broker.tables.topics import REVIVE_QUEUES
from motelog.core.broker.waiting.long_poll import HeldRequests
from motelog.core.broker.waiting.waker import Waker
from motelog.core.errors import BrokerError, StoreError, StoreFencedError
from motelog.core.records.layout import (
    Record,
    parse,
)
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.pop_fields import (
    ORDER_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    encode_begins,
    encode_deliveries,
    encode_offsets,
    kind_of,
    retry_topic,
)
from motelog.core.remoting.server import Connection, Processor, RemotingServer, answer_with
from motelog.core.topic_names import RETRY_PREFIX

#: The key of held requests: a pop or a notice, topic, group, queue id or -1.
_HeldKey: TypeAlias = tuple[str, str, str, int]
_TakeUp: TypeAlias = "Callable[[Pop, _HeldKey, bool], None]"
_POP: Final = "pop"
_NOTICE: Final = "notice"


class PopProcessor:
    """Answers pops; state changes only within a turn and in ``run``, between two awaits."""

    def __init__(self, shared: Shared, pop: PopService) -> None:
        config = shared.config
        self._pop = pop
        self._requests = PopRequests(shared)
        self._reads = PopReads(shared, pop, self._requests)
        self._offsets = shared.tables.offsets
        self._cold = shared.api.cold_reads
        self._stats = shared.stats
        self._clock = shared.clock
        self._broker_name = config.name
        self._hold_ms_max = config.hold_ms_max
        self._in_work_max = config.pop_in_work_max
        self.held = HeldRequests(
            requests_max=config.held_pulls_max,
            requests_per_owner_max=config.held_pulls_per_connection_max,
        )
        #: The keys of held requests, by each topic that these read.
        self.awaited: dict[bytes, dict[_HeldKey, None]] = {}
        # The keys that can be read again although no queue has grown.
        self._freed: dict[_HeldKey, None] = {}
        self._waker = Waker(self.held, shared.clock, wake=self.wake_grown)
        self._growth = shared.api.follow(self.awaited, self._waker.want)
        self._has_found = False
        pop.on_freed.append(self._queues_freed)

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.POP_MESSAGE: self._take,
            RequestCode.PEEK_MESSAGE: self._cold.guard(self._peek),
            RequestCode.NOTIFICATION: self._notify,
            RequestCode.POLLING_INFO: self._polling_info,
        }

    # -- waking ----------------------------------------------------------------------------

    def queue_freed(self, queue: QueueKey) -> None:
        """Note that a group may pop a queue again; ``run`` wakes its requests."""
        topic, group, queue_id = queue
        for key in self.awaited.get(topic.encode(), ()):
            if key[2] == group and (key[3] in (-1, queue_id) or topic.startswith(RETRY_PREFIX)):
                self._freed[key] = None
        if self._freed:
            self._waker.want()

    def _queues_freed(self, queues: list[QueueKey]) -> None:
        for queue in queues:
            self.queue_freed(queue)

    async def run(
        self,
        server: RemotingServer,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Wake held requests and end those whose deadline has passed."""

        def flush() -> None:
            self._pop.log.flush()
            server.flush()

        await self._waker.run(flush, task_status=task_status)

    def wake_grown(self) -> None:
        """Read again for requests whose queues grew: one per group, the next if it found some."""
        grown, self._freed = self._freed, {}
        for tail in self._growth.take():
            grown.update(dict.fromkeys(self._waiting_for(tail)))
        for key in grown:
            if key[0] == _NOTICE:
                self.held.wake(key)
            else:
                self._has_found = True
                while self._has_found and self.held.is_held(key):
                    self._has_found = False
                    self.held.wake(key, count_max=1)
            self._forget_if_gone(key)

    def _waiting_for(self, tail: QueueTail) -> Iterator[_HeldKey]:
        """Yield the keys of requests that wait for a queue."""
        for key in self.awaited.get(tail.topic, ()):
            # A retry is for all requests that wait for the topic, whichever queue they name.
            if key[3] in (-1, tail.queue_id) or tail.topic.startswith(_RETRY_BYTES):
                yield key

    def connection_closed(self, connection: Connection) -> None:
        keys = self.held.keys_of(connection)
        self.held.close_owner(connection)
        for key in keys:
            self._forget_if_gone(cast("_HeldKey", key))

    # -- pops ------------------------------------------------------------------------------

    def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        pop = self._requests.pop(request, connection)
        if self._pop.checkpoints.open_count >= self._in_work_max:
            text = f"{self._in_work_max} messages are popped and not acknowledged"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, text)
        pop.deadline_ms = self._clock.monotonic_ms() + min(pop.hold_ms, self._hold_ms_max)
        return self._cold.attempt(partial(self._read, pop), request, connection)

    def _read(self, pop: Pop, may_wait: bool) -> RemotingCommand | None:
        """Read for a pop: answer it, or hold it."""
        if pop.connection.is_congested:
            # The client asks again, and that request waits until the client has read its output.
            return self._empty(pop, ResponseCode.POLLING_TIMEOUT, 0)
        found, rest = self._reads.look(pop, may_wait=may_wait)
        self._move_on(pop, found)
        given = [one for one in found if one.queue_offsets]
        if given:
            self._has_found = True
            return self._give_out(pop, given, rest)
        return self._hold(pop, rest)

    def _read_last(self, pop: Pop, may_wait: bool) -> RemotingCommand | None:
        """Read for a pop whose time is over, and answer with or without messages."""
        pop.hold_ms = 0
        return self._read(pop, may_wait)

    def _move_on(self, pop: Pop, found: list[Found]) -> None:
        """Note where a new group begins, and move a group past messages that its filter refuses."""
        for one in found:
            key = pop.queue_key(one.topic, one.queue_id)
            if one.first_offset is not None:
                topic, group, queue_id = key
                self._offsets.commit(group, topic, queue_id, one.first_offset)
            if not one.queue_offsets:
                self._pop.pass_over(key, one.result.next_offset)

    def _give_out(self, pop: Pop, given: list[Found], rest: int) -> RemotingCommand | None:
        group = pop.group.group_name
        for one in given:
            records = one.result.records
            self._stats.note_get(one.topic, group, len(one.queue_offsets), len(records))
        if pop.is_order:
            return self._give_out_in_order(pop, given, rest)
        places = [(one.queue_id, one.begin_offset) for one in given]
        now_ms = self._clock.now_ms()
        for topic in {one.topic for one in given}:
            now_ms = self._pop.checkpoints.free_time(topic, group, places, now_ms)
        revive_queue = self._reads.turn % REVIVE_QUEUES
        popped = [
            (
                Checkpoint(
                    (one.topic, group, one.queue_id),
                    one.begin_offset,
                    tuple(one.queue_offsets),
                    pop_time_ms=now_ms,
                    invisible_ms=pop.invisible_ms,
                    revive_queue=revive_queue,
                ),
                one.result.next_offset,
            )
            for one in given
        ]
        answer = self._answer(pop, given, rest, now_ms, revive_queue)

        def then() -> None:
            if not pop.request.is_oneway:
                pop.connection.reply(answer)

        def refused(exc: StoreError) -> None:
            code = ResponseCode.SYSTEM_ERROR
            if isinstance(exc, StoreFencedError):
                code = ResponseCode.SERVICE_NOT_AVAILABLE
            pop.connection.reply(pop.request.answer(code, str(exc)))

        self._pop.give_out(popped, then=then, refused=refused)
        return None

    def _give_out_in_order(self, pop: Pop, given: list[Found], rest: int) -> RemotingCommand:
        now_ms = self._clock.now_ms()
        deliveries = []
        for one in given:
            key = pop.queue_key(one.topic, one.queue_id)
            counts, least = self._pop.orders.pop(
                key,
                one.queue_offsets,
                attempt=pop.attempt,
                now_ms=now_ms,
                invisible_ms=pop.invisible_ms,
            )
            deliveries.append(encode_deliveries(one.topic, one.queue_id, counts, least))
            topic, group, queue_id = key
            self._offsets.commit(group, topic, queue_id, one.begin_offset)
        self._pop.wake()
        return self._answer(pop, given, rest, now_ms, ORDER_QUEUE, ";".join(deliveries))

    def _answer(
        self,
        pop: Pop,
        given: list[Found],
        rest: int,
        now_ms: int,
        revive_queue: int,
        deliveries: str | None = None,
    ) -> RemotingCommand:
        ext = {
            "popTime": str(now_ms),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(revive_queue),
            "restNum": str(rest),
            "startOffsetInfo": encode_begins(
                (one.topic, one.queue_id, one.begin_offset) for one in given
            ),
            "msgOffsetInfo": encode_offsets(
                (one.topic, one.queue_id, one.queue_offsets) for one in given
            ),
        }
        if deliveries is not None:
            ext["orderCountInfo"] = deliveries
        body = b"".join([self._shown(pop, one, now_ms, revive_queue) for one in given])
        return pop.request.answer(ResponseCode.SUCCESS, "FOUND", ext, body)

    def _shown(self, pop: Pop, one: Found, now_ms: int, revive_queue: int) -> bytes:
        """Return the records of one queue for consumers: retries under their original topic."""
        if one.topic == pop.topic:
            return one.result.records
        receipt = Receipt(
            one.begin_offset,
            now_ms,
            pop.invisible_ms,
            revive_queue,
            kind_of(one.topic),
            self._broker_name,
            one.queue_id,
        )
        return b"".join(
            [
                with_topic(
                    record,
                    pop.topic,
                    replace(receipt, queue_offset=record.queue_offset).encode(),
                )
                for record in _parsed(one.result.records)
            ]
        )

    # -- waiting ---------------------------------------------------------------------------

    def _hold(self, pop: Pop, rest: int) -> RemotingCommand | None:
        """Hold a pop that found nothing, or answer it."""
        if pop.hold_ms <= 0 or self._clock.monotonic_ms() >= pop.deadline_ms:
            return self._empty(pop, ResponseCode.POLLING_TIMEOUT, rest)
        if not self._may_hold(pop):
            return self._empty(pop, ResponseCode.POLLING_FULL, rest)
        key = self._keep(_POP, pop, self._take_up)
        if rest:
            # A filter did not have time for all: it continues after other requests.
            self._freed[key] = None
            self._waker.want()
        return None

    def _may_hold(self, pop: Pop) -> bool:
        return pop.connection.is_open and not self.held.is_full_for(pop.connection)

    def _keep(self, kind: str, pop: Pop, take_up: _TakeUp) -> _HeldKey:
        group = pop.group.group_name
        key = kind, pop.topic, group, pop.queue_id
        self._waker.hold(key, pop.deadline_ms, partial(take_up, pop, key), owner=pop.connection)
        for topic in _topics_of(key):
            self.awaited.setdefault(topic.encode(), {})[key] = None
        return key

    def _forget_if_gone(self, key: _HeldKey) -> None:
        if self.held.is_held(key):
            return
        for topic in map(str.encode, _topics_of(key)):
            keys = self.awaited.get(topic)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self.awaited[topic]

    def _take_up(self, pop: Pop, key: _HeldKey, is_over: bool) -> None:
        """Continue a held pop: a queue has grown, or its time is over."""
        read = partial(self._read_last if is_over else self._read, pop)
        answer_with(partial(self._cold.attempt, read), pop.request, pop.connection)
        self._forget_if_gone(key)

    def _empty(self, pop: Pop, code: ResponseCode, rest: int) -> RemotingCommand:
        ext = {
            "popTime": str(self._clock.now_ms()),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(ORDER_QUEUE if pop.is_order else self._reads.turn % REVIVE_QUEUES),
            "restNum": str(rest),
        }
        return pop.request.answer(code, "NO_MESSAGE_IN_QUEUE", ext)

    # -- requests that only look -----------------------------------------------------------

    def _peek(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand:
        pop = self._requests.peek(request, connection)
        found, rest = self._reads.look(pop, may_wait=may_wait)
        body = b"".join([one.result.records for one in found])
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if not body:
            code = ResponseCode.PULL_NOT_FOUND
            return request.answer(code, "NO_MESSAGE_IN_QUEUE", ext)
        return request.answer(ResponseCode.SUCCESS, "FOUND", ext, body)

    def _notify(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        pop = self._requests.notification(request, connection)
        pop.deadline_ms = self._clock.monotonic_ms() + min(pop.hold_ms, self._hold_ms_max)
        if pop.hold_ms <= 0 or self._reads.has_messages(pop):
            return self._notice(pop)
        if not self._may_hold(pop):
            return request.answer(ext={"hasMsg": "false", "pollingFull": "true"})
        self._keep(_NOTICE, pop, self._tell)
        return None

    def _tell(self, pop: Pop, key: _HeldKey, is_over: bool) -> None:
        if is_over or self._reads.has_messages(pop):
            pop.connection.reply(self._notice(pop))
        else:
            self._keep(_NOTICE, pop, self._tell)
        self._forget_if_gone(key)

    def _notice(self, pop: Pop) -> RemotingCommand:
        has_messages = "true" if self._reads.has_messages(pop) else "false"
        return pop.request.answer(ext={"hasMsg": has_messages, "pollingFull": "false"})

    def _polling_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        pop = self._requests.place(request, connection)
        key = _POP, pop.topic, pop.group.group_name, pop.queue_id
        return request.answer(ext={"pollingNum": str(self.held.count_of(key))})


_RETRY_BYTES: Final = RETRY_PREFIX.encode()


def _topics_of(key: _HeldKey) -> tuple[str, str, str]:
    """Return the topics for whose growth requests with this key wait."""
    _, topic, group, _ = key
    return topic, retry_topic(topic, group, RETRY_V1), retry_topic(topic, group, RETRY_V2)


def _parsed(records: bytes) -> list[Record]:
    view = memoryview(records)
    found = []
    at = 0
    while at < len(view):
        record = parse(view, at, len(view))
        if not isinstance(record, Record):
            raise StoreError(f"the store gave bytes that are no record: {record.name}")
        found.append(record)
        at += record.size
    return found
