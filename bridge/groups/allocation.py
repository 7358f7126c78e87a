"""Rules by which the members of a group share a topic's queues.

Owns: the rules. Must not touch: sockets, clocks, trio; these are pure functions. Each member
computes its own queues, so members agree only if all use the same rule and have the same lists in
the same order: queues by broker name and queue id, members by client identifier.
Spec: RocketMQ AllocateMessageQueueAveragely (``average``), ...AveragelyByCircle (``by_circle``),
...ConsistentHash, ...ByMachineRoom, AllocateMachineRoomNearby. The results are the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from motelog.core.message import MessageQueue

# (own client identifier, queues, client identifiers of all members) -> own queues.
Allocate: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

VIRTUAL_NODES: Final = 10


def average(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Return adjacent queues; the first members get one more. RocketMQ's default."""
    if client_id not in members:
        return []
    index = members.index(client_id)
    each, more = divmod(len(queues), len(members))
    begin = index * each + min(index, more)
    return list(queues[begin : begin + each + (index < more)])


def by_circle(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Return every n-th queue (round robin)."""
    return list(queues[members.index(client_id) :: len(members)]) if client_id in members else []


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Allocate:
    """Return the rule with which few queues move when members come and go."""
    if virtual_nodes < 1:
        raise ValueError(f"virtual_nodes must be at least 1, not {virtual_nodes}")

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        # If two members have the same place, the later one in the list gets it.
        ring = {_place(f"{one}-{i}"): one for one in members for i in range(virtual_nodes)}
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, _place(_text(queue))) % len(places)]] == client_id
        ]

    return allocate


def by_machine_room(rooms: Collection[str]) -> Allocate:
    """Return the rule that shares only queues of some rooms; broker names are ROOM@NAME."""

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        there = [queue for queue in queues if _room(queue.broker_name) in rooms]
        index = members.index(client_id)
        each, more = divmod(len(there), len(members))
        own = there[each * index : each * (index + 1)]
        return [*own, there[each * len(members) + index]] if index < more else own

    return allocate


def nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
    rule: Allocate = average,
) -> Allocate:
    """Return the rule with which members share the queues of their room; all share empty rooms'.

    ValueError at a rebalance if a queue or a member has no room.
    """

    def room(kind: str, name: object, found: str) -> str:
        if not found:
            raise ValueError(f"{kind} {name} has no machine room")
        return found

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        queues_of: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            queues_of[room("queue", queue, room_of_queue(queue))].append(queue)
        members_of: defaultdict[str, list[str]] = defaultdict(list)
        for member in members:
            members_of[room("member", member, room_of_member(member))].append(member)
        own = room_of_member(client_id)
        found = rule(client_id, queues_of.pop(own, []), members_of[own])
        for name in sorted(queues_of.keys() - members_of.keys()):
            found += rule(client_id, queues_of[name], members)
        return found

    return allocate


def _place(text: str) -> int:
    """Return the place on the hash ring: the first four bytes of the MD5."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _text(queue: MessageQueue) -> str:
    """Return the queue as Java's MessageQueue.toString does, so that hashes are the same."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _room(broker_name: str) -> str | None:
    # Java's split drops empty parts at the end.
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None
