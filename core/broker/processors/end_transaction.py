"""Commits and rollbacks: requests that end half messages, gathered in a turn, then one append.

Owns: request codes 37 and 323, their answers' wait for the disk. Must not touch: the records made
from a half message (transactions.half_message), questions to producers (transactions.check_back).
Spec: RocketMQ EndTransactionProcessor, AdminBrokerProcessor.resumeCheckHalfMessage.

    commit    -> the real message, then an op that names the half message: one append
    rollback  -> the op alone
    unknown   -> nothing: the broker asks later

The state that a crash leaves right after
    the real message, before its op   committed: its producers are not asked, and there is no second
                                      real message (transactions.past)
    the op                            over; a repeated request is answered with what happened
A transaction that is over is not ended again: the same end is answered with success, the other one
with ILLEGAL_OPERATION.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from motelog.core.acl.accounts import Right, topic_need
from motelog.core.broker.acknowledge import AnswerQueue
from motelog.core.broker.processors.send_answers import store_error_code
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.transactions.half_message import (
    HALF_QUEUE,
    HalfMessage,
    check_end,
    copy_of,
    decode_half,
    half_of,
    is_too_late,
    op_message,
    real_message,
)
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.broker.transactions.past import past_of
from motelog.core.errors import BrokerError, RecordError, StoreError
from motelog.core.message import TRAN_MSG, decode_offset_id
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.records.decode import decode
from motelog.core.records.layout import COMMIT, ROLLBACK
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TOPICS_CLOSED_TO_SENDERS,
    TRANS_CHECK_MAX_TOPIC,
)

_NOT_FOUND: Final = "Find prepared transaction message failed"
_OP_TOPIC: Final = OP_HALF_TOPIC.encode()
_ASKED_ABOUT: Final = frozenset({HALF_TOPIC.encode(), TRANS_CHECK_MAX_TOPIC.encode()})


@dataclass(frozen=True, slots=True)
class _Staged:
    """One request and the messages that it appends; after that ``half`` is over."""

    request: RemotingCommand
    connection: Connection
    half: HalfMessage | None
    messages: tuple[AppendMessage, ...]


#: Requests of one append that want an answer.
_Answers = list[tuple[RemotingCommand, Connection]]


class EndTransactionProcessor:
    """Ends transactions; state changes only within a turn and when answers are released."""

    def __init__(self, shared: Shared, ledger: Ledger) -> None:
        self._store = shared.store
        self._acl = shared.acl
        self._api = shared.api
        self._cold = shared.api.cold_reads
        self._ledger = ledger
        self._timeout_ms = round(shared.config.transaction_timeout_s * 1000)
        self.staged: list[_Staged] = []
        self.queue: AnswerQueue[_Answers] = AnswerQueue(
            shared.api.acknowledge,
            clock=shared.clock,
            answer=self._answer_all,
            refuse=self._refuse_all,
        )
        self.committed_count = 0
        self.rolled_back_count = 0

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.END_TRANSACTION: self._cold.guard(self._end),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._cold.guard(self._resume),
        }

    def _end(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand | None:
        ext = request.ext
        group = text_field(ext, "producerGroup")
        queue_offset = int_field(ext, "tranStateTableOffset")
        physical_offset = int_field(ext, "commitLogOffset")
        end = int32_field(ext, "commitOrRollback")
        if end == 0:
            return request.answer()
        if end not in (COMMIT, ROLLBACK):
            text = f"commitOrRollback is {end}, not {COMMIT}, {ROLLBACK} or 0"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        half = self._half_at(physical_offset, may_wait=may_wait)
        if self._acl is not None:
            self._acl.demand(request, connection, topic_need(half.real_topic, Right.PUB))
        is_asked = bool_field(ext, "fromTransactionCheck")
        if not is_asked and is_too_late(half, self._store.now_ms(), self._timeout_ms):
            text = "the message's immunity is over: its end is accepted when the broker has asked"
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, text)
        check_end(half, group=group, queue_offset=queue_offset, physical_offset=physical_offset)
        past = past_of(half, self._ledger, self._store, may_wait=may_wait)
        if past.open is None:
            if past.is_committed != (end == COMMIT):
                text = f"the transaction was {'committed' if past.is_committed else 'rolled back'}"
                raise BrokerError(ResponseCode.ILLEGAL_OPERATION, text)
            # Another copy was ended, or a crash came before the op.
            is_over = self._ledger.is_over(half.queue_offset)
            ops = () if is_over else (self._op(half),)
            self.staged.append(_Staged(request, connection, None, ops))
            return None
        if past.open.queue_offset in self._ledger.ending:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, "the transaction is being ended")
        messages: tuple[AppendMessage, ...] = (self._op(past.open),)
        if end == COMMIT:
            messages = (real_message(half, self._real_tail(half)), *messages)
        self._ledger.ending.add(past.open.queue_offset)
        self.staged.append(_Staged(request, connection, past.open, messages))
        return None

    def _resume(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand | None:
        """Restart the questions to producers about an open transaction, from the first one."""
        try:
            _, physical_offset = decode_offset_id(text_field(request.ext, "msgId"))
            record = self._store.reader.record_at(physical_offset, may_wait=may_wait)
            (fields,) = decode(record, verify=True)
        except (ValueError, StoreError) as exc:
            text = f"there is no half message with that id: {exc}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text) from exc
        # If the index finds no newer copy, this one counts as over.
        half = replace(half_of(fields), queue_offset=-1)
        if fields[0] not in _ASKED_ABOUT or TRAN_MSG not in half.pairs:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the message is not a half message")
        past = past_of(half, self._ledger, self._store, may_wait=may_wait)
        if past.is_committed:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "the transaction was committed")
        tail = self._store.queue_tail(HALF_TOPIC, HALF_QUEUE)
        try:
            messages: tuple[AppendMessage, ...] = (copy_of(past.open or half, tail, times=0),)
        except ValueError as exc:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        if past.open is not None:
            if past.open.queue_offset in self._ledger.ending:
                raise BrokerError(ResponseCode.SYSTEM_BUSY, "the transaction is being ended")
            messages += (self._op(past.open),)
            self._ledger.ending.add(past.open.queue_offset)
        self.staged.append(_Staged(request, connection, past.open, messages))
        return None

    def _half_at(self, physical_offset: int, *, may_wait: bool) -> HalfMessage:
        try:
            return decode_half(self._store.reader.record_at(physical_offset, may_wait=may_wait))
        except RecordError as exc:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND) from exc

    def _real_tail(self, half: HalfMessage) -> QueueTail:
        topic, queue_id = half.real_topic, half.real_queue_id
        if queue_id is None or topic in TOPICS_CLOSED_TO_SENDERS:
            text = "the half message does not name its topic"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        return self._api.queue_tail(topic, queue_id)

    def _op(self, half: HalfMessage) -> AppendMessage:
        tail = self._api.queue_tail(OP_HALF_TOPIC, HALF_QUEUE)
        return op_message(half, tail, now_ms=self._api.now_ms(), host=self._api.store_host)

    # -- the end of a turn -----------------------------------------------------------------

    def end_turn(self) -> None:
        """Append the ends that the turn requested, and answer the requests."""
        staged, self.staged = self.staged, []
        messages = [message for one in staged for message in one.messages]
        placed: list[tuple[int, int]] = []
        appended = partial(self._appended, staged, placed)
        refused = partial(self._refuse, staged)
        if not messages:
            appended(self._store.end_offset)
            return
        line = self._api.line
        try:
            end_offset = line.append(messages, placed)
        except StoreError as exc:
            refused(exc)
            return
        except Exception:
            refused(StoreError("the append failed, see the broker's log"))
            raise
        if end_offset is None:
            line.wait(messages, placed, appended=appended, refused=refused)
        else:
            appended(end_offset)

    def _appended(
        self, staged: list[_Staged], placed: list[tuple[int, int]], end_offset: int
    ) -> None:
        at = 0
        for one in staged:
            for message in one.messages:
                if message[0].topic == _OP_TOPIC:
                    self._ledger.note_op(placed[at][1], [int(message[1])])
                at += 1
            self._forget(one)
            self._count(one)
        answers = _wanted(staged)
        if self.queue.may_answer(end_offset):
            self._answer_all([answers])
        elif answers:
            self.queue.add(end_offset, answers)

    def _count(self, one: _Staged) -> None:
        if one.half is not None and one.request.code == RequestCode.END_TRANSACTION:
            self.committed_count += len(one.messages) - 1
            self.rolled_back_count += len(one.messages) == 1

    def _forget(self, one: _Staged) -> None:
        if one.half is not None:
            self._ledger.ending.discard(one.half.queue_offset)

    def _refuse(self, staged: list[_Staged], exc: StoreError) -> None:
        for one in staged:
            self._forget(one)
        self._refuse_all([_wanted(staged)], exc)

    def _answer_all(self, released: list[_Answers]) -> None:
        for answers in released:
            for request, connection in answers:
                connection.reply(request.answer())
        self.queue.send_queued()

    def _refuse_all(self, refused: list[_Answers], exc: StoreError) -> None:
        for answers in refused:
            for request, connection in answers:
                connection.reply(request.answer(store_error_code(exc), str(exc)))
        self.queue.send_queued()


def _wanted(staged: list[_Staged]) -> _Answers:
    """Return the requests that want an answer, without their messages."""
    return [(one.request, one.connection) for one in staged if not one.request.is_oneway]
