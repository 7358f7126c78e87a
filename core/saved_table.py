"""A table of a broker or name server, and the file that keeps it.

Owns: when a table is written, one write at a time. Must not touch: its content, the file's bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import trio

from motelog.core.limited_log import LimitedLog
from motelog.core.state_file import StateFile
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

LINE_PERIOD_S: Final = 60.0


class Table(Protocol):
    """A table that is saved as a whole when it has changed."""

    is_dirty: bool

    def snapshot(self) -> dict[str, Any]: ...
    def load(self, content: Mapping[str, Any]) -> None:
        """Replace the content; msgspec.ValidationError or ValueError leaves it unchanged."""
        ...


class SavedTable:
    """``load`` in a thread before the server serves, then ``save_if_changed``."""

    def __init__(self, file: StateFile, table: Table) -> None:
        self._file = file
        self._table = table
        self._lock = trio.Lock()
        self._unsaved = LimitedLog(logger, lines_max=1, period_s=LINE_PERIOD_S)

    def load(self, *, is_expected: bool) -> None:
        """Load the newest good content; StoreDamagedError if no good copy is left."""

        def take(content: dict[str, Any]) -> bool:
            self._table.load(content)
            return True

        if not self._file.load(take) and is_expected:
            self._file.say_missing()
        if not self._file.is_current:
            self._table.is_dirty = True

    async def save_if_changed(self) -> str | None:
        """Write all changes so far to the disk, in a thread; return why that failed, or None.

        A failure is logged, and the next call retries.
        """
        async with self._lock:
            # A change made while waiting for the lock is already on file, or is written here.
            if not self._table.is_dirty:
                return None
            self._table.is_dirty = False
            try:
                # The end of run waits for this, so it is done even without a thread.
                await run_in_thread(self._file.save, self._table.snapshot(), or_here=True)
            except trio.Cancelled:
                # The save did not begin: the end of run does it.
                self._table.is_dirty = True
                raise
            except Exception as exc:
                # Whatever the error is, the table in memory continues to be served.
                self._table.is_dirty = True
                self._say_unsaved(exc)
                return f"{self._file.path} is not saved: {exc}"
            return None

    def _say_unsaved(self, exc: Exception) -> None:
        text = "a table is not saved: a kill would lose its changes; it is retried path=%s lost=%s"
        if isinstance(exc, OSError):
            self._unsaved.warning(text + " error=%s", self._file.path, self._file.holds, exc)
        else:
            self._unsaved.fault(text, self._file.path, self._file.holds)
