"""Requests of tools for single messages and units.

Owns: request codes 12, 33, 321. Must not touch: how the index or a queue is read.
Spec: RocketMQ QueryMessageProcessor, AdminBrokerProcessor.queryConsumeQueue.
"""

from __future__ import annotations

from typing import Final

import msgspec

from motelog.core.acl.accounts import Right, topic_need
from motelog.core.broker.admin.queues import Queues
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.records.decode import decode
from motelog.core.records.layout import UNIT, UNIT_BYTES
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown

_UNIQUE_COUNT_MAX: Final = 32
_UNITS_MAX: Final = 1000


class MessageAdmin:
    """Answers about messages."""

    def __init__(self, shared: Shared, queues: Queues) -> None:
        self._reader = shared.store.reader
        self._consumers = shared.tables.consumers
        self._cold = shared.api.cold_reads
        self._queues = queues
        self._acl = shared.acl

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_MESSAGE: self._cold.guard(self._query),
            RequestCode.VIEW_MESSAGE_BY_ID: self._cold.guard(self._view),
            RequestCode.QUERY_CONSUME_QUEUE: self._cold.guard(self._units),
        }

    def _view(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand:
        record = self._reader.record_at(int_field(request.ext, "offset"), may_wait=may_wait)
        if self._acl is not None:
            ((topic, *_),) = decode(record, verify=False)
            need = topic_need(topic.decode(errors="replace"), Right.SUB)
            self._acl.demand(request, connection, need)
        return request.answer(body=record)

    def _query(self, request: RemotingCommand, _: Connection, may_wait: bool) -> RemotingCommand:
        only_unique = bool_field(request.ext, "_UNIQUE_KEY_QUERY")
        # For lookups of unique ids RocketMQ uses its own limit (defaultQueryMaxNum).
        count_max = _UNIQUE_COUNT_MAX if only_unique else int32_field(request.ext, "maxNum")
        result = self._reader.query(
            text_field(request.ext, "topic"),
            text_field(request.ext, "key"),
            begin_ms=int_field(request.ext, "beginTimestamp"),
            end_ms=int_field(request.ext, "endTimestamp"),
            count_max=count_max,
            only_unique=only_unique,
            may_wait=may_wait,
        )
        ext = {
            "indexLastUpdateTimestamp": str(result.index_last_ms),
            "indexLastUpdatePhyoffset": str(result.index_last_offset),
        }
        if not result.records:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "no message has this key", ext)
        return request.answer(ext=ext, body=b"".join(result.records))

    def _units(self, request: RemotingCommand, _: Connection, may_wait: bool) -> RemotingCommand:
        ext = request.ext
        topic, queue_id = text_field(ext, "topic"), int32_field(ext, "queueId")
        queues = self._queues.of_name(topic)
        if not 0 <= queue_id < len(queues):
            text = f"{queue_id}@{shown(topic)[1:-1]} is not exist!"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        queue = queues[queue_id]
        begin, end = self._queues.begin(queue), self._queues.end(queue)
        first = max(begin, int_field(ext, "index"))
        count = max(0, min(int32_field(ext, "count"), _UNITS_MAX, end - first))
        units = self._reader.units(topic, queue_id, first, count, may_wait=may_wait)
        data = [
            {"physicOffset": offset, "physicSize": size, "tagsCode": code}
            for offset, size, code in UNIT.iter_unpack(units[: count * UNIT_BYTES])
        ]
        value = {"maxQueueIndex": end, "minQueueIndex": begin, "queueData": data}
        name = ext.get("consumerGroup")
        if name:
            group = self._consumers.get(name)
            subscription = None if group is None else group.subscriptions.get(topic)
            value["subscriptionData"] = subscription
            if subscription is None:
                value["filterData"] = f"{shown(name)[1:-1]}@{topic} is not online!"
        return request.answer(body=msgspec.json.encode(value))
