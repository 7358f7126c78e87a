"""Rebalancing: finding out which queues of its topics a member of a group reads.

Owns: Rebalance: when queues are reassigned, and based on what. Must not touch: how queues that come
and go are handled; ``apply`` receives the complete set of a topic each time.
Invariant: without the topic's route or the group's members nothing changes.
Spec: RocketMQ RebalanceService, RebalanceImpl.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.groups.allocation import Allocate
from motelog.bridge.routes import MASTER_ID, TopicRoute
from motelog.core.errors import BrokerError, RemotingError
from motelog.core.flag import Flag
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import RemotingCommand, RequestCode, loads_as
from motelog.core.topic_names import RETRY_PREFIX

logger = logging.getLogger(__name__)

REBALANCE_S: Final = 20.0
# Delay after a rebalance that could not take all queues; doubled each time.
AGAIN_S: Final = 0.5

# Called with a topic and the member's queues; returns False if not all could be taken.
Apply = Callable[[str, list[MessageQueue]], Awaitable[bool]]


class Rebalance:
    """Assign queues every 20 s and after ``wake``; with ``allocate`` None each member gets all."""

    def __init__(
        self,
        client: Client,
        *,
        group: str,
        topics: Callable[[], Iterable[str]],
        allocate: Allocate | None,
        apply: Apply,
    ) -> None:
        self._client = client
        self._group = group
        self._topics = topics
        self._allocate = allocate
        self._apply = apply
        #: Whether the group had other members at the last rebalance.
        self.has_others = False
        self._wanted = Flag()
        self._unread: set[str] = set()  # topics already logged as missing
        # Topics that have been assigned, or whose first failure was logged.
        self._shared: set[str] = set()

    def wake(self) -> None:
        """Rebalance soon: the group or the subscriptions have changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Rebalance until cancelled."""
        again_s = AGAIN_S
        while True:
            self._wanted.clear()
            is_balanced = True
            for topic in list(self._topics()):
                is_balanced &= await self._rebalance(topic)
            again_s = AGAIN_S if is_balanced else min(2 * again_s, REBALANCE_S)
            with trio.move_on_after(REBALANCE_S if is_balanced else again_s):
                await self._wanted.wait()
                again_s = AGAIN_S

    async def _rebalance(self, topic: str) -> bool:
        try:
            route = await self._client.route(topic)
            queues = list(route.read_queues)
            if self._allocate is not None:
                members = await self._members(route)
                self.has_others = len(members) > 1
                try:
                    queues = self._allocate(self._client.client_id, queues, members)
                except Exception as exc:  # the rule may be the user's
                    logger.warning(
                        "a group's allocation rule failed and queues are unchanged: fix the rule "
                        "topic=%s group=%s error=%r",
                        topic,
                        self._group,
                        exc,
                    )
                    return False
            self._unread.discard(topic)
        except RouteError:
            # A group's retry topic is created by its first heartbeat. Others may be created later.
            if topic not in self._unread and not topic.startswith(RETRY_PREFIX):
                logger.warning(
                    "a subscribed topic does not exist; it is read once it does topic=%s group=%s",
                    topic,
                    self._group,
                )
            self._unread.add(topic)
            return False
        except (NoNameServerError, RemotingError, BrokerError) as exc:
            # Logged once for a member that has no queues yet.
            is_news = topic not in self._shared and not topic.startswith(RETRY_PREFIX)
            self._shared.add(topic)
            logger.log(
                logging.WARNING if is_news else logging.INFO,
                "a rebalance failed and queues are unchanged; it is retried topic=%s group=%s "
                "error=%s",
                topic,
                self._group,
                exc,
            )
            return False
        self._shared.add(topic)
        return await self._apply(topic, queues)

    async def _members(self, route: TopicRoute) -> list[str]:
        """Return the group's members in order, from the first broker that knows them."""
        failure: Exception | None = None
        for broker_name in sorted(route.addresses):
            address = route.any_address(broker_name, MASTER_ID)
            assert address is not None
            try:
                try:
                    members = await self._ask_members(address)
                except BrokerError:  # it does not know the group
                    members = []
                if self._client.client_id not in members:
                    # A broker that has just started may not know this member yet.
                    await self._client.send_heartbeat(address)
                    members = await self._ask_members(address)
            except (RemotingError, BrokerError) as exc:
                failure = exc
                continue
            return sorted(members)
        raise failure or RouteError(f"topic {route.topic!r} has no broker", topic=route.topic)

    async def _ask_members(self, address: str) -> list[str]:
        request = RemotingCommand(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": self._group}
        )
        answer = check(await self._client.request(address, request))
        return loads_as(answer.body, _Members, f"members of group {self._group!r}").consumerIdList


class _Members(msgspec.Struct):
    consumerIdList: list[str] = []
