"""Write-buffer mode: records collect in memory and are copied into the file a little later.

Owns: BufferPool, BufferedFile: the memory that a CommitLog file is appended to, until it has been
copied. Must not touch: when to copy (flush), which file has a buffer
(mapped_file_queue), the operating system (files).
Spec: RocketMQ TransientStorePool, CommitRealTimeService.

    append -> buffer -- commit, each 200 ms --> page cache -- flush, each 500 ms --> disk
              wrote                             committed                           flushed

So an append never takes a page fault in a mapped file, where the event loop waits while the kernel
writes out that page or its journal. The price: a process that is killed loses uncommitted records,
the buffers take the memory of two to three files, and each byte is copied twice.
Invariant: only written bytes are copied; behind them a used buffer holds an older file's bytes.
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
    """At most ``count_max`` buffers of one size, used again and again."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._free: list[PinnedMemory] = []
        self._made = 0
        self._has_warned = False
        # The worker that makes files takes buffers, the event loop gives them back.
        self._lock = threading.Lock()

    def take(self, size: int) -> PinnedMemory | None:
        """Return a buffer, None when all are in use; OSError without memory for one."""
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
        """How many more buffers can be taken."""
        with self._lock:
            return self.count_max - self._made + len(self._free)

    def give_back(self, memory: PinnedMemory) -> None:
        with self._lock:
            self._free.append(memory)

    def lose(self) -> None:
        """Forget a buffer that was taken and cannot be used again."""
        with self._lock:
            self._made -= 1


class BufferedFile:
    """A Region over a buffer and the file it is copied into."""

    def __init__(self, pool: BufferPool, memory: PinnedMemory, file: InPlaceFile) -> None:
        self._pool = pool
        self._memory = memory
        self._file = file
        self.view = memory.view()

    def fill(self, source: memoryview, end: int) -> None:
        """Take over what a file that was begun earlier holds below ``end``."""
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
        """Block until what was committed is on the disk."""
        self._file.sync()

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def prepare(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        """Give the buffer back, unless somebody still looks into it."""
        self._file.close()
        try:
            self.view.release()
        except BufferError:
            self._pool.lose()
        else:
            self._pool.give_back(self._memory)
