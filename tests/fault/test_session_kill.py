"""kill -9 of a gateway's process: what was stored last comes back, or something later.

Whether the view is still there makes no difference.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from motelog.core.clock import SystemClock
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import IN_MEMORY, View
from tests.fault.session_writer import QUEUE, SESSIONS
from tests.support.local_log import local_log, read_back
from tests.support.stores import make_store

WRITER = Path(__file__).with_name("session_writer.py")
ROUNDS = 3
LINES_MIN = 150


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_sessions_are_what_was_stored_last(tmp_path: Path, flush: str) -> None:
    store, view = tmp_path / "store", tmp_path / "view.db"
    chance = random.Random(5)
    stored: dict[str, int] = {}
    for round_ in range(ROUNDS):
        if round_ == 1:
            view.unlink()
        lines = LINES_MIN + chance.randrange(LINES_MIN)
        with trio.fail_after(60):
            for number in await trio.to_thread.run_sync(killed, store, view, flush, round_, lines):
                stored[f"dev{number % SESSIONS}"] = number
            kept = await state(store, str(view), flush)
            fresh = await state(store, IN_MEMORY, flush)
        assert kept == fresh
        sessions, retained = fresh
        for client_id, number in stored.items():
            assert sessions[client_id].cursors[QUEUE] >= number
            assert sessions[client_id].left_ms is not None
            assert int(retained[f"retained/{number % SESSIONS}"]) >= number


def killed(store: Path, view: Path, flush: str, round_: int, lines: int) -> list[int]:
    """Have the writer killed when it has stored so many records; return their numbers."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(store), str(view), flush, str(round_)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    numbers: list[int] = []
    for line in process.stdout:
        numbers.append(int(line))
        if len(numbers) == lines:
            process.kill()
    process.stdout.close()
    process.wait()
    assert len(numbers) >= lines, "the writer ended by itself; its error is above"
    return numbers


async def state(
    store: Path, view_path: str, flush: str
) -> tuple[dict[str, StoredSession], dict[str, bytes]]:
    """Return sessions and retained payloads as the next start finds them."""
    view = View(view_path)
    view.open()
    opened = make_store(store, clock=SystemClock(), flush=flush, commitlog_file_bytes=1 << 20)
    async with local_log(opened, SystemClock()) as log:
        journal = SessionJournal(log, view, SystemClock(), gateway="gw")
        retained = RetainedStore(log, view, SystemClock())
        await read_back(journal, retained)
        sessions = {session.client_id: session for session in journal.list_sessions()}
        found = retained.scan("#", "", 100, retained.now()).messages
    view.close()
    return sessions, {message.name: message.payload for message in found}
