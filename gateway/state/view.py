"""The view: the state that results from the log's records, in a SQLite file that may be deleted.

Owns: the file, its transactions, checkpoints, how far each topic is applied.
Must not touch: what the rows mean (the parts do), the log.
Invariants: rows and applied offsets change in one transaction, so the view is always the state at
some offset of the log. The event loop's thread never waits for the disk: its commits only write the
WAL. Copying the WAL into the file, and every fsync, is done in a thread by ``checkpoint``.

What a crash leaves:

    kill -9      all commits: the page cache has them
    power cut    the last checkpoint and as many commits as reached the WAL whole; what is missing
                 is read from the log again. If the log has lost more than the view, the view is
                 rebuilt (``follower``)
    damage       SQLite reports it at the open or later: the file is put aside, the view is rebuilt
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from motelog.core.errors import MotelogError
from motelog.core.private_files import make_folders, open_private
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

#: A file of another version is rebuilt; to be raised with each change of a table.
LAYOUT_VERSION: Final = 7
IN_MEMORY: Final = ":memory:"
CHECKPOINT_INTERVAL_S: Final = 60.0
#: How long a checkpoint waits for a transaction of the event loop.
_CHECKPOINT_PATIENCE_S: Final = 1.0

_CACHE_KIB: Final = 32_768

_APPLIED: Final = """
CREATE TABLE IF NOT EXISTS applied (
    topic TEXT PRIMARY KEY, begin_offset INTEGER, next_offset INTEGER, store_ms INTEGER, crc INTEGER
) WITHOUT ROWID
"""


class ViewError(MotelogError):
    """The view cannot be used for the moment: it is in use, damaged, or has no room."""


class ViewBusyError(ViewError):
    """A checkpoint is using the view for a moment."""


class ViewPart(Protocol):
    """The tables of one topic, and what is kept of them in memory."""

    def open(self) -> None:
        """Create the tables unless they exist, and load what is kept in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Applied:
    """How far a topic's queue is in the view.

    All records of [begin_offset, next_offset) are in it; ``store_ms`` and ``crc`` are of the last.
    """

    begin_offset: int
    next_offset: int
    store_ms: int
    crc: int


class View:
    """One SQLite file; ``path`` ":memory:" keeps it in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._parts: list[ViewPart] = []
        self._connection: sqlite3.Connection | None = None
        #: Why the file must be rebuilt; None while it is well.
        self.fault: str | None = None
        #: How often it has begun empty since it was opened.
        self.life = 0

    # --- life ----------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the file; an unusable one is put aside. OSError if neither is possible."""
        assert self._connection is None
        if self.path != IN_MEMORY:
            make_folders(os.path.dirname(os.path.abspath(self.path)))
        try:
            self._connect()
        except (sqlite3.DatabaseError, ViewError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CANTOPEN:
                _require_descriptors()  # SQLite does not say whether descriptors are missing
            self.rebuild(str(exc))

    def add(self, part: ViewPart) -> None:
        """Open ``part`` now, and again after each rebuild."""
        self._parts.append(part)
        try:
            part.open()
        except ViewError as exc:
            self.rebuild(str(exc))

    def rebuild(self, reason: str) -> None:
        """Begin with an empty view; the old file, if any, stays beside it until the next time."""
        logger.warning("the view is rebuilt from the log path=%s reason=%s", self.path, reason)
        self._disconnect()
        self.fault = None
        self.life += 1
        if self.path != IN_MEMORY:
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.remove(self.path + suffix)
            with suppress(FileNotFoundError):
                os.replace(self.path, self.path + ".aside")
        self._connect()
        for part in self._parts:
            part.open()

    def close(self) -> None:
        """Close the file; blocks while its content is made durable."""
        if self._connection is not None and self.fault is None:
            with suppress(sqlite3.DatabaseError):
                self.checkpoint()
        self._disconnect()

    async def run(self) -> None:
        """Checkpoint at intervals until cancelled."""
        while True:
            await trio.sleep(CHECKPOINT_INTERVAL_S)
            try:
                await run_in_thread(self.checkpoint)
            except sqlite3.DatabaseError as exc:
                logger.warning("a checkpoint of the view failed path=%s error=%s", self.path, exc)

    def checkpoint(self) -> None:
        """Copy the WAL into the file and empty it; for a thread, as it waits for the disk."""
        if self.path == IN_MEMORY:
            return
        connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=_CHECKPOINT_PATIENCE_S
        )
        try:
            # The order of the syncs makes a power cut harmless: WAL, file, then the WAL is emptied.
            # The first pass is the long one, and does not block writers. The second does, so that
            # the event loop's connection never overwrites the beginning of an unsynced WAL.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()

    def _make_private(self) -> None:
        """Keep other users from reading the files: SQLite creates them with the umask.

        SQLite gives the files beside the main file the mode of the main file. Files of earlier
        releases were readable. Errors are ignored here, as SQLite reports them better.
        """
        if self.path == IN_MEMORY:
            return
        with suppress(OSError):
            os.close(open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        for suffix in ("", "-wal", "-shm", ".aside"):
            with suppress(OSError):
                if os.path.isfile(self.path + suffix):
                    os.chmod(self.path + suffix, 0o600)

    def _connect(self) -> None:
        self._make_private()
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=0)
        self._connection = connection
        # Changed rows are far apart, and each page with a changed row is written as a whole.
        connection.execute("PRAGMA page_size = 2048")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, LAYOUT_VERSION):
            raise ViewError(f"the file has layout {version}, not {LAYOUT_VERSION}")
        connection.execute(_APPLIED)
        connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.DatabaseError):
                self._connection.close()
            self._connection = None

    # --- rows ----------------------------------------------------------------------------

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Carry out one statement; ViewError if the view cannot be used."""
        try:
            return self._connected().execute(statement, values)
        except sqlite3.DatabaseError as exc:
            raise self._translated(exc) from exc

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Carry out one statement for each row of values; return how many rows were changed.

        ViewError as from ``execute``.
        """
        try:
            return self._connected().executemany(statement, rows).rowcount
        except sqlite3.DatabaseError as exc:
            raise self._translated(exc) from exc

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside, or none if an error comes out; ViewError as from ``execute``."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(ViewError):
                self.execute("ROLLBACK")
            raise

    def applied(self, topic: str) -> Applied | None:
        """Return how far ``topic`` is applied; None if nothing of it is."""
        row = self.execute(
            "SELECT begin_offset, next_offset, store_ms, crc FROM applied WHERE topic = ?", (topic,)
        ).fetchone()
        return None if row is None else Applied(*row)

    def set_applied(self, topic: str, applied: Applied) -> None:
        """Note how far ``topic`` is applied; inside the transaction of the rows."""
        self.execute(
            "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
            (topic, applied.begin_offset, applied.next_offset, applied.store_ms, applied.crc),
        )

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ViewError("the view is not open")
        return self._connection

    def _translated(self, error: sqlite3.DatabaseError) -> ViewError:
        if isinstance(error, sqlite3.OperationalError):
            # In use, or no room: it will pass.
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                return ViewBusyError(str(error))
            return ViewError(f"the view cannot be used: {error}")
        self.fault = self.fault or str(error)
        return ViewError(f"the view is damaged: {error}")


def _require_descriptors() -> None:
    """Raise OSError unless the files of a view can be opened: file, WAL, index, folder."""
    with ExitStack() as stack:
        for _ in range(4):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
