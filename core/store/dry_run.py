"""A store folder looked at without changing it: what would be written stays in this process.

Owns: DryRunStorage, a Storage over a real folder. Must not touch: the folder; it takes no lock, so
a store that is open in another process can be looked at too.

Files are mapped privately: what recovery writes into a map is seen by it and by nobody else. Files
made, replaced, moved and removed are so in ``steps`` and in later answers, not on the disk.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from core.store.files import DiskUsage, Entry, Lock, OsStorage, Region


class DryRunStorage:
    """Reads a real folder; keeps changes to itself."""

    def __init__(self) -> None:
        self._real = OsStorage()
        self._made: dict[str, mmap.mmap | bytes] = {}
        self._gone: set[str] = set()
        self._directories: set[str] = set()
        self.steps: list[tuple[str, str]] = []  # (what would be done, path)

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        self._directories.add(path)

    def list_directory(self, path: str) -> list[Entry]:
        found = {
            entry.name: entry
            for entry in self._real.list_directory(path)
            if f"{path}/{entry.name}" not in self._gone
        }
        for made, content in self._made.items():
            if os.path.dirname(made) == path:
                name = os.path.basename(made)
                found[name] = Entry(name, len(content), False)
        for made in self._directories:
            if os.path.dirname(made) == path:
                name = os.path.basename(made)
                found.setdefault(name, Entry(name, 0, True))
        return sorted(found.values(), key=lambda entry: entry.name)

    def read_file(self, path: str) -> bytes | None:
        if path in self._made:
            return self._made[path][:]
        return None if path in self._gone else self._real.read_file(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self.steps.append(("write", path))
        self._made[path] = data

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        self.steps.append(("create", path))
        # Takes no memory before it is written to.
        self._made[path] = mmap.mmap(-1, size)

    def map_file(self, path: str, size: int) -> Region:
        made = self._made.get(path)
        if isinstance(made, mmap.mmap):
            return _MadeRegion(made)
        return _PrivateRegion(path, size)

    def sync_file(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def remove_file(self, path: str) -> None:
        self.steps.append(("remove", path))
        self._made.pop(path, None)
        self._gone.add(path)

    def rename(self, path: str, new_path: str) -> None:
        self.steps.append(("move", path))
        self._gone.add(path)

    def lock(self, path: str) -> Lock | None:
        return _NoLock()

    def disk_usage(self, path: str) -> DiskUsage:
        return self._real.disk_usage(path)


class _PrivateRegion:
    """A real file; what is written to it is copied first and goes with the process."""

    def __init__(self, path: str, size: int) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_size < size:
                raise OSError(f"{path} is shorter than {size} bytes")
            self._map = mmap.mmap(self._fd, size, access=mmap.ACCESS_COPY)
        except OSError:
            os.close(self._fd)
            raise
        self.view = memoryview(self._map)

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        size = len(self.view)
        at = begin
        while at < size:
            try:
                start = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError:
                return
            at = min(os.lseek(self._fd, start, os.SEEK_HOLE), size)
            if start < at:
                yield start, at

    def close(self) -> None:
        self.view.release()
        self._map.close()
        os.close(self._fd)


class _MadeRegion:
    """A file that would be made; its content outlives the region."""

    def __init__(self, content: mmap.mmap) -> None:
        self.view = memoryview(content)

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def close(self) -> None:
        self.view.release()


class _NoLock:
    def release(self) -> None:
        pass
