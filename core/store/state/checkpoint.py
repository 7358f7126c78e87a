"""The store's small files: how much is on disk, and which queues and index files there were.

Owns: StoreCheckpoint, QueueTable, IndexTable and ClockNotes, their bytes, how they are read back
if damaged. Must not touch: the log, the queues, the index. All but the clock's are hints that
shorten a start; without them recovery reads the whole log.

    checkpoint   RocketMQ's: one page of 4096 bytes; three times in ms, i64 big-endian:
                 0  store timestamp of the last record on disk       (physic)
                 8  the same for the last ConsumeQueue unit on disk  (logics)
                16  the same for the last index entry on disk        (index; 0 if there is none)
                 ours, after all that RocketMQ 4 and 5 have there:
              2048  4  magic "MLCP"
              2052 24  the three times again: if they differ above, RocketMQ has been here since
              2076  8  physical offset: log and ConsumeQueues are complete on disk below it
              2084  4  CRC-32C of the 36 bytes before it
    queues.json  ours: one line CRC-32C of the second line in hex; the second line JSON:
                 {"end_offset": n, "is_closed": bool,
                  "queues": [[topic, queue id, end offset], ...],
                  "crcs": [[CRC-32C, ...], ...]}
                 i.e. when the log ended at n, each of these queues had this many units on file;
                 and the CRC of those in each of its files, -1 if it is unknown
    index.json   ours, in the same two lines:
                 {"indexed_offset": n, "files":
                  [[name, slots, entries, next entry, end timestamp, end physical offset], ...]}
                 i.e. these files have the keys of all records below n, and this much is on disk
    clock.json   ours, in the same two lines: {"shown_ms": n, "jumps":
                 [{"at_ms": n, "size_ms": n, "is_stop": bool}, ...]}

A file is replaced as a whole, and its predecessor stays as NAME.bak, which is used if the file is
missing or damaged. The predecessor covers less, but what it says is still true.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from motelog.core.clock import Jump
from motelog.core.store.disk.files import Storage

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096
EXTENSION_AT: Final = 2048
_TIMES = struct.Struct(">qqq")
_EXTENSION = struct.Struct(">4sqqqq")
_CHECKSUM = struct.Struct(">I")
_MAGIC: Final = b"MLCP"
BACKUP: Final = ".bak"
#: The file that marks a folder into which a backup is being restored.
RESTORING: Final = "restoring"


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Records stored up to these times are certainly on disk; 0 means unknown.

    Log and ConsumeQueues are complete below ``complete_offset``; None if it is unknown.
    """

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    complete_offset: int | None = None

    @property
    def safe_ms(self) -> int:
        """The store timestamp up to which log and ConsumeQueues are complete on disk."""
        return min(self.physic_ms, self.logics_ms)

    def encode(self) -> bytes:
        times = (self.physic_ms, self.logics_ms, self.index_ms)
        page = _TIMES.pack(*times)
        if self.complete_offset is not None:
            extension = _EXTENSION.pack(_MAGIC, *times, self.complete_offset)
            checksum = _CHECKSUM.pack(crc32c(extension))
            page = page.ljust(EXTENSION_AT, b"\0") + extension + checksum
        return page.ljust(PAGE_BYTES, b"\0")

    @staticmethod
    def decode(data: bytes | None) -> StoreCheckpoint | None:
        """Return the content of a checkpoint file; None if it is missing, short or damaged."""
        if data is None or len(data) < PAGE_BYTES:
            return None
        times = _TIMES.unpack_from(data)
        if min(times) < 0:
            return None
        extension = data[EXTENSION_AT : EXTENSION_AT + _EXTENSION.size]
        checksum_at = EXTENSION_AT + _EXTENSION.size
        checksum = data[checksum_at : checksum_at + _CHECKSUM.size]
        if not any(extension) and not any(checksum):
            return StoreCheckpoint(*times)  # RocketMQ's
        if len(checksum) < _CHECKSUM.size or checksum != _CHECKSUM.pack(crc32c(extension)):
            return None
        magic, *known, complete_offset = _EXTENSION.unpack(extension)
        if magic != _MAGIC or complete_offset < 0:
            return None
        # If the times differ, RocketMQ has written its own since.
        is_ours = tuple(known) == times
        physic_ms, logics_ms, index_ms = times
        return StoreCheckpoint(physic_ms, logics_ms, index_ms, complete_offset if is_ours else None)


TableType = TypeVar("TableType", bound=msgspec.Struct)


