"""What writer processes have put into one folder, round after round, and what it must show of it.

Owns: the messages' contents, WriterProcess, which starts, watches and kills
tests/fault/store_writer.py, and Written, which reads a folder back. Must not touch: how the
processes come to an end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore

WRITER = Path(__file__).resolve().parents[1] / "fault" / "store_writer.py"
QUEUES = (("kill", 0), ("kill", 1), ("kill", 2), ("%RETRY%kill", 0))
KEYED_EACH = 5
DEADLINE_S = 60
POLL_S = 0.002
_INF = 1 << 62


class WrittenError(AssertionError):
    """A folder does not show what was put into it."""


def queue_of(number: int) -> tuple[str, int]:
    return QUEUES[number % len(QUEUES)]


def body_of(round_: int, number: int) -> bytes:
    return b"%d:%d:".ljust(50 + number * 37 % 400, b"k") % (round_, number)


def keys_of(round_: int, number: int) -> bytes:
    return b"KEYS\x01%d-%d every\x02" % (round_, number) if number % KEYED_EACH == 0 else b""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a writer had noted when it ended: counts of its messages, times in ms."""

    is_open: bool
    is_locked: bool
    acknowledged: int
    durable: int
    # (monotonic ms, messages acknowledged by then), and why the store refused in the end.
    times: list[tuple[int, int]]
    failure: str | None


class WriterProcess:
    """One writer; ``wait_for`` its notes, then ``kill``."""

    def __init__(
        self, folder: Path, notes: Path, flush: str, round_: int, config: dict[str, Any]
    ) -> None:
        notes.unlink(missing_ok=True)
        self._notes = notes
        self.process = subprocess.Popen(
            [sys.executable, str(WRITER), str(folder), str(notes), flush, str(round_),
             json.dumps(config)],
        )  # fmt: skip

    def wait_for(self, *words: str) -> str:
        """Return the first of these that the writer notes; ``acknowledged`` stands for a count."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            for line in self._lines():
                word = "acknowledged" if line[:1].isdigit() else line.split(" ")[0]
                if word in words:
                    return word
            if has_ended:
                break
            time.sleep(POLL_S)
        self.kill()
        raise WrittenError(f"the writer has not noted one of {words}: {self._lines()[-3:]}")

    def kill(self) -> Notes:
        """Kill the process and return what it had noted."""
        self.process.kill()
        self.process.wait()
        return self.notes()

    def notes(self) -> Notes:
        lines = self._lines()
        counts = [[int(part) for part in line.split(" ")] for line in lines if line[:1].isdigit()]
        failure = next((line[7:] for line in lines if line.startswith("failed ")), None)
        return Notes(
            is_open="open" in lines,
            is_locked="locked" in lines,
            acknowledged=counts[-1][0] if counts else 0,
            durable=counts[-1][1] if counts else 0,
            times=[(ms, count) for count, _, ms in counts],
            failure=failure,
        )

    def _lines(self) -> list[str]:
        """The whole lines; one that a kill has cut off says nothing."""
        if not self._notes.exists():
            return []
        return self._notes.read_text().split("\n")[:-1]


class Written:
    """All that the last look at a folder has shown: (physical offset, round, number)."""

    def __init__(self) -> None:
        self.known: list[tuple[int, int, int]] = []
        self.begin_offset = 0

    def check(
        self, store: MessageStore, round_: int, required: int, *, may_clean: bool = False
    ) -> int:
        """Compare with the last look and a round behind it, which had ``required`` messages.

        Return how many of that round are there. WrittenError if something is lost, changed,
        doubled, out of order, or there although something before it is not.
        """
        begin = store.begin_offset
        if begin != self.begin_offset and not (may_clean and begin > self.begin_offset):
            raise WrittenError(f"the log began at {self.begin_offset} and begins at {begin} now")
        found = sorted(self._read(store))
        kept = [item for item in self.known if item[0] >= begin]
        if found[: len(kept)] != kept:
            pairs = zip(kept, [*found, (_INF, -1, -1)], strict=False)
            lost = next((a, b) for a, b in pairs if a != b)
            raise WrittenError(f"expected (offset, round, number) {lost[0]}, found {lost[1]}")
        new = found[len(kept) :]
        if any(item[1] != round_ for item in new):
            raise WrittenError(f"not of round {round_}: {[i for i in new if i[1] != round_][:3]}")
        numbers = [item[2] for item in new]
        first = numbers[0] if numbers else 0
        # The messages that the same round cleaned away are missing at the log's beginning.
        if first and (kept or begin == self.begin_offset):
            raise WrittenError(f"round {round_} begins with number {first}")
        if numbers != list(range(first, first + len(numbers))):
            raise WrittenError(f"round {round_} has holes or disorder among {len(numbers)}")
        there = first + len(numbers)
        if there < required and (numbers or begin == self.begin_offset):
            raise WrittenError(f"round {round_} has {there} messages of {required}")
        self._check_keys(store, new[:: max(len(new) // 4, 1)] + kept[:1])
        self.known, self.begin_offset = found, begin
        return there

    def _read(self, store: MessageStore) -> list[tuple[int, int, int]]:
        found = []
        for topic, queue_id in store.queues():
            offset = store.reader.min_offset(topic, queue_id)
            high = store.reader.max_offset(topic, queue_id)
            while offset < high:
                result = store.reader.read(
                    topic, queue_id, offset, count_max=1000, bytes_max=1 << 20
                )
                for fields in decode(result.records, verify=True):
                    round_, number = (int(part) for part in fields[13].split(b":", 2)[:2])
                    if fields[13] != body_of(round_, number):
                        raise WrittenError(f"{round_}:{number} has changed")
                    if queue_of(number) != (topic, queue_id) or fields[2] != offset:
                        raise WrittenError(f"{round_}:{number} is at {topic} {queue_id} {offset}")
                    offset += 1
                    found.append((fields[3], round_, number))
                if result.next_offset != offset:
                    raise WrittenError(f"{topic} {queue_id}: {result.status.name} at {offset}")
        return found

    def _check_keys(self, store: MessageStore, items: list[tuple[int, int, int]]) -> None:
        for offset, round_, number in items:
            if number % KEYED_EACH:
                continue
            records = store.reader.query(
                queue_of(number)[0], f"{round_}-{number}", begin_ms=0, end_ms=1 << 60, count_max=64
            ).records
            if [decode(record)[0][3] for record in records] != [offset]:
                raise WrittenError(f"{round_}:{number} is not found by its key, or twice")
