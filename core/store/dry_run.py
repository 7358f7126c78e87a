"""A store folder looked at without changing it: what would be written stays in this process.

Owns: DryRunStorage, a Storage over a real folder. Must not touch: the folder; it takes no lock, so
a store that is open in another process can be looked at too.

Files are mapped privately: what recovery writes into a map is seen by it and by nobody else. Files
made, replaced, moved and removed are so in ``steps`` and in later answers, not on the disk.
"""

from __future__ import annotations

import os

from core.store.files import (
    DiskUsage,
    Entry,
    Lock,
    OsStorage,
    PrivateRegion,
    Region,
    ScratchRegion,
)


class DryRunStorage:
    """Reads a real folder; keeps changes to itself."""

    def __init__(self) -> None:
        self._real = OsStorage()
        self._made: dict[str, ScratchRegion | bytes] = {}
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
                size = len(content if isinstance(content, bytes) else content.view)
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

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        self.steps.append(("create", path))
        self._made[path] = ScratchRegion(size)

    def map_file(self, path: str, size: int) -> Region:
        made = self._made.get(path)
        return made if isinstance(made, ScratchRegion) else PrivateRegion(path, size)

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


class _NoLock:
    def release(self) -> None:
        pass
