"""The admin API's endpoints of brokers: topics, consumer groups, messages, dead letters.

Owns: their parameters, which requests an answer takes. Must not touch: the wire (bridge does that),
the store. A broker of this process is asked like any other, so that answers do not depend on which
broker has the messages.
Invariants: a page takes a bounded number of requests, and an answer has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.admin_answers import QueueProgress
from motelog.bridge.errors import ClientError, NoNameServerError, RouteError
from motelog.bridge.pull import PullConsumer
from motelog.console.api import Endpoint
from motelog.console.asking import RefusedError
from motelog.console.gate import Role
from motelog.console.gateway import LIMIT, After, Limit
from motelog.console.queue_answers import (
    DeadLetterEntry,
    DeadLetterPage,
    Group,
    GroupEntry,
    GroupPage,
    GroupQueue,
    Kind,
    Member,
    Message,
    MessageList,
    QueueMove,
    Resent,
    Reset,
    Topic,
    TopicEntry,
    TopicOnBroker,
    TopicPage,
    TopicQueue,
)
from motelog.core.errors import BrokerError, MotelogError, leaves
from motelog.core.message import MQTT_TOPIC, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import (
    CONSOLE_GROUP,
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SYSTEM_TOPICS,
)

ANSWER_WITHIN_S: Final = 10.0
#: Topics and groups on one page: each takes a request.
PAGE_MAX: Final = 50
MESSAGES_MAX: Final = 100
#: The bytes of each payload in an answer.
PAYLOAD_BYTES_MAX: Final = 65_536
RESEND_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Brokers:
    """The name servers of the brokers, and the credentials for them."""

    namesrv: tuple[str, ...]
    credentials: Credentials | None = None
    tls: Tls | None = None


# --- parameters --------------------------------------------------------------------------

_Topic = Annotated[str, msgspec.Meta(description="Queue topic, such as telemetry.")]
_GroupName = Annotated[str, msgspec.Meta(description="Consumer group.")]
_To = Annotated[
    str, msgspec.Meta(description="first, last, or a time such as 2026-11-23T10:00:00Z.")
]


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class TopicsQuery(_Query, frozen=True):
    prefix: Annotated[str, msgspec.Meta(description="Only topics that begin with this.")] = ""
    kind: Annotated[Kind | Literal["all"], msgspec.Meta(description="The kind of topics.")] = (
        "topic"
    )
    after: After = ""
    limit: Limit = PAGE_MAX


class QueueTopicQuery(_Query, frozen=True):
    topic: _Topic


class GroupsQuery(_Query, frozen=True):
    prefix: Annotated[str, msgspec.Meta(description="Only groups that begin with this.")] = ""
    after: After = ""
    limit: Limit = PAGE_MAX


class GroupQuery(_Query, frozen=True):
    group: _GroupName


class ResetQuery(_Query, frozen=True):
    group: _GroupName
    topic: _Topic
    to: _To


class MessagesQuery(_Query, frozen=True):
    topic: Annotated[str, msgspec.Meta(description="Queue topic; alone: its newest messages.")] = ""
    key: Annotated[str, msgspec.Meta(description="A key, or a producer's unique id.")] = ""
    id: Annotated[str, msgspec.Meta(description="An offset id, of any topic.")] = ""
    at: Annotated[str, msgspec.Meta(description="Messages stored from this time on.")] = ""
    queue_id: Annotated[int, msgspec.Meta(ge=-1, description="One queue; -1: all.")] = -1
    offset: Annotated[int, msgspec.Meta(ge=-1, description="From this queue offset on.")] = -1
    limit: Limit = 20


class ResendQuery(_Query, frozen=True):
    group: _GroupName
    count: Annotated[int, msgspec.Meta(ge=1, le=RESEND_MAX, description="At most this many.")] = (
        LIMIT
    )
    per_second: Annotated[
        float, msgspec.Meta(gt=0, le=10_000, description="Messages a second.")
    ] = 100.0


class QueueApi:
    """``brokers`` is None until their name servers are known."""

    def __init__(self) -> None:
        self.brokers: Brokers | None = None

    def endpoints(self) -> list[Endpoint]:
        operate = Role.OPERATE
        reset, resend = "/groups/reset", "/dead-letters/resend"
        return [
            Endpoint("/topics", "Topics", TopicsQuery, TopicPage, self.list_topics),
            Endpoint("/topics/topic", "One topic", QueueTopicQuery, Topic, self.get_topic),
            Endpoint("/groups", "Consumer groups", GroupsQuery, GroupPage, self.list_groups),
            Endpoint("/groups/group", "One consumer group", GroupQuery, Group, self.get_group),
            Endpoint(reset, "What a reset would change", ResetQuery, Reset, self.preview_reset),
            Endpoint(
                reset, "Reset a group's offsets in a topic; its consumers may be running",
                ResetQuery, Reset, self.reset_group, method="POST", role=operate,
            ),
            Endpoint("/messages", "Messages", MessagesQuery, MessageList, self.list_messages),
            Endpoint(
                "/dead-letters", "Groups with dead letters",
                GroupsQuery, DeadLetterPage, self.list_dead_letters,
            ),
            Endpoint(
                resend, "Resend dead letters of a group to that group, at a rate",
                ResendQuery, Resent, self.resend_dead_letters, method="POST", role=operate,
            ),
        ]  # fmt: skip

    # --- topics --------------------------------------------------------------------------

    async def list_topics(self, query: TopicsQuery) -> TopicPage:
        async with self.admin() as admin:
            own = await own_topics(admin)
            names = [
                name
                for name in await admin.topics()
                if name.startswith(query.prefix) and query.kind in ("all", kind_of(name, own))
            ]
            names, after = _page(names, query.after, query.limit)
            return TopicPage(
                topics=[await _topic_entry(admin, name, own) for name in names], after=after
            )

    async def get_topic(self, query: QueueTopicQuery) -> Topic:
        async with self.admin() as admin:
            return Topic(
                topic=query.topic,
                kind=kind_of(query.topic, await own_topics(admin)),
                brokers=[
                    TopicOnBroker(
                        broker=one.broker_name,
                        read_queues=one.read_queues,
                        write_queues=one.write_queues,
                        permission=one.permission,
                        is_ordered=one.is_ordered,
                    )
                    for one in await admin.topic(query.topic)
                ],
                queues=[
                    TopicQueue(
                        broker=one.queue.broker_name,
                        queue_id=one.queue.queue_id,
                        begin_offset=one.begin_offset,
                        end_offset=one.end_offset,
                        last_ms=one.last_ms or None,
                    )
                    for one in await admin.topic_stats(query.topic)
                ],
                groups=await admin.groups_of(query.topic),
            )

    # --- groups --------------------------------------------------------------------------

    async def list_groups(self, query: GroupsQuery) -> GroupPage:
        async with self.admin() as admin:
            names = [name for name in sorted(await admin.groups()) if name.startswith(query.prefix)]
            names, after = _page(names, query.after, query.limit)
            return GroupPage(
                groups=[await _group_entry(admin, name) for name in names], after=after
            )

    async def get_group(self, query: GroupQuery) -> Group:
        async with self.admin() as admin:
            progress = await admin.progress(query.group)
            consumers = await admin.consumers(query.group)
            if not progress and not consumers and query.group not in await admin.groups():
                raise RefusedError("there is no consumer group with this name", 404)
            waiting, behind_ms = _lag(progress)
            return Group(
                group=query.group,
                members=len(consumers),
                messages_waiting=waiting,
                behind_ms=behind_ms,
                consumers=[
                    Member(client_id=one.client_id, address=one.address, language=one.language)
                    for one in consumers
                ],
                queues=[
                    GroupQueue(
                        topic=one.queue.topic,
                        broker=one.queue.broker_name,
                        queue_id=one.queue.queue_id,
                        committed_offset=one.committed_offset,
                        end_offset=one.end_offset,
                        behind_ms=_behind_ms(one),
                    )
                    for one in progress
                ],
            )

    async def preview_reset(self, query: ResetQuery) -> Reset:
        to = _reset_to(query.to)
        async with self.admin() as admin, self.consumer() as consumer:
            before = await _committed(admin, query)
            queues = await consumer.queues(query.topic, wait_s=0)
            if to == "first":
                after = await consumer.begin_offsets(queues)
            elif to == "last":
                after = await consumer.end_offsets(queues)
            else:
                assert isinstance(to, datetime)
                after = await consumer.offsets_for_time(queues, int(to.timestamp() * 1000))
        return _reset(query, before, after)

    async def reset_group(self, query: ResetQuery) -> Reset:
        to = _reset_to(query.to)
        async with self.admin() as admin:
            before = await _committed(admin, query)
            after = await admin.reset_offsets(query.group, query.topic, to)
        return _reset(query, before, after)

    # --- messages ------------------------------------------------------------------------

    async def list_messages(self, query: MessagesQuery) -> MessageList:
        limit = min(query.limit, MESSAGES_MAX)
        if not query.topic and not query.id:
            return MessageList(messages=[])
        async with self.consumer() as consumer:
            if query.id:
                return MessageList(messages=[shown(await view(consumer, query.id))])
            if query.key:
                found = await consumer.query_by_key(query.topic, query.key, count_max=limit)
                return MessageList(messages=[shown(one) for one in found])
            return MessageList(messages=await _read(consumer, query, limit))

    async def list_dead_letters(self, query: GroupsQuery) -> DeadLetterPage:
        async with self.admin() as admin:
            found = [name.removeprefix(DLQ_PREFIX) for name in await admin.topics()
                     if name.startswith(DLQ_PREFIX + query.prefix)]  # fmt: skip
            names, after = _page(sorted(found), query.after, query.limit)
            entries = [await _dead_letters(admin, name) for name in names]
            return DeadLetterPage(groups=entries, after=after)

    async def resend_dead_letters(self, query: ResendQuery) -> Resent:
        async with self.admin(query.count / query.per_second) as admin:
            sent = await admin.resend_dead_letters(
                query.group, count_max=query.count, per_second=query.per_second
            )
        return Resent(group=query.group, sent=sent)

    # --- asking --------------------------------------------------------------------------

    @asynccontextmanager
    async def admin(self, more_s: float = 0.0) -> AsyncIterator[Admin]:
        """Yield an Admin for the brokers; their errors become refusals."""
        brokers = self._known()
        async with (
            _refusing(ANSWER_WITHIN_S + more_s),
            Admin(
                namesrv=brokers.namesrv, credentials=brokers.credentials, tls=brokers.tls
            ) as admin,
        ):
            yield admin

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[PullConsumer]:
        """Yield a consumer that reads queues and commits nothing."""
        brokers = self._known()
        async with (
            _refusing(ANSWER_WITHIN_S),
            PullConsumer(
                namesrv=brokers.namesrv,
                credentials=brokers.credentials,
                tls=brokers.tls,
                group=CONSOLE_GROUP,
            ) as consumer,
        ):
            yield consumer

    def _known(self) -> Brokers:
        if self.brokers is None or not self.brokers.namesrv:
            raise RefusedError("this process has no name server")
        return self.brokers


@asynccontextmanager
async def _refusing(within_s: float) -> AsyncIterator[None]:
    try:
        with trio.fail_after(within_s):
            yield
    except trio.TooSlowError as exc:
        raise RefusedError("the brokers did not answer in time") from exc
    except (MotelogError, ValueError, BaseExceptionGroup) as exc:
        for leaf in leaves(exc):
            if isinstance(leaf, RefusedError):
                raise leaf from None
            if isinstance(leaf, NoNameServerError):
                raise RefusedError(str(leaf)) from exc
            if isinstance(leaf, RouteError):
                raise RefusedError(str(leaf), 404) from exc
            if isinstance(leaf, ValueError | ClientError):
                raise RefusedError(str(leaf), 400) from exc
            if isinstance(leaf, MotelogError):
                raise RefusedError(str(leaf)) from exc
        raise


def kind_of(topic: str, own: Container[str]) -> Kind:
    """Return the kind of a topic; ``own`` are the names of the brokers' own topics."""
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    is_system = topic.startswith((REVIVE_PREFIX, "RMQ_SYS_", "rmq_sys_"))
    return "system" if is_system or topic in SYSTEM_TOPICS or topic in own else "topic"


