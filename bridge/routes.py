"""A topic's route as a client uses it: its brokers, its writable and readable queues.

Owns: TopicRoute and reading it from a name server's answer. Must not touch: sockets, clocks, trio.
Spec: RocketMQ TopicRouteData, MQClientInstance.topicRouteData2TopicPublishInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import Permission, loads_as

MASTER_ID: Final = 0
# The number of queues of a topic that does not exist yet, which uses the default topic's route.
DEFAULT_TOPIC_QUEUE_COUNT: Final = 4
# More queues than this on one broker indicate a damaged answer.
_QUEUE_COUNT_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic's queues are.

    ``addresses`` maps broker name -> broker id -> address. ``is_stand_in`` says that this is the
    default topic's route, used for a topic that its first message will create.
    """

    topic: str
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    is_stand_in: bool = False

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a member of the broker group, or None."""
        return self.addresses.get(broker_name, {}).get(broker_id)

    def at(self, broker_name: str) -> TopicRoute:
        """Return the route with the queues of one broker only."""
        write_queues, read_queues = (
            tuple(queue for queue in queues if queue.broker_name == broker_name)
            for queues in (self.write_queues, self.read_queues)
        )
        return replace(self, write_queues=write_queues, read_queues=read_queues)

    def any_address(self, broker_name: str, preferred_id: int) -> str | None:
        """Return the preferred member's address, else the master's, else any other's."""
        members = self.addresses.get(broker_name)
        if not members:
            return None
        for broker_id in (preferred_id, MASTER_ID):
            if broker_id in members:
                return members[broker_id]
        return next(iter(members.values()))


class _BrokerData(msgspec.Struct):
    brokerName: str
    brokerAddrs: dict[Annotated[int, msgspec.Meta(ge=0)], str]


class _QueueData(msgspec.Struct):
    brokerName: str
    readQueueNums: Annotated[int, msgspec.Meta(ge=0, le=_QUEUE_COUNT_MAX)]
    writeQueueNums: Annotated[int, msgspec.Meta(ge=0, le=_QUEUE_COUNT_MAX)]
    perm: int


class _TopicRouteData(msgspec.Struct):
    brokerDatas: list[_BrokerData] = []
    queueDatas: list[_QueueData] = []


def decode_route(topic: str, body: bytes, *, is_stand_in: bool = False) -> TopicRoute:
    """Return the route in a GET_ROUTEINFO_BY_TOPIC answer; RemotingDecodeError if it is not one."""
    # Keys of the address table are decoded as str whether or not the server quoted them.
    data = loads_as(body, _TopicRouteData, f"route of topic {topic!r}", strict=False)
    addresses = {broker.brokerName: broker.brokerAddrs for broker in data.brokerDatas}
    write_queues: list[MessageQueue] = []
    read_queues: list[MessageQueue] = []
    for queues in sorted(data.queueDatas, key=lambda queues: queues.brokerName):
        broker_name = queues.brokerName
        members = addresses.get(broker_name, {})
        # Writing needs a master; a producer ignores the queues of a group without one.
        if queues.perm & Permission.WRITE and MASTER_ID in members:
            count = queues.writeQueueNums
            if is_stand_in:
                count = min(count, DEFAULT_TOPIC_QUEUE_COUNT)
            write_queues += (MessageQueue(topic, broker_name, i) for i in range(count))
        if queues.perm & Permission.READ and members and not is_stand_in:
            count = queues.readQueueNums
            read_queues += (MessageQueue(topic, broker_name, i) for i in range(count))
    return TopicRoute(topic, tuple(write_queues), tuple(read_queues), addresses, is_stand_in)
