"""Shows the content of a store folder and its faults; nothing in it is changed.

Owns: StoreFolder (the content), verify (every record, every unit, the small files), plan_repair
(what the next start would do), with the cost of each fault. Must not touch: the folder (dry_run),
how a start repairs (recovery).

A store that is open in a process may be inspected: what it appends meanwhile is ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from motelog.core.clock import SystemClock
from motelog.core.errors import RecordError, StoreDamagedError, StoreError
from motelog.core.message import SYS_FLAG_COMPRESSED, encode_host
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.records.layout import FILLER_SIZE, UNIT_BYTES, ScanStop
from motelog.core.records.read import copy_out
from motelog.core.records.scan import UnitRun, collect, scan
from motelog.core.sealed_json import seal_fault
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import TEMPORARY, Storage
from motelog.core.store.due_time import WAITING_TOPICS, DueTimes
from motelog.core.store.index.index import IndexItem
from motelog.core.store.log.mapped_file_queue import MappedFile, MappedFileQueue
from motelog.core.store.message_store import MessageStore
from motelog.core.store.queues.consume_queue import UNIT, ConsumeQueue, OpenFiles
from motelog.core.store.start.recovery import find_next
from motelog.core.store.state.checkpoint import (
    BACKUP,
    RESTORING,
    IndexFileState,
    IndexTable,
    QueueTable,
    StateFiles,
    StoreCheckpoint,
)
from motelog.core.store.state.durable_file import DurableFile
from motelog.core.store.state.recovery_report import RecoveryReport
from motelog.core.store.tools.dry_run import DryRunStorage
from motelog.core.store.tools.index_inspection import IndexCheck
from motelog.core.topic_names import is_topic_name

RECORDS_PER_STEP = 65_536
UNITS_PER_STEP = 65_536
LOG_FILES_MAPPED_MAX = 16
# A live store writes the record first and its unit right after.
SETTLE_S = 0.2
JSON_FILES = (
    "topics.json",
    "consumerOffset.json",
    "subscriptionGroup.json",
    "delayOffset.json",
    "timerOffset.json",
    "users.json",
)

OURS = frozenset(
    {
        "abort", "checkpoint", "clock.json", "commitlog", "config", "consumequeue", "damaged",
        "durable", "index", "index.json", "lock", "queues.json", RESTORING,
    }
)  # fmt: skip
OURS_IN_CONFIG = frozenset({*JSON_FILES, "timerOffset.json"})
ROCKETMQ_OWN = {
    "timerwheel": "RocketMQ 5: timers, a slot for each second",
    "timerlog": "RocketMQ 5: timers, what is in the slots",
    "config/timercheck": "RocketMQ 5: timers, how far they are",
    "config/timermetrics": "RocketMQ 5: timers, how many of each topic",
    "consumequeue_ext": "RocketMQ: longer ConsumeQueue units",
    "compaction": "RocketMQ 5: compacted topics",
    "config/consumerFilter.json": "RocketMQ: filters of consumer groups",
    "config/consumerOrderInfo.json": "RocketMQ 5: orderly pop consumers",
    "config/topicQueueMapping.json": "RocketMQ 5: static topics",
    "config/messageRequestMode.json": "RocketMQ 5: pull or pop, per group",
}

QueueKey = tuple[str, int]
Fields = tuple[bytes, int, int, int, int, int, int, int, bytes]  # as scan returns them
T = TypeVar("T")
Progress = Callable[[int, int], None]  # (bytes of the log done, bytes of the log)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; ``cost`` says which messages it affects, or that it affects none."""

    path: str
    offset_bytes: int
    problem: str
    cost: str


@dataclass(slots=True)
class Verification:
    """The result of ``verify``."""

    records: int = 0
    units: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    last_store_timestamp_ms: int = 0
    faults: list[Fault] = field(default_factory=list)


