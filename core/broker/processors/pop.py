"""Pops: messages of any queue of a topic, taken into work for a time, as soon as there are some.

Owns: request codes 200050 (pop), 200052 (peek), 200054 (is there a message), 200055 (how many
wait), their answers. Must not touch: messages in work and their next delivery (core.broker.pop),
acknowledgements (pop_ack), what a pop may ask for (pop_request), what its queues have (pop_reads),
which pop is woken (pop_held).
Spec: RocketMQ PopMessageProcessor, NotificationProcessor.

    pop -> read queue after queue -> found -> checkpoints -> appended -> answer 0
                                  -> in order: noted, answer 0
                                  -> nothing -> hold -> a queue grew | a queue is free -> read again
                                                     -> deadline -> answer 210, full: 209

Nothing is changed before all queues are read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import trio

from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.records import with_topic
from motelog.core.broker.pop.service import PopService
from motelog.core.broker.processors.pop_held import NOTICE, POP, HeldKey, HeldPops
from motelog.core.broker.processors.pop_reads import Found, PopReads
from motelog.core.broker.processors.pop_request import Pop, PopRequests
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.topics import REVIVE_QUEUES
from motelog.core.errors import BrokerError, StoreError, StoreFencedError
from motelog.core.records.layout import Record, parse
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.pop_fields import (
    ORDER_QUEUE,
    Receipt,
    encode_begins,
    encode_deliveries,
    encode_offsets,
    kind_of,
)
from motelog.core.remoting.server import Connection, Processor, RemotingServer, answer_with


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
        self.held = HeldPops(shared)
        pop.on_freed.append(self.held.queues_freed)

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.POP_MESSAGE: self._take,
            RequestCode.PEEK_MESSAGE: self._cold.guard(self._peek),
            RequestCode.NOTIFICATION: self._notify,
            RequestCode.POLLING_INFO: self._polling_info,
        }

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

        await self.held.run(flush, task_status=task_status)

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
            self.held.note_found()
            return self._give_out(pop, given, rest)
        return self._hold(pop, rest)

    def _read_last(self, pop: Pop, may_wait: bool) -> RemotingCommand | None:
        """Read for a pop whose time is over, and answer with or without messages."""
        pop.hold_ms = 0
        return self._read(pop, may_wait)

    def _move_on(self, pop: Pop, found: list[Found]) -> None:
        """Note where a new group begins; move a group past messages that its filter refuses."""
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
        if not self.held.may_hold(pop):
            return self._empty(pop, ResponseCode.POLLING_FULL, rest)
        key = self.held.keep(POP, pop, self._take_up)
        if rest:
            # A filter did not have time for all messages: it continues after other requests.
            self.held.read_again(key)
        return None

    def _take_up(self, pop: Pop, key: HeldKey, is_over: bool) -> None:
        """Continue a held pop: a queue has grown, or its time is over."""
        read = partial(self._read_last if is_over else self._read, pop)
        answer_with(partial(self._cold.attempt, read), pop.request, pop.connection)
        self.held.forget_if_gone(key)

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
        if not self.held.may_hold(pop):
            return request.answer(ext={"hasMsg": "false", "pollingFull": "true"})
        self.held.keep(NOTICE, pop, self._tell)
        return None

    def _tell(self, pop: Pop, key: HeldKey, is_over: bool) -> None:
        if is_over or self._reads.has_messages(pop):
            pop.connection.reply(self._notice(pop))
        else:
            self.held.keep(NOTICE, pop, self._tell)
        self.held.forget_if_gone(key)

    def _notice(self, pop: Pop) -> RemotingCommand:
        has_messages = "true" if self._reads.has_messages(pop) else "false"
        return pop.request.answer(ext={"hasMsg": has_messages, "pollingFull": "false"})

    def _polling_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        pop = self._requests.place(request, connection)
        key = POP, pop.topic, pop.group.group_name, pop.queue_id
        return request.answer(ext={"pollingNum": str(self.held.requests.count_of(key))})


def _parsed(records: bytes) -> list[Record]:
    view = memoryview(records)
    found = []
    at = 0
    while at < len(view):
        record = parse(view, at, len(view))
        if not isinstance(record, Record):
            raise StoreError(f"the store returned bytes that are not a record: {record.name}")
        found.append(record)
        at += record.size
    return found
