"""ConsumeQueues: for each (topic, queue id) the row of 20-byte units that locate its records.

Owns: the unit files, their names and sizes, the bounded set of open ones. Must not touch: records,
the order of recovery, when units are written (unit_flusher). Everything here can be rebuilt from
the CommitLog.

    consumequeue/TOPIC/QUEUEID/00000000000000000000   300 000 units of 20 bytes, zero filled;
                                                      named by the byte offset of its first unit
    unit: core/records/layout.py; a filler (0, 0x7FFFFFFF, 0) replaces a lost record

      begin_offset            written_offset              max_offset
           |  units on file         |  units in the tail      |

Each file has a CRC-32C of its units. It is kept across a stop (queues.json), and checked when the
file is first read after a start. A file that has changed since is doubtful: it is not read until
it has been rebuilt from the log (quarantine).

Invariants: each unit below max_offset is on file or in the tail, and leaves the tail only when it
is on file; files are contiguous, and each has its full size.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from motelog.core.records.append import QueueTail
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES
from motelog.core.records.scan import zeros_from
from motelog.core.store.disk.files import TEMPORARY, Piece, ReadFile, Storage
from motelog.core.store.disk.page_cache import Places
from motelog.core.store.log.mapped_file_queue import NAME_DIGITS, file_name

UNIT = struct.Struct(">qiq")
FILLER = bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
UNKNOWN_CRC = -1
QUEUE_ID_MAX = 65_535
HOLE_UNITS = 16_384  # the same for a search for holes
BLOCK_UNITS = 204  # read at once in a search for units: 4080 bytes


class OpenFiles:
    """The ConsumeQueue files open for reading, at most ``count_max``, the last used one last."""

    def __init__(self, storage: Storage, count_max: int) -> None:
        self.storage = storage
        self._count_max = count_max
        self._files: OrderedDict[str, ReadFile] = OrderedDict()
        # Called with a queue and the first offset of a doubtful file that is to be read; raises.
        self.put_aside: Callable[[ConsumeQueue, int], None] = lambda queue, begin: None

    def get(self, path: str) -> ReadFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._files[path] = self.storage.open_file(path)
        if len(self._files) > self._count_max:
            self._files.popitem(last=False)[1].close()
        return file

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for path in list(self._files):
            self.forget(path)


class Unsynced(NamedTuple):
    """The part of a queue that is not on the disk: units from ``offset`` on, perhaps a name."""

    offset: int
    has_new_file: bool


class ConsumeQueue:
    """The units of one queue: the newest in ``tail``, the others on file."""

    __slots__ = (
        "_crc_end", "_crcs", "_directory", "_file_units", "_files", "_has_new_file", "_kept_from",
        "_min_for", "_unproven", "_unsynced_from", "begin_offset", "doubtful", "files_count",
        "hidden_below", "min_offset", "opened_at", "tail", "unchecked",
    )  # fmt: skip

    def __init__(
        self, files: OpenFiles, root: str, topic: str, queue_id: int, file_units: int
    ) -> None:
        self._files = files
        self._directory = f"{root}/{topic}/{queue_id}"
        self._file_units = file_units
        self.files_count = 0
        self.begin_offset = 0  # of the first unit on file
        self.min_offset = 0  # of the first unit that may be read
        self.hidden_below = 0  # units of a deleted topic: their records are still in the log
        self._kept_from = 0  # of the first unit whose record is still in the log
        self._min_for = 0  # the log's begin that _kept_from was found for
        self._unsynced_from: int | None = None  # lowest queue offset written since the last sync
        self._has_new_file = False
        # Units from here on were written since the start.
        self.opened_at = 0
        # One CRC for each file from the first one on, over its units below _crc_end.
        self._crcs: list[int] = []
        self._crc_end = 0
        # Sets of file numbers (queue offset / units of a file), as bits: files not yet compared
        # with their CRC; files that have changed since it was known.
        self.unchecked = 0
        self.doubtful = 0
        self._unproven = 0  # files whose CRC was not known: it was computed from the file itself
        self.tail = QueueTail(topic.encode(), queue_id, 0)

    # -- files -----------------------------------------------------------------------------

    def load(self) -> str | None:
        """Load the existing files; return their fault, None if there is no fault.

        A power cut may leave a file too short. It is extended to its size, and its missing units
        count as never written.
        """
        file_bytes = self._file_units * UNIT_BYTES
        begin = 0
        written_end: int | None = None
        for entry in self._storage.list_directory(self._directory):
            path = f"{self._directory}/{entry.name}"
            if entry.name.endswith(TEMPORARY) and not entry.is_directory:
                self._storage.remove_file(path)
                continue
            if len(entry.name) != NAME_DIGITS or not entry.name.isdigit() or entry.is_directory:
                return f"{path}: not a ConsumeQueue file"
            if entry.size > file_bytes:
                return f"{path}: has {entry.size} bytes, expected {file_bytes}"
            if not self.files_count:
                begin = int(entry.name)
                if begin % file_bytes:
                    return f"{path}: named by an offset at which no file begins"
                self.begin_offset = begin // UNIT_BYTES
            elif int(entry.name) != begin + self.files_count * file_bytes:
                return f"{path}: the file before it is missing"
            if entry.size < file_bytes:
                if written_end is None:
                    written_end = int(entry.name) // UNIT_BYTES + entry.size // UNIT_BYTES
                self._storage.write_files([(path, entry.size, b"")], file_bytes)
            self.files_count += 1
        self.tail.reset(self.end_on_file if written_end is None else written_end)
        return None

    def wipe(self, begin_offset: int = 0) -> None:
        """Remove every file; the next unit is ``begin_offset``, rounded down to a file's first."""
        for entry in self._storage.list_directory(self._directory):
            path = f"{self._directory}/{entry.name}"
            self._files.forget(path)
            self._storage.remove_file(path)
        self.files_count = 0
        self._unsynced_from = None
        self.begin_offset = begin_offset // self._file_units * self._file_units
        self._min_for = 0
        self.tail.reset(self.begin_offset)
        self._crcs = []
        self._crc_end = self.begin_offset
        self.unchecked = self.doubtful = self._unproven = 0

    def units_before(self, offset: int) -> int:
        """Return how many units the file that holds unit ``offset`` has before it."""
        return offset % self._file_units

    @property
    def _storage(self) -> Storage:
        return self._files.storage

    def _path(self, index: int) -> str:
        """Return the path of a file by its number; the first existing file is 0."""
        begin = self.begin_offset + index * self._file_units
        return f"{self._directory}/{file_name(begin * UNIT_BYTES)}"

    @property
    def end_on_file(self) -> int:
        """The queue offset at which the last file ends."""
        return self.begin_offset + self.files_count * self._file_units

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def max_offset(self) -> int:
        """The queue offset that the next unit will get."""
        return self.tail.next_offset

    @property
    def written_offset(self) -> int:
        """Units below this offset are on file, those from it on in the tail."""
        return self.tail.first_offset

    def set_max_offset(self, max_offset: int) -> None:
        """Set where the units on file end; nothing is written, the tail is emptied."""
        self.tail.reset(max_offset)

    def advance_min(self, log_begin: int) -> int:
        """Return min_offset, found again if the log's begin has changed since the last call."""
        if log_begin != self._min_for:
            self._kept_from = self.find_end(log_begin)
            self._min_for = log_begin
            self.min_offset = max(self._kept_from, self.hidden_below)
        return self.min_offset

    def hide_below(self, offset: int) -> None:
        """Hide the units below ``offset``; must be called again after each start.

        Their files are removed with the log's files: a rebuild from the log would restore them.
        """
        self.hidden_below = offset
        self.min_offset = max(self._kept_from, offset)

    def take_files_below_min(self) -> list[str]:
        """Drop the files that hold only units without a record; the caller removes them.

        The last file stays: it gives the next queue offset.
        """
        count = min((self._kept_from - self.begin_offset) // self._file_units, self.files_count - 1)
        if count <= 0:
            return []
        dropped = [self._path(index) for index in range(count)]
        for path in dropped:
            self._files.forget(path)
        self.files_count -= count
        del self._crcs[:count]
        self.begin_offset += count * self._file_units
        return dropped

    # -- writing ---------------------------------------------------------------------------

    def pieces(self, offset: int, units: bytes) -> list[Piece]:
        """Return the pieces of files to write for units from ``offset`` on."""
        pieces = []
        at = 0
        while at < len(units):
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            here = units[at : at + (self._file_units - unit) * UNIT_BYTES]
            pieces.append((self._path(index), unit * UNIT_BYTES, here))
            offset += len(here) // UNIT_BYTES
            at += len(here)
        return pieces

    def unwritten(self) -> tuple[list[Piece], int]:
        """Return the pieces to write, and the end offset to pass to ``note_written`` afterwards."""
        tail = self.tail
        first, count = tail.first_offset, tail.pending
        return self.pieces(first, tail.units(first, count)), first + count

    def note_written(self, end_offset: int) -> None:
        """Drop units below ``end_offset`` from the tail: they are on file."""
        first = self.tail.first_offset
        if end_offset <= first:
            return
        self._add_to_crcs(first, self.tail.units(first, end_offset - first))
        self.tail.drop(end_offset)
        self._mark_unsynced(first)
        if end_offset > self.end_on_file:
            self.files_count = -(-(end_offset - self.begin_offset) // self._file_units)
            self._has_new_file = True

    def _mark_unsynced(self, offset: int) -> None:
        if self._unsynced_from is None or offset < self._unsynced_from:
            self._unsynced_from = offset

    @property
    def is_unsynced(self) -> bool:
        """Return whether units were written since take_unsynced."""
        return self._unsynced_from is not None

    def take_unsynced(self) -> Unsynced:
        """Return the part to sync; from now on it counts as synced."""
        offset = self.max_offset if self._unsynced_from is None else self._unsynced_from
        taken = Unsynced(offset, self._has_new_file)
        self._unsynced_from = None
        self._has_new_file = False
        return taken

    def put_back_unsynced(self, unsynced: Unsynced) -> None:
        """Undo take_unsynced."""
        self._mark_unsynced(unsynced.offset)
        self._has_new_file |= unsynced.has_new_file

    def paths_from(self, offset: int) -> list[str]:
        """Return the files that hold, or will hold, units from ``offset`` on, in order."""
        first = max(offset - self.begin_offset, 0) // self._file_units
        return [self._path(index) for index in range(first, self.files_count)]

    def truncate(self) -> bool:
        """Zero the files from max_offset on; return whether there was anything to zero.

        All units must be on file.
        """
        pieces: list[Piece] = []
        for index in range(self.files_count):
            begin = self.begin_offset + index * self._file_units
            first = max(self.max_offset - begin, 0)
            if first >= self._file_units:
                continue
            file = self._files.get(self._path(index))
            for start, stop in file.data_ranges(first * UNIT_BYTES):
                data = file.read(start, stop - start)
                end = zeros_from(data, 0, len(data))
                if end:
                    pieces.append((self._path(index), start, bytes(end)))
        if not pieces:
            return False
        self._storage.write_files(pieces, self._file_units * UNIT_BYTES)
        self._mark_unsynced(self.max_offset)
        return True

    def fill_holes(self, end: int) -> int:
        """Put fillers in place of missing units below ``end``; return their number.

        For removed records: if a crash has lost their units, these cannot be rebuilt, and a search
        of the units would take a hole for their end.
        """
        filled = 0
        for begin in range(self.begin_offset, end, HOLE_UNITS):
            units = bytearray(self.read_files(begin, min(HOLE_UNITS, end - begin)))
            holes = [n for n, (_, size, _) in enumerate(UNIT.iter_unpack(units)) if size <= 0]
            if holes:
                for number in holes:
                    units[number * UNIT_BYTES : (number + 1) * UNIT_BYTES] = FILLER
                pieces = self.pieces(begin, bytes(units))
                self._storage.write_files(pieces, self._file_units * UNIT_BYTES)
                self._mark_unsynced(begin)
                self.forget_crcs(begin)
                filled += len(holes)
        return filled

    # -- checksums -------------------------------------------------------------------------

    def crcs(self) -> list[int]:
        """Return the CRC-32C of each file's units below written_offset, UNKNOWN_CRC for some."""
        return self._crcs.copy()

    def adopt_crcs(self, end_offset: int, crcs: list[int]) -> None:
        """Adopt the known CRCs of the units below ``end_offset``, one per file.

        The files were written by an earlier process: they are checked when they are read.
        """
        count = -(-(end_offset - self.begin_offset) // self._file_units)
        if count <= 0:
            return
        self._crcs = [UNKNOWN_CRC] * (count - len(crcs)) + crcs[max(len(crcs) - count, 0) :]
        self._crc_end = end_offset
        first = self.begin_offset // self._file_units
        self.unchecked = ((1 << count) - 1) << first

    def forget_crcs(self, offset: int) -> None:
        """Forget the CRCs of units from ``offset`` on, which have changed."""
        for index in range((offset - self.begin_offset) // self._file_units, len(self._crcs)):
            self._crcs[index] = UNKNOWN_CRC

    def settle_crcs(self) -> None:
        """Adapt the CRCs to the units on file, which may be fewer than were known."""
        written = self.tail.first_offset
        if self._crc_end > written:
            self._crc_end = written
            del self._crcs[self.files_count :]
            self.forget_crcs(written)

    def _add_to_crcs(self, offset: int, units: bytes) -> None:
        if offset > self._crc_end:
            # The units in between were already on file, and their CRC is unknown.
            first = (self._crc_end - self.begin_offset) // self._file_units
            count = -(-(offset - self.begin_offset) // self._file_units)
            self._crcs[first:] = [UNKNOWN_CRC] * (count - first)
        at = max(self._crc_end - offset, 0) * UNIT_BYTES
        while at < len(units):
            index, unit = divmod(offset + at // UNIT_BYTES - self.begin_offset, self._file_units)
            here = units[at : at + (self._file_units - unit) * UNIT_BYTES]
            if index == len(self._crcs):
                self._crcs.append(0)
            if self._crcs[index] != UNKNOWN_CRC:
                self._crcs[index] = crc32c(here, self._crcs[index])
            at += len(here)
        self._crc_end = max(self._crc_end, offset + len(units) // UNIT_BYTES)

    def check_files(self, offset: int, count: int) -> None:
        """Put aside, and raise for, changed files that hold some of these units.

        The first check of a file after a start reads the whole file.
        """
        if self.unchecked | self.doubtful:
            for number in self._numbers(offset, count):
                if self.unchecked >> number & 1:
                    self._check_file(number)
                if self.doubtful >> number & 1:
                    self._files.put_aside(self, number * self._file_units)

    def check_again(self, offset: int, count: int) -> None:
        """Check the files again because one of these units has no record; raises as check_files.

        If it returns, the files are as they were written, and the record is lost.
        """
        for number in self._numbers(offset, min(count, self.tail.first_offset - offset)):
            self._check_file(number)
            self.doubtful |= self._unproven & 1 << number
        self.check_files(offset, count)

    def _numbers(self, offset: int, count: int) -> range:
        """Return the numbers of the files that hold these units."""
        return range(offset // self._file_units, -(-(offset + count) // self._file_units))

    def is_unchecked(self, offset: int) -> bool:
        """Return whether the file that holds a unit has not been compared with its CRC yet."""
        return bool(self.unchecked >> offset // self._file_units & 1)

    def _check_file(self, number: int) -> None:
        """Compare a file with its CRC; if that is not known, use the file's own."""
        index = number - self.begin_offset // self._file_units
        if 0 <= index < len(self._crcs):
            begin = number * self._file_units
            end = min(begin + self._file_units, self._crc_end)
            found = crc32c(self.read_files(begin, end - begin))
            if self._crcs[index] == UNKNOWN_CRC:
                self._crcs[index] = found
                self._unproven |= 1 << number
            elif found != self._crcs[index]:
                self.doubtful |= 1 << number
        # Only now: if the read above failed, the file must be compared later.
        self.unchecked &= ~(1 << number)

    def file_end(self, begin: int) -> int:
        """Return where the units on file end in the file that begins with unit ``begin``."""
        return min(begin + self._file_units, self.tail.first_offset)

    def rewrite(self, begin: int, units: bytes) -> None:
        """Write the units of a file; raises OSError. From any thread."""
        self._storage.write_files(self.pieces(begin, units), self._file_units * UNIT_BYTES)

    def trust(self, begin: int) -> None:
        """Allow reads of the file that begins with unit ``begin``: it agrees with the log."""
        number = begin // self._file_units
        self._crcs[number - self.begin_offset // self._file_units] = UNKNOWN_CRC
        self._check_file(number)
        self.doubtful &= ~(1 << number)
        self._unproven &= ~(1 << number)
        self._mark_unsynced(begin)

    # -- reading ---------------------------------------------------------------------------

    def read(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units from ``offset`` on; none at or above max_offset."""
        written = self.tail.first_offset
        if offset >= written:
            return self.tail.units(offset, count)
        end = offset + count
        if end <= written:
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            if index < 0 or unit + count > self._file_units:
                return self.read_files(offset, count)
            # Written units in one file: nearly each pull reads this way.
            size = count * UNIT_BYTES
            data = self._files.get(self._path(index)).read(unit * UNIT_BYTES, size)
            return data if len(data) == size else data.ljust(size, b"\0")
        return self.read_files(offset, written - offset) + self.tail.units(written, end - written)

    def read_files(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units from ``offset`` on as the files have them, wherever their
        units end; zeros where a file is too short."""
        parts = []
        written = self.tail.first_offset
        while count > 0 and self.begin_offset <= offset < self.end_on_file:
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            here = min(count, self._file_units - unit)
            size = here * UNIT_BYTES
            file = self._files.get(self._path(index))
            at = unit * UNIT_BYTES
            wanted = size
            # Nothing is read after the last written unit: that would fill the cache with zeros.
            # Its place is looked up only if this read may pass it, which pulls do not.
            if offset + here > written:
                ends = [stop for start, stop in file.data_ranges(at) if start < at + size]
                wanted = min(size, max(ends, default=at) - at)
            data = file.read(at, wanted)
            parts.append(data if len(data) == size else data.ljust(size, b"\0"))
            offset += here
            count -= here
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def places(self, offset: int, count: int) -> list[Places]:
        """Return the places on file of up to ``count`` units from ``offset`` on.

        If a file has not been compared with its CRC yet, all of it: the read will compare it.
        """
        found = []
        count = min(count, self.tail.first_offset - offset)
        while count > 0 and self.begin_offset <= offset < self.end_on_file:
            index, unit = divmod(offset - self.begin_offset, self._file_units)
            here = min(count, self._file_units - unit)
            begin, end = unit, unit + here
            if self.is_unchecked(offset):
                begin, end = 0, min(self._file_units, self.tail.first_offset - offset + unit)
            ranges = ((begin * UNIT_BYTES, end * UNIT_BYTES),)
            found.append(Places(self._path(index), ranges))
            offset += here
            count -= here
        return found

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of one unit, zeros if there is none."""
        data = self.read(offset, 1)
        return UNIT.unpack(data) if data else (0, 0, 0)

    def find_end(self, physical_end: int, guess: int | None = None) -> int:
        """Return the offset after the last unit whose record begins below ``physical_end``.

        With a good guess only a few units are read.
        """
        block, block_begin = b"", 0

        def unit(offset: int) -> tuple[int, int, int]:
            nonlocal block, block_begin
            at = (offset - block_begin) * UNIT_BYTES
            if not 0 <= at < len(block):
                block_begin = max(offset - BLOCK_UNITS // 2, self.begin_offset)
                self.check_files(block_begin, BLOCK_UNITS)
                block = self.read(block_begin, BLOCK_UNITS)
                at = (offset - block_begin) * UNIT_BYTES
            return UNIT.unpack_from(block, at)

        def is_below(offset: int) -> bool:
            physical_offset, size, _ = unit(offset)
            # A filler counts as being at the place of the unit before it.
            while size == FILLER_SIZE and offset > self.begin_offset:
                offset -= 1
                physical_offset, size, _ = unit(offset)
            return size > 0 and 0 <= physical_offset < physical_end

        low, high = self.begin_offset, self.max_offset
        step = BLOCK_UNITS // 2
        while guess is not None and low < guess <= high:
            if is_below(guess - 1):
                low = guess
                if guess == high or not is_below(guess):
                    return guess
                break
            high = guess - 1
            guess -= step
            step *= 4
        while low < high:
            middle = (low + high) // 2
            if is_below(middle):
                low = middle + 1
            else:
                high = middle
        return low