class StoreFolder:
    """A folder with a store; StoreError if it is not one."""

    def __init__(self, directory: str, storage: Storage | None = None) -> None:
        """``storage`` is for a tool that changes the folder and holds its lock."""
        self.directory = directory
        self.storage: Storage = storage or DryRunStorage()
        here = self.storage.list_directory(directory)
        if not any(entry.name == "commitlog" and entry.is_directory for entry in here):
            raise StoreError(f"{directory} is not a store: it has no commitlog directory")
        state = StateFiles(self.storage, directory)
        self.checkpoint = state.read_checkpoint()
        self.table = state.read_queues()
        self.index_table = state.read_index()
        durable, noted = DurableFile(self.storage, directory).read(), self.table
        # Records below this are on disk. An open store has appended and committed more.
        self.flushed_offset = max(durable or 0, noted.end_offset if noted is not None else 0)
        self.has_abort = state.has_abort()
        self.log = MappedFileQueue(
            self.storage, f"{directory}/commitlog", 1 << 30, mapped_max=LOG_FILES_MAPPED_MAX
        )
        self.log_fault: StoreDamagedError | None = None
        try:
            self.log.load()
        except StoreDamagedError as exc:
            # The files before the wrong one can still be inspected.
            self.log_fault = exc
        self._files = OpenFiles(self.storage, 64)
        self.queue_faults: dict[QueueKey, str] = {}
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.file_units = self._find_file_units()
        self.load_queues()

    def close(self) -> None:
        self._files.close()
        self.log.close()

    def process_id(self) -> int | None:
        """Return the id of the process that has the store open, or None."""
        text = self.storage.read_file(f"{self.directory}/abort")
        if text and text.isdigit() and os.path.exists(f"/proc/{int(text)}"):
            return int(text)
        return None

    @property
    def begin_offset(self) -> int:
        return self.log.files[0].begin if self.log.files else 0

    @property
    def file_end(self) -> int:
        return self.log.files[-1].end if self.log.files else 0

    def _queue_directories(self) -> Iterator[QueueKey]:
        root = f"{self.directory}/consumequeue"
        for topic in self.storage.list_directory(root):
            if topic.is_directory and is_topic_name(topic.name):
                for queue in self.storage.list_directory(f"{root}/{topic.name}"):
                    if queue.is_directory and queue.name.isdecimal():
                        yield topic.name, int(queue.name)

    def _find_file_units(self) -> int:
        """Return the number of units of most ConsumeQueue files."""
        sizes: Counter[int] = Counter()
        for topic, queue_id in self._queue_directories():
            path = f"{self.directory}/consumequeue/{topic}/{queue_id}"
            sizes.update(entry.size for entry in self.storage.list_directory(path))
        fitting = [size for size, _ in sizes.most_common() if size and not size % UNIT_BYTES]
        return fitting[0] // UNIT_BYTES if fitting else 300_000

    def load_queues(self) -> None:
        """Load the present ConsumeQueue files."""
        root = f"{self.directory}/consumequeue"
        self.queue_faults.clear()
        for key in self._queue_directories():
            queue = ConsumeQueue(self._files, root, *key, self.file_units)
            fault = self._short_file(key) or queue.load()
            if fault is not None:
                self.queue_faults[key] = fault
            else:
                queue.set_max_offset(queue.find_end(1 << 62))
            self.queues[key] = queue

    def _short_file(self, key: QueueKey) -> str | None:
        """Return a file that is too short. After a crash it is not a fault: it was being made."""
        size = self.file_units * UNIT_BYTES
        path = self.queue_path(key)
        for entry in () if self.has_abort else self.storage.list_directory(path):
            if entry.size < size and not entry.is_directory:
                return f"{path}/{entry.name}: has {entry.size} bytes, expected {size}"
        return None

    def index_files(self) -> list[IndexFileState]:
        """Return the index files that the last checkpoint names, oldest first."""
        return self.index_table.files if self.index_table is not None else []

    def left_alone(self) -> list[tuple[str, str]]:
        """Return (name, description) of entries that are not the store's and that starts ignore."""
        found = []
        for prefix, ours in (("", OURS), ("config/", OURS_IN_CONFIG)):
            for entry in self.storage.list_directory(f"{self.directory}/{prefix}".rstrip("/")):
                name = entry.name.removesuffix(BACKUP).removesuffix(TEMPORARY)
                if name not in ours:
                    path = prefix + entry.name
                    found.append((path, ROCKETMQ_OWN.get(prefix + name, "unknown")))
        return found

    def queue_path(self, key: QueueKey) -> str:
        return f"{self.directory}/consumequeue/{key[0]}/{key[1]}"


