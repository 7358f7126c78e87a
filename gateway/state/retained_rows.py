"""The view's rows of retained messages: what the records of ``MQTT_RETAINED`` come to.

Owns: the table of retained messages, and how records change it; Retained.
Must not touch: the log (``follower`` reads it), what a gateway has appended and not read back
(``retained``).

    retained          one row a message; retained_clients: how many each publisher has there

    record     a copy of the published record, in this topic's queue: the last one of a topic name
               counts; one with an empty payload removes the message [MQTT-3.3.1-6]
    mqttKept   "queue offset:store time", a property of a record that repeats an older one, which
               counts only where that one still does
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from motelog.core.limited_log import LimitedLog
from motelog.core.message import NAME_END, VALUE_END
from motelog.gateway.mapping.message_properties import client_id_property, expires_ms
from motelog.gateway.state.follower import ReadBack
from motelog.gateway.state.view import View

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS retained (
        at INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, payload BLOB NOT NULL,
        properties BLOB NOT NULL, store_ms INTEGER NOT NULL, expires_ms INTEGER,
        record_ms INTEGER NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS retained_expiry ON retained (expires_ms)"
    " WHERE expires_ms IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS retained_clients (
        client_id TEXT PRIMARY KEY, count INTEGER NOT NULL
    ) WITHOUT ROWID""",
)
#: Stands for "behind everything in the view" in the places of records that are not read back.
NOT_READ: Final = 1 << 62

_KEPT: Final = f"mqttKept{NAME_END}".encode()
_END: Final = VALUE_END.encode()


class Retained(NamedTuple):
    """One retained message, as it was published; ``expires_ms`` is None if it does not expire.

    ``queue_offset`` is its place in ``MQTT_RETAINED``.
    """

    name: str
    payload: bytes
    properties: bytes
    store_ms: int
    queue_offset: int
    expires_ms: int | None

    @property
    def is_read_back(self) -> bool:
        """Whether ``queue_offset`` is its place; else it is NOT_READ and more."""
        return self.queue_offset < NOT_READ

    @property
    def client_id(self) -> str:
        """Who has published it."""
        return client_id_property(self.properties)

    @property
    def size_bytes(self) -> int:
        return len(self.name.encode()) + len(self.payload) + len(self.properties)


_COLUMNS: Final = "name, payload, properties, store_ms, at, expires_ms"
#: As ``Retained._make``, which is written in Python: a third of its time.
_retained: Final = cast("Callable[[Any], Retained]", partial(tuple.__new__, Retained))


