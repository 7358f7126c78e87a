"""The queues of a topic on all brokers of the cluster, as a name server knows them.

Owns: the queues of other brokers, how long they are cached, and which requests wait for them.
Must not touch: who gets which queue (the assignment).
This broker's own queues always come from its current table.
Spec: RocketMQ TopicRouteInfoManager.

    queues -> known, or no name server -> these
           -> else None               -> want -> a name server is asked -> then, and queues again
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from motelog.core.broker.registration import Registrar
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError, RemotingDecodeError, RemotingError
from motelog.core.flag import Flag
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import (
    Permission,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    loads,
)
from motelog.core.remoting.topic_config import QUEUE_COUNT_MAX

#: The interval of RocketMQ's broker.
FRESH_MS: Final = 30_000
TOPICS_MAX: Final = 10_000
WAITING_MAX: Final = 1_000


class _QueueJson(msgspec.Struct, rename="camel"):
    broker_name: str
    read_queue_nums: Annotated[int, msgspec.Meta(ge=0, le=QUEUE_COUNT_MAX)]
    perm: int


class _RouteJson(msgspec.Struct, rename="camel"):
    queue_datas: list[_QueueJson] = []


class ClusterQueues:
    """The name servers' answers about topics; they are only asked while ``run`` is running."""

    def __init__(
        self, topics: TopicTable, registrars: Sequence[Registrar], clock: Clock, *, name: str
    ) -> None:
        self._topics = topics
        self._registrars = registrars
        self._clock = clock
        self._name = name
        # By topic: the queues of other brokers, and the time of the answer.
        self._others: dict[str, tuple[tuple[MessageQueue, ...], int]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._waiting_count = 0
        self._wanted = Flag()

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues that may be read, in order; None if a name server must be asked."""
        others: tuple[MessageQueue, ...] = ()
        if self._registrars:
            known = self._others.get(topic)
            if known is None or self._clock.monotonic_ms() - known[1] > FRESH_MS:
                return None
            others = known[0]
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None and config.is_readable else 0
        own = [MessageQueue(topic, self._name, queue_id) for queue_id in range(count)]
        return sorted([*own, *others], key=lambda queue: (queue.broker_name, queue.queue_id))

    def want(self, topic: str, then: Callable[[], None]) -> None:
        """Ask a name server, then call ``then``; BrokerError if too many requests wait."""
        if self._waiting_count >= WAITING_MAX:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many requests wait for a route")
        self._waiting_count += 1
        self._waiting.setdefault(topic, []).append(then)
        self._wanted.set()

    async def run(self, after: Callable[[], None]) -> None:
        """Ask name servers until cancelled; ``after`` is called after each ``then``."""
        while True:
            await self._wanted.take()
            while self._waiting:
                topic = next(iter(self._waiting))
                others = await self._ask(topic)
                if len(self._others) >= TOPICS_MAX:
                    self._others.clear()
                # Without an answer the last one stays valid, so that no client loses queues.
                before = self._others.get(topic)
                if others is None:
                    others = () if before is None else before[0]
                self._others[topic] = others, self._clock.monotonic_ms()
                waiting = self._waiting.pop(topic)
                self._waiting_count -= len(waiting)
                for then in waiting:
                    then()
                after()

    async def _ask(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the queues of other brokers; None if no name server answers."""
        for registrar in self._registrars:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
            with contextlib.suppress(RemotingError, RemotingDecodeError, msgspec.ValidationError):
                answer = await registrar.ask(request)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return ()
                if answer.code == ResponseCode.SUCCESS:
                    return self._others_of(topic, answer.body)
        return None

    def _others_of(self, topic: str, body: bytes) -> tuple[MessageQueue, ...]:
        route = msgspec.convert(loads(body), _RouteJson)
        return tuple(
            MessageQueue(topic, one.broker_name, queue_id)
            for one in route.queue_datas
            if one.broker_name != self._name and one.perm & Permission.READ
            for queue_id in range(one.read_queue_nums)
        )
