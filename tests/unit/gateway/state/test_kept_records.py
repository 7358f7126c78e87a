"""A real store deletes old files; what was appended again in time is found without the view."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import trio

from motelog.core.clock import ManualClock
from motelog.core.message import encode_host
from motelog.core.store.cleanup import HOUR_MS
from motelog.gateway.log.log_port import LogPort, LogRead
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import IN_MEMORY, View
from tests.support.broker_stack import eventually
from tests.support.local_log import local_log
from tests.support.stores import make_store

HOST = encode_host("127.0.0.1", 1883)
AWAY = StoredSession("dev", 60, 5, cursors={"t/0": 7})


async def read_all(journal: SessionJournal) -> None:
    while journal.refresh(10) or not journal.is_current:
        await trio.lowlevel.checkpoint()


async def fill(log: LogPort) -> None:
    """Append so much that what was there before lies in files of its own."""
    log.create_topic("t", 1)
    for _ in range(60):
        ticket = log.append([(log.queue_of("t", ""), bytes(1000), b"", 0, 1, HOST, 0, 0, 0, 0)])
        await eventually(partial(getattr, ticket, "is_settled"))
        assert ticket.error is None


async def test_session_survives_the_removal_of_the_files_that_it_was_written_to(
    tmp_path: Path,
) -> None:
    clock = ManualClock(int(time.time() * 1000))
    store = make_store(
        tmp_path,
        clock=clock,
        cleanup_hours=tuple(range(24)),
        cleanup_interval_ms=600_000,
        cleanup_pause_ms=1,
        cleanup_oldest_percent=100,
    )
    with trio.fail_after(30):
        async with local_log(store, clock) as log:
            view = View(IN_MEMORY)
            view.open()
            journal = SessionJournal(log, view, clock, gateway="gw")
            await read_all(journal)
            journal.save(AWAY)
            await fill(log)
            clock.advance(40 * HOUR_MS)
            await read_all(journal)
            assert journal.rewrite_older(clock.now_ms() - 24 * HOUR_MS, 10) == 1
            await fill(log)
            clock.advance(40 * HOUR_MS)
            assert await store.cleaner.clean()
            fresh = View(IN_MEMORY)
            fresh.open()
            journal = SessionJournal(log, fresh, clock, gateway="gw")
            await read_all(journal)
            assert journal.load("dev") == AWAY
            queue = log.queues("MQTT_SESSION")[0]
            read = log.read(queue, 0, count_max=1, bytes_max=1000)
            assert isinstance(read, LogRead)
            assert read.begin_offset > 1, "the first record of the session is gone"
