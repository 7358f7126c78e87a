"""Shared subscriptions: a group of sessions that takes each message once.

Owns: Group: its members and whose turn it is, its cursors, the messages that members gave back.
Must not touch: outputs, the log, the subscription tree.
Invariants (``_check``): a group has a member; nothing here grows with the number of messages, as
what is given back was in the members' windows.
Spec: MQTT 5.0 section 4.8.2.

A group is a subscriber of the tree, and a receiver with cursors, as a session is. Two groups of one
name with other filters are two groups.

    records of a queue --> the group's cursor --> member with the most room --> its window
                    front: given back before anything else  <-- its connection ends
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final, TypeAlias

from motelog.gateway.mqtt.topics import parse_shared
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.stored import EXPIRY_NEVER

#: Members among which the one with the most room is looked for. So a choice costs the same in a
#: group of any size.
SAMPLE: Final = 32


class Member:
    """One session in one group; ``options`` are its subscription's, ``identifier`` is 0 or its."""

    __slots__ = ("at", "identifier", "options", "session")

    def __init__(self, session: Session, at: int) -> None:
        self.session = session
        self.at = at
        self.options = 0
        self.identifier = 0


class Group:
    """The members of one shared subscription that are connected.

    ``name`` is the whole "$share/{group}/{filter}", ``number`` stands for the group in flights.
    """

    __slots__ = (
        "_members",
        "_ring",
        "_turn",
        "delivered",
        "expiry_s",
        "front",
        "is_held",
        "lagging",
        "name",
        "number",
        "parted",
        "since",
        "topic_filter",
    )

    def __init__(self, name: str, number: int) -> None:
        shared = parse_shared(name)
        assert shared is not None
        self.name = name
        self.topic_filter = shared[1]
        self.number = number
        #: Not 0 if the group outlives its connections, as a member's session does.
        self.expiry_s = 0
        #: Whether this gateway hands its messages out, or stands by while another one may.
        self.is_held = True
        #: Queue -> queue offset to go on from, for the queues in which the group lags.
        self.lagging: dict[Any, int] | None = None
        #: Queue -> from which queue offset on the subscription holds, where the cursor is lower.
        self.since: dict[Any, int] = {}
        #: Places behind the cursors that must not be sent again.
        self.delivered: set[tuple[Any, int]] = set()
        #: Heap of the flights that members gave back, to be sent before anything else.
        self.front: list[int] = []
        #: Sessions that have left with messages which they may still acknowledge.
        self.parted: dict[Session, None] = {}
        self._members: dict[Session, Member] = {}
        self._ring: list[Member] = []
        self._turn = 0

    @property
    def client_id(self) -> str:
        """The name under which the group's progress is stored."""
        return self.name

    @property
    def is_behind(self) -> bool:
        """Whether it has messages that wait for a member with room."""
        return bool(self.lagging or self.front)

    @property
    def is_served(self) -> bool:
        """Whether somebody can take messages, and this gateway hands them out."""
        return self.is_held and bool(self._ring)

    @property
    def is_stored(self) -> bool:
        """Whether this gateway stores how far it has got."""
        return self.is_held and self.expiry_s > 0

    def lags_in(self, queue: Any) -> bool:
        return self.lagging is not None and queue in self.lagging

    def reached(self, queue: Any) -> None:
        """Forget what was kept because the cursor in ``queue`` was behind."""
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
        last = self._ring.pop()
        if last is not member:
            self._ring[member.at] = last
            last.at = member.at

    def sessions(self) -> Iterator[Session]:
        return iter(self._members)

    # --- whose turn it is ----------------------------------------------------------------

    def samples(self) -> Iterator[list[Member]]:
        """Yield all members once, SAMPLE at a time, from the one on whose turn it is."""
        ring = self._ring
        turn = self._turn % len(ring)
        rest = iter(ring[turn:] + ring[:turn]) if len(ring) <= SAMPLE else _around(ring, turn)
        while sample := list(islice(rest, SAMPLE)):
            yield sample

    def took(self, member: Member) -> None:
        """Note that a member took a message: among equals it is the next one's turn."""
        self._turn = member.at + 1

    # --- what members gave back ----------------------------------------------------------

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


#: Who has cursors and is delivered to.
Receiver: TypeAlias = Session | Group


def _around(ring: list[Member], turn: int) -> Iterator[Member]:
    for at in range(turn, turn + len(ring)):
        yield ring[at - len(ring)]
