"""Pieces of the log as they lie in its files, for copies.

Owns: LogPieces. Must not touch: records; which pieces are wanted.
A copy gets everything that is in the log, hidden from readers or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from motelog.core.store.disk.page_cache import PageCache, Places
from motelog.core.store.log.commitlog import CommitLog

#: The log's last bytes, which are in memory: the system is not asked about them.
WARM_BYTES: Final = 67_108_864


class LogPieces:
    """Reads of one open log by physical offset."""

    def __init__(self, log: CommitLog, page_cache: PageCache) -> None:
        self._log = log
        self._page_cache = page_cache
        #: Called after each append, within it: a listener sets an event.
        self.on_appended: list[Callable[[], None]] = []

    @property
    def begin_offset(self) -> int:
        return self._log.begin_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def file_bytes(self) -> int:
        return self._log.queue.file_bytes

    async def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return the bytes from ``offset`` on, up to the end of the log or of their file.

        They are in memory. Empty at the log's end, and if their file has been removed.
        """
        file = self._log.queue.find(offset)
        if file is None:
            return memoryview(b"")
        view, begin = file.view, offset - file.begin
        end = min(begin + bytes_max, self._log.end_offset - file.begin, file.size)
        if offset < self._log.end_offset - WARM_BYTES:
            missing = self._page_cache.missing([Places(file.path, ((begin, end),))])
            if missing:
                await self._page_cache.page_in(missing)
        return view[begin:end]
