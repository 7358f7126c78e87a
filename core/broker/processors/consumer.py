"""Consumers and clients: heartbeats, membership, consume offsets, queue ends, queue locks.

Owns: request codes 14, 15, 29 to 32, 34, 35, 38, 41, 42, 46, the notice that a group changed (40).
Must not touch: how offsets, groups and locks are kept. Spec: RocketMQ ConsumerManageProcessor,
ClientManageProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.consumer_groups import Member
from motelog.core.broker.tables.heartbeat import Heartbeat, Subscription, decode_heartbeat
from motelog.core.errors import BrokerError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import ONLY_FORWARD
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
    loads_as,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import group_name_fault, shown

logger = logging.getLogger(__name__)

CLIENT_ID_CHARACTERS_MAX: Final = 255
# The most names in one heartbeat; clients have a handful.
GROUPS_PER_CLIENT_MAX: Final = 1000
SUBSCRIPTIONS_PER_GROUP_MAX: Final = 1000
# Answers to a heartbeat with a fingerprint: the next ones may leave the subscriptions out; or the
# next one must contain them again.
_TAKES_FINGERPRINTS: Final = "IS_SUPPORT_HEART_BEAT_V2"
_IS_TOLD_OTHERWISE: Final = "IS_SUB_CHANGE"


class ConsumerProcessor:
    """Answers clients' requests besides sends and pulls; state changes only within a turn."""

    def __init__(self, shared: Shared) -> None:
        self._store = shared.store
        self._reader = shared.store.reader
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._producers = shared.tables.producers
        self._offsets = shared.tables.offsets
        self._filters = shared.filters
        self._cold = shared.api.cold_reads
        self._clock = shared.clock
        self._locks = shared.tables.locks
        self._acl = shared.acl
        self._rivals = LimitedLog(logger)

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._cold.guard(self._query_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._cold.guard(self._offset_by_time),
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._cold.guard(self._earliest_time),
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_client,
        }

    def connection_closed(self, connection: Connection) -> None:
        """Forget the clients of a connection, and notify their groups."""
        self._producers.close_owner(connection)
        self._notify(self._consumers.close_owner(connection))

    def expire(self, silence_ms_max: int) -> None:
        """Forget clients that were silent for too long, and locks that were not renewed."""
        now_ms = self._clock.monotonic_ms()
        self._producers.expire(now_ms, silence_ms_max)
        gone = self._consumers.expire(now_ms, silence_ms_max)
        for group in gone:
            logger.warning(
                "clients of a consumer group were silent for too long and are removed; the others"
                " get their queues: find out whether they hang group=%s silence_ms_max=%d",
                ascii(group),
                silence_ms_max,
            )
        self._notify(gone)
        self._locks.expire(now_ms)

    def _query_offset(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        group, topic, queue_id = _group_queue(request)
        known = self._offsets.query(group, topic, queue_id)
        if known is not None and known >= 0:
            return request.answer(ext={"offset": str(known)})
        # A new group on a young queue begins at the queue's first message, whatever its clients
        # prefer: they may have subscribed before that message was sent.
        is_zero_wanted = request.ext.get("setZeroIfNotFound") != "false"
        if is_zero_wanted and self._is_young(topic, queue_id, may_wait=may_wait):
            return request.answer(ext={"offset": "0"})
        return request.answer(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )

    def _is_young(self, topic: str, queue_id: int, *, may_wait: bool) -> bool:
        """Return whether the queue begins at 0 and its first message is likely still in memory."""
        if self._reader.min_offset(topic, queue_id) > 0:
            return False
        first = self._reader.units(topic, queue_id, 0, 1, may_wait=may_wait)
        if not first:
            return True
        physical_offset = int.from_bytes(first[:8], "big")
        return self._store.end_offset - physical_offset <= self._reader.cached_bytes

    def _update_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        group, topic, queue_id = _group_queue(request)
        offset = int_field(request.ext, "commitOffset")
        config = self._topics.get(topic)
        if config is None:
            text = f"topic {shown(topic)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        # If a topic has fewer queues than before, groups may still commit in the others.
        is_there = queue_id < config.read_queue_nums or self._reader.max_offset(topic, queue_id) > 0
        if queue_id < 0 or not is_there or offset < 0:
            text = f"queue id {queue_id} or offset {offset} of topic {topic} is illegal"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        self._groups.find(group)
        if request.ext.get(ONLY_FORWARD) == "true":
            known = self._offsets.query(group, topic, queue_id)
            offset = max(offset, -1 if known is None else known)
        self._offsets.commit(group, topic, queue_id, offset)
        return request.answer()

    def _max_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        offset = self._reader.max_offset(*_queue(request))
        return request.answer(ext={"offset": str(offset)})

    def _min_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        offset = self._reader.min_offset(*_queue(request))
        return request.answer(ext={"offset": str(offset)})

    def _offset_by_time(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        timestamp_ms = int_field(request.ext, "timestamp")
        # RocketMQ 5's BoundaryType; everything except UPPER means LOWER.
        is_upper = request.ext.get("boundaryType", "").upper() == "UPPER"
        search = self._reader.last_offset_by_time if is_upper else self._reader.offset_by_time
        offset = search(*_queue(request), timestamp_ms, may_wait=may_wait)
        return request.answer(ext={"offset": str(offset)})

    def _earliest_time(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        topic, queue_id = _queue(request)
        first = self._reader.min_offset(topic, queue_id)
        timestamp_ms = self._reader.store_timestamp(topic, queue_id, first, may_wait=may_wait)
        return request.answer(ext={"timestamp": str(timestamp_ms)})

    def _heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        beat = decode_heartbeat(request.body)
        _check_heartbeat(beat)
        member = Member(
            beat.client_id,
            connection,
            request.language,
            request.version,
            self._clock.monotonic_ms(),
        )
        if self._is_its_own(beat.client_id, request, connection):
            for name in beat.producer_groups:
                self._producers.beat(name, member)
        now_ms = self._clock.now_ms()
        changed = []
        is_told_otherwise = False
        for consumer in beat.consumers:
            group = self._groups.find(consumer.group)
            # The group's members request this topic's route at once, so its creation also triggers
            # a registration with the name servers.
            if group.retry_queue_nums > 0:
                self._topics.create_retry_topic(consumer.group, now_ms, group.retry_queue_nums)
            is_told_otherwise |= self._consumers.is_told_otherwise(consumer.group, consumer)
            if self._consumers.beat(consumer.group, member, consumer):
                changed.append(consumer.group)
        self._notify(changed)
        if beat.fingerprint == 0:
            return request.answer()
        ext = {_TAKES_FINGERPRINTS: "true", _IS_TOLD_OTHERWISE: str(is_told_otherwise).lower()}
        return request.answer(ext=ext)

    def _is_its_own(self, client_id: str, request: RemotingCommand, connection: Connection) -> bool:
        """Return whether an account may use a producer's client id: not while another uses it.

        Producer groups need no right, and questions and replies to a producer go to the client that
        has its id.
        """
        owner = self._producers.owner_of(client_id)
        if owner is None or owner is connection or self._acl is None:
            return True
        if self._acl.has_signed(request, connection, owner):
            return True
        self._rivals.warning(
            "a client has the id of another account's client and is not registered as a producer:"
            " it gets no transaction checks and no replies; give it an id of its own peer=%s:%d"
            " client_id=%s other_peer=%s:%d",
            *connection.peer,
            ascii(client_id),
            *owner.peer,
        )
        return False

    def _unregister(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        # As in RocketMQ, a client that another connection has registered stays.
        client_id = text_field(request.ext, "clientID")
        producer_group = request.ext.get("producerGroup")
        if producer_group:
            self._producers.leave(producer_group, client_id, connection)
        consumer_group = request.ext.get("consumerGroup")
        if consumer_group and self._consumers.leave(consumer_group, client_id, connection):
            self._notify([consumer_group])
        return request.answer()

    def _members(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "consumerGroup")
        group = self._consumers.get(name)
        if group is None:
            text = f"no consumer for this group, {shown(name)[1:-1]}"
            return request.answer(ResponseCode.SYSTEM_ERROR, text)
        return request.answer(body=msgspec.json.encode({"consumerIdList": list(group.members)}))

    def _lock(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        group, client_id, queues = self._lock_body(request.body)
        held = self._locks.lock(group, client_id, queues, self._clock.monotonic_ms())
        return request.answer(body=dumps({"lockOKMQSet": held}))

    def _unlock(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._locks.unlock(*self._lock_body(request.body))
        return request.answer()

    def _lock_body(self, body: bytes) -> tuple[str, str, list[MessageQueue]]:
        value = loads_as(body, _LockJson, "lock request")
        queues = []
        for queue in value.mq_set:
            # Only queues that exist can be locked, so the table cannot be filled with names.
            config = self._topics.get(queue.topic)
            if config is not None and 0 <= queue.queue_id < config.read_queue_nums:
                queues.append(MessageQueue(queue.topic, queue.broker_name, queue.queue_id))
        if self._groups.get(value.consumer_group) is None:
            queues = []
        return value.consumer_group, value.client_id, queues

    def _check_client(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        value = loads_as(request.body, _CheckClientJson, "client check")
        subscription = value.subscription_data
        if subscription is not None and not subscription.is_tag_filter:
            self._filters.get(subscription.expression_type, subscription.sub_string or "")
        return request.answer()

    def _notify(self, names: Iterable[str]) -> None:
        """Notify the members of groups that their group changed, so that they rebalance."""
        for name in dict.fromkeys(names):
            group = self._consumers.get(name)
            config = self._groups.get(name)
            if group is None or config is None or not config.notify_consumer_ids_changed_enable:
                continue
            notice = RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                flag=FLAG_ONEWAY,
                ext={"consumerGroup": name},
            )
            for member in group.members.values():
                member.owner.reply(notice)


class _QueueJson(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: int
    broker_name: str = ""


class _LockJson(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: list[_QueueJson] = []


class _CheckClientJson(msgspec.Struct, rename="camel"):
    subscription_data: Subscription | None = None


def _check_heartbeat(beat: Heartbeat) -> None:
    """Refuse a heartbeat whose names or counts are out of bounds, before any of it is kept."""
    names = [*beat.producer_groups, *(consumer.group for consumer in beat.consumers)]
    if len(names) > GROUPS_PER_CLIENT_MAX:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{len(names)} groups in one heartbeat")
    if not 1 <= len(beat.client_id) <= CLIENT_ID_CHARACTERS_MAX:
        text = f"the client id has {len(beat.client_id)} characters"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
    for name in names:
        fault = group_name_fault(name)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
    for consumer in beat.consumers:
        if len(consumer.subscriptions) > SUBSCRIPTIONS_PER_GROUP_MAX:
            text = f"{len(consumer.subscriptions)} subscriptions of one group"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)


def _queue(request: RemotingCommand) -> tuple[str, int]:
    return text_field(request.ext, "topic"), int32_field(request.ext, "queueId")


def _group_queue(request: RemotingCommand) -> tuple[str, str, int]:
    return text_field(request.ext, "consumerGroup"), *_queue(request)