async def own_topics(admin: Admin) -> set[str]:
    """Return the topics that RocketMQ's brokers name after themselves and their clusters."""
    own: set[str] = set()
    for one in await admin.brokers():
        own |= {one.name, one.cluster, f"{one.cluster}_REPLY_TOPIC"}
    return own


def _page(names: list[str], after: str, limit: int) -> tuple[list[str], str | None]:
    limit = min(limit, PAGE_MAX)
    rest = [name for name in names if name > after]
    return rest[:limit], rest[limit - 1] if len(rest) > limit else None


async def _topic_entry(admin: Admin, topic: str, own: Container[str]) -> TopicEntry:
    try:
        stats = await admin.topic_stats(topic)
    except (BrokerError, RouteError):  # a name without queues, such as a cluster's
        stats = []
    return TopicEntry(
        topic=topic,
        kind=kind_of(topic, own),
        queues=len(stats),
        messages=sum(one.end_offset - one.begin_offset for one in stats),
        last_ms=max((one.last_ms for one in stats), default=0) or None,
    )


async def _group_entry(admin: Admin, group: str) -> GroupEntry:
    waiting, behind_ms = _lag(await admin.progress(group))
    return GroupEntry(
        group=group,
        members=len(await admin.consumers(group)),
        messages_waiting=waiting,
        behind_ms=behind_ms,
    )


