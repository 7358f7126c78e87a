"""Recalls: a message that waits for its own due time will not be delivered.

Owns: request code 370, its answer's wait for the disk. Must not touch: which of the due messages
were recalled (delay.recalls).
Spec: RocketMQ RecallMessageProcessor; off by default there.

    handle -> a record beside the message, in the queue of its due time -> durable -> answered

Invariants: a recall is appended only before the message is due, and is then answered with success,
however late: its record can be read before any message due at that time is delivered, so the
message is not delivered. A recall that is refused as too late is never appended. As in RocketMQ, a
recall may name a message that does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from motelog.core.broker.acknowledge import AnswerQueue
from motelog.core.broker.processors.send_answers import store_error_code
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError, BusyError, StoreError
from motelog.core.message import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    encode_properties,
)
from motelog.core.records.append import AppendMessage
from motelog.core.remoting.fields import text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.recall_handle import RecallHandle, decode_handle
from motelog.core.remoting.server import Connection, Processor
from motelog.core.store.due_time import TIMER_MS_MAX, timer_queue
from motelog.core.topic_names import TIMER_TOPIC, shown

_TOO_LATE: Final = "recall failed, the message's time has come"


@dataclass(frozen=True, slots=True)
class _Recall:
    request: RemotingCommand
    connection: Connection
    handle: RecallHandle


class RecallProcessor:
    """Recalls messages; state changes only within a turn and when answers are released."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api
        self._topics = shared.tables.topics
        self._broker_name = shared.config.name
        self._waiting_max = shared.config.waiting_answers_max
        self._is_enabled = shared.config.recall_messages
        self.staged: list[tuple[_Recall, AppendMessage]] = []
        self.queue: AnswerQueue[list[_Recall]] = AnswerQueue(
            shared.api.acknowledge,
            clock=shared.clock,
            answer=self._answer_all,
            refuse=self._refuse_all,
        )
        self._waiting_count = 0

    def processors(self) -> dict[int, Processor]:
        return {RequestCode.RECALL_MESSAGE: self._recall}

    def enable(self, is_on: bool) -> None:
        """Accept recalls, or refuse them all."""
        self._is_enabled = is_on

    def _recall(self, request: RemotingCommand, connection: Connection) -> None:
        if not self._is_enabled:
            text = "recall failed, this broker is configured to refuse recalls"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        topic = text_field(request.ext, "topic")
        if self._topics.get(topic) is None:
            text = f"recall failed, the topic {shown(topic)} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        try:
            handle = decode_handle(text_field(request.ext, "recallHandle"))
        except ValueError as exc:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, str(exc)) from exc
        if handle.topic != topic:
            text = f"recall failed, the handle is for the topic {shown(handle.topic)}"
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, text)
        if handle.broker_name != self._broker_name:
            text = f"recall failed, the message is at the broker {shown(handle.broker_name)}"
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, text)
        now_ms = self._api.now_ms()
        if not 0 < handle.due_ms - now_ms <= TIMER_MS_MAX:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, _TOO_LATE)
        if self._waiting_count >= self._waiting_max:
            text = f"{self._waiting_count} recalls already wait for the disk"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, text)
        told = {
            TIMER_DEL_UNIQKEY: handle.unique_key,
            REAL_TOPIC: topic,
            REAL_QID: "0",
            TIMER_OUT_MS: str(handle.due_ms),
        }
        try:
            properties = encode_properties(told)
        except ValueError as exc:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, str(exc)) from exc
        tail = self._api.queue_tail(TIMER_TOPIC, timer_queue(handle.due_ms))
        message = (tail, b"0", properties, -handle.due_ms, now_ms, connection.host, 0, 0, 0, 0)
        self.staged.append((_Recall(request, connection, handle), message))

    def end_turn(self) -> None:
        """Append the recalls of the turn, and answer them."""
        # A turn takes a while. Nothing is delivered between this reading and the append.
        now_ms = self._api.now_ms()
        staged, messages = [], []
        for recall, message in self.staged:
            if recall.handle.due_ms > now_ms:
                staged.append(recall)
                messages.append(message)
            else:
                self._tell(recall, ResponseCode.ILLEGAL_OPERATION, _TOO_LATE)
        self.staged.clear()
        if not staged:
            self.queue.send_queued()
            return
        self._waiting_count += len(staged)
        try:
            end_offset = self._api.line.append(messages)
        except StoreError as exc:
            self._refuse_all([staged], exc)
            return
        except Exception:
            self._refuse_all([staged], StoreError("the append failed, see the broker's log"))
            raise
        if end_offset is None:
            # It must not wait in line: if it were appended too late, it would still take effect.
            self._refuse_all([staged], BusyError("the next CommitLog file is not ready yet"))
        elif self.queue.may_answer(end_offset):
            self._answer_all([staged])
        else:
            self.queue.add(end_offset, staged)

    def _answer_all(self, released: list[list[_Recall]]) -> None:
        for recalls in released:
            self._waiting_count -= len(recalls)
            for recall in recalls:
                self._tell(recall, ext={"msgId": recall.handle.unique_key})
        self.queue.send_queued()

    def _refuse_all(self, refused: list[list[_Recall]], exc: StoreError) -> None:
        for recalls in refused:
            self._waiting_count -= len(recalls)
            for recall in recalls:
                self._tell(recall, store_error_code(exc), str(exc))
        self.queue.send_queued()

    def _tell(
        self,
        recall: _Recall,
        code: ResponseCode = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
    ) -> None:
        if not recall.request.is_oneway:
            recall.connection.reply(recall.request.answer(code, remark, ext))
