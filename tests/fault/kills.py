"""Kills: a store's process is killed with SIGKILL at moments by chance, round after round.

Usage: python -m tests.fault.kills [--rounds 200] [--seed N] [--pause-s 0.3] [--json]

All rounds use one folder; cleaning keeps it from growing for ever.

    load      sync or async appends, killed some time after the first acknowledgement
    opening   killed while the store opens, by chance with its derived files gone, so that it must
              rebuild them; the next start may be killed as well
    cleaning  as load, while the oldest files are removed
    two       two processes for one folder: one gets it, the other says that it is locked
    paused    stopped under load for a while, then going on, then killed

After each: whatever was acknowledged is there (async too: the page cache outlives the process),
once each, unchanged, in order, without a gap, in its queue and found by its key; nothing of the
rounds before has changed. The moments depend on the machine: a seed repeats the kinds and waits.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.rounds import Report
from tests.support.stores import abandon, make_store
from tests.support.written import DEADLINE_S, WriterProcess, Written, WrittenError

KINDS = ("load sync", "load async", "opening", "cleaning", "two", "paused")
FILE_BYTES = 262_144
CONFIG: dict[str, Any] = {
    "commitlog_file_bytes": FILE_BYTES,
    "consume_queue_file_units": 1_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "flush_interval_ms": 20,
    "cleanup_interval_ms": 10,
    "cleanup_pause_ms": 1,
    "cleanup_oldest_percent": 100,
    "cleanup_expired_percent": 100,
}
# With these settings files go although they are young.
CLEANING = {"cleanup_oldest_percent": 1, "cleanup_files_max": 4}
# A folder with more files than this is cleaned by the next round that loads it.
FILES_MAX = 100
LOAD_S_MAX = 0.25
OPENINGS_MAX = 3
PAUSE_S = 0.3


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it went: what was acknowledged, and what was there afterwards."""

    kind: str
    acknowledged: int
    there: int
    open_ms: float


class Kills:
    """Rounds over one folder; ``folder`` must be empty at the start."""

    def __init__(self, folder: Path, seed: int, pause_s: float) -> None:
        self._folder = folder / "store"
        self._notes = folder / "notes"
        self._chance = random.Random(seed)
        self._written = Written()
        self._open_s = 0.05
        self._number = 0
        self._pause_s = pause_s

    def run(self, kind: str) -> Round:
        """Do one round and look at the folder; WrittenError says what is wrong."""
        self._number += 1
        crowded = len(self._files()) > FILES_MAX
        may_clean = kind == "cleaning" or (crowded and kind.startswith("load"))
        match kind:
            case "opening":
                acknowledged = self._kill_while_opening()
            case "two":
                acknowledged = self._kill_one_of_two()
            case "paused":
                acknowledged = self._kill_after_a_pause()
            case "cleaning":
                flush = self._chance.choice(("sync", "async"))
                acknowledged = self._kill_under_load(flush, CLEANING)
            case _:
                config = CLEANING if crowded else {}
                acknowledged = self._kill_under_load(kind.split(" ")[1], config)
        return self._look(kind, acknowledged, may_clean=may_clean)

    def _files(self) -> list[Path]:
        return list((self._folder / "commitlog").glob("*"))

    def _start(self, flush: str, config: dict[str, Any], notes: str = "") -> WriterProcess:
        # A checkpoint far away leaves the next start much to read.
        interval = self._chance.choice((20, 60_000))
        config = {**CONFIG, "checkpoint_interval_ms": interval, **config}
        path = self._notes.with_name(self._notes.name + notes)
        return WriterProcess(self._folder, path, flush, self._number, config)

    def _kill_under_load(self, flush: str, config: dict[str, Any]) -> int:
        writer = self._start(flush, config)
        writer.wait_for("acknowledged")
        time.sleep(self._chance.uniform(0, LOAD_S_MAX))
        return writer.kill().acknowledged

    def _kill_while_opening(self) -> int:
        """Kill starts one after the other; the last one may get as far as appending."""
        if self._chance.random() < 0.5:
            for name in ("consumequeue", "index"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            for name in ("checkpoint", "queues.json", "index.json"):
                (self._folder / name).unlink(missing_ok=True)
        for _ in range(self._chance.randint(1, OPENINGS_MAX)):
            writer = self._start("async", {})
            writer.wait_for("opening")
            time.sleep(self._chance.uniform(0, 1.5 * self._open_s))
            notes = writer.kill()
            if notes.is_open:
                return notes.acknowledged
        return 0

    def _kill_one_of_two(self) -> int:
        writers = [self._start("async", {}, notes) for notes in (".one", ".two")]
        ends = [writer.wait_for("acknowledged", "locked") for writer in writers]
        if sorted(ends) != ["acknowledged", "locked"]:
            for writer in writers:
                writer.kill()
            raise WrittenError(f"two processes for one folder: {ends}")
        time.sleep(self._chance.uniform(0, LOAD_S_MAX))
        return sum(writer.kill().acknowledged for writer in writers)

    def _kill_after_a_pause(self) -> int:
        writer = self._start(self._chance.choice(("sync", "async")), {})
        writer.wait_for("acknowledged")
        time.sleep(self._chance.uniform(0, LOAD_S_MAX))
        writer.process.send_signal(signal.SIGSTOP)
        time.sleep(self._pause_s)
        before = writer.notes().acknowledged
        writer.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + DEADLINE_S
        while writer.notes().acknowledged == before:
            if time.monotonic() > deadline or writer.process.poll() is not None:
                writer.kill()
                raise WrittenError("a writer that was paused has not gone on")
            time.sleep(0.01)
        return writer.kill().acknowledged

    def _look(self, kind: str, acknowledged: int, *, may_clean: bool) -> Round:
        store = make_store(self._folder, **CONFIG)
        begun = time.monotonic()
        report = store.open()
        open_s = time.monotonic() - begun
        try:
            if report.damage:
                raise WrittenError(f"a kill has damaged the log: {report.damage}")
            there = self._written.check(store, self._number, acknowledged, may_clean=may_clean)
        finally:
            # A clean stop now and then, so that both kinds of start are met.
            if self._chance.random() < 0.3:
                store.close()
            else:
                abandon(store)
        self._open_s = max(open_s, 0.02)
        return Round(kind, acknowledged, there, open_s * 1000)


def rounds(folder: Path, seed: int, count: int, *, pause_s: float = PAUSE_S) -> Iterator[Round]:
    """Do rounds of every kind in turn."""
    kills = Kills(folder, seed, pause_s)
    for number in range(count):
        yield kills.run(KINDS[number % len(KINDS)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.kills")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--pause-s", type=float, default=PAUSE_S, help="of the paused rounds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    report = Report.of(args.seed)
    folder = Path(tempfile.mkdtemp("", "motelog-kills."))
    done: list[Round] = []
    try:
        for one in rounds(folder, report.seed, args.rounds, pause_s=args.pause_s):
            done.append(one)
            sys.stderr.write(
                f"round {len(done)} of {args.rounds}: {one.kind}, {one.acknowledged} acknowledged, "
                f"{one.there} there, opened in {one.open_ms:.0f} ms\n"
            )
        shutil.rmtree(folder)
    except WrittenError as exc:
        report.failure = f"round {len(done) + 1}: {exc}; the folder is kept: {folder}"
    lost = 0 if report.failure is None else None
    return report.end(done, "none lost", as_json=args.json, lost=lost)


if __name__ == "__main__":
    sys.exit(main())