class LogWalk:
    """All intact records of the log in order, and the bytes between them that are not records."""

    def __init__(
        self,
        folder: StoreFolder,
        progress: Progress,
        index: IndexCheck | None = None,
        *,
        begin: int | None = None,
    ) -> None:
        """``begin`` is the physical offset of a record, or the log's end; its begin if None."""
        self._index = index
        self._log = folder.log
        self._begin = folder.begin_offset if begin is None else begin
        self._total = folder.file_end - self._begin
        self._progress = progress
        self.records = 0
        self.last_ms = 0
        self.end_offset = self._begin
        self.damage: list[tuple[MappedFile, int, int, ScanStop]] = []  # file, begin, end, why

    def runs(self) -> Iterator[UnitRun]:
        """Yield the units of the records as ``collect`` returns them, run by run."""
        due_ms = DueTimes().due_ms

        def look(file: MappedFile, position: int) -> tuple[list[UnitRun], int, ScanStop]:
            keyed: list[IndexItem] | None = None if self._index is None else []
            runs, position, stop, count, last_ms = collect(
                file.view, position, file.size, file.begin, RECORDS_PER_STEP,
                WAITING_TOPICS, due_ms, keyed,
            )  # fmt: skip
            if self._index is not None and keyed is not None:
                self._index.take(keyed, file.begin + position)
            self.records += count
            self.last_ms = max(self.last_ms, last_ms)
            return runs, position, stop

        for runs in self._walk(look):
            yield from runs

    def places(self) -> Iterator[list[tuple[int, int]]]:
        """Yield (physical offset, size) of the records, step by step."""
        for found in self.fields():
            yield [fields[3:5] for fields in found]

    def fields(self) -> Iterator[list[Fields]]:
        """Yield the records as ``scan`` returns them, step by step."""

        def look(file: MappedFile, position: int) -> tuple[list[Fields], int, ScanStop]:
            return scan(file.view, position, file.size, file.begin, 1024)

        yield from self._walk(look)

    def _walk(
        self, look: Callable[[MappedFile, int], tuple[list[T], int, ScanStop]]
    ) -> Iterator[list[T]]:
        at = self._begin
        while (file := self._log.find(at)) is not None:
            found, position, stop = look(file, at - file.begin)
            yield found
            at = self.end_offset = file.begin + position
            self._progress(at - self._begin, self._total)
            if stop is ScanStop.COUNT:
                continue
            if stop in (ScanStop.BLANK, ScanStop.END):
                at = self.end_offset = file.end
                continue
            good = find_next(self._log, file, position)
            if good is None:
                return
            self.damage.append((file, at, good, stop))
            at = good


def records(
    folder: StoreFolder, begin: int, progress: Progress = lambda done, total: None
) -> Iterator[StoredMessage]:
    """Yield the intact records from physical offset ``begin`` on, in the order of the log."""
    for run_units in LogWalk(folder, progress).places():
        for physical_offset, size in run_units:
            if physical_offset >= begin:
                yield _message(folder, physical_offset, size)


def _message(folder: StoreFolder, physical_offset: int, size: int) -> StoredMessage:
    file = folder.log.find(physical_offset)
    assert file is not None
    at = physical_offset - file.begin
    record = copy_out(file.view, at, at + size)
    try:
        (message,) = decode_messages(record)
    except RecordError:
        # A compressed body that does not inflate is shown as it is stored.
        plain = bytearray(record)
        plain[39] &= ~SYS_FLAG_COMPRESSED
        (message,) = decode_messages(plain)
    return message


