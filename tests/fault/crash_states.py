"""Crash states: every legal content of the disk after a crash recovers to what was promised.

Usage: python -m tests.fault.crash_states [--states 20000] [--seed N] [--replay SEED:LIFE:STATE]
                                          [--follower]

A scenario is a row of lives of one folder on a simulated disk: open, append, flush, checkpoint,
close or crash. From the log of each life come crash states (tests/support/simulated_disk.py); each
is opened and read back. The next life begins with one of them.

Promised at a moment, and checked:
- after a power cut, every record below the durable offset (sync flush acknowledges no other);
- after a kill of the process, every record that append has returned for, or with a write buffer
  every record below the committed offset;
- what is lost is a suffix of the log: of what was appended, all below some physical offset is there
  and nothing above it; a crash alone is never reported as damage;
- of what is there besides, each was appended once, is unchanged, in order and in its place.
What a start has shown to readers is promised from then on; what it has not shown never comes back.
With --follower the store receives a leader's log in pieces, from its first file on or a later one,
and each life goes on where the start has found the end.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import trio

from motelog.core.clock import ManualClock
from motelog.core.message import tags_code
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from tests.support.followers import log_bytes
from tests.support.simulated_disk import ROOT, CrashModel, Image, SimulatedDisk
from tests.support.stores import BORN_HOST, make_store

DIRECTORY = f"{ROOT}/data/store"
QUEUES = (("a", 0), ("a", 1), ("b", 0), ("%RETRY%c", 0))
BATCH_MAX = 8
LIVES = 3
STATES_PER_LIFE = 200
REOPENED_EACH = 16
CLOCK_START_MS = 1_700_000_000_000

# What must be found of a record: topic, queue id, queue offset, physical offset, properties, body.
Expected = tuple[bytes, int, int, int, bytes, bytes]


class CrashStateError(AssertionError):
    """A crash state did not recover to what was promised."""


@dataclass(slots=True)
class Promises:
    """What may and must be read back, each with the number of events before it holds."""

    begun: list[tuple[int, int]] = field(default_factory=list)  # (events, record number)
    committed: list[tuple[int, int]] = field(default_factory=list)
    durable: list[tuple[int, int]] = field(default_factory=list)
    # Until the start is through, what the crash before it left; then what the start found.
    opened_at: int = sys.maxsize
    possible_before: frozenset[int] = frozenset()
    required_before: frozenset[int] = frozenset()
    # After a kill the start still finds what was not synced; after a power cut it may not.
    durable_before: frozenset[int] = frozenset()
    opened_with: frozenset[int] = frozenset()

    def at(self, events: int, *, after_kill: bool) -> tuple[frozenset[int], frozenset[int]]:
        """Return (what must be there, what may be there) after this many events."""
        if events < self.opened_at:
            before = self.required_before if after_kill else self.durable_before
            return before, self.possible_before
        kept = self.committed if after_kill else self.durable
        required = {number for at, number in kept if at <= events}
        possible = {number for at, number in self.begun if at < events}
        return self.opened_with | required, self.opened_with | possible


class Scenario:
    """The lives of one folder."""

    is_follower = False
    #: At most so many units come with one append.
    units_max = BATCH_MAX

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self._expected: dict[int, Expected] = {}
        self._clock = ManualClock(CLOCK_START_MS)
        self._config: dict[str, Any] = {
            "commitlog_file_bytes": self._chance.choice((16_384, 65_536)),
            "consume_queue_file_units": self._chance.choice((4, 16, 300)),
            "consume_queue_files_open_max": self._chance.choice((2, 256)),
            "write_buffer": self._chance.random() < 0.3,
            "write_buffer_files_max": self._chance.choice((1, 3)),
            "consume_queue_memory_bytes_max": self._chance.choice((20, 200, 1 << 20)),
        }
        self._sync_each_max = self._chance.choice((0, 64))

    def run(self) -> Iterator[tuple[str, bool, Image]]:
        """Check state after state; yield the name of each, whether by kill, and what it was."""
        image, model = Image(), CrashModel.of(Image())
        required, durable, possible = frozenset[int](), frozenset[int](), frozenset[int]()
        for life in range(LIVES):
            disk = SimulatedDisk(image)
            promises = Promises(
                required_before=required, durable_before=durable, possible_before=possible
            )
            trio.run(self._live, disk, promises)
            disk.take_notes()
            goes_on_from = self._chance.randrange(STATES_PER_LIFE)
            goes_on_after_kill = self._chance.random() < 0.4
            next_life = None
            states = self._crash_states(model, disk, promises)
            for number, (state, must, may, durable_too, by_kill) in enumerate(states):
                name = f"{self.seed}:{life}:{number}"
                try:
                    self.check(state, must, may, reopen=number % REOPENED_EACH == 0)
                except Exception as exc:
                    raise CrashStateError(f"crash state {name}: {exc!r}") from exc
                yield name, by_kill, state
                if number == goes_on_from or (
                    goes_on_after_kill and by_kill and number >= goes_on_from
                ):
                    goes_on_after_kill = goes_on_after_kill and not by_kill
                    going_on = model.kill() if by_kill else (state, CrashModel.of(state))
                    next_life = *going_on, must, durable_too, may
            assert next_life is not None
            image, model, required, durable, possible = next_life

    # -- what is done to the store ---------------------------------------------------------

    async def _live(self, disk: SimulatedDisk, promises: Promises) -> None:
        store = make_store(
            DIRECTORY,
            storage=disk,
            clock=self._clock,
            is_follower=self.is_follower,
            **self._config,
        )
        store.unit_flusher.sync_each_max = self._sync_each_max
        store.open()
        disk.take_notes()
        promises.opened_with = frozenset(self._read(store, promises.possible_before))
        promises.opened_at = len(disk.events)
        chance = self._chance
        unflushed: list[tuple[int, int]] = []
        uncommitted: list[tuple[int, int]] = []

        def note_committed() -> None:
            nonlocal uncommitted
            done = [number for end, number in uncommitted if end <= store.committed_offset]
            uncommitted = [item for item in uncommitted if item[0] > store.committed_offset]
            promises.committed += [(len(disk.events), number) for number in done]

        is_appending = False

        def append() -> None:
            nonlocal is_appending
            is_appending = True
            appended = self._append(store, disk, promises)
            unflushed.extend(appended)
            uncommitted.extend(appended)
            note_committed()
            is_appending = False

        def go_on() -> None:
            # The event loop goes on while a thread waits for the disk, but not within an append,
            # nor with one that would write units itself while the thread does.
            flusher = store.unit_flusher
            is_full = flusher.unwritten_units + self.units_max > flusher.units_max
            has_to_wait = flusher._calling.locked() and is_full
            if not is_appending and not has_to_wait and chance.random() < 0.2:
                append()

        disk.on_sync = disk.on_write = go_on
        for _ in range(chance.randint(5, 40)):
            match chance.randrange(10):
                case 0:
                    await store._flusher.flush()
                case 1:
                    await store.checkpoint()
                case 2:
                    self._clock.advance(chance.choice((10, 1_000, 4_000, 61_000)))
                case 3:
                    self._clock.step_wall(chance.choice((-86_400_000, 86_400_000, -50)))
                case 4:
                    store._log.commit()
                case 5:
                    await store.unit_flusher.write(chance.choice((0, 2, 5)))
                case _:
                    append()
            assert store.fence_reason is None, store.fence_reason
            store.unit_flusher._check()
            note_committed()
            durable = [number for end, number in unflushed if end <= store.durable_offset]
            unflushed = [item for item in unflushed if item[0] > store.durable_offset]
            promises.durable += [(len(disk.events), number) for number in durable]
        disk.on_sync = disk.on_write = lambda: None
        if chance.random() < 0.3:
            store.close()
            note_committed()
            promises.durable += [(len(disk.events), number) for _, number in unflushed]

    def _append(
        self, store: MessageStore, disk: SimulatedDisk, promises: Promises
    ) -> list[tuple[int, int]]:
        """Append a batch; return (physical offset behind it, record number) of each record."""
        chance = self._chance
        first = len(self._expected)
        disk.take_notes()
        begun_at = len(disk.events)
        messages, texts = [], []
        for number in range(first, first + chance.choice((1, 1, 2, BATCH_MAX))):
            topic, queue_id = chance.choice(QUEUES)
            tail = store.queue_tail(topic, queue_id)
            body, properties, code = self._content()
            texts.append((tail, properties, body))
            # The born timestamp is the record's number.
            messages.append((tail, body, properties, code, number, BORN_HOST, 0, 0, 0, 0))
        placed: list[tuple[int, int]] = []
        end = store.append(messages, placed)
        for number, (tail, properties, body) in enumerate(texts, first):
            physical_offset, queue_offset = placed[number - first]
            self._expected[number] = (
                tail.topic, tail.queue_id, queue_offset, physical_offset, properties, body,
            )  # fmt: skip
        disk.take_notes()
        numbers = range(first, first + len(texts))
        promises.begun += [(begun_at, number) for number in numbers]
        return [(end, number) for number in numbers]

    def _content(self) -> tuple[bytes, bytes, int]:
        chance = self._chance
        size = chance.choice((0, 1, chance.randint(0, 300), chance.randint(0, 300), 3_000))
        body = bytes(size) if chance.random() < 0.1 else chance.randbytes(size)
        properties, code = b"", 0
        if chance.random() < 0.7:
            properties += b"TAGS\x01dev\x02"
            code = tags_code("dev")
        if chance.random() < 0.3:
            value = bytes(chance.choices(range(32, 127), k=chance.choice((10, 200, 1_500))))
            properties += b"k\x01" + value + b"\x02"
        return body, properties, code

    # -- what is made of it ----------------------------------------------------------------

    def _crash_states(
        self, model: CrashModel, disk: SimulatedDisk, promises: Promises
    ) -> Iterator[tuple[Image, frozenset[int], frozenset[int], frozenset[int], bool]]:
        """Yield states: what must and may be there, what a later power cut may take, if by kill.

        The model goes along: it is at the moment of the state just yielded.
        """
        done = 0
        for at in sorted(self._chance.choices(range(len(disk.events) + 1), k=STATES_PER_LIFE)):
            for event in disk.events[done:at]:
                model.apply(event)
            done = at
            by_kill = self._chance.random() < 0.1
            required, possible = promises.at(at, after_kill=by_kill)
            state = model.after_kill() if by_kill else model.after_power_cut(self._chance)
            durable, _ = promises.at(at, after_kill=False) if by_kill else (required, None)
            yield state, required, possible, durable, by_kill

    def check(
        self, state: Image, required: frozenset[int], possible: frozenset[int], *, reopen: bool
    ) -> None:
        """Open a crash state and compare what is in it with what was promised."""
        disk = SimulatedDisk(state)
        store = make_store(DIRECTORY, storage=disk, clock=self._clock, **self._config)
        report = store.open()
        if report.damage:
            raise CrashStateError(f"a crash is reported as damage: {report.damage}")
        found = self._read(store, possible)
        if store.quarantine.aside_count:
            raise CrashStateError("a crash makes units doubtful")
        missing = sorted(required - set(found))
        if missing:
            places = [self._expected[number][:4] for number in missing[:3]]
            raise CrashStateError(f"{len(missing)} of {len(required)} records are lost: {places}")
        in_order = sorted(possible, key=lambda number: self._expected[number][3])
        lost = next((n for n in in_order if n not in found), None)
        if lost is not None and in_order[: len(found)] != sorted(found):
            raise CrashStateError(f"record {lost} is lost, and not what was appended after it")
        if reopen:
            for tail in [store.queue_tail(*key) for key in QUEUES]:
                store.append([(tail, b"new", b"", 0, 1 << 40, BORN_HOST, 0, 0, 0, 0)])
            store.close()
            again = make_store(DIRECTORY, storage=disk, clock=self._clock, **self._config)
            report = again.open()
            if report.rebuilt_queues or report.repaired_queues or report.damage:
                raise CrashStateError(f"a second start finds something to do: {report}")
            if [n for n in self._numbers(again) if n < 1 << 40] != found:
                raise CrashStateError("a second start shows other records")

    def _read(self, store: MessageStore, possible: frozenset[int]) -> list[int]:
        """Return the numbers of all records, in order of queues; none may be a surprise."""
        found = []
        seen = set()
        for number, fields in self._records(store):
            topic, queue_id, queue_offset, physical_offset = fields[:4]
            place = (topic, queue_id, queue_offset, physical_offset, fields[12], fields[13])
            if number in seen:
                raise CrashStateError(f"record {number} is there twice")
            if number not in possible:
                raise CrashStateError(f"record {number} should not be there: {place}")
            if self._expected[number] != place:
                raise CrashStateError(f"record {number} has changed: {place}")
            seen.add(number)
            found.append(number)
        return found

    def _numbers(self, store: MessageStore) -> list[int]:
        return [number for number, _ in self._records(store)]

    def _records(self, store: MessageStore) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for topic, queue_id in sorted(store.queues()):
            offset = store.reader.min_offset(topic, queue_id)
            last = -1
            while offset < store.reader.max_offset(topic, queue_id):
                result = store.reader.read(topic, queue_id, offset, count_max=1000)
                for fields in decode(result.records, verify=True):
                    if (fields[0].decode(), fields[1]) != (topic, queue_id) or fields[2] <= last:
                        raise CrashStateError(f"{fields[:4]} is out of place")
                    last = fields[2]
                    yield fields[6], fields
                if result.next_offset <= offset:
                    raise CrashStateError(f"reading {topic} {queue_id} stops at {offset}")
                offset = result.next_offset


class FollowerScenario(Scenario):
    """The lives of a follower: it receives bytes of a log that goes on."""

    is_follower = True
    #: Each queue may begin above 0, with the fillers of nearly a file before it.
    units_max = BATCH_MAX + 300 * len(QUEUES)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        file_bytes = self._config["commitlog_file_bytes"]
        self._begin = self._chance.choice((0, file_bytes))
        self._leader = make_store(
            DIRECTORY,
            storage=SimulatedDisk(Image()),
            clock=self._clock,
            commitlog_file_bytes=file_bytes,
        )
        self._leader.open()
        self._ends: list[tuple[int, int]] = []  # of each record: physical offset behind it, number

    def _append(
        self, store: MessageStore, disk: SimulatedDisk, promises: Promises
    ) -> list[tuple[int, int]]:
        """Receive some bytes; return the records that were complete with them."""
        chance = self._chance
        if chance.random() < 0.05:
            store.drop_received()
        begin = store.received_offset or self._begin
        end = begin + chance.choice((1, 100, 700, 2_000, 4_000))
        while self._leader.end_offset < end:
            for _, number in super()._append(self._leader, SimulatedDisk(Image()), Promises()):
                at = self._expected[number][3]
                self._ends.append((at + self._leader._log.size_at(at), number))
        whole = [
            (at, number) for at, number in self._ends if max(store.end_offset, begin) < at <= end
        ]
        disk.take_notes()
        begun_at = len(disk.events)
        store.append_raw(begin, log_bytes(self._leader, begin)[1][: end - begin])
        disk.take_notes()
        promises.begun += [(begun_at, number) for _, number in whole]
        return whole


def explore(
    seed: int, states_max: int, scenario: type[Scenario] = Scenario
) -> Iterator[tuple[str, int]]:
    """Check states of scenario after scenario; yield the name and how many distinct ones so far."""
    distinct: set[int] = set()
    while True:
        for name, _, state in scenario(seed).run():
            distinct.add(hash((state.directories, state.files)))
            yield name, len(distinct)
            if len(distinct) >= states_max:
                return
        seed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.crash_states")
    parser.add_argument("--states", type=int, default=2_000, help="distinct states to check")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", metavar="SEED:LIFE:STATE")
    parser.add_argument("--follower", action="store_true", help="of a store that follows another")
    args = parser.parse_args()
    scenario = FollowerScenario if args.follower else Scenario
    # Recovery logs each state's damage; here only the result counts.
    logging.disable(logging.CRITICAL)
    if args.replay:
        for name, _, _ in scenario(int(args.replay.split(":")[0])).run():
            if name == args.replay:
                sys.stdout.write(f"crash state {name} recovers\n")
                return 0
        sys.stdout.write(f"there is no crash state {args.replay}\n")
        return 2
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    begun = time.monotonic()
    checked = distinct = 0
    try:
        for _, distinct in explore(seed, args.states, scenario):  # noqa: B007  # the last one counts
            checked += 1
    except CrashStateError as exc:
        replay = str(exc).split(" ")[2].rstrip(":")
        role = " --follower" if args.follower else ""
        sys.stdout.write(
            f"{exc}\nreplay: python -m tests.fault.crash_states{role} --replay {replay}\n"
        )
        return 1
    seconds = time.monotonic() - begun
    sys.stdout.write(
        f"{distinct} distinct crash states of {checked} recovered as promised in {seconds:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
