"""The CommitLog's row of files: equal sizes, each named by the offset of its first byte.

Owns: MappedFile, MappedFileQueue: loading and checking the row, finding a file by offset, adding
the next one ahead of need. Must not touch: what the bytes mean.

    commitlog/00000000000000000000   [0, n)
    commitlog/00000000001073741824   [n, 2n)        n = 1 GiB unless configured otherwise

Invariants: files are contiguous and have one size; a file appears under its name only with that
size and real blocks, and its directory is synced before anything is written to it.
Concurrency: one worker thread makes files ahead; it hands over finished ones through a future and
touches nothing else.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from core.errors import StoreDamagedError
from core.store.files import TEMPORARY, Region, Storage

NAME_DIGITS = 20


def file_name(begin: int) -> str:
    return f"{begin:0{NAME_DIGITS}d}"


class MappedFile:
    """One file of the row, mapped when it is first looked into."""

    __slots__ = ("_region", "_storage", "begin", "path", "size")

    def __init__(self, storage: Storage, path: str, begin: int, size: int) -> None:
        self._storage = storage
        self.path = path
        self.begin = begin
        self.size = size
        self._region: Region | None = None

    @property
    def end(self) -> int:
        return self.begin + self.size

    @property
    def region(self) -> Region:
        if self._region is None:
            self._region = self._storage.map_file(self.path, self.size)
        return self._region

    @property
    def view(self) -> memoryview:
        return self.region.view

    def let_go(self) -> None:
        """Have the file unmapped once nobody holds its region or view any more."""
        self._region = None

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None


class MappedFileQueue:
    """Files of ``file_bytes`` each under one directory."""

    def __init__(self, storage: Storage, directory: str, file_bytes: int) -> None:
        self._storage = storage
        self._directory = directory
        self.file_bytes = file_bytes
        self.files: list[MappedFile] = []
        # Made but not yet used; never in `files`, so that nobody looks for records there.
        self._ahead: list[MappedFile] = []
        self._worker: ThreadPoolExecutor | None = None
        self._making: Future[MappedFile] | None = None

    def load(self) -> None:
        """Take the files that are there; StoreDamagedError names the one that does not fit."""
        self._storage.make_directory(self._directory)
        entries = self._storage.list_directory(self._directory)
        for entry in entries:
            if entry.name.endswith(TEMPORARY):
                self._storage.remove_file(f"{self._directory}/{entry.name}")
        entries = [e for e in entries if not e.name.endswith(TEMPORARY)]
        if entries and entries[0].size > 0 and not entries[0].size % 8:
            # The first file's size is the folder's, whatever the configuration says for new ones.
            self.file_bytes = entries[0].size
        for entry in entries:
            self.files.append(self._load_one(entry.name, entry.size, entry.is_directory))

    def _load_one(self, name: str, size: int, is_directory: bool) -> MappedFile:
        path = f"{self._directory}/{name}"
        if is_directory or len(name) != NAME_DIGITS or not name.isdigit():
            raise StoreDamagedError(
                "is not a CommitLog file: the name is not 20 digits", path=path, offset_bytes=0
            )
        if size != self.file_bytes:
            raise StoreDamagedError(
                f"has {size} bytes where the files of this folder have {self.file_bytes}",
                path=path,
                offset_bytes=min(size, self.file_bytes),
            )
        begin = int(name)
        if self.files and begin != self.files[-1].end:
            raise StoreDamagedError(
                f"begins at {begin}, but the file before it ends at {self.files[-1].end}",
                path=path,
                offset_bytes=0,
            )
        return MappedFile(self._storage, path, begin, size)

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``."""
        if not self.files:
            return None
        index = (offset - self.files[0].begin) // self.file_bytes
        return self.files[index] if 0 <= index < len(self.files) else None

    def between(self, begin: int, end: int) -> list[MappedFile]:
        """Return the files that hold a byte of [begin, end)."""
        return [f for f in self.files if f.begin < end and f.end > begin]

    def make_ahead(self) -> None:
        """Begin to make the next file in the worker thread, unless it is there or being made."""
        if self._making is None and not self._ahead:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="commitlog-file")
            self._making = self._worker.submit(self._make, self._next_begin())

    def ensure_ahead(self, count: int) -> None:
        """Have ``count`` files ready to be used; blocks and raises OSError when they cannot be."""
        if self._making is not None:
            making, self._making = self._making, None
            # A failed attempt is made again here, where its error can refuse the batch.
            if making.exception() is None:
                self._ahead.append(making.result())
        while len(self._ahead) < count:
            self._ahead.append(self._make(self._next_begin()))

    def add(self) -> MappedFile:
        """Move the next file that is ready into the row and return it."""
        self.ensure_ahead(1)
        self.files.append(self._ahead.pop(0))
        return self.files[-1]

    def drop_from(self, index: int) -> list[MappedFile]:
        """Take files[index:] out of the row, close and return them."""
        dropped = self.files[index:]
        del self.files[index:]
        for file in dropped:
            file.close()
        return dropped

    def drop_first(self, file: MappedFile) -> None:
        """Take the oldest file out of the row; it stays mapped for those who hold it.

        The row is a new list afterwards: a thread may be going through the old one.
        """
        assert self.files[0] is file
        assert len(self.files) > 1, "the newest file stays"
        self.files = self.files[1:]

    def put_back(self, file: MappedFile) -> None:
        """Undo drop_first."""
        assert file.end == self.files[0].begin
        self.files = [file, *self.files]

    def close(self) -> None:
        """Unmap all; files made ahead and never used are removed."""
        if self._worker is not None:
            self._worker.shutdown(wait=True)
        if self._making is not None and self._making.exception() is None:
            self._ahead.append(self._making.result())
        self._making = None
        for file in self.files:
            file.close()
        # The last one first: a crash between two must not leave a gap in the row.
        for file in reversed(self._ahead):
            file.close()
            self._storage.remove_file(file.path)
        self._ahead.clear()

    def _next_begin(self) -> int:
        last = self._ahead or self.files
        return last[-1].end if last else 0

    def _make(self, begin: int) -> MappedFile:
        path = f"{self._directory}/{file_name(begin)}"
        self._storage.create_file(path, self.file_bytes, sparse=False)
        self._storage.sync_directory(self._directory)
        file = MappedFile(self._storage, path, begin, self.file_bytes)
        _ = file.region  # mapped here, so that the thread that appends does not wait for it
        return file
