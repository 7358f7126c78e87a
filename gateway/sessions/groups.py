"""Shared subscriptions: a group of sessions that takes each message once.

Owns: Group: its members and whose turn it is, its cursors, messages returned by members;
Part: which of its queues this gateway delivers.
Must not touch: outputs, the log, the subscription tree.
Invariants (``_check``): a group has a member; nothing here grows with the number of messages, since
returned messages were in the members' windows.
Spec: MQTT 5.0 section 4.8.2.

A group is a subscriber of the tree, and a receiver with cursors, like a session. Groups with the
same name and different filters are different groups.

    records of a queue --> the group's cursor --> member with the most room --> its window
                    front: delivered again before others    <-- its connection ends

    queue id    0  1  2  3  4  5  6  7  8 ...        part = queue id modulo PARTS
    of 3        a  b  c  a  b  c  a  b  a ...        part modulo the number of gateways with members
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final, TypeAlias

from motelog.gateway.mqtt.topics import parse_shared
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.stored import EXPIRY_NEVER

#: The number of parts of a group, each delivered by one gateway at most: a topic's default number
#: of queues.
PARTS: Final = 8
#: How many members are compared to find the one with the most room. So a choice costs the same in
#: a group of any size.
SAMPLE: Final = 32


def part_number(queue_name: str) -> int:
    """Return the part number of a queue; its name ends with its id."""
    return int(queue_name.rpartition("/")[2]) % PARTS


def part_name(name: str, number: int) -> str:
    """Return the name under which a part is stored; no filter continues after a "#"."""
    return f"{name} #{number}"


def group_name(part: str) -> str:
    """Return the name of a part's group."""
    return part.rpartition(" #")[0]


class Part:
    """Some queues of a group, which one gateway delivers.

    ``is_taking``: this gateway is taking it over, and the record of that is not in the log yet.
    """

    __slots__ = ("group", "is_held", "is_taking", "number")

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        self.is_held = False
        self.is_taking = False

    @property
    def client_id(self) -> str:
        """The name under which the part's progress is stored."""
        return part_name(self.group.name, self.number)

    @property
    def is_stored(self) -> bool:
        """Whether this gateway stores the part's progress."""
        return self.is_held and self.group.expiry_s > 0


class Member:
    """One session in one group; ``options`` and ``identifier`` (0: none) of its subscription."""

    __slots__ = ("at", "identifier", "options", "session")

    def __init__(self, session: Session, at: int) -> None:
        self.session = session
        self.at = at
        self.options = 0
        self.identifier = 0


class Group:
    """The connected members of one shared subscription.

    ``name`` is the whole "$share/{group}/{filter}", ``number`` identifies the group in flights.
    """

    __slots__ = (
        "_members",
        "_ring",
        "_turn",
        "delivered",
        "expiry_s",
        "front",
        "lagging",
        "name",
        "number",
        "parted",
        "parts",
        "since",
        "standing",
        "topic_filter",
    )

    def __init__(self, name: str, number: int) -> None:
        shared = parse_shared(name)
        assert shared is not None
        self.name = name
        self.topic_filter = shared[1]
        self.number = number
        #: Not 0 if the group outlives its connections, because a member's session does.
        self.expiry_s = 0
        self.parts = tuple(Part(self, number) for number in range(PARTS))
        #: Queue -> queue offset to continue from, for the queues in which the group lags.
        self.lagging: dict[Any, int] | None = None
        #: The same for queues of parts that are not held here: the first message for the part.
        self.standing: dict[Any, int] = {}
        #: Queue -> queue offset at which the subscription begins, if the cursor is lower.
        self.since: dict[Any, int] = {}
        #: Places after the cursors that must not be sent again.
        self.delivered: set[tuple[Any, int]] = set()
        #: Heap of flights returned by members, to be sent before anything else.
        self.front: list[int] = []
        #: Sessions that have left with messages that they may still acknowledge.
        self.parted: dict[Session, None] = {}
        self._members: dict[Session, Member] = {}
        self._ring: list[Member] = []
        self._turn = 0

    @property
    def is_behind(self) -> bool:
        """Whether messages are waiting for a member with room."""
        return bool(self.lagging or self.front)

    @property
    def is_served(self) -> bool:
        """Whether a member can take messages, and this gateway delivers some."""
        return bool(self._ring) and any(part.is_held for part in self.parts)

    def recorded_by(self, number: int) -> Part | None:
        """Return the part that records a message of part ``number``, None if none is held.

        It is another one if the part has moved to another gateway with the message in flight here.
        """
        part = self.parts[number]
        return part if part.is_held else next((p for p in self.parts if p.is_held), None)

    def lags_in(self, queue: Any) -> bool:
        return self.lagging is not None and queue in self.lagging

    def reached(self, queue: Any) -> None:
        """Forget what was stored while the cursor in ``queue`` lagged."""
        self.since.pop(queue, None)
        if self.delivered:
            self.delivered = {place for place in self.delivered if place[0] is not queue}

    # --- members -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ring)

    def __contains__(self, session: Session) -> bool:
        return session in self._members

    def __getitem__(self, session: Session) -> Member:
        return self._members[session]

    def join(self, session: Session, options: int, identifier: int) -> None:
        """Add a member, or replace the options of one."""
        member = self._members.get(session)
        if member is None:
            member = self._members[session] = Member(session, len(self._ring))
            self._ring.append(member)
        self.parted.pop(session, None)
        member.options = options
        member.identifier = identifier
        if session.expiry_s:
            self.expiry_s = EXPIRY_NEVER

    def leave(self, session: Session) -> None:
        member = self._members.pop(session)
        session.particulars.awaiting.pop(self, None)
        last = self._ring.pop()
        if last is not member:
            self._ring[member.at] = last
            last.at = member.at

    def sessions(self) -> Iterator[Session]:
        return iter(self._members)

    def await_room(self) -> None:
        """Have each member report when it has room; costs as much as finding that none has."""
        for session in self._members:
            session.particulars.awaiting[self] = None

    # --- whose turn it is ----------------------------------------------------------------

    def samples(self) -> Iterator[list[Member]]:
        """Yield all members once, SAMPLE at a time, from the one whose turn it is."""
        ring = self._ring
        turn = self._turn % len(ring)
        rest = iter(ring[turn:] + ring[:turn]) if len(ring) <= SAMPLE else _around(ring, turn)
        while sample := list(islice(rest, SAMPLE)):
            yield sample

    def took(self, member: Member) -> None:
        """Record that a member took a message: among equals the next one has its turn."""
        self._turn = member.at + 1

    # --- messages returned by members ----------------------------------------------------

    def give_back(self, flight: int) -> None:
        heappush(self.front, flight)

    def take_front(self) -> int:
        return heappop(self.front)

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        assert self._ring
        assert [member.at for member in self._ring] == list(range(len(self._ring)))
        assert {member.session: member for member in self._ring} == self._members
        assert all(session.shares.get(self.name) is self for session in self._members)
        for session in self._members:
            assert session.particulars.awaiting.keys() <= set(session.shares.values())


#: A receiver with cursors.
Receiver: TypeAlias = Session | Group
#: An object whose progress is stored.
Stored: TypeAlias = Session | Part


def _around(ring: list[Member], turn: int) -> Iterator[Member]:
    for at in range(turn, turn + len(ring)):
        yield ring[at - len(ring)]
