"""The parts of appends: messages for one queue, their tickets, and what they wait for.

Owns: RemoteTicket, Part, Batch, Held, Withdrawn. Must not touch: queues, requests, tasks.
Invariants: a part that waits for other tickets is not sent before they have settled, and never if
one of them has an error. Nor are later messages of the same publisher sent before it, so the order
of a publisher's messages is kept; messages of other publishers pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from motelog.core.remoting.frames import BatchItem
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.log.remote.queues import Place

#: Later parts have higher numbers.
_numbers = count()


class RemoteTicket(Ticket):
    """A ticket with the parts that wait for it, None if there are none."""

    __slots__ = ("then",)

    def __init__(self) -> None:
        self.error = None
        self.is_settled = False
        self.then: list[Part] | None = None


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
        "number",
        "place",
        "publishers",
        "run",
        "waits_for",
    )

    def __init__(self, place: Place, born_ms: int, deadline: float) -> None:
        super().__init__()
        self.place = place
        self.number = next(_numbers)
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
        #: How many tickets and parts it waits for. Once it has waited: whose messages it has, and
        #: the parts that must not pass it.
        self.waits_for = 0
        self.publishers: set[bytes] | None = None
        self.followers: list[Part] | None = None


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
                ticket.then = ticket.then or []
                ticket.then.append(part)
                part.waits_for += 1
            part.error = part.error or ticket.error
        if ahead is not None:
            ahead.followers = ahead.followers or []
            ahead.followers.append(part)
            part.waits_for += 1

    def add(self, part: Part, publisher: bytes) -> None:
        """Note that a part that waits has a message of ``publisher``."""
        part.publishers = part.publishers or set()
        part.publishers.add(publisher)
        self.last[publisher] = part

    def settled(self, ticket: RemoteTicket) -> Iterator[Part]:
        """Return the parts that need no longer wait now that ``ticket`` has settled."""
        then, ticket.then = ticket.then, None
        for part in then or ():
            part.error = part.error or ticket.error
            part.waits_for -= 1
            if not part.waits_for:
                yield from self._released(part)

    def _released(self, first: Part) -> Iterator[Part]:
        """Return a part that waits no longer, and the parts that then need not wait either.

        They are returned in the order in which they are to be sent.
        """
        free = deque((first,))
        while free:
            part = free.popleft()
            for publisher in part.publishers or ():
                if self.last.get(publisher) is part:
                    del self.last[publisher]
            yield part
            followers, part.followers = part.followers, None
            for follower in followers or ():
                follower.waits_for -= 1
                if not follower.waits_for:
                    free.append(follower)


class Withdrawn:
    """The publishers whose messages, appended until then, must no longer be sent."""

    def __init__(self) -> None:
        #: End of a publisher's property texts -> the number that the next part had when it was
        #: withdrawn, and the time after which no earlier one still waits.
        self.ends: dict[bytes, tuple[int, float]] = {}

    def note(self, end: bytes, now: float, for_s: float) -> None:
        """Withdraw the parts made until now that have a property text with this end."""
        self.ends = {one: noted for one, noted in self.ends.items() if noted[1] > now}
        self.ends[end] = next(_numbers), now + for_s

    def has(self, part: Part) -> bool:
        """Whether a part is withdrawn. State is not: its appends have no publisher."""
        if part.place.topic in GATEWAY_TOPICS:
            return False
        ends = tuple(end for end, (number, _) in self.ends.items() if part.number < number)
        return bool(ends) and any(text.endswith(ends) for _, _, text in part.items)
