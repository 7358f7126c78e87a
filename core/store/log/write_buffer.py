"""Write-buffer mode: records are collected in memory and copied into the file a little later.

Owns: BufferPool, BufferedFile: the memory to which a CommitLog file is appended until it has been
copied. Must not touch: when to copy (flush), which file has a buffer
(mapped_file_queue), the operating system (files).
Spec: RocketMQ TransientStorePool, CommitRealTimeService.

    append -> buffer -- commit, each 200 ms --> page cache -- flush, each 500 ms --> disk
              wrote                             committed                           flushed

So an append never causes a page fault in a mapped file, in which the event loop would wait while
the kernel writes that page or its journal. The cost: a killed process loses uncommitted records,
the buffers take the memory of two to three files, and each byte is copied twice.
Invariant: only written bytes are copied; after them a reused buffer has an older file's bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from motelog.core.records.append import copy_in
from motelog.core.records.read import copy_out
from motelog.core.store.disk.files import InPlaceFile, PinnedMemory

logger = logging.getLogger(__name__)

COPY_BYTES_MAX = 1 << 23


class BufferPool:
    """At most ``count_max`` buffers of one size, which are reused."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._free: list[PinnedMemory] = []
        self._made = 0
        self._has_warned = False
        # The worker that creates files takes buffers, the event loop returns them.
        self._lock = threading.Lock()

    def take(self, size: int) -> PinnedMemory | None:
        """Return a buffer, None if all are in use; OSError if there is no memory for one."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made == self.count_max:
                return None
            self._made += 1
        try:
            memory = PinnedMemory(size)
        except BaseException:
            self.lose()
            raise
        if memory.pin_error and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "write buffers are not pinned and may be swapped out; raise RLIMIT_MEMLOCK "
                "bytes=%d reason=%s",
                size, memory.pin_error,
            )  # fmt: skip
        return memory

    @property
    def free_count(self) -> int:
        """The number of buffers that can be taken."""
        with self._lock:
            return self.count_max - self._made + len(self._free)

    def give_back(self, memory: PinnedMemory) -> None:
        with self._lock:
            self._free.append(memory)

    def lose(self) -> None:
        """Forget a taken buffer that cannot be reused."""
        with self._lock:
            self._made -= 1


class BufferedFile:
    """A Region over a buffer and the file into which it is copied."""

    def __init__(self, pool: BufferPool, memory: PinnedMemory, file: InPlaceFile) -> None:
        self._pool = pool
        self._memory = memory
        self._file = file
        self.view = memory.view()

    def fill(self, source: memoryview, end: int) -> None:
        """Copy the content below ``end`` of a file that was begun earlier."""
        for at in range(0, end, COPY_BYTES_MAX):
            copy_in(self.view, at, copy_out(source, at, min(at + COPY_BYTES_MAX, end)))

    def commit(self, begin: int, end: int) -> None:
        """Copy [begin, end) into the file; blocks."""
        for at in range(begin, end, COPY_BYTES_MAX):
            with self.view[at : min(at + COPY_BYTES_MAX, end)] as part:
                self._file.write(at, part)

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        """Block until committed bytes are on disk."""
        self._file.sync()

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def prepare(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        """Return the buffer, unless a view of it is still held."""
        self._file.close()
        try:
            self.view.release()
        except BufferError:
            self._pool.lose()
        else:
            self._pool.give_back(self._memory)