def _lag(progress: Iterable[QueueProgress]) -> tuple[int, int | None]:
    progress = [one for one in progress if not one.queue.topic.startswith(DLQ_PREFIX)]
    behind = [ms for one in progress if (ms := _behind_ms(one)) is not None]
    return sum(max(one.lag, 0) for one in progress), max(behind, default=None)


def _behind_ms(one: QueueProgress) -> int | None:
    if not one.waiting_ms:
        return None
    return max(time.time_ns() // 1_000_000 - one.waiting_ms, 0)


async def _dead_letters(admin: Admin, group: str) -> DeadLetterEntry:
    topic = DLQ_PREFIX + group
    stats = await admin.topic_stats(topic)
    done = {one.queue: one.committed_offset for one in await admin.progress(group, topic)}
    return DeadLetterEntry(
        group=group,
        messages=sum(one.end_offset - one.begin_offset for one in stats),
        waiting=sum(
            one.end_offset - max(done.get(one.queue, 0), one.begin_offset) for one in stats
        ),
        last_ms=max((one.last_ms for one in stats), default=0) or None,
    )


# --- resets ------------------------------------------------------------------------------


def _reset_to(text: str) -> Literal["first", "last"] | datetime:
    match text:
        case "first":
            return "first"
        case "last":
            return "last"
    return _time(text)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not a time such as 2026-11-23T10:00:00Z", 400) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


async def _committed(admin: Admin, query: ResetQuery) -> dict[MessageQueue, int]:
    found = {
        one.queue: one.committed_offset for one in await admin.progress(query.group, query.topic)
    }
    if not found and query.group not in await admin.groups():
        raise RefusedError("there is no consumer group with this name", 404)
    return found


def _reset(
    query: ResetQuery, before: Mapping[MessageQueue, int], after: Mapping[MessageQueue, int]
) -> Reset:
    moves = [
        QueueMove(
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            before=known if (known := before.get(queue, -1)) >= 0 else None,
            after=offset,
        )
        for queue, offset in sorted(
            after.items(), key=lambda one: (one[0].broker_name, one[0].queue_id)
        )
    ]
    both = [(move.before, move.after) for move in moves if move.before is not None]
    return Reset(
        group=query.group,
        topic=query.topic,
        to=query.to,
        again=sum(max(was - now, 0) for was, now in both),
        passed_over=sum(max(now - was, 0) for was, now in both),
        queues=moves,
    )


# --- messages ----------------------------------------------------------------------------


async def view(consumer: PullConsumer, offset_id: str) -> StoredMessage:
    """Return the message that an offset id names; RefusedError if there is none."""
    try:
        return await consumer.view(offset_id)
    except BrokerError as exc:
        raise RefusedError(f"there is no message with this id: {exc}", 404) from exc


async def _read(consumer: PullConsumer, query: MessagesQuery, limit: int) -> list[Message]:
    """Return messages of a topic: the newest, or in order from a time or an offset on."""
    queues = [
        queue
        for queue in await consumer.queues(query.topic, wait_s=0)
        if query.queue_id in (-1, queue.queue_id)
    ]
    begins, ends = await consumer.begin_offsets(queues), await consumer.end_offsets(queues)
    if query.at:
        at_ms = int(_time(query.at).timestamp() * 1000)
        starts = await consumer.offsets_for_time(queues, at_ms)
    elif query.offset >= 0:
        starts = dict.fromkeys(queues, query.offset)
    else:
        starts = {queue: ends[queue] - limit for queue in queues}
    is_newest = not query.at and query.offset < 0
    found: list[Message] = []
    for queue in queues:
        at, end, count = max(starts[queue], begins[queue]), ends[queue], 0
        while at < end and count < limit:
            answer = await consumer.pull(queue, at, count_max=limit - count)
            messages = answer.messages()
            found += [shown(one, queue.broker_name) for one in messages]
            count += len(messages)
            if answer.next_offset <= at:
                break
            at = answer.next_offset
    found.sort(key=lambda one: (one.stored_ms, one.queue_id, one.queue_offset), reverse=is_newest)
    return found[:limit]


def shown(message: StoredMessage, broker: str | None = None) -> Message:
    host, port = message.born_host
    return Message(
        topic=message.topic,
        broker=broker,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        offset_id=message.offset_id,
        mqtt_topic=message.properties.get(MQTT_TOPIC),
        tag=message.tags,
        keys=list(message.keys),
        stored_ms=message.store_timestamp_ms,
        born_ms=message.born_timestamp_ms,
        born_host=f"{host}:{port}",
        retries=message.reconsume_times,
        properties=message.properties,
        payload_bytes=len(message.body),
        payload=message.body[:PAYLOAD_BYTES_MAX],
    )
