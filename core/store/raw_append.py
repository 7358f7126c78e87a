"""Raw append: a follower's log grows by the bytes of its leader's log, at the same offsets.

Owns: RawAppender: which received bytes become part of the log, what is held back until its record
is complete, the units of these records. Must not touch: connections and frames, how a record is
checked (records.scan), files, the append of messages (message_store).

    ... records, queued and readable | part of a record, in memory |
                                 end_offset                  received_offset

Bytes may be cut anywhere. Only whole records that passed the checks of a start are written, so a
crash leaves no more than a crash in any append. A blank record is written with the bytes behind
it: the files are those of the leader, byte for byte.
Invariant: a refused record, and what follows it, has changed nothing; those before it are in the
log.
Spec: RocketMQ DefaultHAClient, DefaultMessageStore.appendToCommitLog, ConsumeQueue.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from motelog.core.errors import ReceivedOffsetError, ReceivedRecordError
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import QueueTail
from motelog.core.records.layout import (
    BLANK_BYTES_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    REASONS,
    RECORD_BYTES_MIN,
    UNIT_BYTES,
    ScanStop,
)
from motelog.core.records.scan import UnitRun, collect
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.store.append_steps import AppendSteps
from motelog.core.store.due_time import WAITING_TOPICS, DueTimes
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.queues.consume_queue import FILLER, QUEUE_ID_MAX, ConsumeQueue
from motelog.core.store.queues.unit_flusher import UnitFlusher
from motelog.core.topic_names import LMQ_PREFIX, is_topic_name

logger = logging.getLogger(__name__)

SECTOR_BYTES: Final = 512
#: More than a record has besides its body.
BESIDE_BODY_BYTES_MAX: Final = 33_792
_HEAD: Final = struct.Struct(">II")  # size, magic

QueueKey = tuple[str, int]


class Announce(Protocol):
    def __call__(
        self,
        dirty: list[QueueTail],
        messages_count: int,
        began_at: int,
        began_ns: int,
        *,
        has_keys: bool,
    ) -> None: ...


class _Part(NamedTuple):
    """The whole records at the front of some bytes, and what follows them.

    ``needed`` is the number of bytes that the next record needs, 0 if there are none of it;
    ``fault`` says why there can be no record.
    """

    runs: list[UnitRun]
    end: int
    records: int
    last_ms: int
    needed: int = 0
    fault: ReceivedRecordError | None = None


class _Units(NamedTuple):
    """Units to add to a queue; a new one begins with ``begin_offset`` if that is above 0."""

    key: QueueKey
    units: bytes
    begin_offset: int


class RawAppender:
    """The receiving end of one follower's store."""

    def __init__(
        self,
        log: CommitLog,
        steps: AppendSteps,
        unit_flusher: UnitFlusher,
        due_times: DueTimes,
        queues: Mapping[QueueKey, ConsumeQueue],
        queue_tail: Callable[[str, int], QueueTail],
        announce: Announce,
        *,
        message_bytes_max: int,
    ) -> None:
        self._log = log
        self._steps = steps
        self._unit_flusher = unit_flusher
        self._due_times = due_times
        self._queues = queues
        self._queue_tail = queue_tail
        self._announce = announce
        self._record_bytes_max = message_bytes_max + BESIDE_BODY_BYTES_MAX
        # The first bytes of a record, and how many it needs as far as they say so.
        self._held = bytearray()
        self._needed = 0
        self._lines = LimitedLog(logger)

    @property
    def received_offset(self) -> int:
        """The physical offset of the next byte wanted."""
        return self._log.end_offset + len(self._held)

    def drop_received(self) -> None:
        """Forget what is held back."""
        self._held = bytearray()
        self._needed = 0

    def append(self, offset: int, data: bytes | memoryview, *, may_wait: bool = True) -> int:
        """Append what is complete by now, hold back the rest; return the log's new end."""
        if offset != self.received_offset and not self._began_at(offset):
            raise ReceivedOffsetError(offset=offset, expected=self.received_offset)
        rest = memoryview(data)
        while rest:
            here = self._log.file_end - self.received_offset
            self._append_in_file(rest[:here], may_wait=may_wait)
            rest = rest[here:]
        return self._log.end_offset

    def _began_at(self, offset: int) -> bool:
        """Let a log without a record begin at ``offset``; False if it has one, or cannot."""
        log = self._log
        is_empty = log.begin_offset == self.received_offset
        if not is_empty or offset < 0 or offset % log.queue.file_bytes:
            return False
        self._steps.begin_log_at(offset)
        return True

    def _append_in_file(self, data: memoryview, *, may_wait: bool) -> None:
        if len(self._held) + len(data) < self._needed:
            self._held += data
            return
        began_ns = perf_counter_ns()
        # The checks look at sectors, so that the bytes must lie in them as in the file.
        pad = (self._log.end_offset - self._log.file_begin) % SECTOR_BYTES
        received = b"".join((bytes(pad), self._held, data))
        part = self._whole(received, pad)
        places, misplaced = self._place(part.runs)
        if misplaced is not None:
            base = self._log.end_offset - pad
            part = self._whole(received[: misplaced.physical_offset - base], pad)
            places, _ = self._place(part.runs)
            part = part._replace(fault=misplaced)
        if part.end > pad:
            whole = received[pad : part.end]
            self._write(whole, places, part, began_ns, may_wait=may_wait)
        self.drop_received()
        if part.fault is not None:
            raise part.fault
        self._held += received[part.end :]
        self._needed = part.needed

    # -- what may become part of the log ---------------------------------------------------

    def _whole(self, received: bytes, begin: int) -> _Part:
        """Return the whole records from ``begin``, where the log ends."""
        base = self._log.end_offset - begin
        runs, at, stop, records, last_ms = collect(
            received, begin, len(received), base, len(received),
            WAITING_TOPICS, self._due_times.due_ms,
        )  # fmt: skip
        part = _Part(runs, at, records, last_ms)
        left = self._log.file_end - (base + at)
        there = received[at : at + BLANK_BYTES_MIN]
        if stop is ScanStop.END:
            return part
        if stop is ScanStop.BLANK and len(received) - at == left:
            return part._replace(end=len(received))
        if len(there) < BLANK_BYTES_MIN <= left:
            return part._replace(needed=BLANK_BYTES_MIN)
        reason = REASONS.get(stop, REASONS[ScanStop.BAD_SIZE])
        if len(there) == BLANK_BYTES_MIN:
            size, magic = _HEAD.unpack(there)
            is_blank = magic == MAGIC_BLANK and size == left
            is_record = magic in (MAGIC_V1, MAGIC_V2) and RECORD_BYTES_MIN <= size <= left
            if size > len(received) - at and (is_blank or is_record):
                if is_blank or size <= self._record_bytes_max:
                    return part._replace(needed=size)
                reason = f"message_bytes_max allows no record of {size} bytes"
        return part._replace(fault=ReceivedRecordError(reason, physical_offset=base + at))

    def _place(self, runs: list[UnitRun]) -> tuple[list[_Units], ReceivedRecordError | None]:
        """Return the units to add to each queue, and the first record that fits into none."""
        ends: dict[QueueKey, int] = {}
        places: list[_Units] = []
        misplaced: ReceivedRecordError | None = None
        for topic, queue_id, first, units in runs:
            key = (topic.decode(errors="replace"), queue_id)
            queue = self._queues.get(key)
            end = ends.get(key, queue.max_offset if queue is not None else 0)
            if queue is None and not _may_be(key):
                if key[0].startswith(LMQ_PREFIX):
                    continue  # a property names it; no store has such a light queue
                fault = f"{key[0]!r} with queue id {queue_id} cannot be a queue"
            # A queue may begin later if the log does.
            elif first > end and (end > 0 or self._log.begin_offset == 0):
                fault = f"it has queue offset {first} in {key[0]}, queue {queue_id}, not {end}"
            else:
                if first < end:
                    units = self._not_taken(key, first, end, units)
                if units:
                    ends[key] = max(first, end) + len(units) // UNIT_BYTES
                    places.append(_Units(key, units, 0 if end else first))
                continue
            physical_offset = int.from_bytes(units[:8], "big")
            if misplaced is None or physical_offset < misplaced.physical_offset:
                misplaced = ReceivedRecordError(fault, physical_offset=physical_offset)
        return places, misplaced

    def _not_taken(self, key: QueueKey, first: int, end: int, units: bytes) -> bytes:
        """Return the units whose queue offsets are free, as a start would place them.

        RocketMQ's queues begin again at 0 when their topic was deleted.
        """
        self._lines.warning(
            "records have queue offsets that earlier ones have: they are copied, and cannot be "
            "read by queue; RocketMQ counts again when a topic was deleted topic=%s queue_id=%d "
            "queue_offset=%d expected=%d",
            *key, first, end,
        )  # fmt: skip
        return units[(end - first) * UNIT_BYTES :]

    # -- writing ---------------------------------------------------------------------------

    def _write(
        self, data: bytes, places: list[_Units], part: _Part, began_ns: int, *, may_wait: bool
    ) -> None:
        """Make checked records part of the log, all or nothing."""
        log, flusher, steps = self._log, self._unit_flusher, self._steps
        units_count = sum(len(place.units) for place in places) // UNIT_BYTES
        began_at = log.end_offset
        dirty: dict[QueueTail, None] = {}
        fresh: list[QueueTail] = []
        try:
            tails = [self._tail(place, may_wait=may_wait) for place in places]
            needs_file = began_at + len(data) > log.room_end
            if needs_file or flusher.unwritten_units + units_count > flusher.units_max:
                steps.make_room(part.records, units_count, len(data), 0, may_wait=may_wait)
            try:
                end_offset = log.write_raw(data, part.last_ms)
                for tail, place in zip(tails, places, strict=True):
                    if not tail.pending:
                        fresh.append(tail)
                    dirty[tail] = None
                    tail.extend(place.units)
                flusher.note(fresh, units_count)
            except NO_MEMORY:
                raise
            except BaseException as exc:
                raise steps.half_done(exc, list(dirty)) from exc
        except NO_MEMORY as exc:
            raise steps.taken_back(len(data), list(dirty), fresh) from exc
        log.end_offset = end_offset
        self._announce(list(dirty), part.records, began_at, began_ns, has_keys=True)

    def _tail(self, place: _Units, *, may_wait: bool) -> QueueTail:
        """Return the tail to which the units are added."""
        tail = self._queue_tail(*place.key)
        if place.begin_offset and not tail.next_offset:
            queue = self._queues[place.key]
            count = queue.units_before(place.begin_offset)
            self._steps.make_room(0, count, 0, 0, may_wait=may_wait)
            self._unit_flusher.note([tail], count)
            queue.wipe(place.begin_offset)
            try:
                tail.extend(FILLER * count)
            except BaseException:
                queue.wipe()
                raise
        return tail

    def _check(self) -> None:
        """Assert the invariants."""
        assert len(self._held) < self._needed or len(self._held) == self._needed == 0


def _may_be(key: QueueKey) -> bool:
    return is_topic_name(key[0]) and key[1] <= QUEUE_ID_MAX
