"""Messages that a consumer group could not process: delivered again later, or dead letters.

Owns: request code 36, and when a retry becomes a dead letter. Must not touch: how a message waits
(delays, schedule), how it is appended and answered (send).
Spec: RocketMQ AbstractSendMessageProcessor.consumerSendMsgBack.

    level < 0, or retried as often as allowed -> %DLQ%GROUP
    else                                      -> %RETRY%GROUP after level, or 3 + times when 0
"""

from __future__ import annotations

from typing import Any, Final

from motelog.core.acl.needs import consumed
from motelog.core.broker.delay.delays import DELAY_PROPERTIES
from motelog.core.broker.processors.send import SendProcessor
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.waiting.flow_control import FlowControl
from motelog.core.errors import BrokerError, StoreError
from motelog.core.message import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_OUT_MS,
    decode_properties,
    encode_offset_id,
)
from motelog.core.records.decode import decode
from motelog.core.remoting.codes import Permission
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import TOPICS_CLOSED_TO_SENDERS

_FIRST_LEVEL: Final = 3


class SendBackProcessor:
    """Processes messages that are sent back; state changes only within a turn."""

    def __init__(self, shared: Shared, send: SendProcessor, flow: FlowControl) -> None:
        self._flow = flow
        self._reader = shared.store.reader
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._send = send
        self._acl = shared.acl
        self._cold = shared.api.cold_reads
        self._clock = shared.clock
        self._is_writable = bool(shared.config.permission & Permission.WRITE)
        self._next_queue = 0

    def processors(self) -> dict[int, Processor]:
        # A message that is sent back is often old: the consumer has tried for a while.
        take_back = self._flow.guard(self._cold.guard(self._take_back))
        return {RequestCode.CONSUMER_SEND_MSG_BACK: take_back}

    def _take_back(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand | None:
        ext = request.ext
        now_ms = self._clock.now_ms()
        group = self._groups.find(text_field(ext, "group"))
        if group.retry_queue_nums <= 0:
            # As in RocketMQ: the group does not want failed messages again.
            return request.answer()
        if not self._is_writable:
            text = "this broker does not take messages back: it is not writable"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        level = int32_field(ext, "delayLevel", 0)
        times_max = int32_field(ext, "maxReconsumeTimes", group.retry_max_times)
        if times_max < 0:
            times_max = group.retry_max_times
        (
            topic, _, _, physical, flag, sys_flag, born_ms, born_host, _, store_host, times, _,
            text, body,
        ) = self._find(int_field(ext, "offset"), may_wait=may_wait)  # fmt: skip
        if self._acl is not None:
            # It becomes one of the group's messages, so accounts that may not read it are refused.
            self._acl.demand(request, connection, *consumed(topic, group.group_name))
        pairs = decode_properties(text)
        pairs.setdefault(RETRY_TOPIC, topic)
        pairs.setdefault(ORIGIN_MESSAGE_ID, encode_offset_id(store_host, physical))
        # The delay that it had before it was delivered is over.
        for name in (*DELAY_PROPERTIES, REAL_TOPIC, REAL_QID, TIMER_OUT_MS):
            pairs.pop(name, None)
        if level < 0 or times >= times_max:
            target, queue_id = self._topics.create_dead_letter_topic(group.group_name, now_ms), 0
        else:
            target = self._topics.create_retry_topic(
                group.group_name, now_ms, group.retry_queue_nums
            )
            self._next_queue += 1
            queue_id = self._next_queue % target.write_queue_nums
            pairs[DELAY] = str(level or _FIRST_LEVEL + times)
        if not target.is_writable:
            text = f"the topic {target.topic_name} is not writable"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        self._send.stage_again(
            request,
            connection,
            (target.topic_name, queue_id),
            pairs,
            (body, born_ms, born_host, sys_flag, flag, times + 1),
            (pairs[RETRY_TOPIC], group.group_name),
        )
        return None

    def _find(self, physical_offset: int, *, may_wait: bool) -> tuple[str, *tuple[Any, ...]]:
        try:
            record = self._reader.record_at(physical_offset, may_wait=may_wait)
            ((topic, *fields),) = decode(record, verify=True)
        except StoreError as exc:
            text = f"there is no message at {physical_offset}: {exc}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text) from exc
        name = topic.decode(errors="replace")
        if name in TOPICS_CLOSED_TO_SENDERS:
            text = f"messages of the system topic {name} cannot be sent back"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        return (name, *fields)
