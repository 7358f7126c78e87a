"""Moving the state of all gateways to another broker, their new home, while no gateway runs.

Owns: the order of the steps. Must not touch: where the home is written down (``log.remote.home``),
records of sessions and retained messages (``state``).
Invariant: the old home counts until everything is at the new one, as its broker has confirmed.

    read all at the old home -> append it at the new one -> write the new home down
       crash here, or there:  the old home counts, and the move can be repeated

Earlier state at the new home is ended there. The state at the old home stays, and no gateway reads
it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from motelog.core.clock import SystemClock
from motelog.core.errors import MotelogError
from motelog.core.flag import Flag
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.log.reckoning import TICK_S
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_rows import Row
from motelog.gateway.state.starting import READ_BACK_MAX, read_back
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import View

#: The name under which it takes part as a gateway.
GATEWAY: Final = "motelog-move"
#: How long a broker may take to create the topics, or to come back.
ASKED_S: Final = 10.0
#: Sessions or retained messages of one append.
BATCH: Final = 200


class MovingError(MotelogError):
    """The state cannot be moved; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved. ``before`` is the old home, None if nothing was read there."""

    before: str | None
    broker: str
    sessions: int
    retained: int


class _Home:
    """The state of gateways at one broker."""

    def __init__(self, log: RemoteLog, journal: SessionJournal, retained: RetainedStore) -> None:
        self.log = log
        self.journal = journal
        self.retained = retained
        self._settled = Flag()
        self._ticked_ms = 0
        log.on_settled(lambda _: self._settled.set())

    def check_alone(self) -> None:
        """Raise MovingError if gateways run."""
        while self.journal.refresh(READ_BACK_MAX):
            pass
        others = [name for name, _, is_own in self.journal.gateways() if not is_own]
        if others:
            names = ", ".join(sorted(others))
            raise MovingError(f"gateways are running; stop them first: {names}")

    def tick(self) -> None:
        """Show each second that it is here: a gateway that starts meanwhile waits for it."""
        now_ms = self.journal.clock.monotonic_ms()
        if now_ms - self._ticked_ms >= TICK_S * 1000:
            self._ticked_ms = now_ms
            self.journal.tick({}, [])

    def names(self) -> list[str]:
        """Return the client identifiers, and the names of stored shared subscriptions."""
        return self.journal.names("")

    def session(self, name: str) -> StoredSession | None:
        """Return a session as one whose client has gone."""
        stored = self.journal.load(name)
        if stored is None or stored.left_ms is not None:
            return stored
        return msgspec.structs.replace(stored, left_ms=self.journal.clock.now_ms())

    def messages(self) -> Iterator[list[Row]]:
        """Yield the retained messages."""
        after: str | None = ""
        while after is not None:
            rows, after = self.retained.page(after, BATCH)
            if rows:
                yield rows

    async def stored(self, ticket: Ticket) -> None:
        """Return when an append is stored; raise its error."""
        while not ticket.is_settled:
            await self._settled.take()
        if ticket.error is not None:
            raise ticket.error


async def move_home(to: str, *, loses: bool = False, **servers: Any) -> Moved:
    """Make the broker ``to`` the home of all gateways, and move their state there.

    ``servers`` are the name servers and how to reach them, as for a native client. With ``loses``,
    the old home is not asked: all sessions and retained messages end. MovingError, or another
    MotelogError if a server cannot be asked.
    """
    async with _home(to, servers) as new:
        before = None if loses else await _old_home(new)
        if before == to:
            raise MovingError(f"the state of gateways is at {to} already")
        names, topics = list[str](), set[bytes]()
        if before is None:
            await _end_others(new, names, topics)
        else:
            async with _home(before, servers) as old:
                names, topics = await _copy(old, new)
                await _end_others(new, names, topics)
                old.check_alone()
        await new.log.home.write(to)
        sessions = sum(not name.startswith(SHARED_PREFIX) for name in names)
        return Moved(before, to, sessions, len(topics))


async def _old_home(new: _Home) -> str:
    broker = await new.log.home.written()
    if broker is None:
        raise MovingError(
            "no name server knows which broker has the gateways' state: start a gateway"
        )
    return broker


@asynccontextmanager
async def _home(broker: str, servers: dict[str, Any]) -> AsyncIterator[_Home]:
    """Take part as a gateway whose home is ``broker``; MovingError if others do."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        log = RemoteLog(**servers)
        log.home.take(broker)
        view = View(str(Path(folder) / "view.db"))
        view.open()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(log.run)
                try:
                    journal = SessionJournal(log, view, clock, gateway=GATEWAY)
                    retained = RetainedStore(log, view, clock)
                    await _made(log, broker)
                    await read_back(journal, retained, log, clock)
                    home = _Home(log, journal, retained)
                    try:
                        home.check_alone()
                        yield home
                    finally:
                        journal.stop()
                finally:
                    log.close()
                    nursery.cancel_scope.cancel()
        finally:
            view.close()


async def _made(log: RemoteLog, broker: str) -> None:
    """Return when the topics of gateways are known to be at ``broker``."""
    deadline = trio.current_time() + ASKED_S
    while not all(map(log.queues, GATEWAY_TOPICS)):
        if trio.current_time() > deadline:
            raise MovingError(f"{broker} cannot be asked: {log.start_waits_for}")
        await trio.sleep(0.05)


async def _copy(old: _Home, new: _Home) -> tuple[list[str], set[bytes]]:
    """Append the state of ``old`` at ``new``; return the names of its sessions and messages."""
    names = old.names()
    for begin in range(0, len(names), BATCH):
        found = [old.session(name) for name in names[begin : begin + BATCH]]
        ticket = new.journal.save_all((one, ()) for one in found if one is not None)
        await new.stored(ticket)
        old.tick()
    topics: set[bytes] = set()
    for rows in old.messages():
        await new.stored(new.retained.adopt(rows))
        topics.update(row[1] for row in rows)
        old.tick()
    return names, topics


async def _end_others(new: _Home, names: list[str], topics: set[bytes]) -> None:
    """End the sessions and remove the messages that ``new`` has of an earlier time."""
    for name in set(new.names()).difference(names):
        await new.stored(new.journal.end(name))
    for rows in new.messages():
        gone = [row for row in rows if row[1] not in topics]
        if gone:
            await new.stored(new.retained.adopt(gone, are_removed=True))
