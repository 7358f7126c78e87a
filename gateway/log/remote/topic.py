"""One topic of a remote log: its queues, and the places that lead to them.

Owns: Topic. Must not touch: requests, tasks, other topics.
Invariants: ``write_queues`` has a queue for each slot of the topic's order, so the same queue may
be there several times. While queues are added, places lead nowhere: what is appended is held.
"""

from __future__ import annotations

from collections.abc import Collection

from motelog.core.message import MessageQueue
from motelog.gateway.log.remote.order import Order
from motelog.gateway.log.remote.parts import Part
from motelog.gateway.log.remote.queues import Place, RemoteQueue


class Topic:
    """One topic that is known or is being created."""

    __slots__ = (
        "found",
        "held",
        "is_known",
        "masters",
        "moved_ms",
        "moving_ms",
        "name",
        "order",
        "places",
        "queue_count",
        "read_queues",
        "write_queues",
    )

    def __init__(self, name: str, queue_count: int = 0) -> None:
        self.name = name
        #: How many queues it gets at each broker when it is created.
        self.queue_count = queue_count
        self.is_known = False
        #: The queues that can be written to, those of brokers that are away included; and the
        #: brokers of its route that are not away.
        self.found: tuple[MessageQueue, ...] = ()
        self.masters: Collection[str] = ()
        #: The order that was written down when its route was learnt.
        self.order: Order | None = None
        self.read_queues: tuple[RemoteQueue, ...] = ()
        self.write_queues: tuple[RemoteQueue, ...] = ()
        #: Queues that have been added until ``moved_ms`` take part, and until ``moving_ms`` while
        #: publishers are about to move to them (else 0).
        self.moved_ms = 0
        self.moving_ms = 0
        self.places: dict[int, Place] = {}
        #: Parts of appends that wait until it is known where they go, with their places.
        self.held: list[tuple[Place, Part]] = []

    @property
    def is_open(self) -> bool:
        """Whether places lead to queues."""
        return self.is_known and not self.moving_ms

    @property
    def is_used(self) -> bool:
        """Whether this gateway has appended to it."""
        return any(place.taken for place in self.places.values())

    def place(self, number: int) -> Place:
        """Return the one place with this number: a slot, or a hash while places lead nowhere."""
        place = self.places.get(number)
        if place is None:
            place = self.places[number] = Place(self.name, number)
            if self.is_open:
                place.queue = self.write_queues[number]
        return place

    def lead(self) -> None:
        """Let all places lead to the queues of their slots."""
        if self.is_open and self.write_queues:
            for place in self.places.values():
                place.queue = self.write_queues[place.number % len(self.write_queues)]
