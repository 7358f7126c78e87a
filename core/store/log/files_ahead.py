"""The CommitLog files after the last one, created before they are needed.

Owns: FilesAhead: when the next files are created, and which are ready. Must not touch: how a file
is created (``mapped_file_queue``), the list of files in use.

If there is no next file, a caller that may wait creates it in its own thread. The event loop must
not wait. It gets NextFileError until a worker has created the file, and queues the batch
(core/broker/waiting/append_line.py). The worker starts when the previous file is half full, so with
files of 1 GiB it has the time in which 512 MiB arrive.

Concurrency: a worker thread creates files; it returns finished ones through a future and touches
nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from motelog.core.errors import NextFileError
from motelog.core.store.disk.files import NO_ROOM
from motelog.core.threads import Workers

logger = logging.getLogger(__name__)


class Extent(Protocol):
    """A file with the bytes [begin, end) of the log."""

    begin: int
    end: int


File = TypeVar("File", bound=Extent)


class FilesAhead(Generic[File]):
    """The next files of one list; ``make`` creates the file that begins at an offset.

    ``end`` is where the last file in use ends.
    """

    def __init__(self, make: Callable[[int], File]) -> None:
        self._make = make
        #: Created but not yet used.
        self.ready: list[File] = []
        self._workers: Workers | None = None
        self._making: Future[list[File]] | None = None
        self._is_late = False

    def started_workers(self) -> Workers:
        """Return the threads that appends need; they are started once."""
        if self._workers is None:
            # Two: pages are needed before the next file is created.
            self._workers = Workers(2, "commitlog-file")
        return self._workers

    def begin(self, end: int, count: int) -> None:
        """Start creating the next files in a worker thread, unless ``count`` are ready or begun."""
        missing = count - len(self.ready)
        if self._making is None and missing > 0:
            begin = self._next_begin(end)
            self._making = self.started_workers().submit(self._make_all, begin, missing)

    def ensure(self, end: int, count: int, *, may_wait: bool) -> None:
        """Ensure that ``count`` files are ready for use; OSError if they cannot be created.

        Without ``may_wait``, the worker creates missing files, and NextFileError is raised.
        """
        if self._making is not None and (may_wait or self._making.done()):
            self._take_made(end, count, may_wait=may_wait)
        if len(self.ready) < count and not may_wait:
            self.begin(end, count)
            if not self._is_late:
                self._is_late = True
                logger.warning(
                    "the next CommitLog file is not ready yet: appends wait, and are refused if it"
                    " takes too long; if this happens often, the disk is too slow offset=%d",
                    self._next_begin(end),
                )
            raise NextFileError("the next CommitLog file is not ready yet")
        while len(self.ready) < count:
            self.ready.append(self._make(self._next_begin(end)))

    @property
    def is_empty(self) -> bool:
        """Whether no file is ready or being created."""
        return not self.ready and self._making is None

    def made(self) -> list[File]:
        """Return the created files, including those not yet taken over from the worker."""
        making = self._making
        if making is not None and making.done() and making.exception() is None:
            return self.ready + making.result()
        return self.ready

    def stop(self) -> None:
        """Stop the workers and return when they have finished; blocks."""
        if self._workers is not None:
            self._workers.shut_down()

    def close(self) -> list[File]:
        """Stop the workers; return the files that were created and not used."""
        self.stop()
        unused, self.ready, self._making = self.made(), [], None
        return unused

    def _take_made(self, end: int, count: int, *, may_wait: bool) -> None:
        """Take over the worker's files, or raise its error."""
        assert self._making is not None
        making, self._making = self._making, None
        failure = making.exception()
        if failure is None:
            self.ready += making.result()
            if self._is_late:
                self._is_late = False
                logger.warning("the next CommitLog file is ready offset=%d", self.ready[0].begin)
        elif not isinstance(failure, OSError) or failure.errno not in NO_ROOM:
            raise failure
        elif not may_wait and self._is_late:
            # A batch waited for this. It is refused; there may be room for the next one.
            self.begin(end, count)
            raise failure
        # Otherwise creation is tried again: the error may be from long ago.

    def _next_begin(self, end: int) -> int:
        return self.ready[-1].end if self.ready else end

    def _make_all(self, begin: int, count: int) -> list[File]:
        """Create consecutive files; fewer than ``count`` if a later one cannot be created."""
        made: list[File] = []
        try:
            for _ in range(count):
                made.append(self._make(made[-1].end if made else begin))
        except OSError as exc:
            if not made or exc.errno not in NO_ROOM:
                raise
        return made
