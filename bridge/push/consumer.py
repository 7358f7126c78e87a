"""The push consumer: one member of a consumer group that calls the user's function.

Owns: PushConsumer: its life, its queues, when offsets are saved and locks renewed, what happens to
failed messages, the answers to an operator. Must not touch: how queues are shared (bridge.groups),
read (bridge.reader) and handled (workers).
Invariants: a saved offset is never above a message that is neither handled nor sent back; a queue
is handed to the next member only after its offset is saved. Memory is bounded by ``limits`` for
each queue. State changes between two awaits on trio's thread.
Spec: RocketMQ DefaultMQPushConsumerImpl, RebalancePushImpl, ClientRemotingProcessor.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

import trio

from motelog.bridge.client import (
    REQUEST_TIMEOUT_S,
    Client,
    NameServers,
    check_group,
    check_subscribed,
)
from motelog.bridge.errors import ClientError, FilterError
from motelog.bridge.groups.allocation import Allocate, average
from motelog.bridge.groups.rebalance import Rebalance
from motelog.bridge.groups.running_info import consumer_status, directly_result, running_info
from motelog.bridge.producer import Producer, enter_traced, leave_traced, trace_recorder
from motelog.bridge.push.life import Life
from motelog.bridge.push.offsets import (
    BrokerOffsets,
    FileOffsets,
    Offsets,
    OffsetStore,
    StoredOffsets,
    decode_offset_table,
)
from motelog.bridge.push.process_queue import Batch, Limits, ProcessQueue, again
from motelog.bridge.push.queue_locks import RENEW_AGAIN_S, RENEW_S, QueueLocks
from motelog.bridge.push.rates import SAMPLE_S, Rates
from motelog.bridge.push.send_back import SendBack
from motelog.bridge.push.traces import traced
from motelog.bridge.push.workers import (
    BATCH_MAX,
    WORKERS,
    HandleOne,
    Handler,
    HandleSome,
    Workers,
)
from motelog.bridge.queue_requests import TAKEN_OVER_WITHIN_S, QueueRequests, saved_ahead
from motelog.bridge.reader import HOLD_S, Reader, Reading, Start
from motelog.bridge.selector import SELECT_ALL, TAGS_ALL, Selector, select
from motelog.bridge.trace.handled import HandledTraces
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.core.errors import MotelogError, RecordError, RemotingDecodeError
from motelog.core.flag import Flag
from motelog.core.lasting import run_again
from motelog.core.message import MessageQueue
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.client import Later
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import RETRY_PREFIX

logger = logging.getLogger(__name__)

COMMIT_S: Final = 5.0
# Every so many saves, all offsets are saved and not only those that changed: a killed broker may
# have lost offsets that it had confirmed.
SAVES_OF_CHANGED: Final = 6
CONSUME_TIMEOUT_S: Final = 900.0
SUSPEND_S: Final = 1.0
STOP_S: Final = 10.0
# A message that no broker accepted back is handled again here after this.
HANDLE_AGAIN_S: Final = 5.0
# How long a queue that moves to another member waits for its messages in work, if the new member
# must not handle them earlier; as long as RocketMQ's members wait.
HAND_OVER_S: Final = 20.0
# A member that takes a queue over waits this long for the previous one to save its offset.
TAKE_OVER_S: Final = 0.5
RESET_S: Final = 10.0
_EXPIRED_LEVEL: Final = 3
# Failed messages are sent by a producer of this group, as by Java's consumers.
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class PushConsumer:
    """Calls a function with the messages of topics, shared with the group's other members.

    ``async with PushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("telemetry")`` and ``await consumer.run(handle)``. Each message is handled
    at least once. If ``handle`` raises an exception, the message is delivered again with growing
    delays, and becomes a dead letter (topic %DLQ%GROUP) after ``retries_max`` retries, by default
    the group's setting ``retryMaxTimes`` (16).

    ``handle`` is an ``async def`` or a plain function, which runs in threads; up to ``workers``
    calls run at once. With ``is_orderly`` the messages of a queue are handled one after the other:
    a failed one is tried again every ``suspend_s`` before the following ones, for ever unless
    ``retries_max`` is given. With ``broadcast`` each member receives all messages, failed ones are
    not retried, and offsets are stored locally.

    ``start`` is where a group without offsets begins: at the "first" message, after the "last", or
    at a time. ``offsets`` stores offsets elsewhere than at the brokers (bridge.push.offsets).
    ``allocate`` must be the same rule for all members. With ``trace``, records of each call of
    ``handle`` are sent to ``trace_topic``, which ``Admin.trace`` and RocketMQ's tools read.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        start: Literal["first", "last"] | datetime = "first",
        is_orderly: bool = False,
        broadcast: bool = False,
        workers: int = WORKERS,
        batch_max: int = BATCH_MAX,
        retries_max: int | None = None,
        allocate: Allocate = average,
        offsets: OffsetStore | None = None,
        limits: Limits | None = None,
        suspend_s: float = SUSPEND_S,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        stop_s: float = STOP_S,
        hold_s: float = HOLD_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        _check_options(start, workers=workers, batch_max=batch_max)
        self.group = check_group(group)
        self._start = start
        self._is_orderly = is_orderly
        self._broadcast = broadcast
        self._workers_count = workers
        self._batch_max = batch_max
        self._needs_lock = is_orderly and not broadcast  # a broadcast shares no queues
        self._retries_max = retries_max
        self._store = offsets
        self._limits = limits or Limits()
        self._suspend_s = suspend_s
        self._consume_timeout_s = consume_timeout_s
        self._stop_s = stop_s
        self._subscriptions: dict[str, Selector] = {}
        self._subscribed_ms = 0
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: set[MessageQueue] = set()
        self._handed_over = Flag()
        self._life = Life()
        self._rates = Rates()
        self._client = self._make_client(namesrv, credentials, tls)
        self._producer = Producer(
            namesrv=namesrv, credentials=credentials, tls=tls, group=_PRODUCER_GROUP
        )
        traces_to = trace_topic if trace else None
        self._recorder = trace_recorder(self._client, group, "CONSUME", traces_to)
        self._requests = QueueRequests(self._client, group=group, timeout_s=request_timeout_s)
        self._offsets: Offsets = BrokerOffsets(self._requests)
        self._send_back = SendBack(
            self._requests, self._producer, group=group, retries_max=retries_max
        )
        self._locks = QueueLocks(self._client, self._requests, group=group)
        self._reader = self._make_reader(hold_s)
        self._rebalance = self._make_rebalance(None if broadcast else allocate)

    def _make_client(
        self, namesrv: NameServers, credentials: Credentials | None, tls: Tls | None
    ) -> Client:
        return Client(
            namesrv=namesrv,
            groups=self._groups,
            unregister={"consumerGroup": self.group},
            on_request=self._answer,
            credentials=credentials,
            tls=tls,
        )

    def _make_reader(self, hold_s: float) -> Reader:
        return Reader(
            self._requests,
            hold_s=hold_s,
            version=lambda: self._subscribed_ms,
            resolve=self._resolve,
            added=self._added,
            ends=self._ends,
        )

    def _make_rebalance(self, allocate: Allocate | None) -> Rebalance:
        return Rebalance(
            self._client,
            group=self.group,
            topics=self._topics,
            allocate=allocate,
            apply=self._share,
        )

    async def __aenter__(self) -> Self:
        self._life.enter()
        await enter_traced(self._client, self._recorder)
        try:
            await self._producer.__aenter__()
        except BaseException:
            await leave_traced(self._client, self._recorder)
            raise
        store = self._store
        if store is None and self._broadcast:
            home = Path.home() / ".rocketmq_offsets"
            store = FileOffsets(home / f"{self._client.address}@DEFAULT")
        if store is not None:
            self._offsets = StoredOffsets(store, group=self.group)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop, if ``run`` is running elsewhere, and close."""
        try:
            self.stop()
            if self._life.has_begun:
                with trio.CancelScope(shield=True):
                    await self._life.ended.wait()
        finally:
            try:
                await self._producer.__aexit__(None, None, None)
            finally:
                await leave_traced(self._client, self._recorder)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Also handle the messages of ``topic`` that ``tags`` or ``sql`` select.

        As in PullConsumer.subscribe. All members of a group must have the same subscriptions. May
        be called before and during ``run``; with a new filter the topic's queues are read again.
        """
        selector = select(tags, sql)
        known = self._subscriptions.get(check_subscribed(topic))
        self._subscriptions[topic] = selector
        self._subscribed_ms = time.time_ns() // 1_000_000
        if known is not None and known != selector:
            self._give_up(queue for queue in self._queues if queue.topic == topic)
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """Stop handling messages of ``topic``."""
        self._subscriptions.pop(topic, None)
        self._give_up(queue for queue in self._queues if queue.topic == topic)
        self._announce()

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """This member's current queues, including those of the retry topic."""
        return tuple(q for q, state in self._queues.items() if not state.is_dropped)

    async def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, or until cancelled.

        It then waits up to ``stop_s`` for messages in work, saves its offsets, and leaves the
        group. FilterError if a broker refuses a filter.
        """
        await self._run(Handler(handle, in_batches=False))

    async def run_batches(self, handle: HandleSome) -> None:
        """Do as ``run``, with a list of up to ``batch_max`` messages of one queue.

        If ``handle`` raises an exception, all of them are delivered again.
        """
        await self._run(Handler(handle, in_batches=True))

    def stop(self) -> None:
        """Have ``run`` finish its messages and return. Any thread may call it."""
        self._life.stop()

    def pause(self) -> None:
        """Stop handling further messages until ``resume``; this member keeps its queues.

        Any thread may call it.
        """
        self._life.change(partial(self._set_paused, True))

    def resume(self) -> None:
        """Continue handling messages. Any thread may call it."""
        self._life.change(partial(self._set_paused, False))

    async def _run(self, handler: Handler) -> None:
        if self._life.has_begun:
            raise ClientError("this consumer is running, or has run: create a new one")
        if not callable(handler.function):
            raise TypeError(f"run takes a function, not {type(handler.function).__name__}")
        if not self._subscriptions:
            raise ClientError("there is no subscription: call subscribe(topic) first")
        if self._recorder is not None:
            timeout_s = self._consume_timeout_s
            traces = HandledTraces(self._recorder, group=self.group, timeout_s=timeout_s)
            handler = traced(handler, traces)
        workers = Workers(
            handler,
            count=self._workers_count,
            batch_max=self._batch_max,
            is_orderly=self._is_orderly,
            needs_lock=self._needs_lock,
            rates=self._rates,
            settle=self._settle,
        )
        self._life.begin(handler, workers)
        try:
            async with trio.open_nursery() as nursery:
                for task in (
                    self._rebalance.run,
                    self._save_regularly,
                    self._sample,
                    workers.watch,
                ):
                    nursery.start_soon(run_again, task)
                renew = self._renew_locks if self._needs_lock else self._expire
                nursery.start_soon(run_again, renew)
                for _ in range(self._workers_count):
                    nursery.start_soon(workers.run)
                try:
                    await self._life.stop_wanted.wait()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._finish(workers)
                    nursery.cancel_scope.cancel()
        finally:
            self._life.ended.set()
        if self._life.failure is not None:
            raise self._life.failure

    async def _finish(self, workers: Workers) -> None:
        """Stop reading, finish messages in work, save and leave; each step has a deadline."""
        self._life.is_ending = True
        queues = list(self._queues.values())
        for state in queues:
            state.drop()
        with trio.move_on_after(self._stop_s) as waiting:
            for state in queues:
                await state.wait_idle()
        if waiting.cancelled_caught:
            logger.warning(
                "messages in work did not end in time; they are handled again later group=%s "
                "stop_s=%.3g",
                self.group,
                self._stop_s,
            )
            workers.abandon()
        own = [state for state in queues if state.queue not in self._leaving]
        await self._save(own)
        if self._needs_lock:
            await self._locks.unlock(state.queue for state in own)
        with trio.move_on_after(self._stop_s):
            while self._leaving:
                await self._handed_over.take()
        await self._client.unregister()

    def _set_paused(self, is_paused: bool) -> None:
        self._life.pause(is_paused)
        self._offer_all()

    def _announce(self) -> None:
        if self._life.has_begun:
            self._client.want_heartbeat()
            self._rebalance.wake()

    def _topics(self) -> list[str]:
        """Return the topics that are read, including the group's retry topic."""
        retries = [] if self._broadcast else [RETRY_PREFIX + self.group]
        return [*self._subscriptions, *retries]

    def _selector(self, topic: str) -> Selector:
        return self._subscriptions.get(topic, SELECT_ALL)

    async def _share(self, topic: str, queues: list[MessageQueue]) -> bool:
        """Take this member's share of a topic's queues, and give the others up."""
        if self._life.is_ending or topic not in self._topics():
            return True
        wanted = set(queues)
        self._give_up(
            queue
            for queue, state in self._queues.items()
            if queue.topic == topic
            and (queue not in wanted or state.is_dropped or state.is_pull_expired())
        )
        new = [queue for queue in queues if queue not in self._queues]
        locked = await self._locks.lock(new) if self._needs_lock else dict.fromkeys(new, True)
        locked_at = trio.current_time()
        for queue in new:
            if locked.get(queue) and queue not in self._queues and not self._life.is_ending:
                self._take(queue, locked_at)
        return wanted.issubset(self.assigned)

    def _take(self, queue: MessageQueue, locked_at: float) -> None:
        selector = self._selector(queue.topic)
        state = ProcessQueue(queue, Start.COMMITTED, selector, self._limits)
        state.locked_at = locked_at
        self._queues[queue] = state
        self._client.start_soon(self._read, state)

    async def _read(self, state: ProcessQueue) -> None:
        if self._rebalance.has_others:
            await trio.sleep(TAKE_OVER_S)
        await self._reader.run(state)

    def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Hand queues over to their next member, in the background."""
        for queue in list(queues):
            if queue not in self._leaving:
                self._queues[queue].drop()
                self._leaving.add(queue)
                self._client.start_soon(self._hand_over, self._queues[queue], None)

    async def _hand_over(self, state: ProcessQueue, offset: int | None) -> None:
        """Save the offset of a dropped queue, or ``offset``, and forget the queue."""
        queue = state.queue
        try:
            if offset is not None:
                with trio.move_on_after(RESET_S):
                    await state.wait_idle()
                await self._offsets.save({queue: offset}, lambda queue, offset: None, ())
            elif state.locked_at is not None:
                # The next member must not handle messages while this one handles earlier ones.
                if self._needs_lock:
                    with trio.move_on_after(HAND_OVER_S):
                        await state.wait_idle()
                await self._save([state])
            if self._needs_lock and state.locked_at is not None:
                await self._locks.unlock([queue])
        except MotelogError as exc:
            logger.warning("an offset could not be saved queue=%s error=%s", queue, exc)
        finally:
            self._leaving.discard(queue)
            if self._queues.get(queue) is state:
                del self._queues[queue]
            self._handed_over.set()
            # The queue may have come back to this member: after a reset, or to be read again.
            self._rebalance.wake()

    async def _resolve(self, queue: MessageQueue, start: Start) -> int:
        saved = await self._offsets.load(queue)
        state = self._queues.get(queue)
        if state is not None:
            state.committed = -1 if saved is None else saved
        if saved is not None:
            return saved
        if self._start == "first" or queue.topic.startswith(RETRY_PREFIX):
            return await self._requests.offset(queue, RequestCode.GET_MIN_OFFSET, {})
        if isinstance(self._start, datetime):
            ext = {"timestamp": str(int(self._start.astimezone(UTC).timestamp() * 1000))}
            return await self._requests.offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        return await self._requests.offset(queue, RequestCode.GET_MAX_OFFSET, {})

    def _added(self, reading: Reading, count: int) -> None:
        assert isinstance(reading, ProcessQueue)
        self._rates.pulled(reading.queue.topic, count)
        self._offer(reading)

    def _ends(self, reading: Reading, exc: Exception) -> bool:
        """Return whether an error ends ``run``: a refused filter does; others may be temporary."""
        if isinstance(exc, FilterError):
            self._life.failure = exc
            self.stop()
            return True
        return False

    async def _settle(self, batch: Batch) -> None:
        """Complete a batch according to its result."""
        state = batch.process_queue
        if state.is_dropped and not self._life.is_ending and not self._needs_lock:
            return  # the queue's new member receives these messages too
        if self._is_orderly:
            await self._settle_in_order(batch)
        elif not batch.failed:
            state.put_back(batch)
        elif self._broadcast:
            logger.warning(
                "messages failed, and a broadcast does not retry them queue=%s messages=%d",
                state.queue,
                len(batch.failed),
            )
            batch.failed = []
            state.put_back(batch)
        else:
            batch.failed = [
                message
                for message in batch.failed
                if not await self._send_back.give_back(state.queue, message)
            ]
            if not batch.failed:
                state.put_back(batch)
            elif self._life.is_ending:
                batch.rewind()
                state.put_back(batch)
            else:
                state.keep_failed(batch)
                self._client.start_soon(self._handle_again, batch)

    async def _handle_again(self, batch: Batch) -> None:
        """Handle messages again here that no broker accepted back."""
        await trio.sleep(HANDLE_AGAIN_S)
        batch.process_queue.put_back(batch)
        self._offer(batch.process_queue)

    async def _settle_in_order(self, batch: Batch) -> None:
        state = batch.process_queue
        if not batch.failed:
            state.put_back(batch)
            return
        refused = batch.failed[0]
        batch.failed = []
        is_given_up = self._retries_max is not None and refused.reconsume_times >= self._retries_max
        if (self._broadcast and self._retries_max is None) or (
            is_given_up and (self._broadcast or await self._send_back.send(state.queue, refused))
        ):
            batch.done += 1
            state.put_back(batch)
            return
        batch.messages[batch.done] = again(refused)
        state.suspended_until = trio.current_time() + self._suspend_s
        state.put_back(batch)
        self._client.start_soon(self._offer_later, state)

    async def _offer_later(self, state: ProcessQueue) -> None:
        await trio.sleep_until(state.suspended_until)
        self._offer(state)

    def _offer(self, state: ProcessQueue) -> None:
        if self._life.workers is not None:
            self._life.workers.offer(state)

    def _offer_all(self) -> None:
        for state in self._queues.values():
            self._offer(state)

    async def _save_regularly(self) -> None:
        for number in itertools.count(1):
            await trio.sleep(COMMIT_S)
            states = [state for state in self._queues.values() if not state.is_dropped]
            await self._save(states, also_unchanged=number % SAVES_OF_CHANGED == 0)

    async def _save(self, states: Iterable[ProcessQueue], *, also_unchanged: bool = True) -> None:
        """Save the offsets of queues. Those that fail are saved the next time."""
        changed = {
            state.queue: (state, offset)
            for state in states
            if (offset := state.offset) is not None
            and (also_unchanged or offset != state.committed)
        }
        await self._leave_out_what_is_ahead(changed)
        if not changed:
            return

        def saved(queue: MessageQueue, offset: int) -> None:
            changed[queue][0].committed = offset

        # Members see a new assignment at different times: for a moment a queue may have two
        # members, and the slower one must not set the group back. An offset below this member's
        # own last one is intended.
        forward = {queue for queue, (state, offset) in changed.items() if state.is_forward(offset)}
        offsets = {queue: offset for queue, (_, offset) in changed.items()}
        try:
            await self._offsets.save(offsets, saved, forward)
        except MotelogError as exc:
            logger.warning(
                "offsets could not be saved; the next save includes them, and after the last save "
                "messages are delivered again group=%s queues=%d error=%s",
                self.group,
                len(changed),
                exc,
            )

    async def _leave_out_what_is_ahead(
        self, changed: dict[MessageQueue, tuple[ProcessQueue, int]]
    ) -> None:
        """Omit queues taken over from a member that has saved a higher offset meanwhile.

        With locks, or in a broadcast, a queue never has two members.
        """
        if self._needs_lock or self._broadcast:
            return
        taken_since = trio.current_time() - TAKEN_OVER_WITHIN_S
        new = {
            queue: offset
            for queue, (state, offset) in changed.items()
            if state.taken_at > taken_since and state.is_forward(offset)
        }
        for queue in await saved_ahead(new, self._offsets.load):
            del changed[queue]

    async def _renew_locks(self) -> None:
        """Renew the locks; a queue whose lock is another member's, or too old, is read again."""
        wait_s = RENEW_S
        while True:
            await trio.sleep(wait_s)
            states = {q: s for q, s in self._queues.items() if not s.is_dropped}
            found = await self._locks.lock(states)
            wait_s = RENEW_S if found.keys() == states.keys() else RENEW_AGAIN_S
            now = trio.current_time()
            for queue, state in states.items():
                if not state.is_locked() or found.get(queue) is False:
                    logger.warning(
                        "the lock of a queue is lost; the queue is read again queue=%s group=%s",
                        queue,
                        self.group,
                    )
                    # Its offset is not saved: another member may have continued from there.
                    state.locked_at = None
                    self._give_up([queue])
                elif found.get(queue):
                    state.locked_at = now
            self._offer_all()

    async def _expire(self) -> None:
        """Send back messages whose handling takes too long."""
        while True:
            await trio.sleep(self._consume_timeout_s / 10)
            begun_before = time.monotonic() - self._consume_timeout_s
            old = [
                batch
                for state in self._queues.values()
                for batch in state.in_work
                if batch.moved_at < begun_before and not batch.is_given_up
            ]
            for batch in old:
                await self._expire_one(batch)

    async def _expire_one(self, batch: Batch) -> None:
        assert self._life.handler is not None
        state, done = batch.process_queue, batch.done
        batch.is_given_up = batch.is_cut = True
        is_whole = self._life.handler.in_batches
        stuck = batch.messages[done:] if is_whole else batch.messages[done:][:1]
        for message in [*batch.failed, *stuck]:
            logger.warning(
                "the function takes too long for a message, which is delivered again queue=%s "
                "offset=%d timeout_s=%.3g",
                state.queue,
                message.queue_offset,
                self._consume_timeout_s,
            )
            if not self._broadcast and not await self._send_back.give_back(
                state.queue, message, _EXPIRED_LEVEL
            ):
                batch.done = done
                batch.rewind()
                state.put_back(batch)
                return
        batch.failed = []
        batch.done = done + len(stuck)
        state.put_back(batch)
        self._offer(state)

    async def _sample(self) -> None:
        while True:
            await trio.sleep(SAMPLE_S)
            self._rates.sample()

    def _answer(self, request: RemotingCommand) -> RemotingCommand | Later | None:
        """Answer a broker's request to a member, its own or an operator's."""
        ext = request.ext
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._rebalance.wake()
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(request)
                return request.answer()
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                offsets = {
                    queue: offset
                    for queue, state in self._queues.items()
                    if queue.topic == ext.get("topic") and (offset := state.offset) is not None
                }
                return request.answer(body=consumer_status(offsets))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                if ext.get("consumerGroup", self.group) == self.group:
                    return request.answer(body=self._running_info(ext))
                return request.answer(
                    ResponseCode.SYSTEM_ERROR,
                    f"this client is not a member of {ext['consumerGroup']}",
                )
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return lambda: self._consume_directly(request)
        return None

    def _reset(self, request: RemotingCommand) -> None:
        """Continue at other offsets: an operator has reset the group."""
        if request.ext.get("group") != self.group or self._life.is_ending:
            return
        try:
            offsets = decode_offset_table(request.body)
        except RemotingDecodeError as exc:
            logger.warning("a reset is malformed and ignored group=%s error=%s", self.group, exc)
            return
        for queue, offset in offsets.items():
            state = self._queues.get(queue)
            if state is not None and queue not in self._leaving:
                logger.info("a queue is reset queue=%s group=%s to=%d", queue, self.group, offset)
                state.drop()
                self._leaving.add(queue)
                self._client.start_soon(self._hand_over, state, offset)

    async def _consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        workers = self._life.workers
        if workers is None or request.ext.get("consumerGroup") != self.group:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"group {self.group} is not running")
        try:
            (message,) = decode_messages(request.body)
        except (RecordError, ValueError) as exc:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"not one message: {exc}")
        begin = time.monotonic()
        failure: Exception | None = None
        try:
            await workers.call_once(message)
        except Exception as exc:  # the user's function; the operator receives the error
            failure = exc
        result = directly_result(
            is_orderly=self._is_orderly, failure=failure, took_s=time.monotonic() - begin
        )
        return request.answer(body=result)

    def _running_info(self, ext: Mapping[str, str]) -> bytes:
        ago_ms = time.time_ns() / 1e6 - trio.current_time() * 1000
        return running_info(
            namesrv=self._client.namesrv_addresses,
            is_push=True,
            is_orderly=self._is_orderly,
            workers=self._workers_count,
            started_ms=self._life.started_ms,
            subscriptions=self._subscription_data(),
            queues={
                queue: {
                    "commitOffset": state.offset or 0,
                    **state.figures(),
                    "locked": state.is_locked(),
                    "lastLockTimestamp": int(ago_ms + (state.locked_at or 0) * 1000),
                    "droped": state.is_dropped,
                    "lastPullTimestamp": int(ago_ms + state.pulled_at * 1000),
                    "lastConsumeTimestamp": int(ago_ms + state.consumed_at * 1000),
                }
                for queue, state in self._queues.items()
            },
            statuses={topic: self._rates.status(topic) for topic in self._topics()},
            with_stacks=ext.get("jstackEnable") == "true",
        )

    def _subscription_data(self) -> list[dict[str, Any]]:
        return [
            self._selector(topic).subscription(topic, self._subscribed_ms)
            for topic in self._topics()
        ]

    def _groups(self) -> dict[str, list[dict[str, Any]]]:
        """Return the heartbeat's groups: this consumer's while it runs."""
        if not self._life.has_begun or self._life.is_ending:
            return {"consumerDataSet": [], "producerDataSet": []}
        where = {"first": "FIRST_OFFSET", "last": "LAST_OFFSET"}
        from_where = "TIMESTAMP" if isinstance(self._start, datetime) else where[self._start]
        consumer = {
            "consumeFromWhere": f"CONSUME_FROM_{from_where}",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group,
            "messageModel": "BROADCASTING" if self._broadcast else "CLUSTERING",
            "subscriptionDataSet": self._subscription_data(),
            "unitMode": False,
        }
        return {"consumerDataSet": [consumer], "producerDataSet": []}


def _check_options(
    start: Literal["first", "last"] | datetime, *, workers: int, batch_max: int
) -> None:
    if not isinstance(start, datetime) and start not in ("first", "last"):
        raise ValueError(f"start must be 'first', 'last' or a datetime, not {start!r}")
    for name, value in (("workers", workers), ("batch_max", batch_max)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
