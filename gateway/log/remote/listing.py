"""How a gateway learns of topics, queues and their order: it asks the name servers again and again.

Owns: Listing: what is asked when, and what the last answers were. Must not touch: what a route
leads to (``topics``), what gateways have written down (``entries``, ``orders``).
Invariant: a topic that is not in one listing and is in a later one is new: everything in it is
younger than the earlier listing, except at a broker that was in no listing before.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.core.errors import BrokerError, RemotingDecodeError, RemotingError
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, RequestCode, loads
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.home import Home
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.orders import LOOK_S
from motelog.gateway.log.remote.topics import Topics

logger = logging.getLogger(__name__)

LIST_INTERVAL_S: Final = 1.0
#: Routes of known topics are checked again after this time; the client requests them as often.
ROUTES_INTERVAL_S: Final = 30.0

_OUTAGES: Final = (NoNameServerError, BrokerError, RemotingError)


class Listing:
    """Tells the topics of one gateway's log what name servers know of them."""

    def __init__(
        self, client: Client, links: BrokerLinks, entries: Entries, topics: Topics, home: Home
    ) -> None:
        self._client = client
        self._links = links
        self._entries = entries
        self._topics = topics
        self._home = home
        #: All names in the last listing.
        self._listed: list[str] = []
        self._outages = LimitedLog(logger, lines_max=1, period_s=10)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Learn of topics until cancelled; started when the existing ones are known."""
        while not (await self._read_entries() and await self._list(is_first=True)):  # noqa: ASYNC110  # a name server has no event
            await trio.sleep(LIST_INTERVAL_S)
        self._topics.begin()
        task_status.started()
        await run_again(self._list_regularly)

    async def _list_regularly(self) -> None:
        routes_at = looked_at = trio.current_time()
        while True:
            await trio.sleep(LIST_INTERVAL_S)
            await self._list(is_first=False)
            if trio.current_time() - routes_at >= ROUTES_INTERVAL_S:
                routes_at = trio.current_time()
                await self._look_at_routes()
            if trio.current_time() - looked_at >= LOOK_S:
                looked_at = trio.current_time()
                await self._look_at_orders()

    async def _list(self, *, is_first: bool) -> bool:
        """Adopt topics that are not known yet; return whether a name server has answered."""
        try:
            listed = found = await _ask_list(self._client)
            if listed != self._listed:
                # A broker that comes registers its own name together with its topics.
                await self._links.find()
                found = await _ask_list(self._client)
            brokers = self._links.names
            for name in filter(self._topics.is_users, found):
                topic = self._topics.get(name)
                if topic is None or (not topic.is_known and is_first):
                    await self._learn(name, is_new=not is_first)
            known = self._topics.brokers
            if known and not brokers <= known:
                await self._look_at_routes(newer_than=trio.current_time())
            self._listed, self._topics.brokers = listed, brokers
        except _OUTAGES as exc:
            self._outages.warning(
                "no name server lists the topics; the known ones stay in use error=%s", exc
            )
            return False
        return True

    async def _learn(self, name: str, *, is_new: bool) -> None:
        try:
            route = await self._client.route(name, newer_than=trio.current_time())
        except RouteError:
            return  # its brokers have gone meanwhile
        self._topics.adopt(route, new_at=self._topics.brokers if is_new else ())

    async def _look_at_routes(self, *, newer_than: float | None = None) -> None:
        """Look for changes to the queues of known topics."""
        for topic in self._topics.known():
            try:
                route = await self._client.route(topic.name, newer_than=newer_than)
                self._topics.adopt(route, new_at=self._topics.brokers)
            except (RouteError, *_OUTAGES):
                continue  # the known queues stay in use

    async def _read_entries(self) -> bool:
        """Read what gateways have written down; return whether a name server has answered."""
        try:
            await self._entries.read()
        except NoNameServerError as exc:
            self._outages.warning("no name server has the orders of queues error=%s", exc)
            return False
        return True

    async def _look_at_orders(self) -> None:
        """Take over what other gateways have written down, and write down what has changed."""
        if not await self._read_entries():
            return
        self._home.look()
        orders = self._topics.orders
        for topic in self._topics.known():
            if topic.name not in GATEWAY_TOPICS:
                is_other = topic.order != orders.of(topic.name)
                if is_other or orders.wanted(topic) is not None:
                    await self._learn(topic.name, is_new=True)  # the known route may be old
                    if (order := orders.wanted(topic)) is not None:
                        await orders.write(topic, order)
                self._topics.take_order(topic)
                orders.begin_move(topic)


class _TopicList(msgspec.Struct):
    topicList: list[str] = []


async def _ask_list(client: Client) -> list[str]:
    request = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    answer = check(await client.request_namesrv(request))
    try:
        return msgspec.convert(loads(answer.body), _TopicList).topicList
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"the name server's list of topics: {exc}") from exc
