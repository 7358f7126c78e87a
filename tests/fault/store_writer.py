"""The process that test_store_kill kills: appends without end and says what is acknowledged.

Usage: python store_writer.py FOLDER async|sync ROUND. Each line on standard output is the number of
messages of this round that the store has acknowledged under the flush mode.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.stores import make_store, message  # needs the path

BATCH = 20


async def main(folder: str, flush: str, round_: str) -> None:
    store = make_store(folder, flush=flush, flush_interval_ms=5, checkpoint_interval_ms=20)
    await trio.to_thread.run_sync(store.open)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        count = 0
        while True:
            batch = []
            for number in range(count, count + BATCH):
                tail = store.queue_tail("kill", number % 3)
                body = f"{round_}:{number}:".encode().ljust(200, b"k")
                keys = f"KEYS\x01{round_}-{number} every\x02".encode()
                batch.append(message(tail, body, properties=keys))
            end = store.append(batch)
            if flush == "sync":
                await store.wait_durable(end)
            else:
                await trio.lowlevel.checkpoint()
            count += BATCH
            sys.stdout.write(f"{count}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
