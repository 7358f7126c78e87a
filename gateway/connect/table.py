"""The connected clients, by client identifier.

Owns: SessionTable. Must not touch: how a session begins and ends (``admission``, ``life``).
"""

from __future__ import annotations

from array import array
from itertools import islice, takewhile
from typing import NamedTuple

from sortedcontainers import SortedList

from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session


class Connected(NamedTuple):
    """The time and the keep alive of a CONNECT."""

    at_ms: int
    keep_alive_s: int


class SessionTable:
    """The sessions of one gateway whose clients are connected."""

    def __init__(self, numbers: int) -> None:
        """``numbers`` is the maximum number of connections."""
        self.by_client_id: dict[str, Session] = {}
        # Its keys in order, so that an operator's page of a million clients causes no pause.
        self._names: SortedList = SortedList()
        # Connection number -> time and keep alive of its CONNECT. There may be a million, so they
        # are kept without an object for each.
        self._connected_ms = array("Q", bytes(8 * numbers))
        self._keep_alive_s = array("H", bytes(2 * numbers))

    def add(self, session: Session, number: int, now_ms: int, keep_alive_s: int) -> None:
        """Add a session whose client has connected with connection ``number``."""
        self.by_client_id[session.client_id] = session
        self._names.add(session.client_id)
        self._connected_ms[number] = now_ms
        self._keep_alive_s[number] = keep_alive_s

    def remove(self, client_id: str) -> None:
        """Remove a session whose client has left."""
        del self.by_client_id[client_id]
        self._names.remove(client_id)

    def live(self, client_id: str) -> tuple[Session, Connection] | None:
        """Return the session of a connected client, and its connection; None if there is none."""
        session = self.by_client_id.get(client_id)
        if session is None or session.connection is None:
            return None
        return session, session.connection

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return client identifiers that begin with ``prefix``, those after ``after``, in order."""
        behind = self._names.irange(max(after, prefix), inclusive=(after < prefix, True))
        return list(islice(takewhile(lambda name: name.startswith(prefix), behind), limit))

    def connected(self, connection: Connection) -> Connected:
        """Return time and keep alive of the CONNECT of a connection that has a session."""
        number = connection.number
        return Connected(self._connected_ms[number], self._keep_alive_s[number])
