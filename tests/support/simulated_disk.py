"""A disk in memory that writes down what is done to it, and what a power cut could leave of that.

Owns: SimulatedDisk (a Storage), its log of events, CrashModel, which turns a prefix of the log into
legal disk contents. Must not touch: records, the store.

A page written but not synced may be on disk as any of its versions since the last sync, whole or
torn at sectors, or cut anywhere (a page can be written out while a process copies into it). A file
that has grown may have its old size, whatever was written into the new part. A name made, moved or
removed without a sync of its directory may or may not be there; the changes of one directory reach
the disk in their order. Nothing else is lost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from motelog.core.store.disk.files import (
    TEMPORARY,
    DiskUsage,
    Entry,
    FileSystem,
    InPlaceFile,
    Lock,
    Piece,
    Ranges,
    ReadFile,
    Region,
)

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ROOT = "/disk"
UNSYNCED_PAGES_MAX = 3

Pages = list[bytes]


@dataclass(frozen=True, slots=True)
class Image:
    """What is on a disk: directories, and files as pages (the last one may be short)."""

    directories: frozenset[str] = frozenset({ROOT})
    files: tuple[tuple[str, tuple[bytes, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Created:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    page: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Grown:
    """A file has got a larger size, with zeros behind what it had."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    file: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A name for a file: new (``path`` is empty), moved, or gone (``new_path`` is empty)."""

    path: str
    new_path: str
    file: int

    @property
    def directories(self) -> frozenset[str]:
        return frozenset(os.path.dirname(name) for name in (self.path, self.new_path) if name)


@dataclass(frozen=True, slots=True)
class DirectoryMade:
    path: str

    @property
    def directories(self) -> frozenset[str]:
        return frozenset({os.path.dirname(self.path)})


@dataclass(frozen=True, slots=True)
class DirectorySynced:
    path: str


Event = Created | Grown | Written | Synced | Renamed | DirectoryMade | DirectorySynced


