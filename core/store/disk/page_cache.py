"""Reads that must not wait for the disk: which places are in memory, and paging in the others.

Owns: places in files, the check whether they are in memory, the threads that wait,
NotInMemoryError, how often a read is tried again. Must not touch: the meaning of the bytes.

The event loop reads through maps. A page that is not in memory would stop all tasks until the disk
has delivered it. So a read that may not wait checks first.

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
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.disk.files import Storage
from motelog.core.threads import run_in_thread

# Places with little between them are paged in as one.
GAP_BYTES_MAX: Final = 16_384
# The system reads ahead by this or more: if one byte of a step is in memory, the whole step is.
STEP_BYTES: Final = 32_768
# How long a step found in memory is not checked again, and how many such steps are remembered.
# Each holds records of many queues, and a check costs more than reading a record.
KNOWN_MS: Final = 10_000
KNOWN_MAX: Final = 100_000
THREADS_MAX: Final = 4
# How often a place that was paged in may be missing again. After that the read may wait: memory may
# be too small to keep its places, or a place cannot be read, and the read must raise that error.
REPEATS_MAX: Final = 2

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Pageable(Protocol):
    """A place on the disk that can be paged in."""

    @property
    def where(self) -> tuple[str, int]:
        """The file and the position at which it begins."""
        ...

    def page_in(self, storage: Storage) -> None:
        """Block until it is in memory; OSErrors are raised unchanged."""
        ...


class NotInMemoryError(MotelogError):
    """The places in ``missing`` are not in memory, and the read may not wait for the disk.

    It is not a StoreError: nothing has failed. The read has had no effect. It is tried again when
    these places have been paged in, and may then find that other places are missing.
    """

    def __init__(self, missing: Sequence[Pageable]) -> None:
        super().__init__(f"not in memory: {len(missing)} places, the first {missing[0].where}")
        self.missing = missing


class PageIns:
    """The places paged in so far for one read, and whether it may now wait."""

    __slots__ = ("_places", "_repeats")

    def __init__(self) -> None:
        self._places: set[tuple[str, int]] = set()
        self._repeats = 0

    @property
    def may_wait(self) -> bool:
        return self._repeats >= REPEATS_MAX

    def note(self, missing: Sequence[Pageable]) -> None:
        """Note places that are paged in. A read that now lacks other places got further."""
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
    """Checks places and pages them in; only ``page_in`` waits."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        # Steps of files that were found in memory, and places that were paged in.
        self._known: set[object] = set()
        self._known_since_ms = 0

    def require(self, places: Iterable[Places]) -> None:
        """Raise NotInMemoryError if a part of them is not in memory, as far as the system says."""
        missing = self.missing(places)
        if missing:
            raise NotInMemoryError(missing)

    def missing(self, places: Iterable[Places]) -> list[Places]:
        """Return the places that are not wholly in memory, as far as the system says."""
        self._forget_old()
        return [place for place in places if not self._is_cached(place)]

    def require_paged_in(self, place: Pageable) -> None:
        """Raise NotInMemoryError unless ``place`` was paged in a short while ago.

        For places that the system cannot check: which bytes they have is known only after a read.
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
        """Page in places, in a thread. Errors are ignored: the read will get them again."""
        await run_in_thread(self._page_in, missing, limiter=self._limiter)
        self._forget_old()
        self._known.update(missing)

    def _page_in(self, missing: Sequence[Pageable]) -> None:
        for place in missing:
            with suppress(OSError, *NO_MEMORY):
                place.page_in(self._storage)


def read_all(read: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Return ``read`` of each item; NotInMemoryError names the missing places of all of them.

    So several reads wait for the disk together, and not one after the other.
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
    """Return ascending ranges; those with little between them are joined."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and begin - found[-1][1] <= GAP_BYTES_MAX:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
