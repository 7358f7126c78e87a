"""Pulls: stored records from an offset on, now or as soon as there are some.

Owns: request codes 11 and 361, the checks of a pull, holding it, waking it, its deadline.
Must not touch: how records are found (the store), the registry's structure (long_poll).
Spec: RocketMQ PullMessageProcessor, PullRequestHoldService.

    pull -> read -> not in memory            -> paged in by a thread -> read again (cold_reads)
                 -> found                    -> answer 0 with the records
                 -> nothing yet, may suspend -> hold -> queue grew   -> read again -> answer | hold
                                                     -> deadline     -> answer 19 | 20
                 -> anything else            -> answer 19 | 20 | 21
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from motelog.core.broker.api import BrokerApi, QueueTail, ReadResult, ReadStatus
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.consumer_groups import GroupMembers
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.heartbeat import (
    EXPRESSION_CHARACTERS_MAX,
    decode_tag_expression,
    is_tag_type,
)
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup, SubscriptionGroups
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.broker.waiting.cold_reads import ColdReads
from motelog.core.broker.waiting.filtered_reads import read_matching
from motelog.core.broker.waiting.long_poll import HeldPull, HeldPulls
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError
from motelog.core.filter.sql_filter import SqlFilter, SqlFilters
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import PullSysFlag, RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer, answer_with
from motelog.core.topic_names import shown

_EXPRESSIONS_MAX: Final = 10_000
# For a request without maxMsgBytes, which clients send from 5.0 on: RocketMQ's own limits. Those
# clients are written for small answers.
_UNSIZED_COUNT_MAX: Final = 32
_UNSIZED_BYTES_MAX: Final = 262_144

# Response code and, as RocketMQ names it, the remark for each outcome of a read.
_OUTCOMES: Final = {
    ReadStatus.FOUND: (ResponseCode.SUCCESS, "FOUND"),
    ReadStatus.NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    ReadStatus.MESSAGE_WAS_REMOVED: (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "MESSAGE_WAS_REMOVING",
    ),
    ReadStatus.NO_QUEUE: (ResponseCode.PULL_OFFSET_MOVED, "NO_MATCHED_LOGIC_QUEUE"),
    ReadStatus.NO_MESSAGE_IN_QUEUE: (ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
    ReadStatus.OFFSET_OVERFLOW_ONE: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    ReadStatus.OFFSET_OVERFLOW_BADLY: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
    ReadStatus.OFFSET_TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
}


class PullProcessor:
    """Answers pulls; state changes only within a turn and in ``run``, between two awaits."""

    def __init__(
        self,
        api: BrokerApi,
        topics: TopicTable,
        groups: SubscriptionGroups,
        consumers: GroupMembers[Connection],
        offsets: ConsumerOffsets,
        held: HeldPulls,
        cold: ColdReads,
        filters: SqlFilters,
        stats: BrokerStats,
        *,
        clock: Clock,
        count_max: int,
        bytes_max: int,
        hold_ms_max: int,
        short_poll_ms: int | None,
        cached_bytes: int | None,
    ) -> None:
        self._api = api
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._held = held
        self._cold = cold
        self._filters = filters
        self._stats = stats
        self._clock = clock
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._hold_ms_max = hold_ms_max
        self._short_poll_ms = short_poll_ms
        # How much of the log's end is taken to be in memory; None: nobody is sent to a slave.
        self._cached_bytes = cached_bytes
        self._tag_codes: dict[str, frozenset[int] | None] = {}
        self._grown: dict[tuple[str, int], None] = {}
        self._wanted = trio.Event()
        self.messages_count = 0
        self.woken_count = 0

    def processors(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    def queues_grew(self, tails: list[QueueTail]) -> None:
        """Note which queues have new messages; pulls held for them are woken by ``run``."""
        for tail in tails:
            queue = (tail.topic.decode(), tail.queue_id)
            if self._held.is_held(*queue):
                self._grown[queue] = None
        if self._grown:
            self._wanted.set()

    async def run(
        self,
        server: RemotingServer,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Wake held pulls and end those whose deadline has come."""
        task_status.started()
        while True:
            due_ms = self._held.next_due_ms()
            wait_ms = _IDLE_MS if due_ms is None else max(0, due_ms - self._clock.monotonic_ms())
            with trio.move_on_after(wait_ms / 1000):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self.wake_grown()
            for pull in self._held.take_due(self._clock.monotonic_ms()):
                self._take_up(pull, self._read_last)
            server.flush()

    def wake_grown(self) -> None:
        """Read again for the pulls that wait for queues that grew, and for no others."""
        grown, self._grown = self._grown, {}
        for topic, queue_id in grown:
            for pull in self._held.take_queue(topic, queue_id):
                self.woken_count += 1
                self._take_up(pull, self._try)

    def connection_closed(self, connection: Connection) -> None:
        self._held.close_connection(connection)

    def _pull(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        ext = request.ext
        group_name = text_field(ext, "consumerGroup")
        topic = text_field(ext, "topic")
        queue_id = int32_field(ext, "queueId")
        queue_offset = int_field(ext, "queueOffset")
        sys_flag = int32_field(ext, "sysFlag")
        commit_offset = int_field(ext, "commitOffset")
        suspend_ms = int_field(ext, "suspendTimeoutMillis")
        group = self._check(group_name, topic, queue_id)
        count_max, bytes_max = self._limits(ext)
        pull = HeldPull(
            request,
            connection,
            group,
            topic,
            queue_id,
            queue_offset,
            queue_offset,
            count_max,
            bytes_max,
            *self._filter(ext, group, topic, sys_flag),
            0,
        )
        # Once, before anything is read: when the disk has answered, the group may be further on.
        if sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._offsets.commit(group_name, topic, queue_id, commit_offset)
        hold_ms = suspend_ms if sys_flag & PullSysFlag.SUSPEND else 0
        return self._cold.attempt(partial(self._read_first, pull, hold_ms), request, connection)

    def _read_first(self, pull: HeldPull, hold_ms: int, may_wait: bool) -> RemotingCommand | None:
        """Read for a pull that has come: return its answer, or hold it."""
        result = self._read(pull, may_wait=may_wait)
        is_empty = _code(pull, result) == ResponseCode.PULL_NOT_FOUND
        if is_empty and hold_ms > 0:
            hold_ms = hold_ms if self._short_poll_ms is None else self._short_poll_ms
            pull.deadline_ms = self._clock.monotonic_ms() + min(hold_ms, self._hold_ms_max)
            return self._hold_or_answer(pull, result)
        return self._answer(pull, result)

    def _limits(self, ext: dict[str, str]) -> tuple[int, int]:
        """Return how many messages and bytes the answer may hold."""
        count = int32_field(ext, "maxMsgNums")
        if "maxMsgBytes" in ext:
            bytes_wanted = int32_field(ext, "maxMsgBytes")
        else:
            count, bytes_wanted = min(count, _UNSIZED_COUNT_MAX), _UNSIZED_BYTES_MAX
        return max(1, min(count, self._count_max)), max(1, min(bytes_wanted, self._bytes_max))

    def _check(self, group_name: str, topic: str, queue_id: int) -> SubscriptionGroup:
        """Return the group of a pull after the checks that do not need the store."""
        group = self._groups.find(group_name, self._clock.now_ms())
        if not group.consume_enable:
            text = f"subscription group {group_name} may not consume"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        config = self._topics.get(topic)
        if config is None:
            text = f"topic {shown(topic)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        if not config.is_readable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"topic {topic} is not readable")
        if not 0 <= queue_id < config.read_queue_nums:
            text = (
                f"queue id {queue_id} of topic {topic} is illegal, it has {config.read_queue_nums}"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        return group

    def _filter(
        self, ext: dict[str, str], group: SubscriptionGroup, topic: str, sys_flag: int
    ) -> tuple[frozenset[int] | None, SqlFilter | None]:
        """Return the tag hashes the pull wants, None for all, and its SQL92 filter if it has one.

        Its own text says so, or else the heartbeat.
        """
        if sys_flag & PullSysFlag.SUBSCRIPTION:
            return self._parsed(ext.get("expressionType"), ext.get("subscription", ""))
        members = self._consumers.get(group.group_name)
        if members is None:
            text = (
                f"consumer group {group.group_name} has no member that told what it subscribes to"
            )
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if members.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            text = f"subscription group {group.group_name} may not consume by broadcast"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            text = f"consumer group {group.group_name} does not subscribe to {topic}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if subscription.sub_version < int_field(ext, "subVersion"):
            text = f"the subscription of {group.group_name} to {topic} is older than the pull's"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return self._parsed(subscription.expression_type, subscription.sub_string or "")

    def _parsed(
        self, expression_type: str | None, expression: str
    ) -> tuple[frozenset[int] | None, SqlFilter | None]:
        if is_tag_type(expression_type):
            return self._codes(expression), None
        return None, self._filters.get(expression_type, expression)

    def _codes(self, expression: str) -> frozenset[int] | None:
        """Return the hashes of a tag expression; remembered, since each pull repeats it."""
        if expression in ("", "*"):
            return None
        if expression not in self._tag_codes:
            if len(expression) > EXPRESSION_CHARACTERS_MAX:
                text = f"the subscription has {len(expression)} characters"
                raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            if len(self._tag_codes) >= _EXPRESSIONS_MAX:
                self._tag_codes.clear()
            self._tag_codes[expression] = decode_tag_expression(expression)
        return self._tag_codes[expression]

    def _read(self, pull: HeldPull, *, may_wait: bool) -> ReadResult:
        if pull.sql_filter is not None:
            return read_matching(
                self._api,
                self._clock,
                pull.sql_filter,
                pull.topic,
                pull.queue_id,
                pull.queue_offset,
                count_max=pull.count_max,
                bytes_max=pull.bytes_max,
                may_wait=may_wait,
            )
        return self._api.read(
            pull.topic,
            pull.queue_id,
            pull.queue_offset,
            count_max=pull.count_max,
            bytes_max=pull.bytes_max,
            tag_codes=pull.tag_codes,
            may_wait=may_wait,
        )

    def _hold_or_answer(self, pull: HeldPull, result: ReadResult) -> RemotingCommand | None:
        """Hold a pull until its deadline; where there is no room for it, return its answer."""
        if self._held.is_full_for(pull.connection) or not pull.connection.is_open:
            return self._answer(pull, result)
        due_ms = self._held.next_due_ms()
        self._held.hold(pull)
        if due_ms is None or pull.deadline_ms < due_ms:
            self._wanted.set()
        return None

    def _take_up(
        self, pull: HeldPull, read: Callable[[HeldPull, bool], RemotingCommand | None]
    ) -> None:
        """Go on with a pull that was held; what ``read`` returns or raises is its answer."""
        attempt = partial(self._cold.attempt, partial(read, pull))
        answer_with(attempt, pull.request, pull.connection)

    def _try(self, pull: HeldPull, may_wait: bool) -> RemotingCommand | None:
        """Read for a held pull whose queue grew: return its answer, or hold it on."""
        if pull.connection.is_congested:
            # It asks again, and that request waits until the client has read what is queued.
            return self._retry_later(pull)
        result = self._read(pull, may_wait=may_wait)
        # Past messages that tags refuse, as long as there are some. A SQL92 filter takes so much
        # longer that what is left is the client's next pull.
        while (
            result.status == ReadStatus.NO_MATCH
            and result.next_offset < result.max_offset
            and pull.sql_filter is None
        ):
            pull.queue_offset = result.next_offset
            result = self._read(pull, may_wait=may_wait)
        if result.status == ReadStatus.NO_MATCH and result.next_offset >= result.max_offset:
            pull.queue_offset = result.next_offset
            return self._hold_or_answer(pull, result)
        if _code(pull, result) == ResponseCode.PULL_NOT_FOUND:
            return self._hold_or_answer(pull, result)
        return self._answer(pull, result)

    def _read_last(self, pull: HeldPull, may_wait: bool) -> RemotingCommand:
        """Read for a pull whose time is over, and return whatever there is."""
        return self._answer(pull, self._read(pull, may_wait=may_wait))

    def _retry_later(self, pull: HeldPull) -> RemotingCommand:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(pull.queue_offset),
            "minOffset": str(self._api.min_offset(pull.topic, pull.queue_id)),
            "maxOffset": str(self._api.max_offset(pull.topic, pull.queue_id)),
        }
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return pull.request.answer(code, "NO_MATCHED_MESSAGE", ext)

    def _answer(self, pull: HeldPull, result: ReadResult) -> RemotingCommand:
        code = _code(pull, result)
        next_offset = result.next_offset
        # The filter refused messages while the pull was held: the client goes on behind them.
        if code == ResponseCode.PULL_NOT_FOUND and pull.queue_offset != pull.first_offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        ext = {
            "suggestWhichBrokerId": str(self._suggested_broker(pull, result)),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        remark = _OUTCOMES[result.status][1]
        if result.count:
            self.messages_count += result.count
            group = pull.group.group_name
            self._stats.note_get(pull.topic, group, result.count, len(result.records))
        return pull.request.answer(code, remark, ext, result.records)

    def _suggested_broker(self, pull: HeldPull, result: ReadResult) -> int:
        """Return the id of the broker that the group is to read from next; 0 is the master."""
        if self._cached_bytes is None:
            return 0
        if result.behind_bytes > self._cached_bytes:
            return pull.group.which_broker_when_consume_slowly
        return pull.group.broker_id


_IDLE_MS: Final = 60_000


def _code(pull: HeldPull, result: ReadResult) -> ResponseCode:
    """Return the response code of a read's outcome."""
    status = result.status
    if status in (ReadStatus.NO_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE) and not pull.queue_offset:
        return ResponseCode.PULL_NOT_FOUND
    return _OUTCOMES[status][0]
