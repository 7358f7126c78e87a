"""Reading records directly from a broker's files, by a client on its machine that may read them.

Owns: MappedLog: the key in the broker's folder, the currently mapped file. Must not touch: sockets;
which records exist: the broker says so with each pull, whose answer has ConsumeQueue units instead
of records (core.reader_key).

    pull                  -> records, and the folder's path    -> the key is read from there
    pull with that key    -> units                             -> records are read from the files

Invariants: the record of a unit is checked as the broker checks it before it answers with records:
place, size, topic, queue, ascending queue offsets, and the CRC if a start has left that to readers.
A failed check is not interpreted here: from then on the client pulls records. The files are only
read. A file that is removed while mapped stays readable; a truncated one is an error.
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

#: Broker name -> folder and key of its log, as far as known.
FoundLogs = dict[str, tuple[str, str]]

#: Fewer records are sent faster than a file is mapped.
COUNT_MIN: Final = 1000
#: How many bytes of records to request when only units are sent.
BYTES_MAX: Final = 4_194_304
# Records copied at once: few enough to stay in the processor's cache until they are decoded.
_PIECE_UNITS: Final = 200
_NAME_DIGITS: Final = 20


class MappedLog:
    """The log of the broker with ``queue``; used by one thread.

    ``found`` is what this process knows of brokers' logs; threads may share it.
    """

    def __init__(self, queue: MessageQueue, found: FoundLogs) -> None:
        self._found = found
        self._queue = queue
        self._topic = queue.topic.encode()
        #: The key to send with a pull; empty until the broker has named its folder, None: no key.
        self.key: str | None
        self._folder, self.key = found.get(queue.broker_name, ("", ""))
        self._file: mmap.mmap | None = None
        self._file_begin = 0

    def offered(self, folder: str, key_sent: str | None) -> None:
        """Record the folder that the broker named because it did not accept the key sent."""
        if self.key is None:
            return
        key = read_key(folder) if os.path.isabs(folder) else None
        # If the refused key is still in the folder, it is another folder with the same path.
        if key is None or key == key_sent:
            self._give_up()
        elif key != self.key:
            self.close()
            self._folder, self.key = self._found[self._queue.broker_name] = folder, key

    def pieces(self, units: bytes, begin: int, end: int, *, verified_from: int) -> Iterator[bytes]:
        """Yield the records of the queue's [begin, end) that ``units`` name, in pieces.

        UnreadableLogError if a record cannot be read; after that no pull carries a key.
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
                    "a broker's files cannot be read here; records are pulled from it instead"
                    " topic=%s broker=%s queue_id=%d folder=%s error=%s",
                    *(self._queue.topic, self._queue.broker_name, self._queue.queue_id),
                    self._folder,
                    exc,
                )
                self._give_up()
                raise UnreadableLogError(str(exc)) from exc
            yield records

    def _piece(self, units: bytes, at: int, end: int, verified_from: int) -> tuple[bytes, int]:
        """Return the records of units[at:end] that are in one file, and the unit after them."""
        physical_offset = _place(units, at)
        file = self._map(physical_offset)
        file_end = self._file_begin + len(file)
        # The last unit is nearly always in the same file, and then all are: offsets only grow.
        while end > at + 1 and _place(units, end - 1) >= file_end:
            end -= 1
        verify = physical_offset < verified_from
        return gather(file, self._file_begin, units, at, end, verify), end

    def _map(self, physical_offset: int) -> mmap.mmap:
        """Map and return the file that contains an offset."""
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
        """Release the file; it is mapped again when needed."""
        # The last reference unmaps it. Closing it would raise while an error's frames refer to it.
        self._file = None


def _place(units: bytes, index: int) -> int:
    at = index * UNIT_BYTES
    return int.from_bytes(units[at : at + 8], "big", signed=True)
