"""Units of a queue as they are read, and the records that they locate.

Owns: reading some units and their records, and whether these are the queue's. Must not touch: which
units are read (store_reader), files of units, the repair of one that has changed (quarantine).
"""

from __future__ import annotations

import logging

from motelog.core.errors import RecordError, StoreError
from motelog.core.records.decode import in_queue
from motelog.core.records.dispatch import in_light_queue
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import UNIT, ConsumeQueue

logger = logging.getLogger(__name__)


def read_units(queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
    """Return units of a queue; if a file has changed, it is put aside, which raises.

    StoreError if a file cannot be read.
    """
    try:
        if queue.unchecked or queue.doubtful:
            queue.check_files(queue_offset, count)
        return queue.read(queue_offset, count)
    except OSError as exc:
        raise StoreError(f"a ConsumeQueue file cannot be read: {exc}") from exc


def check_units(queue: ConsumeQueue, queue_offset: int, count: int) -> None:
    """Put files whose units have no records into quarantine, unless they are as written."""
    try:
        queue.check_again(queue_offset, count)
    except OSError as exc:
        raise StoreError(f"a ConsumeQueue file cannot be read: {exc}") from exc


def gather(log: CommitLog, units: bytes, queue: ConsumeQueue, begin: int, end: int) -> bytes | None:
    """Return the records of some units of [begin, end); None if one does not match its unit.

    StoreError if the log cannot be read.
    """
    tail = queue.tail
    try:
        records = log.gather(units) if units else b""
        if in_queue(records, tail.topic, tail.queue_id, begin, end):
            return records
        return records if in_light_queue(records, tail.topic, begin, end) else None
    except OSError as exc:
        raise StoreError(f"a CommitLog file cannot be read: {exc}") from exc
    except RecordError:
        return None


def gather_each(
    log: CommitLog, units: bytes, queue: ConsumeQueue, begin: int, end: int
) -> tuple[bytes, int]:
    """Return the records of [begin, end) that match their units, and their number."""
    parts = []
    for at in range(0, len(units), UNIT_BYTES):
        record = gather(log, units[at : at + UNIT_BYTES], queue, begin, end)
        if record is None:
            logger.error(
                "a record cannot be read and is skipped; motelog store verify names it "
                "directory=%s",
                queue.directory,
            )
        else:
            parts.append(record)
    return b"".join(parts), len(parts)


def is_odd(units: bytes, log_begin: int) -> bool:
    """Return whether a unit names a place below the log's begin, a fault from min_offset on."""
    return any(at < log_begin and size != FILLER_SIZE for at, size, _ in UNIT.iter_unpack(units))
