"""The process that is killed, or whose disk goes away: appends without end and notes what it may.

Usage: python store_writer.py FOLDER NOTES async|sync ROUND [JSON of StoreConfig fields]

It adds lines to the file NOTES: ``opening``; ``locked`` and the end, or ``open``; then after each
batch ``acknowledged durable ms``: how many messages of this round the store has acknowledged under
the flush mode, how many are on the disk as it says, and the monotonic clock. It ends by itself when
its parent has.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# These need the path.
from motelog.core.clock import SystemClock
from motelog.core.errors import StoreError, StoreLockedError
from motelog.core.store.disk.files import DiskUsage, OsStorage
from motelog.core.store.message_store import MessageStore
from tests.support.stores import make_store, message
from tests.support.written import body_of, keys_of, queue_of

LOCKED = 3
PARENT_GONE = 4
FAILED = 5
BATCH_MAX = 40


class HalfFullDisk(OsStorage):
    """A disk that is always half used: a limit below that has files removed."""

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 41)


async def main(folder: str, notes: str, flush: str, round_: int, config: dict[str, Any]) -> int:
    log = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        os.write(log, text.encode() + b"\n")

    store = make_store(folder, storage=HalfFullDisk(), clock=SystemClock(), flush=flush, **config)
    note("opening")
    try:
        await trio.to_thread.run_sync(store.open)
    except StoreLockedError:
        note("locked")
        return LOCKED
    except (StoreError, OSError) as exc:
        note(f"failed {exc}")
        return FAILED
    note("open")
    parent = os.getppid()
    ended = PARENT_GONE
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            writer = Writer(store, round_)
            while os.getppid() == parent:
                end = writer.append()
                if flush == "sync":
                    await store.wait_durable(end)
                else:
                    await trio.lowlevel.checkpoint()
                now_ms = time.monotonic_ns() // 1_000_000
                note(f"{writer.count} {writer.durable()} {now_ms}")
            nursery.cancel_scope.cancel()
    except* (StoreError, OSError) as group:
        note(f"failed {group.exceptions[0]}")
        ended = FAILED
    return ended


class Writer:
    """Appends batches of a round's messages and counts those that are durable."""

    def __init__(self, store: MessageStore, round_: int) -> None:
        self._store = store
        self._round = round_
        self._chance = random.Random(round_)
        self._ends: deque[tuple[int, int]] = deque()
        self._durable = 0
        self.count = 0

    def append(self) -> int:
        batch = []
        for number in range(self.count, self.count + self._chance.randint(1, BATCH_MAX)):
            tail = self._store.queue_tail(*queue_of(number))
            body = body_of(self._round, number)
            batch.append(message(tail, body, properties=keys_of(self._round, number)))
        end = self._store.append(batch)
        self.count += len(batch)
        self._ends.append((end, self.count))
        return end

    def durable(self) -> int:
        while self._ends and self._ends[0][0] <= self._store.durable_offset:
            self._durable = self._ends.popleft()[1]
        return self._durable


if __name__ == "__main__":
    # Files go before their time and indexes are rebuilt: nobody has to read these log lines.
    logging.disable(logging.CRITICAL)
    folder, notes, flush, round_ = sys.argv[1:5]
    config = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    sys.exit(trio.run(main, folder, notes, flush, int(round_), config))
