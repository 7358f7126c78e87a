"""Failing calls: each call of the operating system that a store makes fails in turn.

Usage: python -m tests.fault.failing_calls [--share 1.0] [--seed N] [--json]
       python -m tests.fault.failing_calls --shard 1/4
       python -m tests.fault.failing_calls --replay sync/fdatasync:3:EIO:once

A script leads a folder through three lives: new; after a clean stop; after a kill that left a torn
tail and lost a queue. It opens, appends over several queues and files of every sort, commits, waits
for the disk, writes checkpoints and state files, cleans, queries, reads what is not in memory,
closes. It does so in each mode: flush = sync, flush = async, and async with the write buffer. First
it runs without a fault to count the calls of each kind (tests/support/failing_os.py); then once for
each call, error, and "this one" or "all from here on".

Promised, and checked:
- an open or a close that a fault hits says so and lets go of the lock;
- a failed write or sync fences the store before anything else is done (one of a file made ahead
  when that is needed): it takes and acknowledges nothing more, shows the error as its reason, and
  leaves the mark that has the next start look at everything;
- a lack of space while making room refuses the batch, and the store goes on when there is room;
- nothing waits for ever; what was appended can be read until the stop;
- a start without the fault finds all that was acknowledged, and nothing changed, doubled, invented
  or out of order, also when the pages of files whose sync failed are partly the old ones;
- what it does not find is a suffix: of what was not synced after a sync that failed, and in the
  write buffer's mode of what was not committed.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import trio

from motelog.core.clock import ManualClock
from motelog.core.errors import StoreError, StoreFencedError, StoreFullError
from motelog.core.state_file import StateFile
from motelog.core.store.disk.page_cache import NotInMemoryError
from motelog.core.store.message_store import MessageStore
from motelog.core.store.quarantine import UnitsAsideError
from tests.support.failing_os import SYNCS, FailingOs, Fault
from tests.support.ledger import Ledger, LedgerError
from tests.support.stores import abandon, make_store, when_back

# What the store is configured with, by the name of the mode.
MODES: dict[str, dict[str, Any]] = {
    "sync": {"flush": "sync"},
    "async": {"flush": "async"},
    "buffer": {"flush": "async", "write_buffer": True},
}
# Errors beside EIO that the calls of a kind come with.
CODES = {
    "open": (errno.EIO, errno.ENOSPC, errno.EMFILE),
    "mmap": (errno.EIO, errno.ENOMEM),
    **dict.fromkeys(("stat", "statvfs", "lseek", "scandir"), (errno.EIO,)),
    **dict.fromkeys(("unlink", "flock", "close"), (errno.EIO,)),
}
CODES_OF_OTHERS = (errno.EIO, errno.ENOSPC)
WANTS_ROOM = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENOMEM})
DEADLINE_S = 60
NEVER_MS = 1 << 40
HOUR_MS = 3_600_000
# Calls for which a lack of space harms nothing: they come before anything relies on them.
MAKES_ROOM = frozenset({"open", "fallocate", "ftruncate", "mkdir", "mmap"})


class FailingCallError(AssertionError):
    """The store broke one of its promises after a fault."""


class _LifeEndedError(Exception):
    """The fault has ended this life: the store is fenced, or was not to be opened or closed."""


class Script:
    """The lives of one folder, with at most one fault in them."""

    def __init__(self, folder: Path, mode: str, fault: Fault | None = None) -> None:
        self._folder = folder
        self._mode = mode
        self._fault = fault
        self.calls = FailingOs(fault)
        self._chance = random.Random(1)
        self._ledger = Ledger(self._chance)
        self._clock = ManualClock()
        self._state = StateFile(str(folder / "config" / "offsets.json"), holds="offsets")
        self._saved = [0]
        self._hit_state_file = False
        # The appended messages that outlived the last life.
        self._kept: set[int] = set()
        # No start may show a log that begins behind this.
        self._begin_max = 0
        # How many calls of each kind the lives made.
        self.lived: Counter[str] = Counter()
        self.outcome = "went on"

    def run(self) -> None:
        """Lead all lives, or those up to the fault's end; then check what a start finds."""
        with self.calls.installed():
            with suppress(_LifeEndedError):
                trio.run(self._lives)
            self.lived = self.calls.counts.copy()
            self.calls.lift()
            self._check_start()

    async def _lives(self) -> None:
        with trio.fail_after(DEADLINE_S):
            await self._first_life()
            await self._second_life()
            self._damage()
            await self._third_life()

    # -- the lives -------------------------------------------------------------------------

    async def _first_life(self) -> None:
        async with self._opened() as step:
            for _ in range(5):
                await step(self._append, 4)
            await step(self._flushed)
            await step(self._checkpoint)
            await step(self._save)
            for _ in range(14):
                await step(self._append, 2, 2_500)
            await step(self._checkpoint)
            for _ in range(6):
                await step(self._append, 30, 20)
            await step(self._commit)
            await step(self._read)
            await step(self._clean)
            await step(self._append, 3)
            await step(self._checkpoint)
            await step(self._save)

    async def _second_life(self) -> None:
        async with self._opened(is_killed=True) as step:
            for _ in range(4):
                await step(self._append, 5, 1_500)
            await step(self._read)
            await step(self._flushed)
            await step(self._append, 2)
            await step(self._commit)
            await step(self._append, 2)
            await step(self._save)

    async def _third_life(self) -> None:
        async with self._opened() as step:
            await step(self._settle)
            await step(self._read_cold)
            await step(self._read)
            await step(self._append, 5)
            await step(self._checkpoint)
            await step(self._save)

    def _damage(self) -> None:
        """Tear the log's tail and take a queue and a state file away, as a crash may."""
        last = sorted((self._folder / "commitlog").iterdir())[-1]
        content = bytearray(last.read_bytes())
        end = len(content.rstrip(b"\0"))
        content[end + 40 : end + 60] = b"torn" * 5
        last.write_bytes(content[: last.stat().st_size])
        shutil.rmtree(self._folder / "consumequeue" / "b", ignore_errors=True)
        (self._folder / "index.json").unlink(missing_ok=True)

    def _make_store(self) -> MessageStore:
        store = make_store(
            self._folder,
            clock=self._clock,
            flush_interval_ms=NEVER_MS,
            write_buffer_commit_ms=NEVER_MS,
            checkpoint_interval_ms=NEVER_MS,
            disk_check_interval_ms=NEVER_MS,
            cleanup_interval_ms=NEVER_MS,
            cleanup_pause_ms=1,
            cleanup_hours=tuple(range(24)),
            consume_queue_flush_interval_ms=NEVER_MS,
            **MODES[self._mode],
        )
        if self._mode == "async":
            # Not file by file.
            store.unit_flusher.sync_each_max = 0
        return store

    @asynccontextmanager
    async def _opened(
        self, *, is_killed: bool = False
    ) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Open, run, and stop the store; the value does one step and judges how it ended."""
        store = self._make_store()
        try:
            store.open()
        except (OSError, StoreError) as exc:
            self._end(f"open refused: {exc}", exc)
        self._forget_cleaned(store)
        self._clock.advance(1_000)

        async def step(action: Callable[..., Awaitable[None]], *args: int) -> None:
            try:
                await action(store, *args)
            except StoreFencedError as exc:
                await self._check_fence(store, exc)
                raise _LifeEndedError from exc
            if store.fence_reason is not None:
                await self._check_fence(store, None)
                raise _LifeEndedError
            if not self.calls.is_ahead:
                self._check_not_ignored(store)

        try:
            # What cleaning does first, in its turn: it would race with what follows.
            await store.cleaner._try(store.cleaner.remove_derived)
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                yield step
                if self.calls.hit is not None and "/commitlog" in self.calls.hit:
                    # A file that could not be made ahead is missed when it is needed.
                    for _ in range(2):
                        await step(self._append, 8, 2_500)
                self._check_not_ignored(store)
                if is_killed:
                    abandon(store)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            leaves = list(_leaves(group))
            for leaf in leaves:
                if isinstance(leaf, (FailingCallError, LedgerError, _LifeEndedError)):
                    raise leaf from None
            if not all(isinstance(leaf, (OSError, StoreError)) for leaf in leaves):
                raise
            self._end(f"close refused: {leaves[0]}", leaves[0])
        finally:
            self._kept = self._ledger.below(store.committed_offset)

    def _end(self, outcome: str, exc: BaseException) -> None:
        if self.calls.hit is None:
            raise FailingCallError(f"{outcome}, although nothing has failed") from exc
        self.outcome = outcome
        raise _LifeEndedError from exc

    # -- the steps -------------------------------------------------------------------------

    async def _append(self, store: MessageStore, count: int, body_bytes_max: int = 300) -> None:
        self._clock.advance(50)
        end = store.end_offset
        try:
            end = self._ledger.append(store, count, body_bytes_max)
        except StoreFullError as exc:
            self._check_refused(store, exc)
            # There is room again, and then the batch is taken.
            self.calls.lift()
            store.disk_watch.check()
            end = self._ledger.append(store, count, body_bytes_max)
        store._log.queue._check()
        if self._mode == "sync":
            await store.wait_durable(end)
            self._ledger.note_durable(end)

    async def _commit(self, store: MessageStore) -> None:
        """Bring what is in the write buffer into the file; without one there is nothing to do."""
        await store.committer.commit()

    async def _flushed(self, store: MessageStore) -> None:
        await store.wait_durable(store.end_offset)
        self._ledger.note_durable(store.durable_offset)

    async def _checkpoint(self, store: MessageStore) -> None:
        await store.checkpoint()
        self._ledger.note_durable(store.durable_offset)

    async def _save(self, store: MessageStore) -> None:
        """Replace a state file; the last one that was saved, or this one, is what is read."""
        del store
        value = self._saved[-1] + 1
        try:
            self._state.save({"value": value})
        except OSError:
            self._saved.append(value)
            self._hit_state_file = True
        else:
            self._saved = [value]
        try:
            found = self._state_value()
        except OSError:
            return
        if found not in self._saved:
            raise FailingCallError(f"the state file says {found}, not one of {self._saved}")

    def _state_value(self) -> int:
        return self._state.load(lambda content: int(content["value"])) or 0

    async def _read(self, store: MessageStore) -> None:
        for _ in range(2):
            try:
                await self._check_all(store, self._ledger.appended)
                if store.index.indexed_offset == store.end_offset:
                    self._ledger.check_keys(store, self._ledger.appended)
                return
            except StoreFencedError:
                raise
            except StoreError:
                # A file that could not be mapped; it is tried again by the next read.
                if self.calls.hit is None:
                    raise
                self.calls.lift()

    async def _settle(self, store: MessageStore) -> None:
        """Take what the kill left as the content; it is not all that was in the write buffer."""
        for _ in range(2):
            try:
                found = await self._check_all(store, self._ledger.appended & self._kept)
                self._ledger.check_suffix(found)
                self._ledger.adopt(store, found)
                return
            except StoreFencedError:
                raise
            except StoreError:
                if self.calls.hit is None:
                    raise
                self.calls.lift()

    async def _read_cold(self, store: MessageStore) -> None:
        """Read each queue without waiting for the disk, and page in what such a read misses."""
        for topic, queue_id in sorted(store.queues()):
            offset = store.reader.min_offset(topic, queue_id)
            for _ in range(3):
                try:
                    store.reader.read(topic, queue_id, offset, may_wait=False)
                    break
                except NotInMemoryError as cold:
                    await store.reader.page_in(cold.missing)
                except StoreFencedError:
                    raise
                except StoreError:
                    if self.calls.hit is None:
                        raise
                    self.calls.lift()
            else:
                raise FailingCallError(f"{topic} {queue_id} stays cold")

    async def _clean(self, store: MessageStore) -> None:
        self._clock.advance(80 * HOUR_MS)
        self._begin_max = store.end_offset
        try:
            await store.cleaner.clean()
        except (OSError, StoreError) as exc:
            if self.calls.hit is None:
                raise
            self.outcome = f"cleaning ended early: {exc}"
        self._ledger.forget_below(store.begin_offset)

    # -- what must hold --------------------------------------------------------------------

    def _check_refused(self, store: MessageStore, exc: StoreFullError) -> None:
        fault = self._fault
        if fault is None or self.calls.hit is None:
            raise FailingCallError(f"refused without a fault: {exc}") from exc
        # A disk whose use cannot be told counts as full.
        if fault.code not in WANTS_ROOM and fault.kind != "statvfs":
            raise FailingCallError(f"refused as if there were no space: {exc}") from exc
        if store.fence_reason is not None:
            raise FailingCallError(f"refused and fenced: {store.fence_reason}") from exc
        self.outcome = "a batch was refused"

    async def _check_fence(self, store: MessageStore, exc: Exception | None) -> None:
        fault = self._fault
        reason = store.fence_reason
        if fault is None or reason is None or self.calls.hit is None:
            raise FailingCallError(f"fenced without a fault: {reason}") from exc
        # A sync that finds no room counts as an I/O error.
        if not any(os.strerror(code) in reason for code in (fault.code, errno.EIO)):
            raise FailingCallError(f"the reason does not name the error: {reason}") from exc
        is_harmless = fault.kind in MAKES_ROOM or all(".tmp" in hit for hit in self.calls.hits)
        if fault.code in WANTS_ROOM and is_harmless:
            raise FailingCallError(f"fenced though only space was missing: {reason}") from exc
        self.outcome = "fenced"
        for _ in range(2):
            try:
                self._ledger.append(store, 1)
            except StoreFencedError:
                continue
            raise FailingCallError("a fenced store takes messages")
        if store.durable_offset < store.end_offset:
            try:
                await store.wait_durable(store.end_offset)
            except StoreFencedError:
                pass
            else:
                raise FailingCallError("a fenced store acknowledges")
        await self._read_all_the_same(store)

    async def _read_all_the_same(self, store: MessageStore) -> None:
        self.calls.lift()
        self._ledger.forget_below(store.begin_offset)
        await self._check_all(store, self._ledger.appended)

    async def _check_all(self, store: MessageStore, required: set[int]) -> set[int]:
        """Check as the ledger does; wait for units that are being rebuilt."""
        with trio.fail_after(60):
            while True:
                try:
                    return self._ledger.check(store, required)
                except UnitsAsideError as aside:
                    self.calls.lift()
                    await store.reader.page_in(aside.missing)

    def _check_not_ignored(self, store: MessageStore) -> None:
        """Fail if a write or sync of the store failed and the store is not fenced."""
        hit = self.calls.hit
        fault = self._fault
        if fault is None or hit is None or store.fence_reason is not None:
            return
        # State files belong to the broker, and the index is rebuilt from the log.
        if self._hit_state_file or "/index/" in hit:
            return
        # A half-made file is nobody's yet.
        if ".tmp" in hit and fault.code in WANTS_ROOM:
            return
        # Where a write finds no room, the same bytes are written again later.
        if fault.kind in SYNCS or (fault.kind == "write" and fault.code == errno.EIO):
            raise FailingCallError(f"went on after {hit} had failed")

    def _forget_cleaned(self, store: MessageStore) -> None:
        if store.begin_offset > self._begin_max:
            raise FailingCallError(f"the log begins at {store.begin_offset} now")
        self._ledger.forget_below(store.begin_offset)

    def _check_start(self) -> None:
        """Open without a fault, twice, and compare with what was promised."""
        self.calls.drop_unsynced(self._folder, self._chance)
        ledger = self._ledger
        store = self._make_store()
        store.open()
        self._forget_cleaned(store)
        required = ledger.durable if self.calls.has_lost else ledger.appended & self._kept
        found = when_back(store, partial(ledger.check, store, required))
        ledger.check_suffix(found)
        ledger.check_keys(store, found)
        ledger.adopt(store, found)
        found_value = self._state_value()
        if found_value not in self._saved:
            raise FailingCallError(f"the state file says {found_value}, not {self._saved}")
        ledger.append(store, 20)
        store.close()
        again = self._make_store()
        report = again.open()
        if not report.was_clean or report.rebuilt_queues:
            raise FailingCallError(f"a second start finds something to do: {report}")
        ledger.check(again, ledger.appended)
        again.close()


def faults(mode: str) -> list[Fault]:
    """Return every fault of the script in a mode."""
    with _folder() as folder:
        script = Script(folder, mode)
        script.run()
        counts = script.lived
    return [
        Fault(kind, number, code, stays)
        for kind, count in sorted(counts.items())
        for number in range(count)
        for code in CODES.get(kind, CODES_OF_OTHERS)
        for stays in (False, True)
    ]


def check(mode: str, fault: Fault) -> str:
    """Run the script with one fault; return what the store did about it."""
    with _folder() as folder:
        script = Script(folder, mode, fault)
        try:
            script.run()
        except Exception as exc:
            raise FailingCallError(f"{mode}/{fault} ({script.calls.hit}): {exc!r}") from exc
    return "not reached" if script.calls.hit is None else script.outcome.split(":")[0]


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder in memory where there is such a place: nothing here cuts the power."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp("", "store.", memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def chosen(share: float, seed: int) -> Iterator[tuple[str, Fault]]:
    """Yield a share of all faults, chosen by the seed."""
    chance = random.Random(seed)
    for mode in MODES:
        for fault in faults(mode):
            if chance.random() < share:
                yield mode, fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.failing_calls")
    parser.add_argument("--share", type=float, default=1.0, help="part of all faults to try")
    parser.add_argument("--seed", type=int, default=0, help="chooses the share")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N parts of it")
    parser.add_argument("--kind", help="only calls of this kind, such as fdatasync")
    parser.add_argument("--replay", metavar="MODE/FAULT")
    parser.add_argument("--keep-going", action="store_true", help="report all that break a promise")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Each fault is logged by the store; here only the result counts.
    logging.disable(logging.CRITICAL)
    if args.replay:
        mode, _, text = args.replay.partition("/")
        sys.stdout.write(f"{args.replay}: {check(mode, Fault.parse(text))}\n")
        return 0
    begun = time.monotonic()
    outcomes: Counter[str] = Counter()
    broken: list[str] = []
    part, _, parts = args.shard.partition("/")
    wanted = (
        (mode, fault)
        for mode, fault in chosen(args.share, args.seed)
        if args.kind in (None, fault.kind)
    )
    mine = islice(wanted, int(part) - 1, None, int(parts))
    for number, (mode, fault) in enumerate(mine):
        try:
            outcomes[f"{mode}: {check(mode, fault)}"] += 1
        except (FailingCallError, LedgerError) as exc:
            broken.append(f"{mode}/{fault}")
            sys.stderr.write(
                f"{exc}\nreplay: python -m tests.fault.failing_calls --replay {mode}/{fault}\n"
            )
            if not args.keep_going:
                break
        if number % 100 == 99:
            sys.stderr.write(f"{number + 1} faults, {time.monotonic() - begun:.0f} s\n")
    report = {
        "faults": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "broken": broken,
        "seconds": round(time.monotonic() - begun),
    }
    if args.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        sys.stdout.write(f"{report['faults']} faults kept to in {report['seconds']} s\n")
        for outcome, count in outcomes.most_common():
            sys.stdout.write(f"{count:6} {outcome}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
