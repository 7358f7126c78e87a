"""The progress of groups: shown, cloned, reset by time.

Owns: request codes 43, 208, 222, 303, 308, 314, 317, the push of a reset to consumers (220).
Must not touch: how offsets are kept (tables.consumer_offsets), what a consumer does with a reset.
Spec: RocketMQ AdminBrokerProcessor, Broker2Client.resetOffset.

The broker itself resets: it sets the offsets at once, and answers the next pull of a running group
with the new one (PULL_OFFSET_MOVED). With ``server_side_reset`` off it pushes the offsets to
running consumers instead, as RocketMQ before 5.0 does: they stop, commit and continue from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from motelog.core.broker.admin.queues import Queues
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import Language
from motelog.core.remoting.fields import bool_field, int32_field, int_field, text_field
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import RETRY_PREFIX, shown

_NO_CORRECTION: Final = 2**63 - 1


class ProgressAdmin:
    """Answers about consume offsets."""

    def __init__(self, shared: Shared, queues: Queues) -> None:
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._offsets = shared.tables.offsets
        self._cold = shared.api.cold_reads
        self._clock = shared.clock
        self._stats = shared.stats
        self._is_reset_here = shared.config.server_side_reset
        self._queues = queues

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all,
            RequestCode.GET_CONSUME_STATS: self._cold.guard(self._of_group),
            RequestCode.GET_BROKER_CONSUME_STATS: self._cold.guard(self._of_all),
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._cold.guard(self._time_spans),
            RequestCode.QUERY_CORRECTION_OFFSET: self._corrections,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._cold.guard(self._reset),
        }

    def _all(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=msgspec.json.encode(self._offsets.snapshot()))

    def _of_group(self, request: RemotingCommand, _: Connection, may_wait: bool) -> RemotingCommand:
        name = text_field(request.ext, "consumerGroup")
        topics = self._consumed_topics(name, request.ext.get("topic"))
        body = dumps(self._stats_of(name, topics, may_wait=may_wait))
        return request.answer(body=body)

    def _of_all(self, request: RemotingCommand, _: Connection, may_wait: bool) -> RemotingCommand:
        is_order = bool_field(request.ext, "isOrder")
        listed: list[dict[str, Any]] = []
        total = inflight = 0
        by_group: dict[str, list[str]] = {name: [] for name in self._groups.names()}
        for group, topic, _queues in self._offsets.entries():
            config = self._topics.get(topic)
            if group in by_group and config is not None and (config.order or not is_order):
                members = self._consumers.get(group)
                if members is None or topic in members.subscriptions:
                    by_group[group].append(topic)
        for group, topics in by_group.items():
            stats = [self._stats_of(group, [topic], may_wait=may_wait) for topic in topics]
            for one in stats:
                for queue in one["offsetTable"].values():
                    total += queue["brokerOffset"] - queue["consumerOffset"]
                    inflight += queue["pullOffset"] - queue["consumerOffset"]
            listed.append({group: stats})
        value = {
            "consumeStatsList": listed,
            "totalDiff": total,
            "totalInflightDiff": inflight,
        }
        return request.answer(body=dumps(value))

    def _stats_of(self, group: str, topics: list[str], *, may_wait: bool) -> dict[str, Any]:
        consumed = [
            (queue, self._queues.end(queue), offset)
            for topic in topics
            for queue, offset in self._consumed(group, topic)
        ]
        ends = [(queue, min(offset, end)) for queue, end, offset in consumed]
        times = self._queues.times(ends, may_wait=may_wait)
        # The offset after the first waiting message; RocketMQ's brokers do not report that one.
        firsts = [
            (queue, max(offset, self._queues.begin(queue)) + 1 if offset < end else 0)
            for queue, end, offset in consumed
        ]
        waiting_times = self._queues.times(firsts, may_wait=may_wait)
        table = {
            queue: {
                "brokerOffset": end,
                "consumerOffset": offset,
                "lastTimestamp": time_ms,
                "waitingTimestamp": waiting_ms,
                "pullOffset": max(offset, self._offsets.pulled(group, queue.topic, queue.queue_id)),
            }
            for (queue, end, offset), time_ms, waiting_ms in zip(
                consumed, times, waiting_times, strict=True
            )
        }
        consume_tps = sum(self._stats.get_rate(topic, group) for topic in topics)
        return {"consumeTps": consume_tps, "offsetTable": table}

    def _consumed_topics(self, name: str, wanted: str | None) -> list[str]:
        """Return the topics that a group consumes; with ``wanted`` that topic or none.

        Without ``wanted`` the group's retry topic is always among them.
        """
        topics = {topic for topic, _ in self._offsets.topics_of(name)} | {RETRY_PREFIX + name}
        members = self._consumers.get(name)
        topics |= members.subscriptions.keys() if members is not None else set()
        return sorted(topics & {wanted} if wanted else topics)

    def _consumed(self, name: str, topic: str) -> Iterator[tuple[MessageQueue, int]]:
        """Yield each queue of a topic and how far a group has consumed it."""
        for queue in self._queues.of_name(topic):
            yield queue, self._offsets.query(name, topic, queue.queue_id) or 0

    def _time_spans(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        topic, group = text_field(request.ext, "topic"), text_field(request.ext, "group")
        now_ms = self._clock.now_ms()
        spans = []
        for queue in self._queues.of(self._queues.find_topic(topic)):
            begin, end = self._queues.begin(queue), self._queues.end(queue)
            offset = self._offsets.query(group, topic, queue.queue_id) or 0
            first = self._queues.time_at(queue, begin, may_wait=may_wait)
            last = self._queues.time_at(queue, end - 1, may_wait=may_wait)
            consumed = self._queues.time_at(queue, offset - 1, may_wait=may_wait) if offset else -1
            waits = self._queues.time_at(queue, max(offset, begin), may_wait=may_wait)
            spans.append(
                {
                    "messageQueue": queue,
                    "minTimeStamp": first,
                    "maxTimeStamp": last,
                    "consumeTimeStamp": consumed if offset else first,
                    "delayTime": now_ms - waits if waits >= 0 else 0,
                }
            )
        return request.answer(body=dumps({"consumeTimeSpanSet": spans}))

    def _corrections(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Answer with the lowest offset of all groups, or that the compared group is behind it."""
        topic = text_field(request.ext, "topic")
        left_out = set(filter(None, request.ext.get("filterGroups", "").split(",")))
        lowest: dict[int, int] = {}
        for group, its_topic, queues in self._offsets.entries():
            if its_topic == topic and group not in left_out:
                for queue_id, offset in queues.items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        compared = text_field(request.ext, "compareGroup")
        for queue_id in list(lowest):
            known = self._offsets.query(compared, topic, queue_id)
            if known is not None and lowest[queue_id] > known:
                lowest[queue_id] = _NO_CORRECTION
        return request.answer(body=dumps({"correctionOffsets": lowest}))

    def _clone(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        ext = request.ext
        source, target = text_field(ext, "srcGroup"), text_field(ext, "destGroup")
        wanted = ext.get("topic")
        self._groups.find(target)
        members = None if bool_field(ext, "offline") else self._consumers.get(source)
        for topic, queues in list(self._offsets.topics_of(source)):
            if wanted and topic != wanted:
                continue
            if members is None or topic in members.subscriptions:
                for queue_id, offset in queues.items():
                    self._offsets.commit(target, topic, queue_id, offset)
        return request.answer()

    def _reset(
        self, request: RemotingCommand, connection: Connection, may_wait: bool
    ) -> RemotingCommand:
        ext = request.ext
        group, topic = text_field(ext, "group"), text_field(ext, "topic")
        config = self._queues.find_topic(topic)
        if self._groups.get(group) is None:
            text = f"subscription group {shown(group)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        timestamp_ms = int_field(ext, "timestamp", -1)
        queue_id = int32_field(ext, "queueId", -1)
        queues = self._queues.of(config)
        if queue_id >= len(queues):
            text = f"queue id {queue_id} of topic {topic} is illegal"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        offset = int_field(ext, "offset", -1)
        if queue_id >= 0 and offset >= 0:
            table = {queues[queue_id]: self._in_range(queues[queue_id], offset)}
        else:
            chosen = queues if queue_id < 0 else [queues[queue_id]]
            table = {
                queue: self._queues.offset_at(queue, timestamp_ms, may_wait=may_wait)
                for queue in chosen
            }
        # Nothing is changed until everything is known: a read that waits for the disk runs again.
        members = self._consumers.get(group)
        if members is not None and not self._is_reset_here:
            if not bool_field(ext, "isForce"):
                table = self._not_forward(group, table)
            self._push(request, group, table)
        else:
            for queue, at in table.items():
                is_running = members is not None and topic in members.subscriptions
                self._offsets.reset(group, topic, queue.queue_id, at, is_running=is_running)
        return request.answer(body=dumps({"offsetTable": table}))

    def _in_range(self, queue: MessageQueue, offset: int) -> int:
        begin, end = self._queues.begin(queue), self._queues.end(queue)
        if not begin <= offset <= end:
            text = f"Target offset {offset} not in consume queue range [{begin}-{end}]"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        return offset

    def _not_forward(self, group: str, table: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the offsets without those that would skip messages."""
        lowered = {}
        for queue, offset in table.items():
            known = self._offsets.query(group, queue.topic, queue.queue_id)
            lowered[queue] = offset if known is None else min(known, offset)
        return lowered

    def _push(self, request: RemotingCommand, group: str, table: dict[MessageQueue, int]) -> None:
        members = self._consumers.get(group)
        assert members is not None
        body: Any = {"offsetTable": table}
        if request.language == Language.CPP:
            # The tool requests this if the group has C++ clients: they cannot read objects as keys.
            body = {
                "offsetTable": [
                    {
                        "brokerName": queue.broker_name,
                        "offset": offset,
                        "queueId": queue.queue_id,
                        "topic": queue.topic,
                    }
                    for queue, offset in table.items()
                ]
            }
        notice = RemotingCommand(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            flag=FLAG_ONEWAY,
            ext={
                "group": group,
                "topic": text_field(request.ext, "topic"),
                "timestamp": request.ext.get("timestamp", "-1"),
            },
            body=dumps(body),
        )
        for member in members.members.values():
            member.owner.reply(notice)
