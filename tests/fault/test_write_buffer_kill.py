"""Write-buffer mode killed in the middle of its work: what was committed is there, a suffix is not.

More rounds: ``python -m tests.fault.test_write_buffer_kill ROUNDS``.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.stores import opened, read_bodies

WRITER = Path(__file__).with_name("write_buffer_writer.py")
ROUNDS = 4


def test_a_kill_takes_a_suffix_of_what_was_not_committed(tmp_path: Path) -> None:
    assert rounds(tmp_path, ROUNDS, random.Random(1)) >= ROUNDS


def rounds(folder: Path, count: int, chance: random.Random) -> int:
    """Kill writers one after the other; return how many messages were kept."""
    kept: list[int] = []
    for round_ in range(count):
        appended, committed = kill_a_writer(folder, round_, chance.uniform(0.0, 0.3))
        with opened(folder) as store:
            bodies = read_bodies(store)
        mine = sorted(
            int(body.split(b":")[1])
            for queue_id in range(3)
            for body in bodies.get(("kill", queue_id), [])
            if body.startswith(b"%d:" % round_)
        )
        # All of a first part; the last batch may have been told of after the kill.
        assert mine == list(range(len(mine)))
        assert committed <= len(mine) <= appended + 20
        kept.append(len(mine))
        # Of earlier rounds nothing has gone meanwhile.
        assert sum(len(found) for found in bodies.values()) == sum(kept)
    return sum(kept)


def kill_a_writer(folder: Path, round_: int, after_s: float) -> tuple[int, int]:
    """Return how much the writer had appended and how much of that committed."""
    command = [sys.executable, str(WRITER), str(folder), str(round_)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines: list[bytes] = []
        # Something has been committed.
        while not lines or lines[-1][:1] != b"c":
            lines.append(writer.stdout.readline())
            assert lines[-1], "the writer ended by itself"
        time.sleep(after_s)
        writer.kill()
        lines += writer.stdout.read().split(b"\n")[:-1]
    counts = {b"a": 0, b"c": 0}
    for line in lines:
        name, number = line.split()
        counts[name] = int(number)
    return counts[b"a"], counts[b"c"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        total = rounds(Path(made), int(sys.argv[1]), random.Random())
    sys.stdout.write(
        f"{sys.argv[1]} kills took nothing that was committed; {total} messages kept\n"
    )