def verify(folder: StoreFolder, progress: Progress = lambda done, total: None) -> Verification:
    """Check every record, every unit against its record, and the small files; changes nothing."""
    return _Verifier(folder).run(progress)


class _Verifier:
    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._is_live = folder.process_id() is not None
        self._result = Verification(begin_offset=folder.begin_offset)
        # The offset that each queue's records have reached; units that are not what they should be.
        self._next: dict[QueueKey, int] = {}
        self._wrong: dict[QueueKey, list[tuple[int, bytes]]] = {}
        table = folder.table if folder.has_abort else None
        self._known = (
            {}
            if table is None
            else {(topic, queue_id): end for topic, queue_id, end in table.queues}
        )

    def run(self, progress: Progress) -> Verification:
        folder, result = self._folder, self._result
        if folder.log_fault is not None:
            fault = folder.log_fault
            self._add(
                fault.path, fault.offset_bytes, str(fault),
                "the store does not start until this file is fixed; "
                "its content and the files after it were not checked",
            )  # fmt: skip
        index = IndexCheck(
            folder.storage,
            folder.directory,
            folder.index_table,
            log_begin=folder.begin_offset,
            is_live=self._is_live,
            has_abort=folder.has_abort,
            add=self._add,
        )
        walk = LogWalk(folder, progress, index)
        for run in walk.runs():
            self._check_run(run)
        index.finish()
        result.records, result.end_offset = walk.records, walk.end_offset
        result.last_store_timestamp_ms = walk.last_ms
        for file, begin, end, stop in walk.damage:
            self._add(
                file.path, begin - file.begin,
                f"not a record, {stop.name.lower().replace('_', ' ')}; "
                f"the log continues {end - begin} bytes later",
                f"the messages in {end - begin} bytes are lost; their queue offsets are not reused",
            )  # fmt: skip
        self._check_units()
        self._check_ends()
        self._check_small_files()
        return result

    def _add(self, path: str, offset_bytes: int, problem: str, cost: str) -> None:
        self._result.faults.append(Fault(path, offset_bytes, problem, cost))

    # -- units -----------------------------------------------------------------------------

    def _check_run(self, run: UnitRun) -> None:
        topic = run.topic.decode(errors="replace")
        key = (topic, run.queue_id)
        first, units = run.first_offset, run.units
        count = len(units) // UNIT_BYTES
        if not is_topic_name(topic):
            file = self._folder.log.find(int.from_bytes(units[:8], "big"))
            assert file is not None
            self._add(
                file.path, int.from_bytes(units[:8], "big") - file.begin,
                f"{count} records have an invalid topic name, {topic!r}",
                f"{count} messages are lost: they are in no queue",
            )  # fmt: skip
            return
        expected = self._next.get(key)
        if expected is not None and first != expected and not self._is_filled(key, expected, first):
            self._add(
                self._folder.queue_path(key), expected * UNIT_BYTES,
                f"the log goes from queue offset {expected} to {first} of {topic}/{run.queue_id}",
                f"{abs(first - expected)} messages of this queue are lost or duplicated",
            )  # fmt: skip
        self._next[key] = first + count
        self._result.units += count
        queue = self._folder.queues.get(key)
        if key in self._folder.queue_faults:
            return
        if queue is None:
            # A queue that appeared meanwhile is checked too, but not unit by unit.
            self._wrong.setdefault(key, [])
            return
        have = queue.read_files(first, count).ljust(len(units), b"\0")
        if have == units:
            return
        for index in range(count):
            at = index * UNIT_BYTES
            if not _agree(have[at : at + UNIT_BYTES], units[at : at + UNIT_BYTES], run.topic):
                self._wrong.setdefault(key, []).append((first + index, units[at : at + UNIT_BYTES]))

    def _is_filled(self, key: QueueKey, begin: int, end: int) -> bool:
        """Return whether these offsets are known to be lost: each has a filler."""
        queue = self._folder.queues.get(key)
        if queue is None or key in self._folder.queue_faults or not 0 < end - begin < 1 << 24:
            return False
        units = queue.read_files(begin, end - begin)
        sizes = [size for _, size, _ in UNIT.iter_unpack(units)]
        return sizes == [FILLER_SIZE] * (end - begin)

    def _check_units(self) -> None:
        if self._is_live and self._wrong:
            time.sleep(SETTLE_S)
            self._folder.load_queues()
        for key, wrong in sorted(self._wrong.items()):
            path = self._folder.queue_path(key)
            if key in self._folder.queue_faults:
                continue
            queue = self._folder.queues.get(key)
            known = self._known_units(key)
            if queue is None and known == 0:
                continue
            if queue is None:
                self._add(path, 0, "the queue has records but no ConsumeQueue", REBUILT)
                continue
            still = [
                offset
                for offset, unit in wrong
                if not _agree(have := queue.read_files(offset, 1), unit, key[0].encode())
                and (offset < known or have.strip(b"\0"))
            ]
            for begin, end in _ranges(still):
                file, at = _place(queue, path, begin, self._folder.file_units)
                self._add(
                    file, at,
                    f"the units {begin} to {end - 1} are not those of their records",
                    "none: they are rebuilt when they are read"
                    if self._folder.table is not None and self._folder.table.crcs
                    else f"{end - begin} messages of {key[0]}/{key[1]} may be filtered wrongly; "
                    "they are in the log. Remove the queue's directory while the store is stopped, "
                    "and the next start rebuilds it",
                )  # fmt: skip
        for key, fault in sorted(self._folder.queue_faults.items()):
            self._add(self._folder.queue_path(key), 0, fault, REBUILT)

    def _known_units(self, key: QueueKey) -> int:
        """Return the queue offset below which units must be on file.

        Later units may be in the memory of the process that has the store open, or were lost when
        it was killed: the next start rebuilds them.
        """
        if not self._folder.has_abort:
            return 1 << 62
        return self._known.get(key, 0)

    def _check_ends(self) -> None:
        """Look for units after the last record of their queue."""
        end_offset = self._result.end_offset
        for key, queue in sorted(self._folder.queues.items()):
            if key in self._folder.queue_faults:
                continue
            expected = self._next.get(key)
            offset = queue.begin_offset if expected is None else expected
            stray = []
            while units := queue.read_files(offset, UNITS_PER_STEP):
                for index, (physical_offset, size, _) in enumerate(UNIT.iter_unpack(units)):
                    is_cleaned = expected is None and physical_offset < self._folder.begin_offset
                    is_newer = self._is_live and physical_offset >= end_offset
                    if size not in (0, FILLER_SIZE) and not (is_cleaned or is_newer):
                        stray.append(offset + index)
                offset += len(units) // UNIT_BYTES
            for begin, end in _ranges(stray):
                path = self._folder.queue_path(key)
                file, at = _place(queue, path, begin, self._folder.file_units)
                self._add(
                    file, at, f"units {begin} to {end - 1} have no record in the log",
                    "none: the next start removes them"
                    if self._folder.has_abort
                    else f"{end - begin} messages of {key[0]}/{key[1]} are lost, or never existed",
                )  # fmt: skip

    # -- small files -----------------------------------------------------------------------

    def _check_small_files(self) -> None:
        folder = self._folder
        checkpoint = f"{folder.directory}/checkpoint"
        data = folder.storage.read_file(checkpoint)
        if data is None and folder.log.files:
            self._add(checkpoint, 0, "is missing", SLOW_START)
        elif data is not None and StoreCheckpoint.decode(data) is None:
            self._add(checkpoint, 0, "is too short, or does not match its checksum", SLOW_START)
        elif (last := folder.checkpoint.physic_ms) > self._result.last_store_timestamp_ms > 0 and (
            not self._is_live and self._result.records
        ):
            self._add(
                checkpoint, 0,
                f"says that records up to {last} ms are on disk; the last one in the log has "
                f"{self._result.last_store_timestamp_ms} ms",
                "messages at the log's end may be lost",
            )  # fmt: skip
        self._check_table()
        path = f"{folder.directory}/index.json"
        data = folder.storage.read_file(path)
        if data is not None and IndexTable.decode(data) is None:
            is_kept = folder.index_table is not None
            self._add(
                path, 0, "does not match its checksum",
                "none: the next start reads more of the log"
                if is_kept
                else "none: the next start rebuilds the index from the log",
            )  # fmt: skip
        for name in JSON_FILES:
            self._check_json(f"{folder.directory}/config/{name}")

    def _check_table(self) -> None:
        folder, end = self._folder, self._result.end_offset
        path = f"{folder.directory}/queues.json"
        data = folder.storage.read_file(path)
        if data is not None and QueueTable.decode(data) is None:
            self._add(path, 0, "does not match its checksum", SLOW_START)
        table = folder.table
        if table is None:
            return
        if table.end_offset > end and folder.log_fault is None:
            self._add(
                path, 0, f"the log reached up to {table.end_offset}, but now ends at {end}",
                f"the messages in {table.end_offset - end} bytes at the log's end are lost",
            )  # fmt: skip
        self._check_lengths(path, table)

    def _check_lengths(self, path: str, table: QueueTable) -> None:
        for topic, queue_id, max_offset in table.queues:
            found = self._next.get((topic, queue_id))
            if found is not None and found < max_offset and table.end_offset > 0:
                key = (topic, queue_id)
                if not self._is_filled(key, found, max_offset):
                    self._add(
                        path, 0,
                        f"{topic}/{queue_id} had {max_offset} messages, the log has {found}",
                        f"{max_offset - found} messages of this queue are lost",
                    )  # fmt: skip

    def _check_json(self, path: str) -> None:
        data = self._folder.storage.read_file(path)
        if data is None:
            return
        fault = seal_fault(data) or (None if _is_json(data) else "is not JSON")
        if fault is None:
            return
        backup = self._folder.storage.read_file(path + ".bak")
        kept = backup is not None and _is_json(backup) and seal_fault(backup) is None
        self._add(
            path, 0, fault,
            "the broker uses the previous content in .bak" if kept else "its content is lost",
        )  # fmt: skip


