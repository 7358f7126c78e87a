"""Reads that shall not wait for the disk: what of a file is in memory, and paging in the rest.

Owns: places in files and how they are asked for, the threads that wait, what a read raises that
would have to wait, and how often it is tried again. Must not touch: what the bytes mean, who reads
them.

The event loop reads through maps: a page that is not in memory would stop everybody until the disk
has brought it. So a read that may not wait asks first.

    read -> all in memory   -> the bytes, through the map
         -> NotInMemoryError -> page_in() in a thread -> read again, from its beginning
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import trio

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.store.disk.files import Storage

# Places with little between them are paged in as one.
GAP_BYTES_MAX: Final = 16_384
# The system reads ahead by this or more, so who finds one byte of a step in memory has them all.
STEP_BYTES: Final = 32_768
# How long a step that was found in memory is not asked for again, and how many such there are:
# records of many queues lie in each, and to ask costs more than to read a record.
KNOWN_MS: Final = 10_000
KNOWN_MAX: Final = 100_000
THREADS_MAX: Final = 4
# How often a place may be missing again that was paged in. Then the read may wait: memory may be
# too small to keep what it needs, and what cannot be read must come to light.
REPEATS_MAX: Final = 2

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Pageable(Protocol):
    """Something that lies on the disk and can be brought into memory."""

    @property
    def where(self) -> tuple[str, int]:
        """File and position that it begins at."""
        ...

    def page_in(self, storage: Storage) -> None:
        """Block until it is in memory; OSError as it comes."""
        ...


class NotInMemoryError(MotelogError):
    """A read that may not wait for the disk would have to, for the places in ``missing``.

    It is no StoreError: nothing has failed. The read has had no effect, and is tried again when
    these places have been paged in; it may find that others are missing then.
    """

    def __init__(self, missing: Sequence[Pageable]) -> None:
        super().__init__(f"not in memory: {len(missing)} places, the first {missing[0].where}")
        self.missing = missing


class PageIns:
    """What has been paged in for one read that is tried again, and whether it may wait by now."""

    __slots__ = ("_places", "_repeats")

    def __init__(self) -> None:
        self._places: set[tuple[str, int]] = set()
        self._repeats = 0

    @property
    def may_wait(self) -> bool:
        return self._repeats >= REPEATS_MAX

    def note(self, missing: Sequence[Pageable]) -> None:
        """Note what is paged in; a read that misses other places than before has got on."""
        places = {place.where for place in missing}
        if not self._places.isdisjoint(places):
            self._repeats += 1
        self._places |= places


@dataclass(frozen=True, slots=True)
class Places:
    """Ranges of bytes [begin, end) of one file, ascending."""

    path: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def where(self) -> tuple[str, int]:
        return self.path, self.ranges[0][0] if self.ranges else 0

    def page_in(self, storage: Storage) -> None:
        storage.load(self.path, self.ranges)


class PageCache:
    """Asks and pages in; ``page_in`` waits, nothing else does."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        # Steps of files that were found in memory, and what was paged in.
        self._known: set[object] = set()
        self._known_since_ms = 0

    def require(self, places: Iterable[Places]) -> None:
        """Raise NotInMemoryError if a part of them is not in memory, as far as the system says."""
        missing = self.missing(places)
        if missing:
            raise NotInMemoryError(missing)

    def missing(self, places: Iterable[Places]) -> list[Places]:
        """Return those of which a part is not in memory, as far as the system says."""
        self._forget_old()
        return [place for place in places if not self._is_cached(place)]

    def require_paged_in(self, place: Pageable) -> None:
        """Raise NotInMemoryError unless ``place`` was paged in a short while ago.

        For what cannot be asked for: which bytes it is, is known only once they have been read.
        """
        self._forget_old()
        if place not in self._known:
            raise NotInMemoryError([place])

    def _forget_old(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._known_since_ms >= KNOWN_MS or len(self._known) >= KNOWN_MAX:
            self._known.clear()
            self._known_since_ms = now_ms

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

    async def page_in(self, missing: Sequence[Pageable]) -> None:
        """Bring places into memory, in a thread. What cannot be read is left to who reads it."""
        await trio.to_thread.run_sync(self._page_in, missing, limiter=self._limiter)
        self._forget_old()
        self._known.update(missing)

    def _page_in(self, missing: Sequence[Pageable]) -> None:
        for place in missing:
            with suppress(OSError):
                place.page_in(self._storage)


def read_all(read: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Return what ``read`` returns of each item; NotInMemoryError names what all of them miss.

    So that many reads wait for the disk together, and not one after the other.
    """
    found: list[ResultT] = []
    missing: list[Pageable] = []
    for item in items:
        try:
            found.append(read(item))
        except NotInMemoryError as cold:
            missing += cold.missing
    if missing:
        raise NotInMemoryError(missing)
    return found


def joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ascending ranges as fewer: those with little between them become one."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and begin - found[-1][1] <= GAP_BYTES_MAX:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
