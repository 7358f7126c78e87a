"""The broker that has the state of all gateways of a cluster: their home.

Owns: Home: which broker it is, how that is chosen. Must not touch: topics, queues, how it is
written down (``entries``).
Invariants: a home that is written down is never chosen again, whichever brokers are away: sessions
and retained messages are there, and gateways that began elsewhere would not see them. All gateways
agree, as they read the same entry. Its number counts the homes that a cluster has had.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from motelog.bridge.errors import NoNameServerError
from motelog.core.limited_log import LimitedLog
from motelog.gateway.log.remote.entries import Entries, Entry

logger = logging.getLogger(__name__)

KEY: Final = "home"
#: Gateways that start for the first time may choose at the same moment: the last entry counts for
#: all, so each reads it again after this time.
SETTLE_S: Final = 0.5


class Home:
    """Knows the home once ``find`` has returned."""

    def __init__(self, entries: Entries, choose: Callable[[], Awaitable[str]]) -> None:
        """``choose`` returns the broker that becomes the home of a cluster without one."""
        self._entries = entries
        self._choose = choose
        self._entry: Entry | None = None
        self._finding = trio.Lock()
        self._faults = LimitedLog(logger, lines_max=1, period_s=60)

    @property
    def broker(self) -> str | None:
        """The broker's name, None before it is known."""
        return None if self._entry is None else self._entry.text

    def take(self, broker: str) -> None:
        """Use a broker as the home from now on; nothing is written down."""
        self._entry = Entry(0, broker)

    async def written(self) -> str | None:
        """Return the broker that is written down, None without one; NoNameServerError."""
        entry = (await self._entries.read()).get(KEY)
        return None if entry is None else entry.text

    async def write(self, broker: str) -> None:
        """Make a broker the home; NoNameServerError if no name server stores that."""
        await self._entries.read()
        await self._entries.write(KEY, broker)
        if (await self._entries.read()).get(KEY) != self._entries.known[KEY]:
            raise NoNameServerError("no name server has stored the new home: see the log above")

    async def find(self) -> str:
        """Return the broker's name; it is chosen if no name server knows one.

        NoNameServerError if none answers; whatever ``choose`` raises.
        """
        async with self._finding:
            if self._entry is None:
                await self._entries.read()
                if KEY not in self._entries.known:
                    await self._entries.write(KEY, await self._choose())
                    await trio.sleep(SETTLE_S)
                    await self._entries.read()
                    logger.info(
                        "the state of gateways has a home, which is written down at the name"
                        " servers broker=%s",
                        self._entries.known[KEY].text,
                    )
                self._entry = self._entries.known[KEY]
            return self._entry.text

    def look(self) -> None:
        """Log if gateways have another home by now, as the entries were last read."""
        entry = self._entries.known.get(KEY)
        if self._entry is None or not self._entry.number or entry is None:
            return  # it is not known, or only taken
        if entry != self._entry:
            self._faults.fault(
                "the state of gateways has another home: restart this gateway broker=%s"
                " instead_of=%s",
                entry.text,
                self._entry.text,
            )
