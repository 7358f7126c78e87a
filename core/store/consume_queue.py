"""ConsumeQueues: for each (topic, queue id) the row of 20-byte units that find its records.

Owns: the unit files, their sizes, the bounded set of mapped ones. Must not touch: records, the
order of recovery. Everything here can be rebuilt from the CommitLog.

    consumequeue/TOPIC/QUEUEID/00000000000000000000   300 000 units of 20 bytes, zero filled;
                                                      named by the byte offset of its first unit
    unit: core/record.py; a filler (0, 0x7FFFFFFF, 0) stands for a record that is lost

Invariants: units [begin_offset, max_offset) are on file; ``tail.next_offset`` = max_offset except
while a batch is between CommitLog and ConsumeQueue; blocks are reserved before they are written.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict

from core.record import FILLER_SIZE, UNIT_BYTES, QueueTail, zeros_from
from core.store.files import Region, Storage
from core.store.mapped_file_queue import NAME_DIGITS, file_name

UNIT = struct.Struct(">qiq")
FILLER = bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
NO_VIEW = memoryview(b"")
RESERVE_BYTES_MIN = 16_384
RESERVE_BYTES_MAX = 1_048_576
# RocketMQ's characters and lengths (TopicValidator): neither a dot nor a slash among them.
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}\Z")
_LONG_TOPIC = re.compile(r"%(?:RETRY|DLQ)%[%|a-zA-Z0-9_-]{1,248}\Z")


def is_topic_name(topic: str) -> bool:
    """Say whether ``topic`` may become the name of a directory."""
    if _TOPIC.match(topic):
        return True
    return len(topic) <= 255 and _LONG_TOPIC.match(topic) is not None


class OpenRegions:
    """The mapped ConsumeQueue files, at most ``count_max``; the one opened first goes first.

    A queue keeps the view of its last file for as long as it is mapped; it is told when that ends.
    """

    def __init__(self, storage: Storage, count_max: int) -> None:
        self.storage = storage
        self._count_max = count_max
        self._regions: OrderedDict[str, tuple[Region, ConsumeQueue]] = OrderedDict()

    def get(self, path: str, size: int, owner: ConsumeQueue) -> Region:
        known = self._regions.get(path)
        if known is not None:
            self._regions.move_to_end(path)
            return known[0]
        region = self.storage.map_file(path, size)
        self._regions[path] = (region, owner)
        if len(self._regions) > self._count_max:
            self.forget(next(iter(self._regions)))
        return region

    def forget(self, path: str) -> None:
        known = self._regions.pop(path, None)
        if known is not None:
            region, owner = known
            owner.let_go()
            region.close()

    def close(self) -> None:
        for path in list(self._regions):
            self.forget(path)


class ConsumeQueue:
    """The units of one queue. Files are opened when they are needed."""

    __slots__ = (
        "_active", "_active_begin", "_active_end", "_directory", "_dirty_from", "_file_units",
        "_min_for", "_paths", "_regions", "_reserved_end", "_storage", "begin_offset",
        "has_new_file", "max_offset", "min_offset", "tail",
    )  # fmt: skip

    def __init__(
        self, regions: OpenRegions, root: str, topic: str, queue_id: int, file_units: int
    ) -> None:
        self._regions = regions
        self._storage = regions.storage
        self._directory = f"{root}/{topic}/{queue_id}"
        self._file_units = file_units
        self._paths: list[str] = []
        self._reserved_end = 0
        # The file that was put into last: its view and the queue offsets it holds.
        self._active = NO_VIEW
        self._active_begin = self._active_end = 0
        self.begin_offset = 0  # of the first unit on file
        self.min_offset = 0  # of the first unit whose record is still in the log
        self._min_for = 0  # the log's begin that min_offset was found for
        self.max_offset = 0
        self._dirty_from: int | None = None  # lowest queue offset written since the last sync
        self.has_new_file = False
        self.tail = QueueTail(topic.encode(), queue_id, 0)

    def load(self) -> str | None:
        """Take the files that are there; return what is wrong with them, None if nothing is."""
        begin = None
        file_bytes = self._file_units * UNIT_BYTES
        for entry in self._storage.list_directory(self._directory):
            path = f"{self._directory}/{entry.name}"
            if len(entry.name) != NAME_DIGITS or not entry.name.isdigit():
                return f"{path}: not a ConsumeQueue file"
            if entry.size != file_bytes:
                return f"{path}: has {entry.size} bytes, expected {file_bytes}"
            expected = None if begin is None else begin + len(self._paths) * file_bytes
            if expected is None:
                begin = int(entry.name)
                if begin % file_bytes:
                    return f"{path}: named by an offset that is no file's"
            elif int(entry.name) != expected:
                return f"{path}: the file before it is missing"
            self._paths.append(path)
        self.begin_offset = (begin or 0) // UNIT_BYTES
        return None

    def wipe(self, begin_offset: int = 0) -> None:
        """Remove every file; the next unit is ``begin_offset``, rounded down to a file's first."""
        for entry in self._storage.list_directory(self._directory):
            path = f"{self._directory}/{entry.name}"
            self._regions.forget(path)
            self._storage.remove_file(path)
        self._paths.clear()
        self._reserved_end = 0
        self._dirty_from = None
        self.begin_offset = begin_offset // self._file_units * self._file_units
        self.set_max_offset(self.begin_offset)

    @property
    def end_on_file(self) -> int:
        """The queue offset at which the last file ends."""
        return self.begin_offset + len(self._paths) * self._file_units

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def is_dirty(self) -> bool:
        """Say whether something was written since take_dirty_paths."""
        return self._dirty_from is not None

    def take_dirty_paths(self) -> list[str]:
        """Return the files written since the last call; the caller syncs them."""
        if self._dirty_from is None:
            return []
        first = max(self._dirty_from - self.begin_offset, 0) // self._file_units
        self._dirty_from = None
        return self._paths[first:]

    def _mark_dirty(self, offset: int) -> None:
        if self._dirty_from is None or offset < self._dirty_from:
            self._dirty_from = offset

    def set_max_offset(self, max_offset: int) -> None:
        """Say where the units end; nothing is written."""
        self.max_offset = max_offset
        self.tail.next_offset = max_offset
        self.let_go()

    @property
    def files_count(self) -> int:
        return len(self._paths)

    def advance_min(self, log_begin: int) -> int:
        """Return min_offset, found again if the log begins elsewhere than the last time."""
        if log_begin != self._min_for:
            self.min_offset = min(self.find_end(log_begin), self.max_offset)
            self._min_for = log_begin
        return self.min_offset

    def take_files_below_min(self) -> list[str]:
        """Give up the files that hold nothing at or above min_offset; the caller removes them.

        The last file stays: it says what the next queue offset is.
        """
        count = min((self.min_offset - self.begin_offset) // self._file_units, len(self._paths) - 1)
        if count <= 0:
            return []
        dropped = self._paths[:count]
        for path in dropped:
            self._regions.forget(path)
        del self._paths[:count]
        self.begin_offset += count * self._file_units
        return dropped

    def ensure_room(self, end_offset: int) -> None:
        """Have files with real blocks for units below ``end_offset``; OSError if that fails."""
        while self.end_on_file < end_offset:
            self._add_file()
        self._reserve(end_offset)
        # Mapped here, where a lack of descriptors can still refuse the batch.
        self._region((end_offset - 1 - self.begin_offset) // self._file_units)
        self.tail.room_end = self._reserved_end

    def _add_file(self) -> None:
        if not self._paths:
            self._storage.make_directory(self._directory)
        begin = self.end_on_file * UNIT_BYTES
        path = f"{self._directory}/{file_name(begin)}"
        self._storage.create_file(path, self._file_units * UNIT_BYTES, sparse=True)
        self._paths.append(path)
        self.has_new_file = True

    def _reserve(self, end_offset: int) -> None:
        """Reserve blocks below ``end_offset`` and, growing with the queue, some beyond."""
        while self._reserved_end < end_offset:
            begin = max(self._reserved_end, self.max_offset)
            index, unit = divmod(begin - self.begin_offset, self._file_units)
            at = unit * UNIT_BYTES
            wanted = min(max(RESERVE_BYTES_MIN, at), RESERVE_BYTES_MAX)
            stop = min(self._file_units * UNIT_BYTES, at + wanted)
            self._region(index).reserve(at, stop)
            self._reserved_end = self.begin_offset + index * self._file_units + stop // UNIT_BYTES

    def _region(self, index: int) -> Region:
        return self._regions.get(self._paths[index], self._file_units * UNIT_BYTES, self)

    def put(self, units: bytes) -> None:
        """Write units at the end, into room that ensure_room has made."""
        offset = self.max_offset
        end = offset + len(units) // UNIT_BYTES
        if end > self._active_end:
            self._put_slowly(units)
        else:
            at = (offset - self._active_begin) * UNIT_BYTES
            self._active[at : at + len(units)] = units
            if self._dirty_from is None:
                self._dirty_from = offset
        self.max_offset = end

    def _put_slowly(self, units: bytes) -> None:
        """Write units at the end where the file is not mapped, or they go into the next one too."""
        self._write(self.max_offset, units)
        index = (self.max_offset + len(units) // UNIT_BYTES - 1 - self.begin_offset) // (
            self._file_units
        )
        region = self._region(index)
        self._active = region.view
        self._active_begin = self.begin_offset + index * self._file_units
        self._active_end = self._active_begin + self._file_units

    def let_go(self) -> None:
        """Forget the view of the last file: it is about to be unmapped.

        The tail has no room until ensure_room has mapped it again.
        """
        self.tail.room_end = 0
        self._active = NO_VIEW
        self._active_begin = self._active_end = 0

    def _write(self, offset: int, units: bytes) -> None:
        """Write units that begin at ``offset``, into as many files as they need."""
        self._mark_dirty(offset)
        rest = memoryview(units)
        while rest:
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            at = unit * UNIT_BYTES
            here = rest[: self._file_units * UNIT_BYTES - at]
            self._region(index).view[at : at + len(here)] = here
            offset += len(here) // UNIT_BYTES
            rest = rest[len(here) :]

    def repair(self, offset: int, units: bytes) -> int:
        """Make the units from ``offset`` on be these; return how many were not already.

        A gap between what is there and ``offset`` is filled with fillers.
        """
        changed = 0
        if offset > self.max_offset:
            gap = FILLER * (offset - self.max_offset)
            changed += self.repair(self.max_offset, gap)
        end = offset + len(units) // UNIT_BYTES
        if self.read(offset, end - offset) != units:
            self.ensure_room(end)
            self._write(offset, units)
            changed += end - offset
        if end > self.max_offset:
            self.set_max_offset(end)
        return changed

    def read(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units from ``offset`` on, whether or not below max_offset."""
        parts = []
        while count > 0 and self.begin_offset <= offset < self.end_on_file:
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            here = min(count, self._file_units - unit)
            at = unit * UNIT_BYTES
            parts.append(bytes(self._region(index).view[at : at + here * UNIT_BYTES]))
            offset += here
            count -= here
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of one unit, zeros if there is none."""
        data = self.read(offset, 1)
        return UNIT.unpack(data) if data else (0, 0, 0)

    def find_end(self, physical_end: int) -> int:
        """Return the offset behind the last unit whose record begins below ``physical_end``."""
        low, high = self.begin_offset, self.end_on_file
        while low < high:
            middle = (low + high) // 2
            physical_offset, size = self._place_of(middle)
            if size > 0 and 0 <= physical_offset < physical_end:
                low = middle + 1
            else:
                high = middle
        return low

    def _place_of(self, offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of a unit; a filler lies where the unit before it does."""
        while True:
            physical_offset, size, _ = self.unit(offset)
            if size != FILLER_SIZE or offset == self.begin_offset:
                return physical_offset, size
            offset -= 1

    def truncate(self, max_offset: int) -> None:
        """Zero every unit from ``max_offset`` on, as far as there are any."""
        for index in range(len(self._paths)):
            begin = self.begin_offset + index * self._file_units
            first = max(max_offset - begin, 0)
            if first >= self._file_units:
                continue
            region = self._region(index)
            for start, stop in region.data_ranges(first * UNIT_BYTES):
                end = zeros_from(region.view, start, stop)
                if end > start:
                    region.view[start:end] = bytes(end - start)
                    self._mark_dirty(max_offset)
        self.set_max_offset(max_offset)
