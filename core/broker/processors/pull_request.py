"""Requests of pulls: the fields of their headers, read and checked.

Owns: Pull, PullRequests: the checks of a pull that do not need the store, the limits of an answer,
which messages it wants. Must not touch: the store, which pulls wait, their answers (pull).
Spec: RocketMQ PullMessageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, TypeAlias

from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.heartbeat import (
    EXPRESSION_CHARACTERS_MAX,
    TAG_TYPES,
    Subscription,
    decode_tag_expression,
)
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.errors import BrokerError
from motelog.core.filter.sql_filter import SqlFilter
from motelog.core.net.listen import is_this_machine
from motelog.core.remoting.codes import LOG_KEY, Permission
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import PullSysFlag, RemotingCommand, ResponseCode, Serialize
from motelog.core.remoting.pulls import PlainPull
from motelog.core.remoting.server import Connection
from motelog.core.topic_names import shown

_EXPRESSIONS_MAX: Final = 10_000
_ALL_TAGS: Final = ("", "*")
# Each pull tests these bits; a member of an enumeration takes half a microsecond to combine.
COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
# RocketMQ's own limits for a request without maxMsgBytes. Clients send that field since 5.0; older
# ones expect small answers.
_UNSIZED_COUNT_MAX: Final = 32
_UNSIZED_BYTES_MAX: Final = 262_144

#: Group, most messages, most bytes and tag hashes of a pull.
Accepted: TypeAlias = tuple[SubscriptionGroup, int, int, frozenset[int] | None]


@dataclass(slots=True, eq=False)
class Pull:
    """One pull; ``queue_offset`` moves on past messages that its filter refused."""

    request: RemotingCommand
    connection: Connection
    group: SubscriptionGroup
    topic: str
    queue_id: int
    first_offset: int
    queue_offset: int
    count_max: int
    bytes_max: int
    tag_codes: frozenset[int] | None
    sql_filter: SqlFilter | None
    # The group's consume offset, if the request contains it.
    commit_offset: int | None
    # How long the client is willing to wait; 0: not at all.
    hold_ms: int
    # Whether its client reads the records itself, at the places that the units give.
    as_units: bool
    # Whether to send the client the log's folder, because it could read the records.
    wants_folder: bool
    # The deadline, once it is held.
    deadline_ms: int = 0


class PullRequests:
    """Accepts pulls, or refuses them with BrokerError."""

    def __init__(self, shared: Shared) -> None:
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._filters = shared.filters
        self._count_max = shared.config.pull_count_max
        self._bytes_max = shared.config.pull_bytes_max
        self._reader_key = shared.reader_key
        self._is_readable = bool(shared.config.permission & Permission.READ)
        self._tag_codes: dict[str, frozenset[int] | None] = {}

    def accept(self, request: RemotingCommand, connection: Connection) -> Pull:
        """Return the pull that a request asks for."""
        if not self._is_readable:
            text = "this broker delivers no messages: it is not readable"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        ext = request.ext
        group_name = text_field(ext, "consumerGroup")
        topic = text_field(ext, "topic")
        queue_id = int32_field(ext, "queueId")
        queue_offset = int_field(ext, "queueOffset")
        sys_flag = int32_field(ext, "sysFlag")
        commit_offset = int_field(ext, "commitOffset")
        suspend_ms = int_field(ext, "suspendTimeoutMillis")
        group = self._check(group_name, topic, queue_id)
        count = int32_field(ext, "maxMsgNums")
        bytes_wanted = int32_field(ext, "maxMsgBytes") if "maxMsgBytes" in ext else None
        count_max, bytes_max = self._limits(count, bytes_wanted)
        return Pull(
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
            commit_offset if sys_flag & COMMIT_OFFSET else None,
            suspend_ms if sys_flag & _SUSPEND else 0,
            *self._reads_log(ext, connection),
        )

    def accept_plain(self, plain: PlainPull) -> Accepted | None:
        """Return the limits and tags of a plain pull; None if ``accept`` must decide.

        That is the case for a pull that is refused or has a SQL92 filter.
        """
        (
            _, _, _, group_name, topic, queue_id, _, sys_flag, _, _, count, bytes_wanted, version,
            expression_type, expression,
        ) = plain  # fmt: skip
        if not self._is_readable:
            return None
        try:
            group = self._check(group_name, topic, queue_id)
            if not sys_flag & _SUBSCRIPTION:
                told = self._told(group, topic)
                if version is None or told.sub_version < version:
                    return None
                expression_type, expression = told.expression_type, told.sub_string or ""
            if expression_type not in TAG_TYPES:
                return None
            codes = None if expression in _ALL_TAGS else self._codes(expression)
            return group, *self._limits(count, bytes_wanted), codes
        except BrokerError:
            return None

    def pull_of(self, plain: PlainPull, accepted: Accepted, connection: Connection) -> Pull:
        """Return an accepted plain pull, to be answered later."""
        _, _, _, _, topic, queue_id, queue_offset, sys_flag, _, suspend_ms = plain[:10]
        group, count_max, bytes_max, tag_codes = accepted
        return Pull(
            _request(plain),
            connection,
            group,
            topic,
            queue_id,
            queue_offset,
            queue_offset,
            count_max,
            bytes_max,
            tag_codes,
            None,
            None,  # it is committed
            suspend_ms if sys_flag & _SUSPEND else 0,
            False,
            False,
        )

    def _reads_log(self, ext: dict[str, str], connection: Connection) -> tuple[bool, bool]:
        """Return whether the client has proved that it can read the log, and whether it may try.

        A client on another machine cannot, and need not know the names of folders here.
        """
        key = ext.get(LOG_KEY)
        if key is None or self._reader_key is None:
            return False, False
        # Compared in constant time.
        is_shown = compare_digest(key.encode(errors="replace"), self._reader_key.encode())
        return is_shown, not is_shown and is_this_machine(connection.peer[0])

    def _limits(self, count: int, bytes_wanted: int | None) -> tuple[int, int]:
        """Return how many messages and bytes the answer may hold."""
        if bytes_wanted is None:
            count, bytes_wanted = min(count, _UNSIZED_COUNT_MAX), _UNSIZED_BYTES_MAX
        return max(1, min(count, self._count_max)), max(1, min(bytes_wanted, self._bytes_max))

    def _check(self, group_name: str, topic: str, queue_id: int) -> SubscriptionGroup:
        """Return the group of a pull after the checks that do not need the store."""
        group = self._groups.find(group_name)
        if not group.consume_enable:
            text = f"subscription group {group_name} may not consume"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        if not self._groups.may_read(group_name, topic):
            text = f"the consumer group[{group_name}] is forbidden for topic[{shown(topic)[1:-1]}]"
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
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        return group

    def _filter(
        self, ext: dict[str, str], group: SubscriptionGroup, topic: str, sys_flag: int
    ) -> tuple[frozenset[int] | None, SqlFilter | None]:
        """Return the tag hashes that the pull wants, None for all, and its SQL92 filter if any.

        They come from the request's own expression, or else from the heartbeat.
        """
        if sys_flag & _SUBSCRIPTION:
            return self.parse_filter(ext.get("expressionType"), ext.get("subscription", ""))
        subscription = self._told(group, topic)
        if subscription.sub_version < int_field(ext, "subVersion"):
            text = f"the subscription of {group.group_name} to {topic} is older than the pull's"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return self.parse_filter(subscription.expression_type, subscription.sub_string or "")

    def _told(self, group: SubscriptionGroup, topic: str) -> Subscription:
        """Return the subscription that a group's members have sent."""
        members = self._consumers.get(group.group_name)
        if members is None:
            text = f"no member of consumer group {group.group_name} has sent its subscriptions"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if members.message_model == "BROADCASTING" and not group.consume_broadcast_enable:
            text = f"subscription group {group.group_name} may not consume by broadcast"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            text = f"consumer group {group.group_name} does not subscribe to {topic}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        return subscription

    def parse_filter(
        self, expression_type: str | None, expression: str
    ) -> tuple[frozenset[int] | None, SqlFilter | None]:
        """Return the tag hashes that an expression names, None for all, and its SQL92 filter."""
        if expression_type in TAG_TYPES:
            return self._codes(expression), None
        return None, self._filters.get(expression_type, expression)

    def _codes(self, expression: str) -> frozenset[int] | None:
        """Return the hashes of a tag expression; cached, because each pull repeats it."""
        if expression in _ALL_TAGS:
            return None
        if expression not in self._tag_codes:
            if len(expression) > EXPRESSION_CHARACTERS_MAX:
                text = f"the subscription has {len(expression)} characters"
                raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
            if len(self._tag_codes) >= _EXPRESSIONS_MAX:
                self._tag_codes.clear()
            self._tag_codes[expression] = decode_tag_expression(expression)
        return self._tag_codes[expression]


def _request(plain: PlainPull) -> RemotingCommand:
    """Return the request of a plain pull, in case it has to be processed again."""
    (
        code, opaque, form, group_name, topic, queue_id, queue_offset, sys_flag, commit_offset,
        suspend_ms, count, bytes_wanted, version, expression_type, expression,
    ) = plain  # fmt: skip
    ext = {
        "consumerGroup": group_name,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "sysFlag": str(sys_flag),
        "commitOffset": str(commit_offset),
        "suspendTimeoutMillis": str(suspend_ms),
        "maxMsgNums": str(count),
        "subscription": expression,
    }
    if bytes_wanted is not None:
        ext["maxMsgBytes"] = str(bytes_wanted)
    if version is not None:
        ext["subVersion"] = str(version)
    if expression_type is not None:
        ext["expressionType"] = expression_type
    return RemotingCommand(code, opaque, ext=ext, serialize=Serialize(form))
