"""The parts of appends: messages for one queue, their tickets, and what they wait for.

Owns: RemoteTicket, Part, Batch, Held. Must not touch: queues, requests, tasks.
Invariants: a part that waits for other tickets is not sent before they have settled, and never if
one of them has an error. Nor are later messages of the same publisher sent before it, so the order
of a publisher's messages is kept; messages of other publishers pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from motelog.core.remoting.frames import BatchItem
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.log.remote.queues import Place


class RemoteTicket(Ticket):
    """A ticket with the parts that wait for it."""

    __slots__ = ("then",)

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Part] = []


class Batch(RemoteTicket):
    """The ticket of an append of several parts: settles when ``parts_left`` is 0."""

    __slots__ = ("parts_left",)

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts_left = len(parts)
        for part in parts:
            part.batch = self


class Part(RemoteTicket):
    """The messages of one append that go to one queue in one send, and their ticket."""

    __slots__ = (
        "batch",
        "body_bytes",
        "born_ms",
        "broker_name",
        "deadline",
        "followers",
        "is_alone",
        "is_delayed",
        "items",
        "place",
        "publishers",
        "run",
        "waits_for",
    )

    def __init__(self, place: Place, born_ms: int, deadline: float) -> None:
        super().__init__()
        self.place = place
        self.born_ms = born_ms
        self.deadline = deadline
        self.items: list[BatchItem] = []
        self.body_bytes = 0
        #: The broker to whose share its bytes count; None while its topic is not known.
        self.broker_name = place.queue.name.broker_name if place.queue is not None else None
        #: The ticket of the whole append, if it has several parts and one fate.
        self.batch: Batch | None = None
        #: Whether it must not share a send: a shared one was refused, and any part may be at fault.
        self.is_alone = False
        #: Whether it is one delayed message, which must not be in a batch.
        self.is_delayed = False
        #: If it has waited for marks: the gateway's run in which they count.
        self.run: int | None = None
        #: How many tickets and parts it waits for, whose messages it has, and the parts that must
        #: not pass it.
        self.waits_for = 0
        self.publishers: set[bytes] = set()
        self.followers: list[Part] = []


class Held:
    """The parts of one gateway that wait for tickets, or for a part of the same publisher."""

    def __init__(self) -> None:
        #: Publisher -> the last part with messages of it that waits.
        self.last: dict[bytes, Part] = {}

    def hold(self, part: Part, after: Sequence[Ticket], ahead: Part | None) -> None:
        """Have ``part`` wait for tickets that have not settled, and for the part ``ahead``."""
        for ticket in after:
            if not ticket.is_settled:
                assert isinstance(ticket, RemoteTicket), "it is of this log"
                ticket.then.append(part)
                part.waits_for += 1
            part.error = part.error or ticket.error
        if ahead is not None:
            ahead.followers.append(part)
            part.waits_for += 1

    def settled(self, ticket: RemoteTicket) -> Iterator[Part]:
        """Return the parts that need no longer wait now that ``ticket`` has settled."""
        then, ticket.then = ticket.then, []
        for part in then:
            part.error = part.error or ticket.error
            part.waits_for -= 1
            if not part.waits_for:
                yield from self.released(part)

    def released(self, first: Part) -> Iterator[Part]:
        """Return a part that waits no longer, and the parts that then need not wait either.

        They are returned in the order in which they are to be sent.
        """
        free = deque((first,))
        while free:
            part = free.popleft()
            for publisher in part.publishers:
                if self.last.get(publisher) is part:
                    del self.last[publisher]
            part.publishers.clear()
            yield part
            followers, part.followers = part.followers, []
            for follower in followers:
                follower.waits_for -= 1
                if not follower.waits_for:
                    free.append(follower)