class SimulatedDisk:
    """Files in memory. ``events`` is the log; mapped stores get into it with the next event.

    ``on_sync`` is called between what a sync has brought to the disk and its return: what is
    written there is not part of it. ``on_write`` is called before each piece of ``write_files``.
    """

    def __init__(self, image: Image | None = None) -> None:
        image = image or Image()
        self.events: list[Event] = []
        self.on_sync: Callable[[], None] = lambda: None
        self.on_write: Callable[[], None] = lambda: None
        self._directories = set(image.directories)
        self._names: dict[str, int] = {}
        self._content: dict[int, bytearray] = {}
        self._known: dict[int, Pages] = {}
        for number, (path, pages) in enumerate(image.files):
            self._names[path] = number
            self._content[number] = bytearray(b"".join(pages))
            self._known[number] = list(pages)

    def take_notes(self) -> None:
        """Put what was stored into mapped files since the last event into the log."""
        for number in self._content:
            self._note_file(number)

    def _note_file(self, number: int) -> None:
        content, known = self._content[number], self._known[number]
        if content == b"".join(known):
            return
        for page, old in enumerate(known):
            new = bytes(content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
            if new != old:
                known[page] = new
                self.events.append(Written(number, page, new))

    def _note(self, event: Event) -> None:
        self.take_notes()
        self.events.append(event)

    # -- Storage ---------------------------------------------------------------------------

    def make_directory(self, path: str, *, durable: bool = False) -> None:
        above = os.path.dirname(path)
        if path not in self._directories:
            self.make_directory(above, durable=durable)
            self._directories.add(path)
            self._note(DirectoryMade(path))
        if durable:
            self.sync_directory(above)

    def list_directory(self, path: str) -> list[Entry]:
        prefix = path + "/"
        found = [
            Entry(name[len(prefix) :], len(self._content[number]), False)
            for name, number in self._names.items()
            if name.startswith(prefix) and "/" not in name[len(prefix) :]
        ]
        found += [
            Entry(name[len(prefix) :], 0, True)
            for name in self._directories
            if name.startswith(prefix) and "/" not in name[len(prefix) :]
        ]
        return sorted(found, key=lambda entry: entry.name)

    def read_file(self, path: str) -> bytes | None:
        number = self._names.get(path)
        return None if number is None else bytes(self._content[number])

    def replace_file(self, path: str, data: bytes) -> None:
        number = self._create(path + TEMPORARY, len(data))
        self._content[number][:] = data
        self._sync(number)
        self.rename(path + TEMPORARY, path)
        self.sync_directory(os.path.dirname(path))

    def open_in_place(self, path: str) -> InPlaceFile:
        return _SimulatedInPlaceFile(self, self._names[path], self._content[self._names[path]])

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        self._sync(self._create(path + TEMPORARY, size))
        self.rename(path + TEMPORARY, path)

    def _create(self, path: str, size: int) -> int:
        assert os.path.dirname(path) in self._directories, path
        number = len(self._content)
        content = bytearray(size)
        self._note(Created(number, size))
        self._content[number] = content
        self._known[number] = _pages(content)
        self._names[path] = number
        self._note(Renamed("", path, number))
        return number

    def _sync(self, number: int) -> None:
        self._note(Synced(number))
        self.on_sync()

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        region = _SimulatedRegion(self, self._names[path], self._content[self._names[path]])
        if is_read_only:
            region.view = region.view.toreadonly()
        return region

    def open_file(self, path: str) -> ReadFile:
        if path not in self._names:
            raise FileNotFoundError(path)
        return _SimulatedReadFile(self._content[self._names[path]])

    def write_files(self, pieces: list[Piece], file_bytes: int) -> None:
        for path, at, data in pieces:
            self.on_write()
            is_new = path not in self._names
            name = path + TEMPORARY if is_new else path
            if is_new:
                self.make_directory(os.path.dirname(path))
            number = self._create(name, 0) if is_new else self._names[path]
            content = self._content[number]
            if len(content) < file_bytes:
                self._note(Grown(number, file_bytes))
                content.extend(bytes(file_bytes - len(content)))
                self._known[number] = _resized(self._known[number], file_bytes)
            assert at + len(data) <= file_bytes
            content[at : at + len(data)] = data
            if is_new:
                self.rename(name, path)
        self.take_notes()

    def sync_files(self, paths: list[str]) -> None:
        for path in paths:
            if path in self._directories:
                self.sync_directory(path)
            else:
                self.sync_file(path)

    def file_system(self, path: str) -> FileSystem | None:
        return _SimulatedFileSystem(self)

    def sync_all(self) -> None:
        self.take_notes()
        self.events += [Synced(number) for number in self._content]
        self.events += [DirectorySynced(path) for path in sorted(self._directories)]
        self.on_sync()

    def prefetch(self, path: str, begin: int, end: int) -> None:
        assert path in self._names, path

    def sync_file(self, path: str) -> None:
        self._sync(self._names[path])

    def sync_directory(self, path: str) -> None:
        assert path in self._directories or path == os.path.dirname(ROOT), path
        self._note(DirectorySynced(path))
        self.on_sync()

    def remove_file(self, path: str) -> None:
        self._note(Renamed(path, "", self._names.pop(path)))

    def rename(self, path: str, new_path: str) -> None:
        self._names[new_path] = self._names.pop(path)
        self._note(Renamed(path, new_path, self._names[new_path]))

    def lock(self, path: str) -> Lock | None:
        return _NoLock()

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(1 << 40, (1 << 40) * 10 // 9)

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        return True

    def load(self, path: str, ranges: Ranges) -> None:
        pass


class _SimulatedRegion:
    def __init__(self, disk: SimulatedDisk, number: int, content: bytearray) -> None:
        self._disk = disk
        self._number = number
        self.view = memoryview(content)

    def reserve(self, begin: int, end: int) -> None:
        pass

    def sync(self) -> None:
        self._disk._sync(self._number)

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self.view):
            yield begin, len(self.view)

    def prepare(self, begin: int, end: int) -> None:
        pass

    def close(self) -> None:
        self.view.release()


class _SimulatedInPlaceFile:
    def __init__(self, disk: SimulatedDisk, number: int, content: bytearray) -> None:
        self._disk = disk
        self._number = number
        self._content = content

    def write(self, at: int, data: bytes | memoryview) -> None:
        assert at + len(data) <= len(self._content)
        self._content[at : at + len(data)] = data
        self._disk.take_notes()

    def sync(self) -> None:
        self._disk._sync(self._number)

    def close(self) -> None:
        pass


class _SimulatedReadFile:
    def __init__(self, content: bytearray) -> None:
        self._content = content

    def read(self, at: int, size: int) -> bytes:
        return bytes(self._content[at : at + size])

    def data_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < len(self._content):
            yield begin, len(self._content)

    def close(self) -> None:
        pass


class _SimulatedFileSystem:
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def sync(self) -> None:
        self._disk.sync_all()

    def close(self) -> None:
        pass


class _NoLock:
    def release(self) -> None:
        pass


def _pages(content: bytes | bytearray) -> Pages:
    return [bytes(content[at : at + PAGE_BYTES]) for at in range(0, len(content), PAGE_BYTES)]


def _resized(pages: Pages, size: int) -> Pages:
    content = b"".join(pages)[:size]
    return _pages(content.ljust(size, b"\0"))


@dataclass(slots=True)
class CrashModel:
    """What is surely on disk after a prefix of the log, and what may be there besides."""

    _directories: set[str]
    _names: dict[str, int]
    _durable: dict[int, Pages]
    _unsynced: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    _pending: list[Renamed | DirectoryMade] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)  # of files that have grown since a sync

    @staticmethod
    def of(image: Image) -> CrashModel:
        return CrashModel(
            set(image.directories),
            {path: number for number, (path, _) in enumerate(image.files)},
            {number: list(pages) for number, (_, pages) in enumerate(image.files)},
        )

    def apply(self, event: Event) -> None:
        match event:
            case Created(file, size):
                self._durable[file] = _pages(bytes(size))
            case Grown(file, size):
                self._sizes[file] = size
            case Written(file, page, data):
                self._unsynced.setdefault((file, page), []).append(data)
            case Synced(file):
                if file in self._sizes:
                    self._durable[file] = _resized(self._durable[file], self._sizes.pop(file))
                for key in [key for key in self._unsynced if key[0] == file]:
                    self._durable[file][key[1]] = self._unsynced.pop(key)[-1]
            case DirectorySynced(path):
                done = [change for change in self._pending if path in change.directories]
                self._pending = [c for c in self._pending if path not in c.directories]
                for change in done:
                    _change(change, self._directories, self._names)
            case _:
                self._pending.append(event)

    def after_kill(self) -> Image:
        """Return what a killed process leaves: everything, synced or not."""
        latest = {key: versions[-1] for key, versions in self._unsynced.items()}
        return self._image(self._pending, latest, self._sizes)

    def kill(self) -> tuple[Image, CrashModel]:
        """Return what a killed process leaves, and a model for the next life.

        In the next life, what has not been synced is still only in memory and goes with the power.
        """
        image = self.after_kill()
        latest = dict(self._names)
        for change in self._pending:
            _change(change, set(), latest)
        numbers = {latest[path]: number for number, (path, _) in enumerate(image.files)}
        # A file without a name is no file of the next life; some lost theirs in an earlier one.
        for index, number in enumerate(sorted(self._durable.keys() - numbers.keys())):
            numbers[number] = -1 - index
        model = CrashModel(
            set(self._directories),
            {path: numbers[number] for path, number in self._names.items()},
            {numbers[number]: list(pages) for number, pages in self._durable.items()},
            {(numbers[n], page): [v[-1]] for (n, page), v in self._unsynced.items()},
            [
                replace(change, file=numbers[change.file])
                if isinstance(change, Renamed)
                else change
                for change in self._pending
            ],
            {numbers[number]: size for number, size in self._sizes.items()},
        )
        return image, model

    def after_power_cut(self, chance: random.Random) -> Image:
        """Return one of the contents that a power cut may leave."""
        keep = chance.random() < 0.5
        pages = {key: versions[-1] for key, versions in self._unsynced.items()} if keep else {}
        keys = sorted(self._unsynced)
        for key in chance.sample(keys, min(len(keys), chance.randint(0, UNSYNCED_PAGES_MAX))):
            page = self._grown(key[0])[key[1]]
            pages[key] = _some_version([page, *self._unsynced[key]], chance)
        changes = self._some_changes(chance)
        sizes = {file: size for file, size in self._sizes.items() if chance.random() < 0.7}
        return self._image(changes, pages, sizes)

    def _grown(self, file: int) -> Pages:
        """Return what is on disk of a file, with the size it has by now."""
        size = self._sizes.get(file)
        return self._durable[file] if size is None else _resized(self._durable[file], size)

    def _some_changes(self, chance: random.Random) -> list[Renamed | DirectoryMade]:
        directories = sorted({path for change in self._pending for path in change.directories})
        kept_until = {}
        for path in directories:
            count = sum(path in change.directories for change in self._pending)
            kept_until[path] = chance.choice((0, count, count, chance.randint(0, count)))
        kept = []
        for change in self._pending:
            if all(kept_until[path] > 0 for path in change.directories):
                kept.append(change)
            for path in change.directories:
                kept_until[path] -= 1
        return kept

    def _image(
        self,
        changes: list[Renamed | DirectoryMade],
        pages: dict[tuple[int, int], bytes],
        sizes: dict[int, int],
    ) -> Image:
        directories, names = set(self._directories), dict(self._names)
        for change in changes:
            _change(change, directories, names)
        reachable = frozenset(path for path in directories if _is_reachable(path, directories))
        files = []
        for path in sorted(names):
            if os.path.dirname(path) in reachable:
                number = names[path]
                content = self._durable[number]
                if number in sizes:
                    content = _resized(content, sizes[number])
                files.append(
                    (path, tuple(pages.get((number, i), old) for i, old in enumerate(content)))
                )
        return Image(reachable, tuple(files))


def _change(change: Renamed | DirectoryMade, directories: set[str], names: dict[str, int]) -> None:
    match change:
        case DirectoryMade(path):
            directories.add(path)
        case Renamed(path, new_path, file):
            if path:
                names.pop(path, None)
            if new_path:
                names[new_path] = file


def _is_reachable(path: str, directories: set[str]) -> bool:
    while path != ROOT:
        if path not in directories:
            return False
        path = os.path.dirname(path)
    return True


def _some_version(versions: Pages, chance: random.Random) -> bytes:
    """Return one version of a page, or a mixture of two."""
    first, second = sorted(chance.choices(range(len(versions)), k=2))
    old, new = versions[first], versions[second]
    match chance.randrange(4):
        case 0:
            return versions[0]
        case 1:
            return new
        case 2:
            cut = chance.randrange(len(new) + 1)
            return new[:cut] + old[cut:]
        case _:
            return b"".join(
                chance.choice((old, new))[at : at + SECTOR_BYTES]
                for at in range(0, len(new), SECTOR_BYTES)
            )
