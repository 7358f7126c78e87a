"""The order of a topic's queues, which is the same for all gateways whenever they have started.

Owns: Order: its text, which queue each slot leads to, how it changes. Must not touch: name servers
(``entries``), when a change takes effect (``topics``); no I/O.
Invariants: the order is durable: it is the entry ``order.TOPIC`` of the name servers' tables. What
a route says may be cut short, because a broker is away; the order has the queues of that broker
too. Queues that are added take over slots, evenly from all others, and no other slot changes: a
publisher stays where it is, or comes to a new queue.

    [[0, [["broker-a", 0, 8], ["broker-b", 0, 8]]], [1764000000000, [["broker-c", 0, 8]]]]
      |                    |  |
      |                    queues 0 to 7
      from this time on (ms); each group is counted on top of the ones before it

The hash of a selector modulo the number of slots is the slot. Two queues have a slot each; a third
one makes them 32, of which it takes 10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import Annotated, Final, NamedTuple

import msgspec

from motelog.core.message import MessageQueue

#: Keys of entries: this and the topic's name.
KEY: Final = "order."
#: Slots for each queue, at least, once queues have been added: the more, the more equal the shares.
SLOTS_MIN: Final = 8
#: More queues than this indicate a damaged entry.
QUEUES_MAX: Final = 65_536

_Id = Annotated[int, msgspec.Meta(ge=0, le=QUEUES_MAX)]
_Group = tuple[Annotated[int, msgspec.Meta(ge=0)], list[tuple[str, _Id, _Id]]]


class Group(NamedTuple):
    """Queues that have come at the same time; ``from_ms`` is 0 for those that were the first."""

    from_ms: int
    queues: tuple[MessageQueue, ...]


class Order(NamedTuple):
    """Groups of queues in the order in which they have come; no queue is in two of them."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, queues: Iterable[MessageQueue]) -> Order:
        """Return the order of queues that have come at the same time."""
        return cls((Group(0, tuple(sorted(queues, key=_place))),))

    @classmethod
    def parse(cls, topic: str, text: str) -> Order | None:
        """Return the order with this text, None if it is not one."""
        try:
            found = msgspec.json.decode(text, type=list[_Group])
        except msgspec.DecodeError:
            return None
        if sum(max(0, end - begin) for _, runs in found for _, begin, end in runs) > QUEUES_MAX:
            return None
        groups, seen = list[Group](), set[MessageQueue]()
        for from_ms, runs in found:
            names = (MessageQueue(topic, name, n) for name, a, b in runs for n in range(a, b))
            queues = tuple(dict.fromkeys(queue for queue in names if queue not in seen))
            seen.update(queues)
            groups.append(Group(from_ms, queues))
        return cls(tuple(groups)) if seen else None

    def __str__(self) -> str:
        return msgspec.json.encode([(at, _runs(queues)) for at, queues in self.groups]).decode()

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues, those that take part later included."""
        return [queue for group in self.groups for queue in group.queues]

    def until(self, time_ms: int) -> Order:
        """Return the order as it is at a time; the first queues are there from the beginning."""
        return Order(tuple(g for n, g in enumerate(self.groups) if not n or g.from_ms <= time_ms))

    def slots(self) -> Sequence[MessageQueue]:
        """Return the queue of each slot."""
        slots = list(self.groups[0].queues)
        for number, (_, added) in enumerate(self.groups):
            if number and added:
                slots = _extended(slots, added)
        return slots

    def with_more(self, queues: Iterable[MessageQueue], *, from_ms: int) -> Order:
        """Return the order with queues that take their part from a time on."""
        return Order((*self.groups, Group(from_ms, tuple(sorted(queues, key=_place)))))

    def without(self, queues: Collection[MessageQueue]) -> Order:
        """Return the order without some queues, empty if none is left."""
        left = [
            (at, tuple(queue for queue in group if queue not in queues))
            for at, group in self.groups
        ]
        groups = [Group(at, group) for at, group in left if group]
        return Order((groups[0]._replace(from_ms=0), *groups[1:]) if groups else ())

    def before(self, queue: MessageQueue) -> tuple[int, list[MessageQueue]] | None:
        """Return from when a queue has taken part, and which queues had its publishers before.

        None for the first queues, and for others that do not take part.
        """
        for number, (from_ms, queues) in enumerate(self.groups):
            if queue in queues:
                earlier = [one for group in self.groups[:number] for one in group.queues]
                return (from_ms, earlier) if number else None
        return None


def _extended(slots: list[MessageQueue], added: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return more slots, of which each added queue has taken over its share."""
    count = len(set(slots)) + len(added)
    while len(slots) < SLOTS_MIN * count:
        slots = slots + slots
    slots_of: dict[MessageQueue, list[int]] = {}
    for slot, queue in enumerate(slots):
        slots_of.setdefault(queue, []).append(slot)
    fullest = [(-len(own), number, own) for number, own in enumerate(slots_of.values())]
    heapify(fullest)
    for taken in range(len(slots) * len(added) // count):
        _, number, own = fullest[0]
        slots[own.pop()] = added[taken % len(added)]
        heapreplace(fullest, (-len(own), number, own))
    return slots


def _runs(queues: Iterable[MessageQueue]) -> list[list[str | int]]:
    """Return runs of queues whose ids follow each other: broker, first id, id after the last."""
    runs: list[list[str | int]] = []
    for queue in queues:
        if runs and runs[-1][0] == queue.broker_name and runs[-1][2] == queue.queue_id:
            runs[-1][2] = queue.queue_id + 1
        else:
            runs.append([queue.broker_name, queue.queue_id, queue.queue_id + 1])
    return runs


def _place(queue: MessageQueue) -> tuple[str, int]:
    return queue.broker_name, queue.queue_id
