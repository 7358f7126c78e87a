"""Administration over RocketMQ's protocol: topics, groups, users, brokers, name servers.

Owns: Admin. Must not touch: connections and routes (bridge.client), decoding answers
(bridge.admin_answers), what a server does with a request. Works with our servers and Apache's.
A change is sent to every master concerned, one after the other; BrokerError names the broker that
refused it. The brokers before it have made the change, and repeating the call is safe.
Spec: RocketMQ DefaultMQAdminExt, MQClientAPIImpl.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Self, TypeAlias

import trio

from motelog.bridge.admin_answers import (
    BrokerInfo,
    ClientInfo,
    QueueProgress,
    QueueStats,
    QueueTimes,
    QueueUnit,
    Rates,
    Replication,
    TopicSettings,
    decode_all_progress,
    decode_lowest,
    decode_producers,
    decode_progress,
    decode_rates,
    decode_replication,
    decode_times,
    decode_topic,
    decode_units,
    object_of,
    properties_of,
    queue_of,
    sorted_progress,
)
from motelog.bridge.client import (
    REQUEST_TIMEOUT_S,
    Client,
    NameServers,
    check,
    check_text,
)
from motelog.bridge.dead_letters import resend_dead_letters
from motelog.bridge.errors import ClientError, NoNameServerError
from motelog.bridge.query import TIME_MAX, query_command, query_result
from motelog.bridge.routes import MASTER_ID, TopicRoute
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.bridge.trace.records import TraceKind, TraceRecord, decode_records
from motelog.bridge.users import (
    Rule,
    User,
    UserRules,
    decode_rules,
    decode_users,
    policy_type,
    rules_body,
    subject,
    user_body,
)
from motelog.core.addresses import format_address
from motelog.core.errors import BrokerError, RemotingError, RemotingTimeoutError
from motelog.core.message import MessageQueue, decode_host, decode_offset_id
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import (
    Permission,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
)
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import DEFAULT_TOPIC, RETRY_PREFIX

READ_WRITE: Final = Permission.READ | Permission.WRITE
#: The timestamp that means the end of a queue.
_LATEST_MS: Final = -1

#: The most messages that a broker returns for one key.
TRACES_MAX: Final = 64

#: Where to set a group's offsets: "first", "last", or a time.
ResetTo: TypeAlias = "datetime | float | str"


#: Time between questions whether a promoted broker serves.
_PROMOTED_POLL_S: Final = 0.05


class Admin:
    """``async with Admin(namesrv="127.0.0.1:9876") as admin:``; any number of tasks may use it."""

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._timeout_s = request_timeout_s
        self._namesrv = namesrv
        self._client = Client(
            namesrv=namesrv,
            groups=lambda: {"consumerDataSet": [], "producerDataSet": []},
            unregister={},
            credentials=credentials,
            tls=tls,
        )

    async def __aenter__(self) -> Self:
        await self._client.enter()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._client.leave()

    # --- the cluster

    async def brokers(self) -> list[BrokerInfo]:
        """Return the live brokers, sorted by cluster, name and id."""
        body = await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = object_of(body)
        table = info.get("brokerAddrTable") or {}
        found = [
            BrokerInfo(cluster, name, int(broker_id), address)
            for cluster, names in (info.get("clusterAddrTable") or {}).items()
            for name in names
            for broker_id, address in table.get(name, {}).get("brokerAddrs", {}).items()
        ]
        return sorted(found, key=lambda one: (one.cluster, one.name, one.broker_id))

    async def broker_status(self, broker: str, *, broker_id: int = MASTER_ID) -> dict[str, str]:
        """Return the runtime statistics of a master or slave, under RocketMQ's names."""
        address = await self._member(broker, broker_id)
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(object_of(answer.body)["table"])

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, under RocketMQ's names."""
        address = await self._master(broker)
        return properties_of((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body)

    async def set_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, under RocketMQ's names."""
        address = await self._master(broker)
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def stop_writes(self, broker: str) -> int:
        """Make producers stop writing to a broker; return the number of topics affected.

        The change is made at each name server. Consumers continue.
        """
        return await self._write_permission(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipe")

    async def allow_writes(self, broker: str) -> int:
        """Undo ``stop_writes``."""
        return await self._write_permission(broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, "add")

    async def rates(self, broker: str, name: str, key: str) -> Rates:
        """Return a broker's counter with one of RocketMQ's statistics names and keys.

        For example "TOPIC_PUT_NUMS" with key "TOPIC", "GROUP_GET_NUMS" with "TOPIC@GROUP", or
        "BROKER_PUT_NUMS" with the cluster's name. BrokerError if nothing was counted there.
        """
        address = await self._master(broker)
        ext = {"statsName": name, "statsKey": key}
        return decode_rates(
            (await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, ext)).body
        )

    async def replication(self, broker: str, *, broker_id: int = MASTER_ID) -> Replication:
        """Return a master's slaves and their progress, or a slave's own.

        Needs RocketMQ 5.0 or our broker.
        """
        address = await self._member(broker, broker_id)
        return decode_replication((await self._ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def promote(
        self, broker: str, broker_id: int, *, is_forced: bool = False, wait_s: float = 30.0
    ) -> str:
        """Make a slave the master of its name; return its address when clients find it so.

        BrokerError if it refuses: it is the master, or its master still sends it the log; the
        latter does not matter with ``is_forced``. Needs our broker. RemotingError if it does not
        serve within ``wait_s``: it will become the master all the same.
        """
        address = await self._member(broker, broker_id)
        ext = {"force": str(is_forced).lower()}
        await self._ask(address, RequestCode.PROMOTE_BROKER, ext)
        with trio.move_on_after(wait_s):
            while True:
                brokers = {(one.name, one.broker_id, one.address) for one in await self.brokers()}
                if (broker, MASTER_ID, address) in brokers:
                    return address
                await trio.sleep(_PROMOTED_POLL_S)
        raise RemotingTimeoutError(f"{address} is promoted, and does not serve after {wait_s:g} s")

    async def remove_expired_log(self, broker: str) -> None:
        """Make a broker remove expired files of the log now, whatever its configured hour."""
        await self._ask(await self._master(broker), RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def remove_expired_queues(self, broker: str) -> None:
        """Make a broker remove files of queues whose messages are no longer in the log."""
        await self._ask(await self._master(broker), RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def remove_unused_queues(self, broker: str) -> None:
        """Make a broker remove the queues of deleted topics; our brokers keep none."""
        await self._ask(await self._master(broker), RequestCode.CLEAN_UNUSED_TOPIC)

    # --- topics

    async def topics(self, broker: str | None = None) -> list[str]:
        """Return the names of all topics, or of those that have queues at ``broker``.

        Topics of the system and of groups are included. BrokerError if there is no such broker.
        """
        command = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        if broker is not None:
            command.ext["brokerName"] = broker
        answer = check(await self._client.request_namesrv(command, timeout_s=self._timeout_s))
        if broker is None or answer.ext.get("brokerName") == broker:
            return sorted(object_of(answer.body)["topicList"])
        # RocketMQ's name server lists all topics; the broker knows its own.
        table = await self._ask(await self._master(broker), RequestCode.GET_ALL_TOPIC_CONFIG)
        return sorted(object_of(table.body)["topicConfigTable"])

    async def topic(self, topic: str) -> list[TopicSettings]:
        """Return a topic's settings on each of its brokers; RouteError if it does not exist."""
        settings = []
        for name, address in await self._masters_of(topic):
            # Apache's 4.x brokers cannot return a single topic.
            answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            found = decode_topic(name, answer.body, topic)
            if found is not None:
                settings.append(found)
        return settings

    async def put_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        permission: int = READ_WRITE,
        is_ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create or change a topic on all masters, or on the named ``brokers``.

        Producers use ``write_queues`` of its queues, by default all. To reduce the number of
        queues, lower ``write_queues`` first, and ``queues`` once consumers have read the others,
        which are not read after that. ``permission`` is the sum of 4 (read) and 2 (write).
        ``attributes`` are RocketMQ 5's, such as
        ``{"message.type": "FIFO"}``.
        """
        ext = {
            "topic": check_text("topic", topic),
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues if write_queues is None else write_queues),
            "perm": str(permission),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": str(is_ordered).lower(),
        }
        if attributes:
            ext["attributes"] = ",".join(f"+{name}={value}" for name, value in attributes.items())
        for address in await self._chosen(brokers):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all brokers, and at the name servers.

        RouteError if it does not exist. Disk space is freed when the log is cleaned up.
        """
        for _, address in await self._masters_of(topic):
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        await self._ask_each_namesrv(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return the begin and end offsets of a topic's queues."""
        stats = []
        for _, address in await self._masters_of(topic):
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            for key, ends in object_of(answer.body)["offsetTable"].items():
                queue = queue_of(key)
                last_ms = max(ends["lastUpdateTimestamp"], 0)
                stats.append(QueueStats(queue, ends["minOffset"], ends["maxOffset"], last_ms))
        return sorted(stats, key=lambda one: (one.queue.broker_name, one.queue.queue_id))

    async def queue_units(
        self, queue: MessageQueue, offset: int, count: int = 32
    ) -> list[QueueUnit]:
        """Return where a queue's messages are in the log, from ``offset`` or the queue's begin.

        At most ``count``, and at most 1000.
        """
        address = dict(await self._masters_of(queue.topic)).get(queue.broker_name)
        if address is None:
            raise ClientError(f"no master of broker {queue.broker_name!r} has {queue.topic!r}")
        ext = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "index": str(offset),
            "count": str(count),
        }
        answer = await self._ask(address, RequestCode.QUERY_CONSUME_QUEUE, ext)
        # Apache's brokers return an empty answer if there is no such offset.
        return decode_units(answer.body, offset) if answer.body else []

    async def groups_of(self, topic: str) -> list[str]:
        """Return the consumer groups that have consumed a topic or subscribe to it."""
        names: set[str] = set()
        for _, address in await self._masters_of(topic):
            answer = await self._ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}
            )
            names |= set(object_of(answer.body)["groupList"])
        return sorted(names)

    # --- groups

    async def put_group(
        self,
        group: str,
        settings: Mapping[str, Any] | None = None,
        *,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create or change a consumer group; ``settings`` have RocketMQ's names.

        For example ``{"retryMaxTimes": 3, "consumeEnable": False}``. Other settings get their
        defaults. ``consumeFromMinEnable`` and ``consumeTimeoutMinute`` have no effect, as in
        RocketMQ.
        """
        body = dumps({"groupName": check_text("group", group), **(settings or {})})
        for address in await self._chosen(brokers):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, group: str, *, with_offsets: bool = True) -> None:
        """Delete a consumer group on all brokers, with its committed offsets by default."""
        ext = {"groupName": group, "cleanOffset": str(with_offsets).lower()}
        for address in await self._chosen(None):
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def groups(self) -> dict[str, dict[str, Any]]:
        """Return the consumer groups and their settings, under RocketMQ's names."""
        found: dict[str, dict[str, Any]] = {}
        for address in await self._chosen(None):
            answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found |= object_of(answer.body)["subscriptionGroupTable"]
        return found

    async def consumers(self, group: str) -> list[ClientInfo]:
        """Return the connected members of a consumer group, each once."""
        return await self._connections(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        )

    async def producers(self, group: str) -> list[ClientInfo]:
        """Return the connected members of a producer group, each once."""
        return await self._connections(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}
        )

    async def producer_groups(self) -> dict[str, list[ClientInfo]]:
        """Return the connected members of all producer groups, each once."""
        found: dict[str, dict[str, ClientInfo]] = {}
        for address in await self._chosen(None):
            answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
            for group, members in decode_producers(answer.body).items():
                found.setdefault(group, {}).update((one.client_id, one) for one in members)
        return {
            group: [found[group][client_id] for client_id in sorted(found[group])]
            for group in sorted(found)
        }

    async def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return a group's progress in each queue, of all its topics or one."""
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        found: list[QueueProgress] = []
        for address in await self._chosen(None):
            answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, ext)
            found += decode_progress(object_of(answer.body))
        # Some brokers ignore the topic.
        return sorted_progress(one for one in found if topic in (None, one.queue.topic))

    async def progress_of_all(
        self, *, only_ordered: bool = False
    ) -> dict[str, list[QueueProgress]]:
        """Return each group's progress in the queues in which it has an offset.

        For a group with members, only topics that they subscribe to are included. With
        ``only_ordered``, only topics that were created with ``is_ordered``.
        """
        ext = {"isOrder": str(only_ordered).lower()}
        found: dict[str, list[QueueProgress]] = {}
        for address in await self._chosen(None):
            answer = await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, ext)
            for group, queues in decode_all_progress(answer.body).items():
                found.setdefault(group, []).extend(queues)
        return {group: sorted_progress(found[group]) for group in sorted(found)}

    async def queue_times(self, group: str, topic: str) -> list[QueueTimes]:
        """Return the times of the messages in a topic's queues, and a group's place among them."""
        found: list[QueueTimes] = []
        ext = {"group": group, "topic": topic}
        for _, address in await self._masters_of(topic):
            answer = await self._ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, ext)
            found += decode_times(answer.body)
        return sorted(found, key=lambda one: (one.queue.broker_name, one.queue.queue_id))

    async def lowest_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the lowest offset that any group has committed, by queue.

        No group will read the messages below it again. A queue without an offset is omitted;
        Apache's brokers ignore offsets below the begin of the queue.
        """
        # The request must name a group to compare with, but that has no effect: its offset counts
        # too. A list of groups to exclude is not sent: Apache's brokers delete their offsets.
        ext = {"topic": topic, "compareGroup": topic}
        found: dict[MessageQueue, int] = {}
        for name, address in await self._masters_of(topic):
            answer = await self._ask(address, RequestCode.QUERY_CORRECTION_OFFSET, ext)
            found |= decode_lowest(answer.body, topic, name)
        return found

    async def reset_offsets(
        self, group: str, topic: str, to: ResetTo, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets in a topic, also for running consumers; return the new offsets.

        ``to`` is a time (datetime, or seconds since the epoch), "first" or "last". Without
        ``force`` offsets only go back. Apache's 4.x brokers refuse this for a group without
        members.
        """
        ext = {
            "group": group,
            "topic": topic,
            "timestamp": str(_timestamp_ms(to)),
            "isForce": str(force).lower(),
        }
        table: dict[MessageQueue, int] = {}
        for _, address in await self._masters_of(topic):
            answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
            offsets = object_of(answer.body)["offsetTable"]
            table |= {queue_of(key): offset for key, offset in offsets.items()}
        return table

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Copy offsets in ``topic`` from group ``source`` to ``target``; stop both groups first."""
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "true"}
        for _, address in await self._masters_of(topic):
            await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, ext)

    async def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """Return what a running consumer reports: properties, subscriptions, queues.

        The names are those of RocketMQ's ConsumerRunningInfo. The broker asks the client.
        """
        route = await self._client.route(RETRY_PREFIX + group)
        address = random.choice(_masters(route))[1]
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        answer = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        return dict(object_of(answer.body))

    async def consume_directly(self, group: str, client_id: str, offset_id: str) -> dict[str, Any]:
        """Make a running push consumer handle one message now; return the outcome.

        ``offset_id`` is that of a SendResult or StoredMessage. The answer has the names of
        RocketMQ's ConsumeMessageDirectlyResult: ``consumeResult`` is CR_SUCCESS if the message was
        handled. Offsets do not change.
        """
        ext = {"consumerGroup": group, "clientId": client_id, "msgId": offset_id}
        address = _broker_of(offset_id)
        answer = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        return dict(object_of(answer.body))

    async def member_offsets(self, topic: str, group: str) -> dict[str, dict[MessageQueue, int]]:
        """Return the positions of a group's running members by client id, committed or not."""
        found: dict[str, dict[MessageQueue, int]] = {}
        ext = {"topic": topic, "group": group}
        for _, address in await self._masters_of(topic):
            answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
            for client_id, offsets in (object_of(answer.body).get("consumerTable") or {}).items():
                table = found.setdefault(client_id, {})
                table |= {queue_of(key): offset for key, offset in offsets.items()}
        return found

    async def close_topic(self, topic: str, group: str, *, is_closed: bool = True) -> None:
        """Close a topic to a group, so that its pulls and POPs are refused; or reopen it.

        Apache's brokers (5.x) refuse only pulls that rely on the subscription of a heartbeat, as
        those of Java's push consumers do; and reopening one topic reopens all that were closed to
        the group.
        """
        ext = {"topic": topic, "group": group, "readable": str(not is_closed).lower()}
        for _, address in await self._masters_of(topic):
            await self._ask(address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)

    async def set_request_mode(
        self, topic: str, group: str, *, by_pop: bool, shared_queues: int = 0
    ) -> None:
        """Choose POP or pulls for a topic, for members whose queues the broker assigns.

        With POP several members may share a queue: each also gets the queues of ``shared_queues``
        other members, or of all with 0. Needs RocketMQ 5.0 or our broker.
        """
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP" if by_pop else "PULL"}
        body = dumps({**mode, "popShareQueueNum": shared_queues})
        for _, address in await self._masters_of(topic):
            await self._ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)

    async def resend_dead_letters(
        self,
        group: str,
        *,
        to_all_groups: bool = False,
        count_max: int | None = None,
        per_second: float = 100.0,
    ) -> int:
        """Resend a group's dead letters, oldest first; return how many were sent.

        Only the group receives them (through its retry topic), as if they were new; with
        ``to_all_groups`` they go to their original topic, where other groups receive them a second
        time. The group's offset in its %DLQ% topic records which were sent: the next call continues
        there, also after an error. After a crash up to 32 may be sent twice. RouteError if the
        group has no readable dead letters; on RocketMQ 4 an operator must first give the topic
        %DLQ%GROUP permission 6.
        """
        if not per_second > 0:
            raise ValueError(f"per_second must be above 0, not {per_second!r}")
        return await resend_dead_letters(
            self._namesrv,
            self._client.credentials,
            self._client.tls,
            check_text("group", group),
            to_all_groups=to_all_groups,
            count_max=count_max,
            per_second=per_second,
            request_timeout_s=self._timeout_s,
        )

    async def check_transaction(self, offset_id: str) -> None:
        """Make the broker check an unfinished transaction again, starting from the first attempt.

        ``offset_id`` is that of the half message, or of its copy after the last check.
        BrokerError if there is no such half message, or it was committed.
        """
        ext = {"msgId": offset_id}
        await self._ask(_broker_of(offset_id), RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)

    # --- users and rules

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        is_admin: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a user on all masters, or on the named ``brokers``; each broker has its own users.

        Clients sign with ``Credentials(name, password)``. An administrator may do everything, other
        users what their rules allow. BrokerError if the user exists already, or if the broker has
        no access control. The password is sent in plain text: use ``tls`` on untrusted networks.
        """
        body = user_body(check_text("name", name), password, is_admin, None)
        await self._change(RequestCode.AUTH_CREATE_USER, {"username": name}, body, brokers)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_admin: bool | None = None,
        is_enabled: bool | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Change the given attributes of a user; ``is_enabled=False`` locks it out, keeping rules.

        BrokerError if there is no such user.
        """
        body = user_body(check_text("name", name), password, is_admin, is_enabled)
        await self._change(RequestCode.AUTH_UPDATE_USER, {"username": name}, body, brokers)

    async def delete_user(self, name: str, *, brokers: Iterable[str] | None = None) -> None:
        """Delete a user and its rules; brokers without the user ignore this."""
        ext = {"username": check_text("name", name)}
        await self._change(RequestCode.AUTH_DELETE_USER, ext, b"", brokers)

    async def user(self, name: str) -> list[User]:
        """Return a user, with its password, as each master has it; [] if no master does."""
        ext = {"username": check_text("name", name)}
        answers = await self._ask_masters(RequestCode.AUTH_GET_USER, ext)
        return [user for broker, body in answers for user in decode_users(broker, body)]

    async def users(self, name_part: str = "") -> list[User]:
        """Return the users of all masters whose names contain ``name_part``."""
        answers = await self._ask_masters(RequestCode.AUTH_LIST_USER, {"filter": name_part})
        return [user for broker, body in answers for user in decode_users(broker, body)]

    async def put_rules(
        self, user: str, rules: Iterable[Rule], *, brokers: Iterable[str] | None = None
    ) -> None:
        """Add rules to a user, replacing those for the same resources.

        BrokerError if there is no such user, or the broker does not accept a rule.
        """
        ext, body = {"subject": subject(check_text("user", user))}, rules_body(user, rules)
        await self._change(RequestCode.AUTH_CREATE_ACL, ext, body, brokers)

    async def delete_rules(
        self,
        user: str,
        resource: str | None = None,
        *,
        is_default: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Delete a user's rule for ``resource``, or all its rules; BrokerError if it has none."""
        ext = {"subject": subject(check_text("user", user))}
        if resource is not None:
            resource = check_text("resource", resource)
            ext |= {"resource": resource, "policyType": policy_type(is_default)}
        await self._change(RequestCode.AUTH_DELETE_ACL, ext, b"", brokers)

    async def rules_of(self, user: str) -> list[UserRules]:
        """Return a user's rules as each master has them; BrokerError if there is no such user.

        Masters where the user has no rules are omitted.
        """
        ext = {"subject": subject(check_text("user", user))}
        answers = await self._ask_masters(RequestCode.AUTH_GET_ACL, ext)
        return [rules for broker, body in answers for rules in decode_rules(broker, body)]

    async def rules(self, user_part: str = "", resource_part: str = "") -> list[UserRules]:
        """Return the rules of all users at all masters.

        With ``user_part`` or ``resource_part``, only those whose "User:NAME" or whose resource
        contains it.
        """
        ext = {"subjectFilter": user_part, "resourceFilter": resource_part}
        answers = await self._ask_masters(RequestCode.AUTH_LIST_ACL, ext)
        return [rules for broker, body in answers for rules in decode_rules(broker, body)]

    # --- messages

    async def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return the trace records of a message from our clients and Java's, oldest first.

        ``message_id`` is its unique id; a key finds all messages that have it. Empty if no client
        has traced the message (yet: records arrive a few seconds later). RouteError if no client
        has ever traced anything.
        """
        command = query_command(topic, message_id, 0, TIME_MAX, TRACES_MAX)
        answers = []
        for _, address in await self._masters_of(topic):
            request = RemotingCommand(command.code, ext=command.ext)
            answers.append(await self._client.request(address, request, timeout_s=self._timeout_s))
        found = [
            record
            for message in query_result(answers, topic, message_id, TRACES_MAX)
            for record in decode_records(
                message.body.decode(errors="replace"),
                client_host=format_address(*message.born_host),
            )
            if message_id in (record.message_id, *record.keys)
        ]
        return sorted(
            found, key=lambda record: (record.time_ms, record.kind == TraceKind.SUB_AFTER)
        )

    # --- the name servers' table of keys and values

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._ask_each_namesrv(RequestCode.PUT_KV_CONFIG, ext)

    async def value(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        answer = await self._client.request_namesrv(
            RemotingCommand(RequestCode.GET_KV_CONFIG, ext={"namespace": namespace, "key": key}),
            timeout_s=self._timeout_s,
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return check(answer).ext.get("value")

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at all name servers."""
        ext = {"namespace": namespace, "key": key}
        await self._ask_each_namesrv(RequestCode.DELETE_KV_CONFIG, ext)

    # --- asking

    async def _ask(
        self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand(code, ext=dict(ext or {}), body=body)
        answer = await self._client.request(address, command, timeout_s=self._timeout_s)
        return check(answer, command.ext.get("topic", ""))

    async def _ask_namesrv(self, code: int, ext: Mapping[str, str] | None = None) -> bytes:
        command = RemotingCommand(code, ext=dict(ext or {}))
        return check(await self._client.request_namesrv(command, timeout_s=self._timeout_s)).body

    async def _ask_each_namesrv(self, code: int, ext: Mapping[str, str]) -> list[RemotingCommand]:
        """Ask all name servers, which do not share changes; NoNameServerError names failed ones.

        All are asked, even if some fail.
        """
        answers, failures = [], []
        for address in self._client.namesrv_addresses:
            try:
                answers.append(await self._ask(address, code, ext))
            except (RemotingError, BrokerError) as exc:
                failures.append(f"{address}: {exc}")
        if failures:
            raise NoNameServerError(f"not every name server made the change: {'; '.join(failures)}")
        return answers

    async def _change(
        self, code: int, ext: Mapping[str, str], body: bytes, brokers: Iterable[str] | None
    ) -> None:
        for address in await self._chosen(brokers):
            await self._ask(address, code, ext, body)

    async def _ask_masters(self, code: int, ext: Mapping[str, str]) -> list[tuple[str, bytes]]:
        """Return the name and the body of the answer of each master."""
        masters = await self._chosen_masters(None)
        return [(name, (await self._ask(at, code, ext)).body) for name, at in masters]

    async def _chosen(self, names: Iterable[str] | None) -> list[str]:
        """Return the addresses of the masters with these names, or of all; ClientError if none."""
        return [address for _, address in await self._chosen_masters(names)]

    async def _chosen_masters(self, names: Iterable[str] | None) -> list[tuple[str, str]]:
        """Return (name, address) of the masters that ``_chosen`` selects."""
        masters = {b.name: b.address for b in await self.brokers() if b.broker_id == MASTER_ID}
        wanted = sorted(masters) if names is None else list(names)
        for name in wanted:
            if name not in masters:
                known = ", ".join(sorted(masters)) or "none"
                raise ClientError(f"broker {name!r} has no master; known brokers: {known}")
        if not wanted:
            raise ClientError("no broker is registered with the name servers: is one running?")
        return [(name, masters[name]) for name in wanted]

    async def _master(self, broker: str) -> str:
        (address,) = await self._chosen([broker])
        return address

    async def _member(self, broker: str, broker_id: int) -> str:
        """Return the address of a master or slave; ClientError if it is not registered."""
        if broker_id == MASTER_ID:
            return await self._master(broker)
        for one in await self.brokers():
            if (one.name, one.broker_id) == (broker, broker_id):
                return one.address
        raise ClientError(f"broker {broker!r} has no slave {broker_id}")

    async def _masters_of(self, topic: str) -> list[tuple[str, str]]:
        """Return name and address of each master that has a topic."""
        return _masters(await self._client.route(topic, newer_than=trio.current_time()))

    async def _connections(self, code: int, ext: Mapping[str, str]) -> list[ClientInfo]:
        found: dict[str, ClientInfo] = {}
        for address in await self._chosen(None):
            try:
                answer = await self._ask(address, code, ext)
            except BrokerError as exc:
                # A broker's answer if no member is connected to it.
                if exc.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    continue
                raise
            for one in object_of(answer.body)["connectionSet"]:
                found[one["clientId"]] = ClientInfo(
                    one["clientId"], one["clientAddr"], one["language"], one["version"]
                )
        return [found[client_id] for client_id in sorted(found)]

    async def _write_permission(self, broker: str, code: int, verb: str) -> int:
        answers = await self._ask_each_namesrv(code, {"brokerName": broker})
        return max(int(answer.ext.get(f"{verb}TopicCount", "0")) for answer in answers)


def _masters(route: TopicRoute) -> list[tuple[str, str]]:
    return [
        (name, members[MASTER_ID])
        for name, members in sorted(route.addresses.items())
        if MASTER_ID in members
    ]


def _timestamp_ms(to: ResetTo) -> int:
    if isinstance(to, str):
        known = {"first": 0, "last": _LATEST_MS}
        if to not in known:
            raise ValueError(f"to must be 'first', 'last' or a time, not {to!r}")
        return known[to]
    seconds = to.timestamp() if isinstance(to, datetime) else to
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e11:
        raise ValueError(f"to must be 'first', 'last' or a time in seconds, not {to!r}")
    return int(seconds * 1000)


def _broker_of(offset_id: str) -> str:
    """Return the address of the broker that stored the message with an offset id."""
    host, _ = decode_offset_id(offset_id)
    return format_address(*decode_host(host))
