"""What do stored sessions cost: bytes in log and view, processor time of each step?

Usage: python -m tests.bench.bench_state [--sessions N]. A journal on a log in memory, its view in a
temporary folder; one filter and one cursor per session. The times are of the processor, the log's
append included, in microseconds for one session.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from typing import Final

from motelog.core.clock import ManualClock
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import (
    Mark,
    MarkKind,
    Progress,
    StoredFilter,
    StoredFlight,
    StoredSession,
)
from motelog.gateway.state.view import View
from tests.support.fake_log import FakeLog

SLICE: Final = 100
SAMPLE: Final = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=100_000)
    count = parser.parse_args().sessions
    say(f"{platform.machine()}, Python {platform.python_version()}, {count} sessions")
    with tempfile.TemporaryDirectory() as folder:
        measure(count, f"{folder}/view.db")


def measure(count: int, path: str) -> None:
    view, log, clock = View(path), FakeLog(), ManualClock()
    view.open()
    journal = SessionJournal(log, view, clock, gateway="gateway")
    while journal.refresh(SLICE):
        pass
    step("save, away", count, lambda: [journal.save(session(n, 1)) for n in range(count)])
    slices("  read back, new rows", count, journal)
    chance = random.Random(1)
    some = [chance.randrange(count) for _ in range(SAMPLE)]
    step("load", SAMPLE, lambda: [journal.load(name(n)) for n in some])
    step("save, connected", SAMPLE, lambda: [journal.save(session(n, None)) for n in some])
    slices("  read back, rows far from each other", SAMPLE, journal)
    entries = [
        Progress(name(n), {"commands/0": n}, (StoredFlight(1, "commands/0", n, 1),)) for n in some
    ]
    clock.advance(1000)
    step("tick with an entry for each", SAMPLE, lambda: journal.tick({"commands/0": 9}, entries))
    slices("  read back", SAMPLE, journal)

    def marks() -> None:
        for n in some:
            journal.mark(Mark(MarkKind.SENT, name(n), 3, "commands/0", n + 1))
        journal.commit()

    step("mark", SAMPLE, marks)
    slices("  read back", SAMPLE, journal)
    step("due", SLICE, lambda: journal.due(1 << 60, SLICE))
    view.checkpoint()
    records = log.records[MQTT_SESSION_TOPIC, 0][1 : count + 1]
    say(f"{'record in the log':40}{sum(map(len, records)) / len(records):8.0f} B")
    say(f"{'row in the view, with its indexes':40}{os.path.getsize(path) / count:8.0f} B")
    view.close()


def name(number: int) -> str:
    return f"device-{number:08}"


def session(number: int, left_ms: int | None) -> StoredSession:
    filters = (StoredFilter(f"commands/{name(number)}/#", 1),)
    return StoredSession(name(number), 86_400, left_ms, filters, {"commands/0": number})


def step(what: str, count: int, work: Callable[[], object]) -> None:
    gc.freeze()  # as the server does: a collection need not walk over what stays
    began_ns = time.process_time_ns()
    work()
    say(f"{what:40}{(time.process_time_ns() - began_ns) / 1000 / count:8.1f} us")


def slices(what: str, count: int, journal: SessionJournal) -> None:
    """Read back all there is, and say what the longest slice took."""
    longest_ns = 0

    def read() -> None:
        nonlocal longest_ns
        is_more = True
        while is_more:
            began_ns = time.process_time_ns()
            is_more = journal.refresh(SLICE)
            longest_ns = max(longest_ns, time.process_time_ns() - began_ns)

    step(what, count, read)
    say(f"{'  longest slice':40}{longest_ns / 1e6:8.1f} ms")


def say(text: str) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
