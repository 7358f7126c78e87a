"""A process killed in the middle of its work loses nothing that it had acknowledged."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.record import decode
from core.store.message_store import MessageStore
from tests.support.stores import opened, read_bodies

WRITER = Path(__file__).with_name("store_writer.py")
ROUNDS = 5


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path, flush: str) -> None:
    chance = random.Random(flush)
    acknowledged: list[int] = []
    for round_ in range(ROUNDS):
        acknowledged.append(kill_a_writer(tmp_path, flush, round_, chance.uniform(0.0, 0.3)))
        with opened(tmp_path) as store:
            bodies = read_bodies(store)
            for past, count in enumerate(acknowledged):
                for number in {0, count // 2, count - 1}:
                    assert find(store, f"{past}-{number}") == [b"%d:%d" % (past, number)]
            assert len(find(store, "every")) == 64
        for past, count in enumerate(acknowledged):
            for queue_id in range(3):
                mine = [
                    int(body.split(b":")[1])
                    for body in bodies.get(("kill", queue_id), [])
                    if body.startswith(b"%d:" % past)
                ]
                # In order, once each, without a gap; more than was acknowledged is fine.
                assert mine == list(range(queue_id, queue_id + 3 * len(mine), 3))
                assert queue_id + 3 * len(mine) >= count


def find(store: MessageStore, key: str) -> list[bytes]:
    """Round and number of the messages that have a key."""
    found = store.query("kill", key, begin_ms=0, end_ms=1 << 60, count_max=64).records
    return [b":".join(decode(record)[0][13].split(b":")[:2]) for record in found]


def kill_a_writer(folder: Path, flush: str, round_: int, after_s: float) -> int:
    """Start a writer, kill it some time after its first acknowledgement; return the last one."""
    command = [sys.executable, str(WRITER), str(folder), flush, str(round_)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        assert first, "the writer ended by itself"
        time.sleep(after_s)
        writer.kill()
        rest = writer.stdout.read()
    # The last line may be cut off; it then says less than was acknowledged.
    lines = (first + rest).split(b"\n")[:-1]
    return int(lines[-1])
