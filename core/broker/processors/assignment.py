"""Which queues a member of a group consumes, and how: decided here for clients that ask.

Owns: request codes 400 (which queues) and 401 (by pulls or by POP), dividing queues among members.
Must not touch: which queues there are (cluster_queues), the chosen modes (request_modes).
Spec: RocketMQ QueryAssignmentProcessor, AllocateMessageQueueAveragely(ByCircle).

    pulls  each queue has one member
    POP    every member has all queues of each broker, named -1; or its own and those of the next
           members, if a number is chosen
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.request_modes import RequestMode
from motelog.core.broker.waiting.cluster_queues import ClusterQueues
from motelog.core.errors import BrokerError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    loads_as,
)
from motelog.core.remoting.server import Connection, Processor, answer_with
from motelog.core.topic_names import RETRY_PREFIX, shown


class _QueryJson(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class _QueueJson(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    broker_name: str
    queue_id: int


class _AssignedJson(msgspec.Struct, rename="camel"):
    message_queue: _QueueJson
    mode: str


class AssignmentProcessor:
    """Answers which queues a client has; state changes only within a turn."""

    def __init__(self, shared: Shared, queues: ClusterQueues) -> None:
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._consumers = shared.tables.consumers
        self._modes = shared.tables.request_modes
        self._queues = queues

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self._query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
        }

    def _query(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        query = loads_as(request.body, _QueryJson, "query of an assignment")
        queues = self._queues.queues(query.topic)
        if queues is not None:
            return self._answer(request, query, queues)
        self._queues.want(query.topic, partial(self._again, request, query, connection))
        return None

    def _again(self, request: RemotingCommand, query: _QueryJson, connection: Connection) -> None:
        queues = self._queues.queues(query.topic) or []
        answer_with(lambda _request, _: self._answer(request, query, queues), request, connection)

    def _answer(
        self, request: RemotingCommand, query: _QueryJson, queues: list[MessageQueue]
    ) -> RemotingCommand:
        mode = self._modes.get(query.topic, query.consumer_group)
        assigned = self._assigned(query, queues, mode)
        value = None
        if assigned is not None:
            value = [
                _AssignedJson(_QueueJson(one.topic, one.broker_name, one.queue_id), mode.mode)
                for one in dict.fromkeys(assigned)
            ]
        return request.answer(body=msgspec.json.encode({"messageQueueAssignments": value}))

    def _assigned(
        self, query: _QueryJson, queues: list[MessageQueue], mode: RequestMode
    ) -> list[MessageQueue] | None:
        """Return a client's queues; None if it is to keep its current ones."""
        if not queues:
            return None
        if query.message_model == "BROADCASTING":
            return queues
        members = self._consumers.get(query.consumer_group)
        divide = STRATEGIES.get(query.strategy_name)
        if members is None or divide is None:
            return None
        clients = sorted(members.members)
        if mode.mode == "POP":
            return divide_for_pop(
                divide, query.client_id, queues, clients, mode.pop_share_queue_num
            )
        return divide(query.client_id, queues, clients)

    def _set_mode(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        mode = loads_as(request.body, RequestMode, "a request mode")
        if mode.topic.startswith(RETRY_PREFIX):
            text = "the mode of a topic of retries cannot be set"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        if self._topics.get(mode.topic) is None:
            text = f"topic {shown(mode.topic)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        self._groups.find(mode.consumer_group)
        self._modes.put(mode)
        return request.answer()


#: A client, all queues and all clients, both in order -> the client's queues.
Divide = Callable[[str, list[MessageQueue], list[str]], list[MessageQueue]]


def averagely(client: str, queues: list[MessageQueue], clients: list[str]) -> list[MessageQueue]:
    """Return neighbouring queues: the same number for each client, or one more for the first."""
    if client not in clients:
        return []
    index = clients.index(client)
    least, more = divmod(len(queues), len(clients))
    begin = index * least + min(index, more)
    return queues[begin : begin + least + (index < more)]


def by_circle(client: str, queues: list[MessageQueue], clients: list[str]) -> list[MessageQueue]:
    """Return every n-th queue for one of n clients."""
    return queues[clients.index(client) :: len(clients)] if client in clients else []


STRATEGIES: Final[dict[str, Divide]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def divide_for_pop(
    divide: Divide,
    client: str,
    queues: list[MessageQueue],
    clients: list[str],
    share_count: int,
) -> list[MessageQueue]:
    """Return the queues that a client pops: all, or its own and those of ``share_count`` others."""
    if share_count <= 0 or share_count >= len(clients) - 1:
        return [MessageQueue(one.topic, one.broker_name, -1) for one in queues]
    if client not in clients:
        return []
    index = clients.index(client)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    sharing = [clients[(index + i) % len(clients)] for i in range(share_count + 1)]
    return [queue for one in sharing for queue in divide(one, queues, clients)]
