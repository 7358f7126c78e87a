"""The process that is killed: a gateway's journal on a store, which notes what it has stored.

Usage: python session_writer.py FOLDER VIEW async|sync ROUND

It writes a line ``number`` for each whole state that is in the log: session ``dev{number % 20}``
with this number as its cursor. Each of these numbers is also the retained message of a topic name,
``retained/{number % 20}``. It ends when its parent has.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# These need the path.
from motelog.core.clock import SystemClock
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.log.log_port import QueueHandle, Ticket
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.stored import Mark, MarkKind, Progress, StoredFlight, StoredSession
from motelog.gateway.state.view import View
from tests.support.local_log import local_log, read_back
from tests.support.stores import make_store

SESSIONS = 20
QUEUE = "t/0"


async def main(folder: str, view_path: str, flush: str, round_: int) -> None:
    parent = os.getppid()
    view = View(view_path)
    view.open()
    store = make_store(folder, clock=SystemClock(), flush=flush, commitlog_file_bytes=1 << 20)
    async with local_log(store, SystemClock()) as log:
        journal = SessionJournal(log, view, SystemClock(), gateway="gw")
        retained = RetainedStore(log, view, SystemClock())
        await read_back(journal, retained)
        log.create_topic("retained", 1)
        queue = log.queue_of("retained", "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checkpoints, view)
            waiting: deque[tuple[int, Ticket]] = deque()
            number = round_ * 1_000_000
            while os.getppid() == parent:
                number += 1
                stored = write(journal, number)
                if stored is not None:
                    waiting.append((number, stored))
                    waiting.append((number, retain(log, retained, queue, number)))
                if not number % 7:
                    journal.refresh(50)
                    retained.refresh(50)
                log.settle_soon()
                await trio.lowlevel.checkpoint()
                while waiting and waiting[0][1].is_settled:
                    settled, ticket = waiting.popleft()
                    assert ticket.error is None
                    if not waiting or waiting[0][0] != settled:
                        sys.stdout.write(f"{settled}\n")
                sys.stdout.flush()
            nursery.cancel_scope.cancel()


def retain(log: LocalLog, retained: RetainedStore, queue: QueueHandle, number: int) -> Ticket:
    """Publish the next retained message."""
    name = f"retained/{number % SESSIONS}"
    text = encode_properties({MQTT_TOPIC: name})
    payload = str(number).encode()
    published = (queue, payload, text, 0, number, encode_host("127.0.0.1", 1), 0, 0, 0, 0)
    written = retained.write(name, published)
    written.ticket = log.append([published, written.record])
    return written.ticket


def write(journal: SessionJournal, number: int) -> Ticket | None:
    """Write the next record: a session connects, tells how far it is, and leaves.

    Return the ticket if it is a whole state.
    """
    client_id = f"dev{number % SESSIONS}"
    match number // SESSIONS % 3:
        case 0:
            session = StoredSession(client_id, 60, None, (), {QUEUE: number})
            return journal.save(session, lagging=[QUEUE])
        case 1:
            flight = StoredFlight(7, QUEUE, number, 1)
            journal.tick({QUEUE: number}, [Progress(client_id, {QUEUE: number}, (flight,))])
            journal.mark(Mark(MarkKind.SENT, client_id, 9, QUEUE, number))
            journal.commit()
        case 2:
            session = StoredSession(client_id, 60, number, (), {QUEUE: number})
            return journal.save(session)
    return None


async def checkpoints(view: View) -> None:
    while True:
        await trio.sleep(0.05)
        await trio.to_thread.run_sync(view.checkpoint)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
