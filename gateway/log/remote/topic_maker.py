"""How a topic is created at the brokers of a cluster.

Owns: the requests, and the wait until name servers know the topic. Must not touch: which topics are
known (``topics``).
Spec: RocketMQ CreateTopicRequestHeader.
"""

from __future__ import annotations

from typing import Final

import trio

from motelog.bridge.client import REQUEST_TIMEOUT_S, Client, check
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.routes import TopicRoute
from motelog.core.errors import BrokerError, MotelogError, RemotingError
from motelog.core.remoting.frames import Permission, RemotingCommand, RequestCode
from motelog.core.topic_names import DEFAULT_TOPIC
from motelog.gateway.log.remote.links import BrokerLink, BrokerLinks

#: How long name servers may take to know a new topic.
ROUTE_WAIT_S: Final = 5.0
ROUTE_RETRY_S: Final = 0.05


class TopicMaker:
    """Creates topics for one gateway, in the name of its ``group``."""

    def __init__(self, client: Client, links: BrokerLinks, *, group: str) -> None:
        self._client = client
        self._links = links
        self._group = group

    async def make(self, name: str, queue_count: int) -> TopicRoute:
        """Create a topic at every broker, and return its route once name servers know it.

        BrokerError if every broker has refused it; NoNameServerError, RouteError or RemotingError
        if it may be tried again.
        """
        await self._links.find()
        refusals: list[MotelogError] = []
        links = self._links.masters()
        for link in links:
            try:
                await self._make_at(link, name, queue_count)
            except (BrokerError, RemotingError) as exc:
                refusals.append(exc)
        if len(refusals) == len(links):
            raise refusals[0] if refusals else NoNameServerError("no broker is known")
        return await self._route(name, len(links) - len(refusals))

    async def _route(self, name: str, broker_count: int) -> TopicRoute:
        """Return a route with so many brokers, or after some time one with fewer.

        A topic must not be reported with fewer queues than it is going to have: the messages of one
        publisher would change queues.
        """
        deadline = trio.current_time() + ROUTE_WAIT_S
        while True:
            try:
                route = await self._client.route(name, newer_than=trio.current_time())
                if len(route.addresses) >= broker_count or trio.current_time() > deadline:
                    return route
            except RouteError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(ROUTE_RETRY_S)

    async def _make_at(self, link: BrokerLink, name: str, queue_count: int) -> None:
        ext = {
            "topic": name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count),
            "perm": str(int(Permission.READ | Permission.WRITE)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "producerGroup": self._group,  # opens gateways' own topics; Apache RocketMQ ignores it
        }
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
        check(await self._links.request(link, request, timeout_s=REQUEST_TIMEOUT_S))
