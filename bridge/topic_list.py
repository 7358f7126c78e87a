"""The list of topics, from the name servers.

Owns: the requests, which of the names are users' topics. Must not touch: connections.
Spec: RocketMQ DefaultRequestProcessor.getAllTopicListFromNameserver, getBrokerClusterInfo.
"""

from __future__ import annotations

from typing import Any

import msgspec

from motelog.bridge.client import Client, check
from motelog.bridge.requests import REPLY_TOPIC_END
from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.frames import RemotingCommand, RequestCode, loads
from motelog.core.topic_names import is_device_topic


class _Topics(msgspec.Struct, rename="camel"):
    topic_list: list[str]


class _Cluster(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, Any] | None = None
    cluster_addr_table: dict[str, Any] | None = None


async def user_topics(client: Client, *, timeout_s: float) -> list[str]:
    """Return the names of users' topics, without those of the system or of groups."""

    async def ask(code: RequestCode) -> Any:
        answer = await client.request_namesrv(RemotingCommand(code), timeout_s=timeout_s)
        return loads(check(answer).body)

    try:
        names = await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = msgspec.convert(names, _Topics).topic_list
        cluster = msgspec.convert(await ask(RequestCode.GET_BROKER_CLUSTER_INFO), _Cluster)
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"a name server's answer is malformed: {exc}") from None
    # Apache's brokers have topics named after brokers and clusters, and one for replies.
    own = {*(cluster.broker_addr_table or ()), *(cluster.cluster_addr_table or ())}
    return sorted(
        name
        for name in topics
        if is_device_topic(name) and name.removesuffix(REPLY_TOPIC_END) not in own
    )
