"""Records read in a broker's own files, by a client on its machine that may read them.

Owns: MappedLog: the key to the broker's folder, the one file that is mapped. Must not touch:
sockets; which records there are: the broker says that with each pull, and its answer has
ConsumeQueue units in place of records (core.reader_key).

    pull                  -> records, and where the folder is  -> its key is read
    pull with that key    -> units                             -> records are read in the files

Invariants: what a unit names is checked as the broker does it before it answers with records:
place, size, topic, queue, ascending queue offsets, and the CRC where a start has left that to
readers. What fails is not judged here: all is asked for as records from there on. The files are
only read. One that is removed while it is mapped stays; one that is cut is an error.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from typing import Final

from motelog.bridge.errors import UnreadableLogError
from motelog.core.errors import RecordError
from motelog.core.message import MessageQueue
from motelog.core.reader_key import read_key
from motelog.core.records.decode import in_queue
from motelog.core.records.layout import UNIT_BYTES
from motelog.core.records.read import gather

logger = logging.getLogger(__name__)

#: Folder and key of each broker's log, by its name, as far as they are known.
FoundLogs = dict[str, tuple[str, str]]

#: Fewer records are sent sooner than a file is mapped.
COUNT_MIN: Final = 1000
#: How many bytes of records to ask for when only their units are sent.
BYTES_MAX: Final = 4_194_304
# Records copied at once: few enough to be in the processor's cache when they are decoded.
_PIECE_UNITS: Final = 200
_NAME_DIGITS: Final = 20


class MappedLog:
    """The log of the broker that has ``queue``; for one thread.

    ``found`` is what this process knows of logs; several threads may have it.
    """

    def __init__(self, queue: MessageQueue, found: FoundLogs) -> None:
        self._found = found
        self._queue = queue
        self._topic = queue.topic.encode()
        #: What to send with a pull: empty until the broker has said where it is, None: nothing.
        self.key: str | None
        self._folder, self.key = found.get(queue.broker_name, ("", ""))
        self._file: mmap.mmap | None = None
        self._file_begin = 0

    def offered(self, folder: str, key_sent: str | None) -> None:
        """Note where the broker's log is, as it did not take the key that it was sent."""
        if self.key is None:
            return
        key = read_key(folder) if os.path.isabs(folder) else None
        # One that was refused and is still there is the key to another folder of this name.
        if key is None or key == key_sent:
            self._give_up()
        elif key != self.key:
            self.close()
            self._folder, self.key = self._found[self._queue.broker_name] = folder, key

    def pieces(self, units: bytes, begin: int, end: int, *, verified_from: int) -> Iterator[bytes]:
        """Yield the records of the queue's [begin, end) that ``units`` name, in pieces.

        UnreadableLogError where one is not there; then no further pull has a key.
        """
        count = len(units) // UNIT_BYTES
        at = 0
        while at < count:
            try:
                records, at = self._piece(units, at, min(at + _PIECE_UNITS, count), verified_from)
                if not in_queue(records, self._topic, self._queue.queue_id, begin, end):
                    raise RecordError("a unit names another queue's record", offset_bytes=0)
            except (OSError, ValueError, RecordError) as exc:
                logger.info(
                    "a broker's files cannot be read here; it is asked for records"
                    " topic=%s broker=%s queue_id=%d folder=%s error=%s",
                    *(self._queue.topic, self._queue.broker_name, self._queue.queue_id),
                    self._folder,
                    exc,
                )
                self._give_up()
                raise UnreadableLogError(str(exc)) from exc
            yield records

    def _piece(self, units: bytes, at: int, end: int, verified_from: int) -> tuple[bytes, int]:
        """Return the records of units[at:end] that are in one file, and up to which unit."""
        physical_offset = _place(units, at)
        file = self._map(physical_offset)
        file_end = self._file_begin + len(file)
        # Nearly always the last unit is in the same file, and then all are: they only grow.
        while end > at + 1 and _place(units, end - 1) >= file_end:
            end -= 1
        verify = physical_offset < verified_from
        return gather(file, self._file_begin, units, at, end, verify), end

    def _map(self, physical_offset: int) -> mmap.mmap:
        """Return the file that holds an offset, if it is there."""
        file = self._file
        if file is not None and 0 <= physical_offset - self._file_begin < len(file):
            return file
        self.close()
        directory = f"{self._folder}/commitlog"
        names = [name for name in os.listdir(directory) if len(name) == _NAME_DIGITS]
        begins = [int(name) for name in names if name.isdecimal()]
        begin = max(begin for begin in begins if begin <= physical_offset)
        with open(f"{directory}/{begin:0{_NAME_DIGITS}}", "rb") as opened:
            self._file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._file_begin = begin
        return self._file

    def _give_up(self) -> None:
        self.key = None
        self._found.pop(self._queue.broker_name, None)
        self.close()

    def close(self) -> None:
        """Let go of the file; what is needed again is mapped again."""
        # Its last reference unmaps it. Closed while frames of an error look at it, it would raise.
        self._file = None


def _place(units: bytes, index: int) -> int:
    at = index * UNIT_BYTES
    return int.from_bytes(units[at : at + 8], "big", signed=True)
