"""The CommitLog's list of files, of equal size, each named by the offset of its first byte.

Owns: MappedFile, MappedFileQueue: loading and checking the list, finding a file by offset, creating
one, which files are mapped and how. Must not touch: when the next one is created (``files_ahead``),
the meaning of the bytes.

    commitlog/00000000000000000000   [0, n)
    commitlog/00000000001073741824   [n, 2n)        n = 1 GiB unless configured otherwise

Invariants: files are contiguous and of equal size; a file appears under its name only with that
size and real blocks, and its directory is synced before anything is written to it; only the file
that is appended to, full ones not yet on disk and those created in advance are mapped for writing
(in write-buffer mode they have buffers instead, if available), and at most ``mapped_max`` others,
the most recently used, read-only.

Concurrency: a worker prepares pages of the last file for appends. The flush thread commits, syncs
and seals mapped files; buffers are returned in the reading thread. A released file stays mapped for
holders of its region or a view of it.
"""

from __future__ import annotations

from itertools import pairwise

from motelog.core.errors import StoreDamagedError
from motelog.core.store.disk.files import TEMPORARY, Region, Storage
from motelog.core.store.log.files_ahead import FilesAhead
from motelog.core.store.log.write_buffer import BufferedFile, BufferPool

NAME_DIGITS = 20


def file_name(begin: int) -> str:
    return f"{begin:0{NAME_DIGITS}d}"


class MappedFile:
    """One file of the list, mapped read-only when it is read, writable on request."""

    __slots__ = ("_is_writable", "_others", "_region", "_storage", "begin", "end", "path", "size")

    def __init__(
        self, storage: Storage, others: ReadOnlyFiles, path: str, begin: int, size: int
    ) -> None:
        self._storage = storage
        self._others = others
        self.path = path
        self.begin = begin
        self.size = size
        self.end = begin + size
        self._region: Region | None = None
        self._is_writable = False

    @property
    def region(self) -> Region:
        # Read once: another thread may release the file meanwhile.
        region = self._region
        if region is None:
            region = self._storage.map_file(self.path, self.size, is_read_only=True)
            self._region = region
        if not self._is_writable:
            self._others.note_use(self)
        return region

    @property
    def view(self) -> memoryview:
        return self.region.view

    def writable(self) -> Region:
        """Return the file mapped for writing, or its buffer, until it is sealed."""
        if self._region is None or not self._is_writable:
            self.let_go()
            self._region = self._storage.map_file(self.path, self.size)
            self._is_writable = True
        return self._region

    def buffer(self, pool: BufferPool, filled: int) -> bool:
        """Use a buffer for writes after ``filled`` bytes; return False if none is free.

        The region is the buffer until the file is sealed.
        """
        memory = pool.take(self.size)
        if memory is None:
            return False
        try:
            region = BufferedFile(pool, memory, self._storage.open_in_place(self.path))
        except BaseException:
            pool.give_back(memory)
            raise
        try:
            if filled:
                region.fill(self.view, filled)
        except BaseException:
            region.close()
            raise
        self.let_go()
        self._region = region
        self._is_writable = True
        return True

    @property
    def is_buffered(self) -> bool:
        return isinstance(self._region, BufferedFile)

    @property
    def is_mapped(self) -> bool:
        return self._region is not None and not self.is_buffered

    def commit(self, begin: int, end: int) -> None:
        """Copy [begin, end) of the log from the buffer, if there is one; blocks."""
        if isinstance(self._region, BufferedFile):
            self._region.commit(
                max(begin, self.begin) - self.begin, min(end, self.end) - self.begin
            )

    def sync(self) -> None:
        """Block until everything written to the file, or committed, is on disk."""
        region = self._region
        if region is not None and self._is_writable:
            region.sync()
        else:
            self._storage.sync_file(self.path)

    def seal(self) -> None:
        """Mark the file as full and on disk; nothing is written to it any more."""
        if self.is_buffered:
            self.close()
        elif self._is_writable:
            self.let_go()

    def let_go(self) -> None:
        """Release the file; it is unmapped when no region or view of it is held any more."""
        self._others.forget(self)
        self._region = None
        self._is_writable = False

    def close(self) -> None:
        region = self._region
        self.let_go()
        if region is not None:
            region.close()


