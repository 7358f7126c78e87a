"""Power cuts: the file system of a writer loses all that was not synced.

Usage: python -m tests.fault.power_cut [--rounds 20] [--seed N] [--window-ms 5500] [--json]

An image file with ext4 is loop-mounted (root is needed). A writer works on a store there; at a
moment by chance EXT4_IOC_SHUTDOWN ends all writing, without the journal's last entries. The writer
is given time to meet the errors, then killed; the file system is mounted again, which replays the
journal, and the store is opened and read.

    sync      everything acknowledged is there
    async     everything below the durable offset is there, so at most what was appended within the
              flush interval and two flushes; and what is missing is the end, never something before
    opening   the power goes while the store opens after a cut; nothing is lost by that

Each time: nothing changed, doubled, invented, out of order or reported as damage; the writer was
not ended by SIGBUS. What a start has shown is there after the next cut.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.loop_disk import LoopDisk, NotPermittedError, loop_disk
from tests.support.rounds import Report
from tests.support.stores import make_store
from tests.support.written import Notes, WriterProcess, Written, WrittenError

KINDS = ("sync", "async", "opening")
DISK_BYTES = 512 << 20
FLUSH_INTERVAL_MS = 500
CONFIG: dict[str, Any] = {
    "commitlog_file_bytes": 1 << 20,
    "consume_queue_file_units": 2_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "flush_interval_ms": FLUSH_INTERVAL_MS,
}
# A folder with more files than this is left for a new one.
FILES_MAX = 100
LOAD_S_MAX = 1.5
# Time for the writer to meet the errors.
AFTERMATH_S = 0.1
EXIT_NOT_PERMITTED = 3


@dataclass(frozen=True, slots=True)
class Round:
    """One round: what had to be there, what was there, and how old the oldest loss was."""

    kind: str
    acknowledged: int
    required: int
    there: int
    lost_ms: int


class PowerCuts:
    """Rounds on one disk."""

    def __init__(self, disk: LoopDisk, notes: Path, seed: int) -> None:
        self._disk = disk
        self._notes = notes
        self._chance = random.Random(seed)
        self._number = 0
        self._folder = disk.root / "store-0"
        self._written = Written()
        self._open_s = 0.05

    def run(self, kind: str) -> Round:
        """Do one round and look at the folder; WrittenError says what is wrong."""
        self._number += 1
        if len(list((self._folder / "commitlog").glob("*"))) > FILES_MAX:
            shutil.rmtree(self._folder)
            self._folder = self._disk.root / f"store-{self._number}"
            self._written = Written()
        interval = self._chance.choice((50, 60_000))
        config = {**CONFIG, "checkpoint_interval_ms": interval}
        flush = "sync" if kind == "sync" else "async"
        writer = WriterProcess(self._folder, self._notes, flush, self._number, config)
        try:
            if kind == "opening":
                writer.wait_for("opening")
                time.sleep(self._chance.uniform(0, 1.5 * self._open_s))
            else:
                writer.wait_for("acknowledged")
                time.sleep(self._chance.uniform(0, LOAD_S_MAX))
            cut_ms = time.monotonic_ns() // 1_000_000
            self._disk.cut_power()
            time.sleep(AFTERMATH_S)
        finally:
            notes = writer.kill()
        if writer.process.returncode == -signal.SIGBUS:
            raise WrittenError("the writer died of SIGBUS")
        self._disk.unmount()
        self._disk.mount()
        required = notes.acknowledged if flush == "sync" else notes.durable
        there = self._look(required)
        return Round(kind, notes.acknowledged, required, there, _lost_ms(notes, there, cut_ms))

    def _look(self, required: int) -> int:
        store = make_store(self._folder, **CONFIG)
        begun = time.monotonic()
        report = store.open()
        self._open_s = max(time.monotonic() - begun, 0.02)
        try:
            if report.damage:
                raise WrittenError(f"a power cut is reported as damage: {report.damage}")
            return self._written.check(store, self._number, required)
        finally:
            store.close()


def _lost_ms(notes: Notes, there: int, cut_ms: int) -> int:
    """Return how long before the cut the first message that is lost had been acknowledged."""
    return next((max(cut_ms - ms, 0) for ms, count in notes.times if count > there), 0)


def rounds(
    folder: Path, seed: int, count: int, *, kinds: tuple[str, ...] = KINDS
) -> Generator[Round, None, None]:
    """Do rounds of each kind in turn; NotPermittedError where they cannot be done."""
    with loop_disk(folder, DISK_BYTES) as disk:
        cuts = PowerCuts(disk, folder / "notes", seed)
        for number in range(count):
            yield cuts.run(kinds[number % len(kinds)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.power_cut")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--window-ms",
        type=int,
        default=FLUSH_INTERVAL_MS + 5_000,
        help="what async may lose; the flush interval and time for two flushes",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    report = Report.of(args.seed)
    folder = Path(tempfile.mkdtemp("", "motelog-power."))
    done: list[Round] = []
    try:
        with closing(rounds(folder, report.seed, args.rounds)) as going:
            for one in going:
                done.append(one)
                sys.stderr.write(
                    f"round {len(done)} of {args.rounds}: {one.kind}, {one.acknowledged} "
                    f"acknowledged, {one.required} must and {one.there} are there, "
                    f"lost {one.lost_ms} ms\n"
                )
                if one.lost_ms > args.window_ms:
                    report.failure = (
                        f"round {len(done)}: lost what was appended {one.lost_ms} ms before"
                    )
                    break
    except NotPermittedError as exc:
        sys.stderr.write(f"not possible here: {exc}\n")
        return EXIT_NOT_PERMITTED
    except WrittenError as exc:
        report.failure = f"round {len(done) + 1}: {exc}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lost_ms_max = max((one.lost_ms for one in done), default=0)
    return report.end(
        done,
        f"sync lost none, async {lost_ms_max} ms at most",
        as_json=args.json,
        lost_async=sum(one.acknowledged - one.there for one in done if one.lost_ms),
        lost_ms_max=lost_ms_max,
    )


if __name__ == "__main__":
    sys.exit(main())
