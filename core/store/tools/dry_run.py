"""Inspecting a store folder without changing it: writes stay in this process.

Owns: DryRunStorage, a Storage over a real folder. Must not touch: the folder; it takes no lock, so
that a store that is open in another process can be inspected too.

Files are mapped privately: only recovery sees what it writes into a map. Pieces that are written
overlay the file in memory. Files that are created, replaced, moved or removed appear so in
``steps`` and in later answers, not on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from motelog.core.store.disk.files import (
    DiskUsage,
    Entry,
    FileSystem,
    InPlaceFile,
    Lock,
    OsStorage,
    Piece,
    PrivateRegion,
    Ranges,
    ReadFile,
    Region,
    ScratchRegion,
)
from motelog.core.store.state.checkpoint import BACKUP


class DryRunStorage:
    """Reads a real folder; keeps changes to itself."""

    def __init__(self) -> None:
        self._real = OsStorage()
        self._made: dict[str, ScratchRegion | bytes] = {}
        self._gone: set[str] = set()
        self._directories: set[str] = set()
        # Sizes of files made from pieces; the pieces written, with adjacent ones merged.
        self._sizes: dict[str, int] = {}
        self._pieces: dict[str, list[tuple[int, bytearray]]] = {}
        self.steps: list[tuple[str, str]] = []  # (what would be done, path)

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        self._directories.add(path)

    def list_directory(self, path: str) -> list[Entry]:
        found = {
            entry.name: entry
            for entry in self._real.list_directory(path)
            if f"{path}/{entry.name}" not in self._gone
        }
        sizes = {
            made: len(content if isinstance(content, bytes) else content.view)
            for made, content in self._made.items()
        }
        for made, size in (sizes | self._sizes).items():
            if os.path.dirname(made) == path:
                name = os.path.basename(made)
                found[name] = Entry(name, size, False)
        for made in self._directories:
            if os.path.dirname(made) == path:
                name = os.path.basename(made)
                found.setdefault(name, Entry(name, 0, True))
        return sorted(found.values(), key=lambda entry: entry.name)

    def read_file(self, path: str) -> bytes | None:
        made = self._made.get(path)
        if made is not None:
            return made if isinstance(made, bytes) else bytes(made.view)
        return None if path in self._gone else self._real.read_file(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self.steps.append(("write", path))
        self._made[path] = data

    def open_in_place(self, path: str) -> InPlaceFile:
        return _Discarding()

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        self.steps.append(("create", path))
        self._made[path] = ScratchRegion(size)

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        made = self._made.get(path)
        return made if isinstance(made, ScratchRegion) else PrivateRegion(path, size)

    def open_file(self, path: str) -> ReadFile:
        return _DryRunFile(self._pieces.get(path, []), self._real_file(path))

    def _real_file(self, path: str) -> ReadFile | None:
        return None if path in self._sizes else self._real.open_file(path)

    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        for path, at, data in pieces:
            if path in self._gone or not os.path.exists(path):
                above = os.path.dirname(path)
                self._directories.update((above, os.path.dirname(above)))
                if path not in self._sizes:
                    self.steps.append(("create", path))
                    self._sizes[path] = file_bytes
            elif path not in self._pieces:
                self.steps.append(("write", path))
            known = self._pieces.setdefault(path, [])
            if known and known[-1][0] + len(known[-1][1]) == at:
                known[-1][1].extend(data)
            else:
                known.append((at, bytearray(data)))

    def sync_files(self, paths: list[str]) -> None:
        pass

    def file_system(self, path: str) -> FileSystem | None:
        return None

    def prefetch(self, path: str, begin: int, end: int) -> None:
        self._real.prefetch(path, begin, end)

    def sync_file(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def remove_file(self, path: str) -> None:
        self.steps.append(("remove", path))
        self._made.pop(path, None)
        self._pieces.pop(path, None)
        self._sizes.pop(path, None)
        self._gone.add(path)

    def rename(self, path: str, new_path: str) -> None:
        if new_path != path + BACKUP:  # every start does this, so it is not reported
            self.steps.append(("move", path))
        self._gone.add(path)

    def lock(self, path: str) -> Lock | None:
        return _NoLock()

    def disk_usage(self, path: str) -> DiskUsage:
        return self._real.disk_usage(path)

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        return True

    def load(self, path: str, ranges: Ranges) -> None:
        pass


class _Discarding:
    """Discards writes: a start reads the file only before it writes it."""

    def write(self, at: int, data: bytes | memoryview) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class _DryRunFile:
    """A real file, or zeros without one, overlaid by the pieces that were written."""

    def __init__(self, pieces: list[tuple[int, bytearray]], real: ReadFile | None) -> None:
        self._pieces = pieces
        self._real = real

    def read(self, at: int, size: int) -> bytes:
        found = bytearray(self._real.read(at, size) if self._real is not None else b"")
        found.extend(bytes(size - len(found)))
        for begin, data in self._pieces:
            first, end = max(begin, at), min(begin + len(data), at + size)
            if first < end:
                found[first - at : end - at] = data[first - begin : end - begin]
        return bytes(found)

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if self._real is not None:
            yield from self._real.data_ranges(begin)
        for at, data in self._pieces:
            if at + len(data) > begin:
                yield max(at, begin), at + len(data)

    def close(self) -> None:
        if self._real is not None:
            self._real.close()


class _NoLock:
    def release(self) -> None:
        pass