class ReadOnlyFiles:
    """The files mapped read-only, at most ``count_max``: each takes a descriptor."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        # In the order of their last use.
        self._files: dict[int, MappedFile] = {}

    def note_use(self, file: MappedFile) -> None:
        self._files.pop(file.begin, None)
        self._files[file.begin] = file
        if len(self._files) > self._count_max:
            next(iter(self._files.values())).let_go()

    def forget(self, file: MappedFile) -> None:
        self._files.pop(file.begin, None)


class MappedFileQueue:
    """Files of ``file_bytes`` each under one directory."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        file_bytes: int,
        *,
        mapped_max: int,
        buffers_max: int = 0,
        touch_bytes: int = 0,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self.file_bytes = file_bytes
        self.read_only = ReadOnlyFiles(mapped_max)
        self._buffers = BufferPool(buffers_max) if buffers_max else None
        self._buffered: list[MappedFile] = []
        self._touch_bytes = touch_bytes
        self.files: list[MappedFile] = []
        # Never in `files`, so that nothing looks for records there.
        self._ahead: FilesAhead[MappedFile] = FilesAhead(self._make)

    def load(self) -> None:
        """Load the existing files; StoreDamagedError names a file that is wrong."""
        self._storage.make_directory(self._directory)
        entries = self._storage.list_directory(self._directory)
        for entry in entries:
            if entry.name.endswith(TEMPORARY):
                self._storage.remove_file(f"{self._directory}/{entry.name}")
        entries = [e for e in entries if not e.name.endswith(TEMPORARY)]
        if entries and entries[0].size > 0 and not entries[0].size % 8:
            # The first file's size applies to the folder, whatever the configuration says.
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
                f"has {size} bytes, but the files of this folder have {self.file_bytes}",
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
        return MappedFile(self._storage, self.read_only, path, begin, size)

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that contains ``offset``."""
        if not self.files:
            return None
        index = (offset - self.files[0].begin) // self.file_bytes
        return self.files[index] if 0 <= index < len(self.files) else None

    def sync(self, begin: int, end: int) -> None:
        """Block until [begin, end) is on disk; nothing below ``end`` is written any more.

        In write-buffer mode it has been committed before.
        """
        for file in self.between(begin, end):
            file.sync()
            if file.end <= end and not file.is_buffered:
                file.seal()

    def commit(self, begin: int, end: int) -> None:
        """Copy [begin, end) from buffers into their files; blocks."""
        for file in self.between(begin, end):
            file.commit(begin, end)

    @property
    def free_buffers_count(self) -> int | None:
        """The number of free write buffers; None in the mode without."""
        return None if self._buffers is None else self._buffers.free_count

    @property
    def lacks_buffer(self) -> bool:
        """Whether the last file is written without a buffer because none was free."""
        files, buffers = self.files, self._buffers
        if buffers is None or buffers.free_count or not files:
            return False
        return files[-1] not in self._buffered

    def mapped_sizes(self) -> list[int]:
        """Return the size in bytes of each file that is mapped."""
        return [file.size for file in self._made() if file.is_mapped]

    def give_back_buffers(self, end: int) -> None:
        """Seal the files below ``end``, up to which everything is on disk.

        Only in the reading thread, which must not be reading one of them.
        """
        for file in [file for file in self._buffered if file.end <= end]:
            self._buffered.remove(file)
            file.seal()

    def open_last(self, filled: int) -> None:
        """Open the last file, which has ``filled`` bytes so far, for appends.

        Start the threads that appends need.
        """
        self._ahead.started_workers()
        if self.files[-1] not in self._buffered:
            self._open(self.files[-1], filled)

    def _open(self, file: MappedFile, filled: int) -> None:
        if self._buffers is not None and file.buffer(self._buffers, filled):
            self._buffered.append(file)
        else:
            file.writable()

    def between(self, begin: int, end: int) -> list[MappedFile]:
        """Return the files that contain a byte of [begin, end)."""
        return [f for f in self.files if f.begin < end and f.end > begin]

    def make_ahead(self, count: int = 1) -> None:
        """Start creating the next files in the worker thread, unless they exist or are in progress.

        ``count`` files will then be available in advance.
        """
        self._ahead.begin(self._end, count)

    def ensure_ahead(self, count: int, *, may_wait: bool = True) -> None:
        """Ensure that ``count`` files are ready for use; OSError if they cannot be created.

        Without ``may_wait``, the worker creates missing files, and NextFileError is raised.
        """
        self._ahead.ensure(self._end, count, may_wait=may_wait)

    def touch_ahead(self, offset: int, touched: int) -> int:
        """Let a worker touch the last file's pages after ``offset``; return up to where.

        An append that touches a page first waits for the kernel, which may be writing adjacent
        pages or its journal. Pages below ``touched`` are already done.
        """
        file = self.files[-1]
        end = min(offset + self._touch_bytes, file.end)
        if end > touched and not file.is_buffered:
            begin = max(offset, touched) - file.begin
            self._ahead.started_workers().submit(file.writable().prepare, begin, end - file.begin)
        return end

    def add(self) -> MappedFile:
        """Move the next ready file into the list and return it."""
        self.ensure_ahead(1)
        self.files.append(self._ahead.ready.pop(0))
        return self.files[-1]

    def begin_at(self, offset: int) -> None:
        """Let the only file, which holds nothing, begin at ``offset``; OSError unchanged."""
        (file,) = self.files
        assert self._ahead.is_empty
        path = f"{self._directory}/{file_name(offset)}"
        self._storage.rename(file.path, path)
        file.path, file.begin, file.end = path, offset, offset + file.size
        self._storage.sync_directory(self._directory)

    def take_back(self, end: int) -> None:
        """Undo ``add`` of the files that begin after ``end``: they are ready to be used again."""
        while self.files[-1].begin > end:
            self._ahead.ready.insert(0, self.files[-1])
            self.files.pop()

    def drop_from(self, index: int) -> list[MappedFile]:
        """Remove files[index:] from the list, close and return them."""
        dropped = self.files[index:]
        del self.files[index:]
        for file in dropped:
            file.close()
        return dropped

    def drop_first(self, file: MappedFile) -> None:
        """Remove the oldest file from the list; it stays mapped for its holders.

        Afterwards the list is a new object: a thread may be iterating over the old one.
        """
        assert self.files[0] is file
        assert len(self.files) > 1, "the newest file stays"
        self.files = self.files[1:]

    def put_back(self, file: MappedFile) -> None:
        """Undo drop_first."""
        assert file.end == self.files[0].begin
        self.files = [file, *self.files]

    def stop_making(self) -> None:
        """Stop the workers and return when they have finished; blocks."""
        self._ahead.stop()

    def close(self) -> None:
        """Unmap all files; remove unused files that were created in advance."""
        unused = self._ahead.close()
        for file in self.files:
            file.close()
        # The last one first: a crash between two must not leave a gap.
        for file in reversed(unused):
            file.close()
            self._storage.remove_file(file.path)

    @property
    def _end(self) -> int:
        return self.files[-1].end if self.files else 0

    def _make(self, begin: int) -> MappedFile:
        path = f"{self._directory}/{file_name(begin)}"
        self._storage.create_file(path, self.file_bytes, sparse=False)
        self._storage.sync_directory(self._directory)
        file = MappedFile(self._storage, self.read_only, path, begin, self.file_bytes)
        # Opened here, so that the thread that appends does not wait for it.
        try:
            self._open(file, 0)
            if self._touch_bytes:
                file.writable().prepare(0, min(self._touch_bytes, file.size))
        except BaseException:
            file.close()
            raise
        return file

    def _made(self) -> list[MappedFile]:
        """Return the files of the list and those created in advance."""
        return [*self.files, *self._ahead.made()]

    def _check(self) -> None:
        """Assert the invariants; not while a file is being created."""
        made = self._made()
        for file, following in pairwise(made):
            assert file.end == following.begin
        if self._buffers is not None:
            in_use = sum(file.is_buffered for file in made)
            assert self._buffers.free_count == self._buffers.count_max - in_use
