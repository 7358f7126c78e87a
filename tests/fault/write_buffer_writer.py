"""The process that test_write_buffer_kill kills: appends without end and says what it knows.

Usage: python write_buffer_writer.py FOLDER ROUND. A line ``a COUNT`` on standard output says that
COUNT messages of this round have been appended; ``c COUNT`` says that COUNT of them were committed
before the line was written.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.stores import make_store, message  # needs the path

BATCH = 20
COMMIT_MS = 20


async def main(folder: str, round_: str) -> None:
    store = make_store(
        folder,
        write_buffer=True,
        write_buffer_commit_ms=COMMIT_MS,
        commitlog_file_bytes=262_144,
        flush_interval_ms=50,
        checkpoint_interval_ms=70,
    )
    await trio.to_thread.run_sync(store.open)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        count = 0
        waiting: deque[tuple[int, int]] = deque()  # (end offset, messages up to there)
        while True:
            batch = []
            for number in range(count, count + BATCH):
                tail = store.queue_tail("kill", number % 3)
                batch.append(message(tail, f"{round_}:{number}:".encode().ljust(200, b"k")))
            end = store.append(batch)
            count += BATCH
            waiting.append((end, count))
            sys.stdout.write(f"a {count}\n")
            committed = 0
            while waiting and waiting[0][0] <= store.committed_offset:
                committed = waiting.popleft()[1]
            if committed:
                sys.stdout.write(f"c {committed}\n")
            sys.stdout.flush()
            await trio.sleep(0.001)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
