"""What does it cost to wake a pull that waits, with few and with many others waiting?

Usage: python -m tests.bench.wakes [ROUNDS]. One JSON line: microseconds of CPU time for one append
to a queue, alone and with the pull woken, its record read and the answer made (without a socket),
while so many pulls wait, each for a queue of its own. The best of ROUNDS (5).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.report import environment, say
from tests.support.pull_stage import QUEUES, TOPICS, Client, pull_stage
from tests.support.stores import message

WAITING = (100, 1_000, 10_000)
WOKEN = 100
APPENDS = 1_000


def measure(waiting: int) -> tuple[float, float]:
    """Return the CPU time of an append in microseconds, alone and with a wake."""
    queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)][:waiting]
    with (
        tempfile.TemporaryDirectory() as folder,
        pull_stage(Path(folder), commitlog_file_bytes=1 << 24) as stage,
    ):
        client = Client()
        for queue in queues:
            stage.pull(client, *queue)
        tails = [stage.tail(*queue) for queue in queues[:: waiting // WOKEN]]
        unwatched = stage.tail("D", 0)
        for _ in range(APPENDS):  # the first ones touch memory for the first time
            stage.store.append([message(unwatched)])
        begin = time.thread_time()
        for _ in range(APPENDS):
            stage.store.append([message(unwatched)])
            stage.pulls.wake_grown()
        alone = time.thread_time()
        for tail in tails:
            stage.store.append([message(tail)])
            stage.pulls.wake_grown()
        end = time.thread_time()
        assert len(client.answers) == len(tails)
    return (alone - begin) / APPENDS * 1e6, (end - alone) / len(tails) * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    cases = {}
    for waiting in WAITING:
        taken = [measure(waiting) for _ in range(rounds)]
        alone, woken = (round(min(column), 1) for column in zip(*taken, strict=True))
        cases[f"{waiting} waiting"] = {"append": alone, "append and wake": woken}
    say(json.dumps({"bench": "wakes", "unit": "us of CPU", **environment(), "cases": cases}))


if __name__ == "__main__":
    main()
