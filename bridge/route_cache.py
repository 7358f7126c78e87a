"""The routes of the topics that a client uses: fetched when needed, refreshed while in use.

Owns: when a cached route is used, and its refresh. Must not touch: connections, heartbeats, the
question that a name server is asked (``client``).
Invariant: one task at a time fetches a topic's route; those that wait for it share the answer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.routes import TopicRoute
from motelog.core.errors import BrokerError, RemotingDecodeError
from motelog.core.topic_names import DEFAULT_TOPIC

logger = logging.getLogger(__name__)

ROUTE_REFRESH_S: Final = 30.0
# The route of a topic that does not exist yet is requested at most this often.
STAND_IN_RETRY_S: Final = 0.1


class RouteCache:
    """Routes by topic; ``ask(topic, asked_topic)`` returns a name server's, None if it has none.

    ``learned`` is called with each route before it is cached.
    """

    def __init__(
        self,
        ask: Callable[[str, str], Awaitable[TopicRoute | None]],
        learned: Callable[[TopicRoute], None],
    ) -> None:
        self._ask = ask
        self._learned = learned
        self._routes: dict[str, tuple[TopicRoute, float]] = {}
        self._locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    def __iter__(self) -> Iterator[TopicRoute]:
        return (route for route, _ in self._routes.values())

    async def find(
        self, topic: str, *, for_sending: bool = False, newer_than: float | None = None
    ) -> TopicRoute:
        """Return the topic's route, from the cache or a name server.

        With ``newer_than`` a cached answer is used only if it is newer than that time. With
        ``for_sending`` a topic that does not exist gets the default topic's route, and the broker
        will create it. RouteError if the topic does not exist, NoNameServerError if no server
        answers.
        """
        found = self.known(topic, for_sending=for_sending, newer_than=newer_than)
        if found is not None:
            return found
        async with self._locks[topic]:
            # A task that waited here finds the route that the previous task fetched.
            found = self.known(topic, for_sending=for_sending, newer_than=newer_than)
            if found is not None:
                return found
            try:
                return await self._fetch(topic, for_sending)
            except NoNameServerError:
                # An old route is better than none: brokers also answer without name servers.
                found = self.known(topic, for_sending=for_sending)
                if found is None:
                    raise
                return found

    def known(
        self, topic: str, *, for_sending: bool = False, newer_than: float | None = None
    ) -> TopicRoute | None:
        """Return what ``find`` would return from the cache; None if it would ask a name server."""
        route, fetched_at = self._routes.get(topic, (None, 0.0))
        if route is None or (newer_than is not None and fetched_at <= newer_than):
            return None
        if route.is_stand_in and (
            not for_sending or trio.current_time() - fetched_at > STAND_IN_RETRY_S
        ):
            return None
        return route

    async def _fetch(self, topic: str, for_sending: bool) -> TopicRoute:
        route = await self._ask(topic, topic)
        if route is None and for_sending:
            route = await self._ask(topic, DEFAULT_TOPIC)
        if route is None:
            raise RouteError(
                f"topic {topic!r} does not exist: create it, for example with `motelog topic "
                "create`, or let brokers create topics; if it existed, check that its brokers run",
                topic=topic,
            )
        self._remember(route)
        return route

    def _remember(self, route: TopicRoute) -> None:
        self._learned(route)
        self._routes[route.topic] = (route, trio.current_time())

    async def refresh(self) -> None:
        """Fetch the routes again every ROUTE_REFRESH_S, until cancelled."""
        while True:
            await trio.sleep(ROUTE_REFRESH_S)
            for topic in list(self._routes):
                try:
                    await self._refresh_one(topic)
                except (NoNameServerError, BrokerError, RemotingDecodeError) as exc:
                    # The cached route stays in use; brokers also answer without name servers.
                    logger.warning(
                        "a route could not be refreshed; the cached one stays in use: check the "
                        "name servers topic=%s error=%s",
                        topic,
                        exc,
                    )

    async def _refresh_one(self, topic: str) -> None:
        async with self._locks[topic]:
            route = await self._ask(topic, topic)
            if route is not None:
                self._remember(route)
            else:
                self._routes.pop(topic, None)