REBUILT = "none: the next start rebuilds it from the log"
SLOW_START = "none: the next start reads more of the log"


def _agree(have: bytes, unit: bytes, topic: bytes) -> bool:
    # The due time of a delayed message depends on the broker's levels, which are not known here.
    size = 12 if topic in WAITING_TOPICS else UNIT_BYTES
    return have[:size] == unit[:size]


def _ranges(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each run of consecutive numbers."""
    begin = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] != offsets[index - 1] + 1:
            yield offsets[begin], offsets[index - 1] + 1
            begin = index


def _place(queue: ConsumeQueue, path: str, offset: int, file_units: int) -> tuple[str, int]:
    """Return the file of a unit and the position in it."""
    index, unit = divmod(offset - queue.begin_offset, file_units)
    begin = (queue.begin_offset + index * file_units) * UNIT_BYTES
    return f"{path}/{begin:020d}", unit * UNIT_BYTES


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        # RocketMQ writes maps with bare numbers as keys, which strict JSON refuses.
        return data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")
    return True


def plan_repair(folder: StoreFolder) -> tuple[RecoveryReport, list[tuple[str, str]]]:
    """Return what the next start would find and which files it would create, move and remove.

    An actual start runs on private copies. StoreDamagedError if it would be refused.
    """
    storage = DryRunStorage()
    config = StoreConfig(directory=folder.directory, consume_queue_file_units=folder.file_units)
    store = MessageStore(
        config, store_host=encode_host("127.0.0.1", 0), clock=SystemClock(), storage=storage
    )
    try:
        report = store.open()
    finally:
        steps = list(storage.steps)
        store.close()
    return report, steps