def _encode_table(table: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(table)
    return b"%08x\n%s\n" % (crc32c(text), text)


def _decode_table(data: bytes | None, table_type: type[TableType]) -> TableType | None:
    """Return the table, None if it is missing or its checksum is wrong."""
    if data is None:
        return None
    checksum, _, text = data.partition(b"\n")
    text = text.rstrip(b"\n")
    if checksum != b"%08x" % crc32c(text):
        return None
    try:
        return msgspec.json.decode(text, type=table_type)
    except msgspec.DecodeError:
        return None


class QueueTable(msgspec.Struct, frozen=True):
    """The queues and their lengths when the log ended at ``end_offset``."""

    end_offset: int
    is_closed: bool
    queues: list[tuple[str, int, int]]
    # For each queue the CRCs of its files; older tables have none.
    crcs: list[list[int]] = []

    def encode(self) -> bytes:
        return _encode_table(self)

    @staticmethod
    def decode(data: bytes | None) -> QueueTable | None:
        return _decode_table(data, QueueTable)


class ClockNotes(msgspec.Struct, frozen=True):
    """The time that the store's clock showed, and the jumps it knows (core.clock.SteadyClock)."""

    shown_ms: int
    jumps: list[Jump]

    def encode(self) -> bytes:
        return _encode_table(self)

    @staticmethod
    def decode(data: bytes | None) -> ClockNotes | None:
        return _decode_table(data, ClockNotes)


class IndexFileState(msgspec.Struct, frozen=True, array_like=True):
    """How much of one index file is on disk; ``count`` is the number of its next entry."""

    name: str
    slots: int
    entries: int
    count: int
    end_ms: int
    end_physical: int


class IndexTable(msgspec.Struct, frozen=True):
    """The index files, oldest first; they have the keys of all records below ``indexed_offset``."""

    indexed_offset: int
    files: list[IndexFileState]

    def encode(self) -> bytes:
        return _encode_table(self)

    @staticmethod
    def decode(data: bytes | None) -> IndexTable | None:
        return _decode_table(data, IndexTable)


Content = TypeVar("Content")


class StateFiles:
    """Reads and replaces the small files of one store folder."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        # Names whose file is known to be good: the next replacement keeps it as the predecessor.
        self._good: set[str] = set()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _read(self, name: str, decode: Callable[[bytes | None], Content | None]) -> Content | None:
        """Return the content of the file or its predecessor; None if neither is good."""
        content = decode(self._storage.read_file(self._path(name)))
        if content is not None:
            self._good.add(name)
            return content
        content = decode(self._storage.read_file(self._path(name + BACKUP)))
        if content is not None:
            logger.warning(
                "a state file is missing or damaged; its backup is used, and this start may read "
                "more of the log path=%s",
                self._path(name),
            )
        return content

    def _write(self, name: str, data: bytes) -> None:
        """Replace a file; at any time it or its predecessor exists and is good."""
        path = self._path(name)
        if name in self._good:
            self._good.remove(name)
            self._storage.rename(path, path + BACKUP)
        self._storage.replace_file(path, data)
        self._good.add(name)

    def read_checkpoint(self) -> StoreCheckpoint:
        """Return the checkpoint; an empty one if neither the file nor its predecessor is good."""
        return self._read("checkpoint", StoreCheckpoint.decode) or StoreCheckpoint()

    def write_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        self._write("checkpoint", checkpoint.encode())

    def forget_checkpoint(self) -> None:
        """Clear both the file and its predecessor."""
        data = StoreCheckpoint(complete_offset=0).encode()
        for name in ("checkpoint" + BACKUP, "checkpoint"):
            self._storage.replace_file(self._path(name), data)

    def read_queues(self) -> QueueTable | None:
        return self._read("queues.json", QueueTable.decode)

    def write_queues(self, table: QueueTable) -> None:
        self._write("queues.json", table.encode())

    def read_index(self) -> IndexTable | None:
        return self._read("index.json", IndexTable.decode)

    def write_index(self, table: IndexTable) -> None:
        self._write("index.json", table.encode())

    def read_clock(self) -> ClockNotes | None:
        return self._read("clock.json", ClockNotes.decode)

    def write_clock(self, notes: ClockNotes) -> None:
        self._write("clock.json", notes.encode())

    def is_half_restored(self) -> bool:
        """Return whether a restore of a backup into the folder began but did not end."""
        return self._storage.read_file(self._path(RESTORING)) is not None

    def has_abort(self) -> bool:
        return self._storage.read_file(self._path("abort")) is not None

    def write_abort(self, process_id: int) -> None:
        self._storage.replace_file(self._path("abort"), b"%d" % process_id)

    def remove_abort(self) -> None:
        self._storage.remove_file(self._path("abort"))
        self._storage.sync_directory(self._directory)
