"""Messages handed to a function of the user, by one member of a consumer group.

Owns: PushConsumer: its life, which queues it has, when offsets are saved and locks renewed, what
becomes of refused messages, the answers to an operator. Must not touch: how queues are shared
(bridge.groups), read (bridge.reader) and handled (workers).
Invariants: the offset that is saved is never above a message that is neither handled nor given to
somebody else; a queue is given to the next member only after that. Memory is bounded by ``limits``
for each queue. State changes between two awaits on trio's thread.
Spec: RocketMQ DefaultMQPushConsumerImpl, RebalancePushImpl, ClientRemotingProcessor.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
# Of so many times, once all offsets are saved and not only those that changed: a killed broker may
# have lost what it had confirmed.
SAVES_OF_CHANGED: Final = 6
CONSUME_TIMEOUT_S: Final = 900.0
SUSPEND_S: Final = 1.0
STOP_S: Final = 10.0
# A message that no broker took back is handled again here after this.
HANDLE_AGAIN_S: Final = 5.0
# How long a queue that goes to another member waits for its messages in work, if that one may not
# have them before; RocketMQ's members wait for as long.
HAND_OVER_S: Final = 20.0
# A member that takes a queue over waits for the one before to save its offset.
TAKE_OVER_S: Final = 0.5
RESET_S: Final = 10.0
_EXPIRED_LEVEL: Final = 3
# Refused messages are sent by a producer of this group, as Java's consumers do.
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class PushConsumer:
    """Hand the messages of topics to a function, sharing them with the group's other members.

    ``async with PushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("telemetry")`` and ``await consumer.run(handle)``. A message is handled at
    least once. One that ``handle`` raises an exception for comes again, later each time, and is a
    dead letter (topic %DLQ%GROUP) after ``retries_max`` times; without it the group's setting
    ``retryMaxTimes`` counts (16).

    ``handle`` is an ``async def`` or a plain function, which runs in threads; ``workers`` calls at
    once. With ``is_orderly`` the messages of a queue are handled one after the other: a refused one
    is tried again every ``suspend_s``, before those behind it, without an end unless
    ``retries_max`` is given. With ``broadcast`` each member gets all messages, refused ones do not
    come again, and offsets are kept here.

    ``start`` is where a group begins that has no offsets: at the "first" message, behind the "last"
    or at a time. ``offsets`` keeps them elsewhere than the brokers (bridge.push.offsets).
    ``allocate`` must be the rule of all members. With ``trace`` records of each call of ``handle``
    go to ``trace_topic``, which ``Admin.trace`` and RocketMQ's tools read.
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
        if not isinstance(start, datetime) and start not in ("first", "last"):
            raise ValueError(f"start is 'first', 'last' or a datetime, not {start!r}")
        for name, value in (("workers", workers), ("batch_max", batch_max)):
            if value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        self.group = check_group(group)
        self._start = start
        self._is_orderly = is_orderly
        self._broadcast = broadcast
        self._workers_count = workers
        self._batch_max = batch_max
        # The locks are of the group, and nobody shares in a broadcast.
        self._needs_lock = is_orderly and not broadcast
        self._retries_max = retries_max
        self._store = offsets
        self._limits = limits or Limits()
        self._suspend_s = suspend_s
        self._consume_timeout_s = consume_timeout_s
        self._stop_s = stop_s
        self._subscriptions: dict[str, Selector] = {}
        self._subscribed_ms = 0
        self._started_ms = 0
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: set[MessageQueue] = set()
        self._handler: Handler | None = None
        self._workers: Workers | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_paused = False
        self._failure: Exception | None = None
        self._is_ending = False
        self._stop_wanted = trio.Event()
        self._handed_over = Flag()
        self._ended = trio.Event()
        self._rates = Rates()
        self._client = Client(
            namesrv=namesrv,
            groups=self._groups,
            unregister={"consumerGroup": group},
            on_request=self._answer,
            credentials=credentials,
            tls=tls,
        )
        self._producer = Producer(
            namesrv=namesrv, credentials=credentials, tls=tls, group=_PRODUCER_GROUP
        )
        traces_to = trace_topic if trace else None
        self._recorder = trace_recorder(self._client, group, "CONSUME", traces_to)
        self._requests = QueueRequests(self._client, group=group, timeout_s=request_timeout_s)
        self._offsets: Offsets = BrokerOffsets(self._requests)
        self._send_back = SendBack(
            self._requests,
            self._producer,
            group=group,
            retries_max=retries_max,
        )
        self._locks = QueueLocks(self._client, self._requests, group=group)
        self._reader = Reader(
            self._requests,
            hold_s=hold_s,
            version=lambda: self._subscribed_ms,
            resolve=self._resolve,
            added=self._added,
            ends=self._ends,
        )
        self._rebalance = Rebalance(
            self._client,
            group=group,
            topics=self._topics,
            allocate=None if broadcast else allocate,
            apply=self._share,
        )

    async def __aenter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
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
            if self._handler is not None:
                with trio.CancelScope(shield=True):
                    await self._ended.wait()
        finally:
            try:
                await self._producer.__aexit__(None, None, None)
            finally:
                await leave_traced(self._client, self._recorder)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Handle messages of ``topic`` too, those that ``tags`` or ``sql`` selects.

        As PullConsumer.subscribe. All members of a group must subscribe to the same. May be called
        before and during ``run``; with another selection the topic's queues are read anew.
        """
        selector = select(tags, sql)
        known = self._subscriptions.get(check_subscribed(topic))
        self._subscriptions[topic] = selector
        self._subscribed_ms = time.time_ns() // 1_000_000
        if known is not None and known != selector:
            self._give_up(queue for queue in self._queues if queue.topic == topic)
        self._announce()

    def unsubscribe(self, topic: str) -> None:
        """Handle no more messages of ``topic``."""
        self._subscriptions.pop(topic, None)
        self._give_up(queue for queue in self._queues if queue.topic == topic)
        self._announce()

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this member's now, its retry topic's included."""
        return tuple(q for q, state in self._queues.items() if not state.is_dropped)

    async def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, or until cancelled.

        It then waits up to ``stop_s`` for messages in work, saves how far it has got, and leaves
        the group. FilterError if a broker refuses a filter.
        """
        await self._run(Handler(handle, in_batches=False))

    async def run_batches(self, handle: HandleSome) -> None:
        """As ``run``, with up to ``batch_max`` messages of one queue in a list.

        If ``handle`` raises an exception, all of them come again.
        """
        await self._run(Handler(handle, in_batches=True))

    def stop(self) -> None:
        """Have ``run`` finish what is in work and return. Any thread may call it."""
        self._in_run(self._stop_wanted.set)

    def pause(self) -> None:
        """Begin to handle no more messages until ``resume``; the queues stay this member's.

        Any thread may call it.
        """
        self._in_run(partial(self._set_paused, True))

    def resume(self) -> None:
        """Go on handling messages. Any thread may call it."""
        self._in_run(partial(self._set_paused, False))

    def _in_run(self, change: Callable[[], object]) -> None:
        """Make a change on trio's thread: plain functions of the user are called in others."""
        token = self._token
        if token is None or _is_on_thread_of(token):
            change()
        else:
            with suppress(trio.RunFinishedError):  # everything has ended
                token.run_sync_soon(change)

    async def _run(self, handler: Handler) -> None:
        if self._handler is not None:
            raise ClientError("it runs, or has run: create a new consumer")
        if not callable(handler.function):
            raise TypeError(f"run takes a function, not {type(handler.function).__name__}")
        if not self._subscriptions:
            raise ClientError("nothing is subscribed: call subscribe(topic) first")
        if self._recorder is not None:
            timeout_s = self._consume_timeout_s
            traces = HandledTraces(self._recorder, group=self.group, timeout_s=timeout_s)
            handler = traced(handler, traces)
        self._handler = handler
        self._started_ms = time.time_ns() // 1_000_000
        workers = self._workers = Workers(
            handler,
            count=self._workers_count,
            batch_max=self._batch_max,
            is_orderly=self._is_orderly,
            needs_lock=self._needs_lock,
            rates=self._rates,
            settle=self._settle,
        )
        workers.is_paused = self._is_paused
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
                    await self._stop_wanted.wait()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._finish(workers)
                    nursery.cancel_scope.cancel()
        finally:
            self._ended.set()
        if self._failure is not None:
            raise self._failure

    async def _finish(self, workers: Workers) -> None:
        """Read no more, finish what is in work, save and leave; each step has a deadline."""
        self._is_ending = True
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
        self._is_paused = is_paused
        if self._workers is not None:
            self._workers.is_paused = is_paused
            self._offer_all()

    def _announce(self) -> None:
        if self._handler is not None:
            self._client.want_heartbeat()
            self._rebalance.wake()

    def _topics(self) -> list[str]:
        """Return the topics that are read: the group's own retries come back in one of them."""
        retries = [] if self._broadcast else [RETRY_PREFIX + self.group]
        return [*self._subscriptions, *retries]

    def _selector(self, topic: str) -> Selector:
        return self._subscriptions.get(topic, SELECT_ALL)

    async def _share(self, topic: str, queues: list[MessageQueue]) -> bool:
        """Take the queues of a topic that are this member's, and give the others up."""
        if self._is_ending or topic not in self._topics():
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
            if locked.get(queue) and queue not in self._queues and not self._is_ending:
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
        """Hand queues to whoever has them next, in the background."""
        for queue in list(queues):
            if queue not in self._leaving:
                self._queues[queue].drop()
                self._leaving.add(queue)
                self._client.start_soon(self._hand_over, self._queues[queue], None)

    async def _hand_over(self, state: ProcessQueue, offset: int | None) -> None:
        """Save the offset of a queue that was dropped, or ``offset``, and forget the queue."""
        queue = state.queue
        try:
            if offset is not None:
                with trio.move_on_after(RESET_S):
                    await state.wait_idle()
                await self._offsets.save({queue: offset}, lambda queue, offset: None, ())
            elif state.locked_at is not None:
                # The next member may handle no message before this one is done with those before.
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
            # It may be this member's again: after a reset, or as it was read anew.
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
        """End ``run`` if a filter is refused; whatever else a pull meets may pass."""
        if isinstance(exc, FilterError):
            self._failure = exc
            self.stop()
            return True
        return False

    async def _settle(self, batch: Batch) -> None:
        """Do what the result of a batch asks for."""
        state = batch.process_queue
        if state.is_dropped and not self._is_ending and not self._needs_lock:
            return  # the member that has the queue now gets these messages too
        if self._is_orderly:
            await self._settle_in_order(batch)
        elif not batch.failed:
            state.put_back(batch)
        elif self._broadcast:
            logger.warning(
                "messages were refused, and do not come again in a broadcast queue=%s messages=%d",
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
            elif self._is_ending:
                batch.rewind()
                state.put_back(batch)
            else:
                state.keep_failed(batch)
                self._client.start_soon(self._handle_again, batch)

    async def _handle_again(self, batch: Batch) -> None:
        """Handle messages here again that no broker took back."""
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
        if self._workers is not None:
            self._workers.offer(state)

    def _offer_all(self) -> None:
        for state in self._queues.values():
            self._offer(state)

    async def _save_regularly(self) -> None:
        for number in itertools.count(1):
            await trio.sleep(COMMIT_S)
            states = [state for state in self._queues.values() if not state.is_dropped]
            await self._save(states, also_unchanged=number % SAVES_OF_CHANGED == 0)

    async def _save(self, states: Iterable[ProcessQueue], *, also_unchanged: bool = True) -> None:
        """Save how far queues have got. What fails is saved the next time."""
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

        # Members see a new division at different times: for a moment a queue may have two, and
        # the slower one must not take the group back. One below its own last offset is meant.
        forward = {queue for queue, (state, offset) in changed.items() if state.is_forward(offset)}
        offsets = {queue: offset for queue, (_, offset) in changed.items()}
        try:
            await self._offsets.save(offsets, saved, forward)
        except MotelogError as exc:
            logger.warning(
                "offsets could not be saved; they are with the next save, and where this was the "
                "last one messages come again group=%s queues=%d error=%s",
                self.group,
                len(changed),
                exc,
            )

    async def _leave_out_what_is_ahead(
        self, changed: dict[MessageQueue, tuple[ProcessQueue, int]]
    ) -> None:
        """Leave out queues that were taken over from a member that has saved more meanwhile.

        A lock keeps two members apart, and in a broadcast there is one.
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
        """Renew the locks; a queue whose lock is another member's, or too old, is read anew."""
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
                        "the lock of a queue is lost; the queue is read anew queue=%s group=%s",
                        queue,
                        self.group,
                    )
                    # Its offset is not saved: another member may have gone on from there.
                    state.locked_at = None
                    self._give_up([queue])
                elif found.get(queue):
                    state.locked_at = now
            self._offer_all()

    async def _expire(self) -> None:
        """Send messages back whose handling takes too long."""
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
        assert self._handler is not None
        state, done = batch.process_queue, batch.done
        batch.is_given_up = batch.is_cut = True
        stuck = batch.messages[done:] if self._handler.in_batches else batch.messages[done:][:1]
        for message in [*batch.failed, *stuck]:
            logger.warning(
                "the function takes too long for a message, which comes again queue=%s offset=%d "
                "timeout_s=%.3g",
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
        """Answer what a broker asks of a member, for itself or for an operator."""
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
                    ResponseCode.SYSTEM_ERROR, f"this client is no member of {ext['consumerGroup']}"
                )
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return lambda: self._consume_directly(request)
        return None

    def _reset(self, request: RemotingCommand) -> None:
        """Go on at other offsets: an operator has reset the group."""
        if request.ext.get("group") != self.group or self._is_ending:
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
        workers = self._workers
        if workers is None or request.ext.get("consumerGroup") != self.group:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"group {self.group} does not run")
        try:
            (message,) = decode_messages(request.body)
        except (RecordError, ValueError) as exc:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"not one message: {exc}")
        begin = time.monotonic()
        failure: Exception | None = None
        try:
            await workers.call_once(message)
        except Exception as exc:  # the user's function; the operator is told
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
            started_ms=self._started_ms,
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
        """Return the heartbeat's members: this one while it runs."""
        if self._handler is None or self._is_ending:
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


def _is_on_thread_of(token: trio.lowlevel.TrioToken) -> bool:
    try:
        return trio.lowlevel.current_trio_token() is token
    except RuntimeError:  # no trio on this thread
        return False
