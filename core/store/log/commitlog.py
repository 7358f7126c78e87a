"""The CommitLog: the one append-only log that all topics share.

Owns: the append path, physical offsets, blank records, reading records back. Must not touch: which
queue a record belongs to (queues), when bytes reach the disk (flush), the start (recovery).

In write-buffer mode (write_buffer) ``commit`` copies appended records into files.
Invariants: [begin_offset, end_offset) consists of whole records and blank records; store timestamps
do not decrease along the log, whatever the clock does; 8 bytes stay free at the end of each file
for its blank record; committed_offset <= end_offset, and equal without write buffers.
Concurrency: commit and sync may be called in any thread, everything else in one.
"""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import RecordError, RecordTooLargeError
from motelog.core.records.append import (
    AppendMessage,
    QueueTail,
    copy_in,
    encode_batch,
    encode_blank,
)
from motelog.core.records.layout import BLANK_BYTES_MIN, FILLER_SIZE
from motelog.core.records.read import copy_out, gather
from motelog.core.records.scan import scan
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.disk.files import Storage
from motelog.core.store.disk.page_cache import Places, joined
from motelog.core.store.log.mapped_file_queue import MappedFile, MappedFileQueue

_PLACE = struct.Struct(">qi8x")  # of a ConsumeQueue unit: physical offset and size

OFFSET_MAX: Final = (1 << 63) - 1
_ZEROS: Final = bytes(4096)


