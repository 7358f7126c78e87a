"""The view after a power cut: whatever reached the disk of file, WAL and log, it says the same.

A gateway's view is copied while records come. A cut leaves the file as of a checkpoint, the WAL up
to any byte, perhaps with zeros behind it, and the log up to any record, perhaps with others in the
place of those that it has lost. Brought up to date, its tables are those of a view made anew.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from motelog.core.message import MQTT_TOPIC, encode_properties
from motelog.core.topic_names import MQTT_RETAINED_TOPIC, MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.state.follower import Follower
from motelog.gateway.state.records import (
    ClaimRecord,
    EndRecord,
    MarksRecord,
    Record,
    SessionRecord,
    StartedRecord,
    StoppedRecord,
    TickRecord,
    message_of,
)
from motelog.gateway.state.retained_rows import RetainedRows
from motelog.gateway.state.session_rows import SessionRows
from motelog.gateway.state.stored import Mark, MarkKind, Progress, StoredFilter, StoredSession
from motelog.gateway.state.view import IN_MEMORY, View
from tests.support.fake_log import HOST, FakeLog

QUEUE = "t/0"
KEYS = ((MQTT_SESSION_TOPIC, 0), (MQTT_RETAINED_TOPIC, 0))
#: Table -> its columns that are the same in each view of a log: numbers of rows are not.
TABLES = {
    "sessions": "at, client_id, store_ms",
    "shared": "*",
    "claims": "client_id, at, number",
    "retained": "*",
    "retained_clients": "*",
    "applied": "topic, next_offset, store_ms, crc",
}


class Reader:
    """A view and what brings it up to date; it writes nothing to the log."""

    def __init__(self, log: LogPort, path: str) -> None:
        self.view = View(path)
        self.view.open()
        self.sessions = SessionRows(self.view)
        self.retained = RetainedRows(self.view)
        self._followers = [
            Follower(log, self.view, MQTT_SESSION_TOPIC, self.sessions),
            Follower(log, self.view, MQTT_RETAINED_TOPIC, self.retained),
        ]

    def read(self, limit: int = 50) -> None:
        """Read all that there is; once more, as one topic's reader may have the view rebuilt."""
        for _ in range(2):
            for follower in self._followers:
                while follower.refresh(limit):
                    pass

    def tables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for table, columns in TABLES.items():
            found[table] = sorted(self.view.execute(f"SELECT {columns} FROM {table}").fetchall())
        for name in self.sessions.named("", "", 1000):
            state = self.sessions.state(name)
            assert state is not None
            found[name] = state, self.sessions.as_of_now(state)
        found["living"] = self.sessions.living
        found["retained now"] = self.retained.count, self.retained.size_bytes
        return found


class Writer:
    """Writes records of two gateways and retained messages at random."""

    def __init__(self, log: FakeLog, chance: random.Random) -> None:
        self._log = log
        self._chance = chance
        self._numbers = {1: 0, 2: 0}
        for topic, _ in KEYS:
            log.create_topic(topic, 1)

    def write(self) -> None:
        chance = self._chance
        self._log.now_ms += chance.randint(0, 1500)
        if chance.random() < 0.4:
            self._retain()
        else:
            self._log.append([message_of(self._record(), self._queue(0), self._log.now_ms)])

    def _queue(self, which: int) -> Any:
        return self._log.queue_of(KEYS[which][0], "")

    def _retain(self) -> None:
        name = {MQTT_TOPIC: f"r/{self._chance.randint(0, 9)}"}
        text = encode_properties(name | {"clientId": f"c{self._chance.randint(0, 3)}"})
        body = bytes(self._chance.randint(0, 3) * 700)
        self._log.append([(self._queue(1), body, text, 0, self._log.now_ms, HOST, 0, 0, 0, 0)])

    def _record(self) -> Record:
        chance = self._chance
        run = chance.choice((1, 2))
        self._numbers[run] += 1
        head = f"g{run}", run, self._numbers[run]
        name = f"c{chance.randint(0, 9)}"
        place = chance.randint(0, 1000)
        match chance.randint(0, 11):
            case 0:
                return EndRecord(*head, name)
            case 1:
                return ClaimRecord(*head, (name,), given_up=((f"c{place % 10}", head[2]),))
            case 2:
                return MarksRecord(*head, (Mark(MarkKind.SENT, name, 1 + place, QUEUE, place),))
            case 3 | 4 | 5:
                return TickRecord(*head, {QUEUE: place}, (Progress(name, {QUEUE: place}, ()),))
            case 6 if chance.random() < 0.1:
                return StoppedRecord(*head)
            case 7 if chance.random() < 0.2:
                return StartedRecord(*head)
        filters = (StoredFilter(f"$share/g/{place % 3}", 1),)
        left_ms = chance.choice((None, self._log.now_ms))
        return SessionRecord(*head, StoredSession(name, 60, left_ms, filters, {QUEUE: place}))


@pytest.mark.parametrize("seed", range(12))
def test_view_says_what_the_log_says_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    log = FakeLog()
    writer = Writer(log, chance)
    live = Reader(log, str(tmp_path / "live.db"))
    kept = rebuilt = 0
    for cut in range(12):
        for _ in range(chance.randint(1, 60)):
            writer.write()
            if chance.random() < 0.3:
                live.read(chance.randint(1, 20))
        if chance.random() < 0.4:
            live.view.checkpoint()
        folder = tmp_path / str(cut)
        folder.mkdir()
        shutil.copy(tmp_path / "live.db", folder / "view.db")
        wal = (tmp_path / "live.db-wal").read_bytes()
        reached = chance.choice((len(wal), chance.randint(0, len(wal))))
        zeros = bytes(chance.choice((0, len(wal) - reached)))
        (folder / "view.db-wal").write_bytes(wal[:reached] + zeros)

        lost = {key: list(log.records[key]) for key in KEYS}
        for key in KEYS:
            if chance.random() < 0.5:
                del log.records[key][len(log.records[key]) - chance.randint(0, 15) :]
        after = FakeLog()
        after.now_ms = log.now_ms
        again = Writer(after, random.Random(seed * 1000 + cut))
        for key in KEYS:
            after.resume(key, log.records[key])
            log.records[key] = lost[key]
        for _ in range(chance.choice((0, 1, 30))):
            again.write()

        found = Reader(after, str(folder / "view.db"))
        found.read()
        anew = Reader(after, IN_MEMORY)
        anew.read()
        assert found.tables() == anew.tables()
        rebuilt += (folder / "view.db.aside").exists()
        kept += not (folder / "view.db.aside").exists()
        for reader in (found, anew):
            reader.view.close()
    live.view.close()
    assert kept > 0
    assert rebuilt > 0
