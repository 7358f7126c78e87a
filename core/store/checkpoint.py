"""The store's small files: how far all is on disk, which queues and index files there were.

Owns: StoreCheckpoint, QueueTable and IndexTable, their bytes, and how they are read back when
damaged. Must not touch: the log, the queues, the index. All are hints that shorten a start; without
them recovery reads the whole log.

    checkpoint   RocketMQ's: one page of 4096 bytes; three times in ms, i64 big-endian:
                 0  store timestamp of the last record on disk       (physic)
                 8  the same for the last ConsumeQueue unit on disk  (logics)
                16  the same for the last index entry on disk        (index; 0 if there is none)
    queues.json  ours: one line CRC-32C of the second line in hex; the second line JSON:
                 {"end_offset": n, "is_closed": bool,
                  "queues": [[topic, queue id, max offset], ...]}
                 i.e. when the log ended at n, each of these queues had this many units
    index.json   ours, in the same two lines:
                 {"indexed_offset": n, "files":
                  [[name, slots, entries, next entry, end timestamp, end physical offset], ...]}
                 i.e. these files have the keys of all records below n, and this much is on disk
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from crc32c import crc32c

from core.store.files import Storage

PAGE_BYTES = 4096
_TIMES = struct.Struct(">qqq")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Records stored up to these times are surely on disk; 0 means nothing is known."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0

    @property
    def safe_ms(self) -> int:
        """Log and ConsumeQueues are complete on disk up to this store timestamp."""
        return min(self.physic_ms, self.logics_ms)

    def encode(self) -> bytes:
        times = _TIMES.pack(self.physic_ms, self.logics_ms, self.index_ms)
        return times.ljust(PAGE_BYTES, b"\0")

    @staticmethod
    def decode(data: bytes | None) -> StoreCheckpoint:
        """Return what a checkpoint file says; one that is missing or short says nothing."""
        if data is None or len(data) < _TIMES.size:
            return StoreCheckpoint()
        times = _TIMES.unpack_from(data)
        return StoreCheckpoint(*times) if min(times) >= 0 else StoreCheckpoint()


TableType = TypeVar("TableType", bound=msgspec.Struct)


def _encode_table(table: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(table)
    return b"%08x\n%s\n" % (crc32c(text), text)


def _decode_table(data: bytes | None, table_type: type[TableType]) -> TableType | None:
    """Return the table, None if there is none or its checksum is wrong."""
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

    def encode(self) -> bytes:
        return _encode_table(self)

    @staticmethod
    def decode(data: bytes | None) -> QueueTable | None:
        return _decode_table(data, QueueTable)


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


class StateFiles:
    """Reads and replaces the small files of one store folder."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def read_checkpoint(self) -> StoreCheckpoint:
        return StoreCheckpoint.decode(self._storage.read_file(self._path("checkpoint")))

    def write_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        self._storage.replace_file(self._path("checkpoint"), checkpoint.encode())

    def read_queues(self) -> QueueTable | None:
        return QueueTable.decode(self._storage.read_file(self._path("queues.json")))

    def write_queues(self, table: QueueTable) -> None:
        self._storage.replace_file(self._path("queues.json"), table.encode())

    def read_index(self) -> IndexTable | None:
        return IndexTable.decode(self._storage.read_file(self._path("index.json")))

    def write_index(self, table: IndexTable) -> None:
        self._storage.replace_file(self._path("index.json"), table.encode())

    def has_abort(self) -> bool:
        return self._storage.read_file(self._path("abort")) is not None

    def write_abort(self, process_id: int) -> None:
        self._storage.replace_file(self._path("abort"), b"%d" % process_id)

    def remove_abort(self) -> None:
        self._storage.remove_file(self._path("abort"))
        self._storage.sync_directory(self._directory)
