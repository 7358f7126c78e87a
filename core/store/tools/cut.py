"""Cuts the end of a closed store's log, so that a leader's log can go on from there.

Owns: what lies behind an offset, in which order a cut changes the folder. Must not touch: units and
keys, which the next start takes back (recovery); a folder that is open.

    1. what is cut of the last file that stays is copied to damaged/
    2. abort, durable, queues.json, index.json, checkpoint: from now on they claim nothing beyond
       the cut, and neither do their predecessors
    3. files behind the cut move to damaged/, the last one first
    4. the rest of the last file is zeroed, its first bytes before all others

Each step is on the disk before the next. A crash in between leaves a folder that opens: its log
ends at the cut or, before the end of step 4, where a record after it ends. The cut may be repeated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import msgspec

from motelog.core.errors import (
    StoreCutError,
    StoreHalfRestoredError,
    StoreLockedError,
)
from motelog.core.records.append import copy_in
from motelog.core.records.layout import BLANK_BYTES_MIN
from motelog.core.records.read import copy_out
from motelog.core.store.disk.files import OsStorage, Storage
from motelog.core.store.log.mapped_file_queue import MappedFile
from motelog.core.store.queues.consume_queue import UNKNOWN_CRC
from motelog.core.store.start.recovery import bytes_behind, path_aside
from motelog.core.store.state.checkpoint import QueueTable, StateFiles
from motelog.core.store.state.durable_file import DurableFile
from motelog.core.store.tools.inspection import LogWalk, Progress, StoreFolder


@dataclass(slots=True)
class Cut:
    """What a cut takes: the log of [offset, end_offset), and where its bytes are kept."""

    offset: int
    end_offset: int = 0
    records: int = 0
    first_ms: int = 0
    last_ms: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    kept_in: list[str] = field(default_factory=list)
    #: When the last record before the cut was stored; 0 if there is none.
    remaining_ms: int = 0


def plan(folder: StoreFolder, offset: int, progress: Progress = lambda done, total: None) -> Cut:
    """Return what a cut at ``offset`` would take; StoreCutError if no record begins or ends there.

    StoreDamagedError if the log cannot be read.
    """
    if folder.log_fault is not None:
        raise folder.log_fault
    if offset < folder.begin_offset:
        raise StoreCutError(f"the log begins at {folder.begin_offset}, behind {offset}")
    # The last record before the cut may be in the file before it.
    first = folder.log.find(max(offset - 1, folder.begin_offset))
    at = folder.begin_offset if first is None else first.begin
    cut = Cut(offset)
    before, after = at, None
    walk = LogWalk(folder, progress, begin=at)
    for found in walk.fields():
        for topic, _, _, begin, size, _, _, store_ms, _ in found:
            for boundary in (begin, begin + size):
                if boundary <= offset:
                    before = boundary
                elif after is None:
                    after = boundary
            if begin < offset:
                cut.remaining_ms = store_ms
                continue
            cut.first_ms = cut.first_ms or store_ms
            cut.last_ms = store_ms
            cut.records += 1
            name = topic.decode(errors="replace")
            cut.topics[name] = cut.topics.get(name, 0) + 1
    cut.end_offset = walk.end_offset
    if offset > cut.end_offset:
        raise StoreCutError(f"the log ends at {cut.end_offset}, before {offset}")
    file = folder.log.find(offset)
    if offset not in (before, cut.end_offset) and (file is None or offset != file.begin):
        nearest = cut.end_offset if after is None else after
        raise StoreCutError(
            f"no record begins or ends at {offset}; the nearest places are {before} and {nearest}"
        )
    return cut


def cut(
    directory: str,
    offset: int,
    progress: Progress = lambda done, total: None,
    storage: Storage | None = None,
) -> Cut:
    """Cut the log of a closed folder at ``offset``; return what was cut. Errors as for ``plan``.

    StoreLockedError if a process has the folder open. The next start repairs queues and index.
    """
    storage = storage or OsStorage()
    lock = storage.lock(f"{directory}/lock")
    if lock is None:
        raise StoreLockedError(f"{directory} is open in another process")
    try:
        folder = StoreFolder(directory, storage)
        try:
            if StateFiles(storage, directory).is_half_restored():
                text = f"{directory} is a backup whose restore was not completed"
                raise StoreHalfRestoredError(text)
            planned = plan(folder, offset, progress)
            _cut(storage, folder, planned)
        finally:
            folder.close()
    finally:
        lock.release()
    return planned


def _cut(storage: Storage, folder: StoreFolder, planned: Cut) -> None:
    files = folder.log.files
    # The first file stays, so that the log still begins there.
    behind = [file for file in files[1:] if file.begin >= planned.offset]
    last = files[len(files) - len(behind) - 1]
    position = planned.offset - last.begin
    remains = bytes_behind(last, position) if position < last.size else 0
    if not remains and not behind:
        return
    if remains:
        path = path_aside(storage, folder.directory, f"{planned.offset:020d}", ".cut")
        storage.replace_file(path, copy_out(last.view, position, position + remains))
        planned.kept_in.append(path)
    _lower(storage, folder, planned)
    for file in reversed(behind):
        planned.kept_in.append(_move_aside(storage, folder, file))
    if remains:
        _zero(last, position, remains)


def _lower(storage: Storage, folder: StoreFolder, planned: Cut) -> None:
    """Let the small files claim nothing beyond the cut."""
    directory, offset, last_ms = folder.directory, planned.offset, planned.remaining_ms
    state = StateFiles(storage, directory)
    state.write_abort(0)  # no process has the number 0: a start looks at everything
    durable = DurableFile(storage, directory)
    noted = durable.read()
    durable.reset(offset if noted is None else min(noted, offset))
    durable.close()
    known = state.read_checkpoint()
    complete = known.complete_offset
    checkpoint = replace(
        known,
        physic_ms=min(known.physic_ms, last_ms),
        logics_ms=min(known.logics_ms, last_ms),
        index_ms=min(known.index_ms, last_ms),
        complete_offset=None if complete is None else min(complete, offset),
    )
    table, index = state.read_queues(), state.read_index()
    # Twice, because what was there becomes the predecessor, which claims too much as well.
    for _ in range(2):
        if table is not None:
            state.write_queues(_lowered(folder, table, offset))
        if index is not None:
            indexed_offset = min(index.indexed_offset, offset)
            state.write_index(msgspec.structs.replace(index, indexed_offset=indexed_offset))
        state.write_checkpoint(checkpoint)


def _lowered(folder: StoreFolder, table: QueueTable, offset: int) -> QueueTable:
    """Return the table with the units of the records that stay."""
    queues, crcs = [], []
    files_crcs = table.crcs if len(table.crcs) == len(table.queues) else [[] for _ in table.queues]
    for (topic, queue_id, end), known in zip(table.queues, files_crcs, strict=True):
        queue = folder.queues.get((topic, queue_id))
        if queue is None or (topic, queue_id) in folder.queue_faults:
            continue  # the next start makes it from the log
        kept = min(end, queue.find_end(offset, end))
        count = -(-(end - queue.begin_offset) // folder.file_units)
        left = max(-(-(kept - queue.begin_offset) // folder.file_units), 0)
        row = ([UNKNOWN_CRC] * max(count - len(known), 0) + known)[-count:][:left] if count else []
        if row and kept < end and kept % folder.file_units:
            row[-1] = UNKNOWN_CRC
        if kept:
            queues.append((topic, queue_id, kept))
            crcs.append(row)
    return QueueTable(min(table.end_offset, offset), is_closed=False, queues=queues, crcs=crcs)


def _move_aside(storage: Storage, folder: StoreFolder, file: MappedFile) -> str:
    file.close()
    aside = path_aside(storage, folder.directory, f"{file.begin:020d}", "")
    # A sync of the other directory must not remove this file before those after it.
    storage.sync_directory(os.path.dirname(file.path))
    storage.rename(file.path, aside)
    storage.sync_directory(os.path.dirname(aside))
    storage.sync_directory(os.path.dirname(file.path))
    return aside


def _zero(file: MappedFile, position: int, remains: int) -> None:
    """Zero the bytes behind the cut; without the first ones a start ends the log there."""
    region = file.writable()
    first = min(remains, BLANK_BYTES_MIN)
    copy_in(region.view, position, bytes(first))
    region.sync()
    copy_in(region.view, position + first, bytes(remains - first))
    region.sync()
