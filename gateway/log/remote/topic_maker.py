"""How a topic is created at the brokers of a cluster.

Owns: the requests, and the wait until name servers know the topic. Must not touch: which topics are
known (``topics``).
Spec: RocketMQ CreateTopicRequestHeader.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from motelog.bridge.client import REQUEST_TIMEOUT_S, Client, check
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.routes import TopicRoute
from motelog.core.errors import BrokerError, MotelogError, RemotingError
from motelog.core.remoting.frames import Permission, RemotingCommand, RequestCode
from motelog.core.topic_names import DEFAULT_TOPIC, GATEWAY_TOPICS, MQTT_SESSION_TOPIC
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.home import Home
from motelog.gateway.log.remote.links import BrokerLink, BrokerLinks

#: How long name servers may take to know a new topic.
ROUTE_WAIT_S: Final = 5.0
ROUTE_RETRY_S: Final = 0.05


class TopicMaker:
    """Creates topics for one gateway, in the name of its ``group``."""

    def __init__(self, client: Client, links: BrokerLinks, entries: Entries, *, group: str) -> None:
        self._client = client
        self._links = links
        self._group = group
        self.home = Home(entries, self._choose_home)

    async def find(self, name: str, queue_count: int) -> tuple[TopicRoute, bool]:
        """Return a topic's route, and whether it was there before; else it is created.

        A gateways' own topic is created at their home alone, others at every broker. Raises what
        ``make`` raises.
        """
        home = await self.home.find() if name in GATEWAY_TOPICS else None
        with suppress(RouteError):  # it has not been created yet, or its broker is away
            route = await self._client.route(name, newer_than=trio.current_time())
            if home is None or route.address(home) is not None:  # a slave takes no state
                return route, True
        return await self.make(name, queue_count, at=home), False

    async def _choose_home(self) -> str:
        """Return the broker where gateways have had their state, else the first one by name."""
        with suppress(RouteError):
            route = await self._client.route(MQTT_SESSION_TOPIC, newer_than=trio.current_time())
            # The master may be away: it is the home nevertheless.
            if queues := route.write_queues or route.read_queues:
                return queues[0].broker_name
        await self._links.find()
        if not self._links.names:
            raise NoNameServerError("no broker is known")
        return min(self._links.names)

    async def make(self, name: str, queue_count: int, *, at: str | None = None) -> TopicRoute:
        """Create a topic, and return its route once name servers know it.

        At the broker with the name ``at``, or at all brokers.

        BrokerError if every broker has refused it; NoNameServerError, RouteError or RemotingError
        if it may be tried again.
        """
        await self._links.find()
        refusals: list[MotelogError] = []
        made: set[str] = set()
        for link in self._links.masters() if at is None else [self._links.of(at)]:
            try:
                await self._make_at(link, name, queue_count)
                made.add(link.name)
            except (BrokerError, RemotingError) as exc:
                refusals.append(exc)
        if not made:
            raise refusals[0] if refusals else NoNameServerError("no broker is known")
        return await self._route(name, made)

    async def _route(self, name: str, made: set[str]) -> TopicRoute:
        """Return a route with all these brokers, or after some time one without some of them.

        A topic must not be reported with fewer queues than it is going to have: the messages of one
        publisher would change queues.
        """
        deadline = trio.current_time() + ROUTE_WAIT_S
        while True:
            is_late = trio.current_time() > deadline
            try:
                route = await self._client.route(name, newer_than=trio.current_time())
                known = made & route.addresses.keys()
                if known == made or (known and is_late):
                    return route
                if is_late:
                    text = f"no name server knows topic {name} at {', '.join(made)}"
                    raise RouteError(text, topic=name)
            except RouteError:
                if is_late:
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