class CommitLog:
    """Append and read by physical offset."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        file_bytes: int,
        *,
        store_host: bytes,
        clock: Clock,
        mapped_max: int,
        buffers_max: int = 0,
        touch_bytes: int = 0,
    ) -> None:
        self.queue = MappedFileQueue(
            storage,
            directory,
            file_bytes,
            mapped_max=mapped_max,
            buffers_max=buffers_max,
            touch_bytes=touch_bytes,
        )
        # The last file's pages are prepared up to _touched_offset; an append past _touch_from
        # prepares more of them.
        self._touch_bytes = touch_bytes
        self._touched_offset = 0
        self._touch_from = OFFSET_MAX
        self._has_buffers = buffers_max > 0
        self._committing = threading.Lock()
        self._committed_offset = 0
        self._store_host = store_host
        self._clock = clock
        self.end_offset = 0
        #: Appends up to here need no further file.
        self.room_end = 0
        self.last_store_timestamp_ms = 0
        # Records below this were written before this start and not checked by it: their CRC is
        # checked when they are read.
        self.verified_from = 0
        self._view = memoryview(b"")
        #: The file that is appended to is [file_begin, file_end) of the log.
        self.file_begin = 0
        self.file_end = 0

    @property
    def begin_offset(self) -> int:
        return self.queue.files[0].begin if self.queue.files else 0

    def start_at(self, end_offset: int, last_store_timestamp_ms: int) -> None:
        """Append from ``end_offset`` on; creates the file for it if there is none."""
        self.end_offset = end_offset
        self.last_store_timestamp_ms = last_store_timestamp_ms
        if not self.queue.files or end_offset >= self.queue.files[-1].end:
            self.queue.add()
        self.queue.open_last(end_offset - self.queue.files[-1].begin)
        self._committed_offset = end_offset
        self._use_last()

    def begin_at(self, offset: int) -> None:
        """Let the log, which has no record, begin at ``offset``, where a file begins; blocks.

        OSErrors are raised unchanged.
        """
        assert self.end_offset == self.begin_offset
        self.queue.begin_at(offset)
        self.end_offset = self._committed_offset = offset
        self._use_last()

    def _use_last(self) -> None:
        file = self.queue.files[-1]
        self._view = file.writable().view
        self.file_begin, self.file_end = file.begin, file.end
        self.room_end = file.end - BLANK_BYTES_MIN
        if self._touch_bytes:
            self._touched_offset = self._touch_from = self.file_begin

    def _touch_ahead(self, end_offset: int) -> None:
        self._touched_offset = self.queue.touch_ahead(end_offset, self._touched_offset)
        at_end = self._touched_offset == self.file_end
        # Before the touched pages have been used up.
        self._touch_from = OFFSET_MAX if at_end else self._touched_offset - self._touch_bytes // 2

    def make_room(self, total_bytes: int, largest_bytes: int, *, may_wait: bool = True) -> None:
        """Prepare the files that a batch of this size may need, so that append cannot fail.

        OSErrors are raised unchanged. RecordTooLargeError for a record that fits into no file.
        Without ``may_wait``, NextFileError if it would have to wait for a file to be created.
        """
        if self.end_offset + total_bytes <= self.room_end:
            return
        # The unused end of a file is smaller than the next record plus a blank record.
        usable = self.queue.file_bytes - largest_bytes - BLANK_BYTES_MIN
        if usable <= 0:
            raise RecordTooLargeError(
                f"a record of {largest_bytes} bytes does not fit a file of {self.queue.file_bytes}"
            )
        self.queue.ensure_ahead(-(-total_bytes // usable), may_wait=may_wait)

    def write(
        self,
        messages: list[AppendMessage],
        dirty: list[QueueTail],
        placed: list[tuple[int, int]] | None,
        store_timestamp_ms: int | None = None,
        fresh: list[QueueTail] | None = None,
    ) -> int:
        """Write messages, which measure and make_room have seen, at the end; return the new end.

        They are in the log as soon as ``end_offset`` is set to it. ``dirty`` gets the queues that
        got units, ``fresh`` those of them that held none before. After an error, only
        ``take_back`` may come next.
        """
        if store_timestamp_ms is None:
            store_timestamp_ms = self._clock.now_ms()
        now_ms = max(store_timestamp_ms, self.last_store_timestamp_ms)
        self.last_store_timestamp_ms = now_ms
        index = 0
        batch_begin = self.end_offset
        position = batch_begin - self.file_begin
        size = self.queue.file_bytes
        while True:
            index, position = encode_batch(
                self._view, position, size, self.file_begin, messages, index, now_ms,
                self._store_host, dirty, placed, batch_begin, fresh,
            )  # fmt: skip
            if index == len(messages):
                break
            encode_blank(self._view, position, size)
            if self.queue.files[-1].is_buffered:
                # A reused buffer has an older file's bytes here, which a full commit would copy.
                begin = position + BLANK_BYTES_MIN
                copy_in(self._view, begin, bytes(size - begin))
            self.queue.add()
            self._use_last()
            position = 0
        end_offset = self.file_begin + position
        if position > size // 2 or end_offset >= self._touch_from:
            self._prepare_ahead(end_offset)
        return end_offset

    def write_raw(self, data: bytes, last_store_timestamp_ms: int) -> int:
        """Write whole records of another log at the end, within a file; return the new end.

        The last one may be the file's blank record, with what lies behind it. Otherwise as
        ``write``.
        """
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, last_store_timestamp_ms)
        copy_in(self._view, self.end_offset - self.file_begin, data)
        end_offset = self.end_offset + len(data)
        if end_offset == self.file_end:
            self.queue.add()
            self._use_last()
        self._prepare_ahead(end_offset)
        return end_offset

    def _prepare_ahead(self, end_offset: int) -> None:
        """Let workers prepare what the next appends need."""
        # The batch is complete: if no thread is free now, the next append asks again.
        with suppress(OSError, *NO_MEMORY):
            if end_offset - self.file_begin > self.queue.file_bytes // 2:
                self.queue.make_ahead()
            if end_offset >= self._touch_from:
                self._touch_ahead(end_offset)

    def take_back(self, total_bytes: int) -> None:
        """Undo a ``write`` of so many bytes: a crash must not leave them after the log's end."""
        for file in self.queue.files:
            if file.end > self.end_offset:
                begin = max(self.end_offset - file.begin, 0)
                end = min(begin + total_bytes + BLANK_BYTES_MIN, file.size)
                view = file.writable().view
                for at in range(begin, end, len(_ZEROS)):
                    copy_in(view, at, _ZEROS[: end - at])
        self.queue.take_back(self.end_offset)
        self._use_last()

    @property
    def committed_offset(self) -> int:
        """Everything below this outlives the process."""
        return self._committed_offset if self._has_buffers else self.end_offset

    def commit(self) -> None:
        """Copy everything appended so far from the buffers into the files; blocks."""
        if not self._has_buffers:
            return
        with self._committing:
            end = self.end_offset
            self.queue.commit(self._committed_offset, end)
            self._committed_offset = end

    def sync(self, begin: int, end: int) -> None:
        """Block until [begin, end) is on disk."""
        self.commit()
        self.queue.sync(begin, end)

    def gather(self, units: bytes) -> bytes:
        """Return the records that units name, concatenated; RecordError if a unit is wrong.

        OSError if a file cannot be mapped or one of its pages cannot be read.
        """
        count = len(units) // 20
        parts = []
        begin = 0
        while begin < count:
            physical_offset = int.from_bytes(units[begin * 20 : begin * 20 + 8], "big")
            file = self.queue.find(physical_offset)
            if file is None or physical_offset >= self.end_offset:
                raise RecordError("a unit names a place outside the log", offset_bytes=begin * 20)
            # The last unit is nearly always in the same file, and then all are: offsets only grow.
            end = count
            while int.from_bytes(units[end * 20 - 20 : end * 20 - 12], "big") >= file.end:
                end -= 1
            verify = physical_offset < self.verified_from
            try:
                parts.append(gather(file.region.view, file.begin, units, begin, end, verify))
            except OSError as exc:
                raise _naming(file, exc) from exc
            begin = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def places(self, units: bytes) -> list[Places]:
        """Return the places, by file, of the records that units name."""
        found: list[Places] = []
        file, ranges = None, list[tuple[int, int]]()
        for physical_offset, size in _PLACE.iter_unpack(units):
            if file is None or not file.begin <= physical_offset < file.end:
                if file is not None:
                    found.append(Places(file.path, joined(ranges)))
                file, ranges = self.queue.find(physical_offset), []
            # Fillers name nothing, and units corrupted on disk may contain anything.
            if file is not None and 0 < size < FILLER_SIZE:
                begin = physical_offset - file.begin
                ranges.append((begin, min(begin + size, file.size)))
        if file is not None:
            found.append(Places(file.path, joined(ranges)))
        return found

    def size_at(self, physical_offset: int) -> int:
        """Return the size field of the record at an offset; 0 if it cannot be read."""
        file = self.queue.find(physical_offset)
        if file is None:
            return 0
        at = physical_offset - file.begin
        try:
            return int.from_bytes(copy_out(file.view, at, min(at + 4, file.size)), "big")
        except OSError:
            return 0

    def record_at(self, physical_offset: int) -> bytes:
        """Return the intact record at an offset; RecordError if there is none.

        OSError as in gather.
        """
        file = self.queue.find(physical_offset)
        if file is None or not self.begin_offset <= physical_offset < self.end_offset:
            raise RecordError("outside the log", offset_bytes=physical_offset)
        at = physical_offset - file.begin
        end = min(self.end_offset - file.begin, file.size)
        try:
            found, stop_at, stop = scan(file.view, at, end, file.begin, 1)
            if found:
                return copy_out(file.view, at, stop_at)
        except OSError as exc:
            raise _naming(file, exc) from exc
        raise RecordError(f"no record begins here ({stop.name})", offset_bytes=physical_offset)

    def close(self) -> None:
        self._view = memoryview(b"")
        self.queue.close()


def _naming(file: MappedFile, error: OSError) -> OSError:
    """Return the error with the name of its file."""
    return OSError(error.errno, error.strerror, file.path)