class RetainedRows:
    """The rows of retained messages in ``view``; a part of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._faults = LimitedLog(logger)
        self.count = 0
        self.size_bytes = 0
        #: The records of the last transaction by topic name, for whoever waits for its own.
        self.read: list[tuple[str, bytes]] = []

    # --- a part of the view --------------------------------------------------------------

    def open(self) -> None:
        for statement in _TABLES:
            self._view.execute(statement)
        self._count()

    def rolled_back(self) -> None:
        self.read.clear()
        self._count()

    def _count(self) -> None:
        self.count, self.size_bytes = self._view.execute(
            "SELECT count(*), ifnull(sum(length(CAST(name AS BLOB)) + length(payload)"
            " + length(properties)), 0) FROM retained"
        ).fetchone()

    def apply(self, records: Sequence[ReadBack], *, begin_offset: int, limit: int) -> int:
        taken = 0
        for record in records[:limit]:
            taken += 1
            if record.topic_name is None:
                self._faults.warning(
                    "a record of a retained message has no topic name and is left out"
                    " queue_offset=%d",
                    record.queue_offset,
                )
                continue
            self.read.append((record.topic_name, record.body))
            self._apply(record, record.topic_name, begin_offset)
        return taken

    def _apply(self, record: ReadBack, name: str, begin_offset: int) -> None:
        properties, store_ms = record.properties, record.store_ms
        known = self.get(name)
        kept = _kept(properties)
        if kept is not None:
            properties, repeated, store_ms = kept
            if known is not None:
                if known.queue_offset != repeated:
                    return
            elif repeated >= begin_offset:
                return  # it has been removed since
        if known is not None:
            self._remove(known)
        owner = None if known is None else known.client_id
        new_owner = client_id_property(properties) if record.body else None
        if owner != new_owner:
            self._count_client(owner, -1)
            self._count_client(new_owner, 1)
        if record.body:
            message = Retained(
                name, record.body, properties, store_ms, record.queue_offset,
                expires_ms(properties, store_ms),
            )  # fmt: skip
            self._view.execute(
                f"INSERT INTO retained ({_COLUMNS}, record_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*message, record.store_ms),
            )
            self._add(message, 1)

    def _remove(self, message: Retained) -> None:
        self._view.execute("DELETE FROM retained WHERE at = ?", (message.queue_offset,))
        self._add(message, -1)

    def _add(self, message: Retained, sign: int) -> None:
        self.count += sign
        self.size_bytes += sign * message.size_bytes

    def _count_client(self, client_id: str | None, change: int) -> None:
        if client_id is None:
            return
        self._view.execute(
            "INSERT INTO retained_clients VALUES (?, ?)"
            " ON CONFLICT (client_id) DO UPDATE SET count = count + excluded.count",
            (client_id, change),
        )
        if change < 0:
            self._view.execute(
                "DELETE FROM retained_clients WHERE client_id = ? AND count = 0", (client_id,)
            )

    # --- rows ----------------------------------------------------------------------------

    def get(self, name: str) -> Retained | None:
        """Return the message of a topic name; ViewError."""
        row = self._view.execute(
            f"SELECT {_COLUMNS} FROM retained WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else Retained(*row)

    def count_of(self, client_id: str) -> int:
        """Return how many messages are of one publisher; ViewError."""
        row = self._view.execute(
            "SELECT count FROM retained_clients WHERE client_id = ?", (client_id,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def named(self, lowest: str, after: str, highest: str, limit: int) -> list[tuple[str, int]]:
        """Return (topic name, place) from ``lowest`` on, behind ``after``, before ``highest``."""
        return self._range("name, at", lowest, after, highest, limit).fetchall()

    def messages(self, lowest: str, after: str, highest: str, limit: int) -> list[Retained]:
        """Return the messages whose names ``named`` returns."""
        return list(map(_retained, self._range(_COLUMNS, lowest, after, highest, limit)))

    def _range(
        self, columns: str, lowest: str, after: str, highest: str, limit: int
    ) -> sqlite3.Cursor:
        # One lower bound: of two, SQLite seeks to one and passes over all that is up to the other.
        is_behind = after >= lowest
        return self._view.execute(
            f"SELECT {columns} FROM retained WHERE name {'>' if is_behind else '>='} ?"
            " AND name < ? ORDER BY name LIMIT ?",
            (after if is_behind else lowest, highest, limit),
        )

    def at(self, places: Sequence[int]) -> dict[str, Retained]:
        """Return the messages at these places by topic name."""
        if not places:
            return {}
        marks = ",".join("?" * len(places))
        rows = self._view.execute(f"SELECT {_COLUMNS} FROM retained WHERE at IN ({marks})", places)
        return {row[0]: Retained(*row) for row in rows}

    def expire(self, now_ms: int, limit: int) -> int:
        """Remove up to ``limit`` messages that have expired; return how many.

        The log need not say so: their records do.
        """
        rows = self._view.execute(
            f"SELECT {_COLUMNS} FROM retained WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?",
            (now_ms, limit),
        ).fetchall()
        if rows:
            with self._view.transaction():
                for row in rows:
                    self._view.execute("DELETE FROM retained WHERE at = ?", (row[4],))
                    self._count_client(Retained(*row).client_id, -1)
            for row in rows:
                self._add(Retained(*row), -1)
        return len(rows)

    def oldest(self, limit: int) -> list[tuple[Retained, int]]:
        """Return the messages with the oldest records, and when these were stored."""
        rows = self._view.execute(
            f"SELECT {_COLUMNS}, record_ms FROM retained ORDER BY at LIMIT ?", (limit,)
        ).fetchall()
        return [(Retained(*row[:6]), row[6]) for row in rows]


def kept_property(message: Retained) -> bytes:
    """Return the property of a record that repeats a message."""
    return _KEPT + b"%d:%d" % (message.queue_offset, message.store_ms) + _END


def _kept(properties: bytes) -> tuple[bytes, int, int] | None:
    """Return the properties without that of a repeated record, and its two values."""
    begin = properties.rfind(_KEPT)
    if begin < 0:
        return None
    value = properties[begin + len(_KEPT) :].rstrip(_END)
    place, _, store_ms = value.partition(b":")
    if not (place.isdigit() and store_ms.isdigit()):
        return None
    return properties[:begin], int(place), int(store_ms)
