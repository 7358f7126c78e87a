"""Asks producers about half messages that are still open, and gives up those without an answer.

Owns: the regular passes over the half queue, which producer gets a question (request code 39).
Must not touch: commits and rollbacks (processors.end_transaction), when a half message needs a
question (half_message), how progress is kept (progress).
Spec: RocketMQ TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener.

    pass, each interval: from ``begin`` on, up to the first half message that is still young
        open          -> a copy with one more question counted, then the question
        asked too often, or older than the log keeps messages
                      -> TRANS_CHECK_MAX_TIME_TOPIC, and an op: it is rolled back

Questions go to the producers of the group in turn. A group without producers counts as asked, as in
RocketMQ; a group whose producers do not read from their connections does not.
The state that a crash leaves right after
    the copy     two copies, and the older one is over (past)
    the op       nothing: it is over
    the record in TRANS_CHECK_MAX_TIME_TOPIC, before its op   the half message is given up again
Concurrency: there is no await between a decision and its append, because during an await a producer
may end a half message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from motelog.core.acl.accounts import Right, topic_need
from motelog.core.acl.gate import AclGate
from motelog.core.broker.tables.consumer_groups import GroupMembers
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.transactions.half_message import (
    HALF_QUEUE,
    HalfMessage,
    Verdict,
    copy_of,
    decode_half,
    given_up_message,
    judge,
    op_message,
    question,
)
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.broker.transactions.past import Past, past_of
from motelog.core.broker.transactions.progress import load_ledger, save_progress
from motelog.core.errors import BrokerError, NextFileError, RecordError, StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import encode_offset_id
from motelog.core.records.append import AppendMessage
from motelog.core.remoting.frames import FLAG_ONEWAY, RemotingCommand, RequestCode
from motelog.core.remoting.server import Connection
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TOPIC

logger = logging.getLogger(__name__)

_COUNT_PER_READ: Final = 64
_BYTES_PER_READ: Final = 1 << 20
_NEXT_FILE_POLL_S: Final = 0.01
_LAST_SAVE_S_MAX: Final = 10.0
_FAULT_PERIOD_S: Final = 60.0
_OP_TOPIC: Final = OP_HALF_TOPIC.encode()


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When producers are asked, and how often."""

    broker_name: str
    timeout_ms: int
    interval_s: float
    check_max: int
    age_ms_max: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What a pass appends for one half message.

    ``member`` gets a question about the first record; ``given_up`` says why there is no further
    question.
    """

    half: HalfMessage
    messages: tuple[AppendMessage, ...]
    member: Connection | None = None
    given_up: str = ""


class CheckBack:
    """One broker's open half messages; ``load`` before it serves, ``run`` while it does."""

    def __init__(
        self,
        store: MessageStore,
        tables: Tables,
        ledger: Ledger,
        rules: CheckRules,
        *,
        store_host: bytes,
        acl: AclGate | None,
    ) -> None:
        self._acl = acl
        self._store = store
        self._reader = store.reader
        self._offsets = tables.offsets
        self._topics = tables.topics
        self._producers: GroupMembers[Connection] = tables.producers
        self._ledger = ledger
        self._rules = rules
        self._store_host = store_host
        self._turn = 0
        self._faults = LimitedLog(logger, lines_max=1, period_s=_FAULT_PERIOD_S)
        # A producer that never comes back may have left any number of half messages.
        self._given_up = LimitedLog(logger)
        self.asked_count = 0
        self.given_up_count = 0

    async def load(self) -> None:
        """Read which half messages are over."""
        await load_ledger(self._ledger, self._store, self._offsets)

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Make a pass each interval until cancelled, then save; ``after`` sends the questions."""
        task_status.started()
        try:
            while True:
                await trio.sleep(self._rules.interval_s)
                try:
                    await self.make_pass()
                    await save_progress(self._ledger, self._store, self._offsets)
                except (StoreError, BrokerError) as exc:
                    self._faults.warning(
                        "open transactions cannot be checked now, and none is lost; the check is"
                        " repeated every %g s reason=%s", self._rules.interval_s, exc,
                    )  # fmt: skip
                except Exception:
                    # A failure that a message causes must not end a process that serves others.
                    self._faults.fault("finding open transactions failed, a fault of this broker")
                after()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_SAVE_S_MAX):
                try:
                    await save_progress(self._ledger, self._store, self._offsets)
                except (StoreError, BrokerError) as exc:
                    self._faults.warning("the progress of transactions is not saved error=%s", exc)

    async def make_pass(self) -> None:
        """Ask about the half messages that are due; copies made meanwhile are for the next pass."""
        ledger, reader = self._ledger, self._reader
        end = reader.max_offset(HALF_TOPIC, HALF_QUEUE)
        is_over = False
        while not is_over and (offset := ledger.next_open(ledger.begin)) < end:
            ledger.move_to(offset)
            read = partial(reader.read, HALF_TOPIC, HALF_QUEUE, offset)
            count_max = min(_COUNT_PER_READ, end - offset)
            result = await reader.when_in_memory(
                partial(read, count_max=count_max, bytes_max=_BYTES_PER_READ)
            )
            halves = _intact(result.records)
            pasts = [await self._past(half) for half in halves]
            try:
                is_over = self._take(halves, pasts, max(result.next_offset, offset + 1))
            except NextFileError:
                # Decided again afterwards: a producer may have ended some of them.
                await trio.sleep(_NEXT_FILE_POLL_S)
            await trio.lowlevel.checkpoint()

    async def _past(self, half: HalfMessage) -> Past:
        return await self._reader.when_in_memory(partial(past_of, half, self._ledger, self._store))

    def _take(self, halves: list[HalfMessage], pasts: list[Past], end: int) -> bool:
        """Append what is due for half messages up to ``end``, and send the questions.

        Return whether the pass ends early, before a half message that has to wait.
        """
        now_ms = self._store.now_ms()
        steps: list[_Step] = []
        is_stopped = False
        for half, past in zip(halves, pasts, strict=True):
            if self._ledger.is_over(half.queue_offset):
                continue
            if past.is_committed:
                # A crash came between the real message and its op.
                steps.append(_Step(half, (self._op(half),)))
            elif past.open is not None and past.open.queue_offset == half.queue_offset:
                step = self._step(half, now_ms)
                if step is None or half.queue_offset in self._ledger.ending:
                    end, is_stopped = half.queue_offset, True
                    break
                steps.append(step)
        placed = self._append([message for step in steps for message in step.messages])
        at = 0
        for step in steps:
            self._note(step, placed[at])
            at += len(step.messages)
        self._ledger.move_to(end)
        return is_stopped

    def _step(self, half: HalfMessage, now_ms: int) -> _Step | None:
        """Return the step for an open half message; None if it is too young."""
        rules = self._rules
        verdict = judge(
            half,
            now_ms,
            timeout_ms=rules.timeout_ms,
            check_max=rules.check_max,
            age_ms_max=rules.age_ms_max,
            begin_offset=self._reader.min_offset(HALF_TOPIC, HALF_QUEUE),
        )
        tail = self._store.queue_tail(HALF_TOPIC, HALF_QUEUE)
        try:
            match verdict:
                case Verdict.WAIT:
                    return None
                case Verdict.KEEP:
                    return _Step(half, (copy_of(half, tail),))
                case Verdict.ASK:
                    member, has_any = self._next_member(half)
                    times = half.check_times + (member is not None or not has_any)
                    return _Step(half, (copy_of(half, tail, times=times),), member)
                case Verdict.GIVE_UP:
                    return self._give_up(half, f"asked {half.check_times} times")
        except ValueError as exc:
            # The copy's properties would be too long: the question could not be counted.
            return self._give_up(half, str(exc))

    def _give_up(self, half: HalfMessage, reason: str) -> _Step:
        topic = self._topics.create_given_up_topic(self._store.now_ms())
        tail = self._store.queue_tail(topic.topic_name, HALF_QUEUE)
        return _Step(half, (given_up_message(half, tail), self._op(half)), given_up=reason)

    def _op(self, half: HalfMessage) -> AppendMessage:
        tail = self._store.queue_tail(OP_HALF_TOPIC, HALF_QUEUE)
        return op_message(half, tail, now_ms=self._store.now_ms(), host=self._store_host)

    def _next_member(self, half: HalfMessage) -> tuple[Connection | None, bool]:
        """Return the producer to ask, and whether there is any; a congested one is not asked.

        The question contains the message, and any account may join a producer group. So with access
        control only producers that may send to the topic are asked.
        """
        found = self._producers.get(half.group)
        members = [] if found is None else [m.owner for m in found.members.values()]
        if self._acl is not None:
            need = topic_need(half.real_topic, Right.PUB)
            members = [member for member in members if self._acl.may(member, need)]
        self._turn += 1
        for index in range(len(members)):
            member = members[(self._turn + index) % len(members)]
            if member.is_open and not member.is_congested:
                return member, True
        return None, bool(members)

    def _note(self, step: _Step, place: tuple[int, int]) -> None:
        """Send the question or log the end of an appended step; first record at ``place``."""
        if step.member is not None:
            self.asked_count += 1
            step.member.reply(self._question(step.half, place))
        if step.given_up:
            self.given_up_count += 1
            self._given_up.warning(
                "a transaction is rolled back, as its producers have never answered the questions;"
                " its message is in %s group=%s topic=%s message_id=%s reason=%s",
                TRANS_CHECK_MAX_TOPIC,
                ascii(step.half.group),
                ascii(step.half.real_topic),
                ascii(step.half.unique_key),
                step.given_up,
            )

    def _question(self, half: HalfMessage, place: tuple[int, int]) -> RemotingCommand:
        physical_offset, queue_offset = place
        return RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE,
            flag=FLAG_ONEWAY,
            ext={
                "topic": half.real_topic,
                "commitLogOffset": str(physical_offset),
                "tranStateTableOffset": str(queue_offset),
                "offsetMsgId": encode_offset_id(self._store_host, physical_offset),
                "msgId": half.unique_key,
                "transactionId": half.unique_key,
                "bname": self._rules.broker_name,
            },
            body=question(half, place, self._store_host),
        )

    def _append(self, messages: list[AppendMessage]) -> list[tuple[int, int]]:
        """Append and return the places; the ops among them end half messages. Raises StoreError."""
        placed: list[tuple[int, int]] = []
        if messages:
            self._store.append(messages, placed, may_wait=False)
        for message, (_, op_offset) in zip(messages, placed, strict=True):
            if message[0].topic == _OP_TOPIC:
                self._ledger.note_op(op_offset, [int(message[1])])
        return placed


def _intact(records: bytes) -> list[HalfMessage]:
    halves = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        try:
            halves.append(decode_half(records[at : at + size]))
        except RecordError as exc:
            logger.error(
                "the disk has changed a half message, and its transaction is over: check the disk"
                " reason=%s", exc,
            )  # fmt: skip
        at += max(size, 1)
    return halves
