"""Reads that shall not wait for the disk: what of a file is in memory, and bringing the rest there.

Owns: places in files and how they are asked for, the threads that wait. Must not touch: what the
bytes mean, who reads them.

The event loop reads through maps: a page that is not in memory would stop everybody until the disk
has brought it. So whoever may wait elsewhere asks first.

    read -> lacking() is empty -> the bytes, through the map
                    else       -> load() in a thread -> read again
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from motelog.core.clock import Clock
from motelog.core.store.disk.files import Storage

# Where less lies between two places, they are loaded as one.
GAP_BYTES_MAX: Final = 16_384
# The system reads ahead by this or more, so who finds one byte of a step in memory has them all.
STEP_BYTES: Final = 32_768
# How long a step that was found in memory is not asked for again, and how many such there are:
# records of many queues lie in each, and to ask costs more than to read a record.
KNOWN_MS: Final = 10_000
KNOWN_MAX: Final = 100_000
LOADS_MAX: Final = 4


class Loadable(Protocol):
    """Something that lies on the disk and can be brought into memory."""

    def load(self, storage: Storage) -> None:
        """Block until it is there; OSError as it comes."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """Ranges of bytes [begin, end) of one file, ascending."""

    path: str
    ranges: tuple[tuple[int, int], ...]

    def load(self, storage: Storage) -> None:
        storage.load(self.path, self.ranges)


class PageCache:
    """Asks and loads; ``load`` waits, nothing else does."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._limiter = trio.CapacityLimiter(LOADS_MAX)
        self._known: set[tuple[str, int]] = set()
        self._known_since_ms = 0

    def lacking(self, places: Iterable[Places]) -> list[Places]:
        """Return those of which a part is not in memory, as far as the system says."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._known_since_ms >= KNOWN_MS or len(self._known) >= KNOWN_MAX:
            self._known.clear()
            self._known_since_ms = now_ms
        return [place for place in places if not self._is_cached(place)]

    def _is_cached(self, place: Places) -> bool:
        path, known = place.path, self._known
        asked: dict[int, int] = {}
        for begin, end in place.ranges:
            for step in range(begin // STEP_BYTES, (end - 1) // STEP_BYTES + 1):
                if (path, step) not in known:
                    asked.setdefault(step, max(begin, step * STEP_BYTES))
        if asked and not self._storage.is_cached(path, list(asked.values())):
            return False
        known.update((path, step) for step in asked)
        return True

    async def load(self, places: Sequence[Loadable]) -> None:
        """Bring them into memory, in a thread. What cannot be read is left to who reads it."""
        await trio.to_thread.run_sync(self._load, places, limiter=self._limiter)

    def _load(self, places: Sequence[Loadable]) -> None:
        for place in places:
            with suppress(OSError):
                place.load(self._storage)


def joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ascending ranges as fewer: those with little between them become one."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and begin - found[-1][1] <= GAP_BYTES_MAX:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
