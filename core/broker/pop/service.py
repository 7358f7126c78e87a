"""POP's service: it records the messages in work, and delivers them again when their time is over.

Owns: appending checkpoints and acknowledgements; revival: to the topic of the group's retries, or
to its dead letters; committing which records a restart need not read. Must not touch: requests and
answers (processors), which messages are in work (checkpoints), the bytes of records (records).
Spec: RocketMQ PopReviveService, PopBufferMergeService.

    deliver      checkpoint appended -> in work       refused -> the group goes back
    acknowledge  record appended     -> settled
    time is over message appended to %RETRY%GROUP_TOPIC, or %DLQ%GROUP, and acknowledged

Invariants: messages are in work before a consumer gets them. A message that is delivered again is
in the log before its checkpoint is settled. So a broker that is killed loses no message, but may
deliver again some that it was about to deliver.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.pop_log import PopLog
from motelog.core.broker.pop.records import (
    checked_offsets,
    encode_ack,
    encode_checkpoint,
)
from motelog.core.broker.pop.retries import Retries
from motelog.core.broker.pop.state import REVIVE_GROUP, PopState
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.broker.tables.tables import Tables
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError, StoreError, StoreFencedError
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import AppendMessage
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import ROCKETMQ_TIMER_TOPIC

logger = logging.getLogger(__name__)

BATCH: Final = 64
WAIT_S_MAX: Final = 1.0
RETRY_MS: Final = 1_000
UNREADABLE_MS: Final = 10_000
CLEAN_S: Final = 60.0
FAULT_PERIOD_S: Final = 60.0


class PopService:
    """One broker's POP; messages are only delivered again while ``run`` is running."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        api: BrokerApi,
        tables: Tables,
        state: PopState,
    ) -> None:
        self._store = store
        self._api = api
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clock = clock
        self._broker_name = config.name
        self._per_queue_max = config.pop_in_work_per_queue_max
        self._revive_topic = state.revive_topic
        self.checkpoints = state.checkpoints
        self.progress = state.progress
        self.orders = tables.orders
        self.log = PopLog(api.line)
        #: Called with queues that are free again, because their messages' invisible time is over.
        self.on_freed: list[Callable[[list[QueueKey]], None]] = []
        self._done: tuple[int, list[int]] | None = None
        self._state = state
        self._wanted = Flag()
        self._faults = LimitedLog(logger, lines_max=1, period_s=FAULT_PERIOD_S)
        # A full disk refuses every try of every checkpoint, for as long as it is full.
        self._late = LimitedLog(logger, lines_max=1, period_s=FAULT_PERIOD_S)
        self._retries = Retries(config, clock, store, tables)
        self.revived_count = 0

    @property
    def dead_letters_count(self) -> int:
        """Messages that became dead letters."""
        return self._retries.dead_letters_count

    # -- in work ---------------------------------------------------------------------------

    def give_out(
        self,
        popped: Sequence[tuple[Checkpoint, int]],
        *,
        then: Callable[[], None],
        refused: Callable[[StoreError], None],
    ) -> None:
        """Append checkpoints, each with its group's next offset; call one of the callbacks.

        The group moves on at once, so that the next pop of this turn gets other messages.
        """
        for checkpoint, next_offset in popped:
            self.progress.advance(checkpoint.queue_key, next_offset)

        def appended(placed: list[tuple[int, int]], end_offset: int) -> None:
            for (checkpoint, next_offset), (_, revive_offset) in zip(popped, placed, strict=True):
                self._enter(checkpoint, revive_offset)
                mark = checkpoint.revive_queue, revive_offset
                self.progress.note(checkpoint.queue_key, next_offset, end_offset, mark)
            then()

        def undo(exc: StoreError) -> None:
            for checkpoint, _ in popped:
                self.progress.back(checkpoint.queue_key, checkpoint.begin_offset)
            refused(exc)

        messages = [self._record_of(checkpoint) for checkpoint, _ in popped]
        self.log.stage(messages, appended=appended, refused=undo)

    def pass_over(self, queue: QueueKey, next_offset: int) -> None:
        """Move a group past messages that its filter refuses."""
        self.progress.advance(queue, next_offset)
        self.progress.note(queue, next_offset, self._store.end_offset)

    def acknowledge(
        self,
        acked: Sequence[tuple[Checkpoint, Sequence[int]]],
        *,
        then: Callable[[], None],
        refused: Callable[[StoreError], None],
        instead: Checkpoint | None = None,
    ) -> None:
        """Append acknowledgements, then call one of the callbacks.

        ``instead``: the message is to be delivered again when this checkpoint is due.
        """
        noted = [
            (checkpoint, offsets)
            for checkpoint, all_offsets in acked
            if (offsets := checked_offsets(all_offsets, checkpoint))
        ]
        messages = [self._ack_of(checkpoint, offsets) for checkpoint, offsets in noted]
        if instead is not None:
            messages.append(self._record_of(instead))

        def appended(placed: list[tuple[int, int]], _end_offset: int) -> None:
            if instead is not None:
                self._enter(instead, placed[-1][1])
            for (checkpoint, offsets), (_, revive_offset) in zip(noted, placed, strict=False):
                self._leave(checkpoint, offsets, revive_offset)
            then()

        if messages:
            self.log.stage(messages, appended=appended, refused=refused)
        else:
            then()

    def _leave(self, checkpoint: Checkpoint, offsets: list[int], revive_offset: int) -> None:
        queue = checkpoint.queue_key
        was_full = self.checkpoints.open_in(queue) >= self._per_queue_max
        self.checkpoints.saw(checkpoint.revive_queue, revive_offset)
        self.checkpoints.ack(checkpoint, offsets)
        if was_full and self.checkpoints.open_in(queue) < self._per_queue_max:
            for listener in self.on_freed:
                listener([queue])

    def _enter(self, checkpoint: Checkpoint, revive_offset: int) -> None:
        due_ms = self.checkpoints.next_due_ms()
        self.checkpoints.add(checkpoint, revive_offset)
        if due_ms is None or checkpoint.due_ms < due_ms:
            self.wake()

    def wake(self) -> None:
        """Make ``run`` check again what is due next."""
        self._wanted.set()

    def _record_of(self, checkpoint: Checkpoint) -> AppendMessage:
        tail = self._api.queue_tail(self._revive_topic, checkpoint.revive_queue)
        host, now_ms = self._api.store_host, self._clock.now_ms()
        return encode_checkpoint(tail, checkpoint, self._broker_name, host, now_ms)

    def _ack_of(self, checkpoint: Checkpoint, offsets: list[int]) -> AppendMessage:
        tail = self._api.queue_tail(self._revive_topic, checkpoint.revive_queue)
        host, now_ms = self._api.store_host, self._clock.now_ms()
        return encode_ack(tail, checkpoint, offsets, self._broker_name, host, now_ms)

    # -- the task --------------------------------------------------------------------------

    async def run(self, after: Callable[[], None], *, task_status: trio.TaskStatus[None]) -> None:
        """Revive due messages until cancelled; ``after`` is called when consumers were woken."""
        task_status.started()
        cleaned = trio.current_time()
        while True:
            await self._wanted.take(self._pause_s())
            try:
                await self.revive()
                freed = self.orders.take_freed(self._clock.now_ms())
                if freed:
                    for listener in self.on_freed:
                        listener(freed)
                    after()
                self.keep()
            except StoreFencedError:
                # The store has logged the reason; only a restart helps.
                return
            except Exception:
                # A failure that a message causes must not end a process that serves others.
                self._faults.fault("reviving messages failed and is retried, a fault")
                await trio.sleep(WAIT_S_MAX)
            if trio.current_time() - cleaned > CLEAN_S:
                cleaned = trio.current_time()
                self.orders.clean(self._is_known, self._clock.now_ms())

    def _pause_s(self) -> float:
        """Return for how long there is nothing to do."""
        moments = [self.checkpoints.next_due_ms(), self.orders.next_free_ms()]
        now_ms = self._clock.now_ms()
        pauses = [(ms - now_ms) / 1000 for ms in moments if ms is not None]
        return max(0.0, min([*pauses, WAIT_S_MAX]))

    def keep(self) -> None:
        """Commit the progress of groups, and which records a restart need not read."""
        durable_offset = self._store.durable_offset
        self.progress.commit(durable_offset)
        if self._done is not None and self._done[0] <= durable_offset:
            # A full table cannot keep it: the next start reads more.
            with contextlib.suppress(BrokerError):
                for queue, last in enumerate(self._done[1]):
                    if last >= 0:
                        self._offsets.commit(REVIVE_GROUP, self._revive_topic, queue, last)
            self._done = None
        if self._done is None and self.checkpoints.has_changed():
            self._done = self._store.end_offset, self.checkpoints.done_with()
        self._keep_timer(durable_offset)
        if self._done is not None or self.progress.is_waiting:
            self._api.acknowledge.want(self._store.end_offset)
        self._write_again(self.checkpoints.stale(BATCH))

    def _keep_timer(self, durable_offset: int) -> None:
        """Commit how far RocketMQ's timer was taken over, once those records are in the log."""
        taken = self._state.timer_taken
        if taken is None or self.checkpoints.has_adopted:
            return
        end_offset = self._store.end_offset
        if durable_offset < end_offset:
            self._api.acknowledge.want(end_offset)
            return
        with contextlib.suppress(BrokerError):
            self._offsets.commit(REVIVE_GROUP, ROCKETMQ_TIMER_TOPIC, 0, taken)
        self._state.timer_taken = None

    def _write_again(self, stale: list[Checkpoint]) -> None:
        """Write checkpoints again at their queues' ends, so that no restart reads the old ones."""

        def appended(placed: list[tuple[int, int]], _end_offset: int) -> None:
            for checkpoint, (_, revive_offset) in zip(stale, placed, strict=True):
                self.checkpoints.move(checkpoint, revive_offset)
            if self.checkpoints.has_adopted:
                self.wake()

        if stale:
            for checkpoint in stale:
                checkpoint.is_again = True
            messages = [self._record_of(checkpoint) for checkpoint in stale]
            # If refused, they are retried a second later.
            self.log.stage(messages, appended=appended, refused=lambda exc: None)
            self.log.flush()

    def _is_known(self, queue: QueueKey) -> bool:
        topic, group, queue_id = queue
        config = self._topics.get(topic)
        is_there = config is not None and queue_id < config.read_queue_nums
        return is_there and self._groups.get(group) is not None

    # -- revival ---------------------------------------------------------------------------

    async def revive(self) -> None:
        """Deliver again all messages whose invisible time is over."""
        while due := self.checkpoints.take_due(self._clock.now_ms(), BATCH):
            for at, checkpoint in enumerate(due):
                try:
                    await self._revive_one(checkpoint)
                except StoreError as exc:
                    for later in due[at:]:
                        self.checkpoints.put_off(later, self._clock.now_ms() + RETRY_MS)
                    if isinstance(exc, StoreFencedError):
                        raise
                    self._late.warning(
                        "unacknowledged messages are delivered again later than usual; none is"
                        " lost reason=%s",
                        exc,
                    )
                    return
            await trio.lowlevel.checkpoint()

    async def _revive_one(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_settled:
            return
        found = []
        for offset in sorted(checkpoint.open):
            found += await self._retries.fields_of(checkpoint, offset)
        # Paging in may have taken a while; messages acknowledged meanwhile are left out.
        messages: list[AppendMessage] = []
        if self._retries.is_wanted(checkpoint):
            try:
                messages = [
                    self._retries.message(checkpoint, fields)
                    for fields in found
                    if fields[2] in checkpoint.open
                ]
            except BrokerError as exc:
                self._faults.warning(
                    "messages cannot be delivered again, it is retried topic=%s group=%s reason=%s",
                    ascii(checkpoint.topic),
                    ascii(checkpoint.group),
                    exc.remark,
                )
                self.checkpoints.put_off(checkpoint, self._clock.now_ms() + UNREADABLE_MS)
                return
        offsets = list(checkpoint.open)
        if not offsets:
            return
        await self._append([*messages, self._ack_of(checkpoint, offsets)])
        self.revived_count += len(messages)
        self.checkpoints.settle(checkpoint)

    async def _append(self, messages: list[AppendMessage]) -> None:
        """Append, waiting in line if others do; raises what an append raises."""
        line = self._api.line
        if line.append(messages) is not None:
            return
        over = trio.Event()
        errors: list[StoreError] = []

        def appended(_end_offset: int) -> None:
            over.set()

        def refused(exc: StoreError) -> None:
            errors.append(exc)
            over.set()

        line.wait(messages, appended=appended, refused=refused)
        await over.wait()
        for error in errors:
            raise error
