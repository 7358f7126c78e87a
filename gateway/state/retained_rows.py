"""The view's rows of retained messages, derived from the records of ``MQTT_RETAINED``.

Owns: the table of retained messages, and how records change it; Retained.
Must not touch: the log (``follower`` reads it), messages appended but not read back (``retained``).

    retained          one row a message; retained_clients: how many each publisher has there

    record     a copy of the published record, in this topic's queue: the last one of a topic name
               counts; one with an empty payload removes the message [MQTT-3.3.1-6]
    mqttKept   "queue offset:store time:first queue offset", a property of a record that repeats an
               older one; it has an effect only if the older one is still current
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from motelog.core.limited_log import LimitedLog
from motelog.core.message import NAME_END, VALUE_END
from motelog.gateway.mapping.message_properties import client_id_property, expires_ms
from motelog.gateway.mqtt.errors import TopicNameError
from motelog.gateway.mqtt.topics import check_topic_name
from motelog.gateway.state.follower import ReadBack
from motelog.gateway.state.view import View

logger = logging.getLogger(__name__)

_TABLES: Final = (
    # In the order of names, as replays read them. In any other order, rows would have to be looked
    # up one by one.
    """CREATE TABLE IF NOT EXISTS retained (
        name TEXT PRIMARY KEY, at INTEGER NOT NULL UNIQUE, payload BLOB NOT NULL,
        properties BLOB NOT NULL, store_ms INTEGER NOT NULL, expires_ms INTEGER,
        since INTEGER NOT NULL, record_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS retained_expiry ON retained (expires_ms)"
    " WHERE expires_ms IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS retained_clients (
        client_id TEXT PRIMARY KEY, count INTEGER NOT NULL
    ) WITHOUT ROWID""",
)
#: The place of records that are not read back: after everything in the view.
NOT_READ: Final = 1 << 62

_KEPT: Final = f"mqttKept{NAME_END}".encode()
_END: Final = VALUE_END.encode()


class Retained(NamedTuple):
    """One retained message, as it was published; ``expires_ms`` is None if it does not expire.

    ``queue_offset`` is its place in ``MQTT_RETAINED``, ``since`` that of its first record: a record
    that repeats the message has a later place, but does not make the message newer.
    """

    name: str
    payload: bytes
    properties: bytes
    store_ms: int
    queue_offset: int
    expires_ms: int | None
    since: int

    @property
    def client_id(self) -> str:
        """The client identifier of its publisher."""
        return client_id_property(self.properties)

    def over_ms(self, jumped_ms: Callable[[int], int]) -> int:
        """Return when it expires, or a time that never comes."""
        return _NEVER if self.expires_ms is None else self.expires_ms + jumped_ms(self.store_ms)

    @property
    def size_bytes(self) -> int:
        return len(self.name.encode()) + len(self.payload) + len(self.properties)


#: (place, topic name, properties, payload, store time ms, since): a message, as a cheap tuple.
Row = tuple[int, bytes, bytes, bytes, int, int]

_COLUMNS: Final = "name, payload, properties, store_ms, at, expires_ms, since"
_ROW: Final = "at, CAST(name AS BLOB), properties, payload, store_ms, since"
#: Rows that are read before their size is checked.
_ROWS_AT_ONCE: Final = 32
#: The value for "no message expires".
_NEVER: Final = 1 << 62


class RetainedRows:
    """The rows of retained messages in ``view``; a part of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._faults = LimitedLog(logger)
        self.count = 0
        self.size_bytes = 0
        #: No message expires before this; 0: not known.
        self._expires_from_ms = 0
        #: The records of the last transaction by topic name, for the tasks that wait for theirs.
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
        self._expires_from_ms = 0
        self.count, self.size_bytes = self._view.execute(
            "SELECT count(*), ifnull(sum(length(CAST(name AS BLOB)) + length(payload)"
            " + length(properties)), 0) FROM retained"
        ).fetchone()

    def apply(self, records: Sequence[ReadBack], *, begin_offset: int, limit: int) -> int:
        taken = 0
        for record in records[:limit]:
            taken += 1
            try:
                check_topic_name(record.topic_name or "")
            except TopicNameError as exc:
                self._faults.warning(
                    "a record of a retained message has an illegal topic name and is ignored"
                    " queue_offset=%d error=%s",
                    record.queue_offset,
                    exc,
                )
                continue
            assert record.topic_name is not None, "it is not empty"
            self.read.append((record.topic_name, record.body))
            self._apply(record, record.topic_name, begin_offset)
        return taken

    def _apply(self, record: ReadBack, name: str, begin_offset: int) -> None:
        properties, store_ms, since = record.properties, record.store_ms, record.queue_offset
        known = self.get(name)
        kept = _kept(properties)
        if kept is not None:
            properties, repeated, store_ms, kept_since = kept
            if repeated is not None:
                since = kept_since
                if known is not None:
                    if known.queue_offset != repeated:
                        return
                elif repeated >= begin_offset:
                    return  # it was removed since
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
                expires_ms(properties, store_ms), since,
            )  # fmt: skip
            self._view.execute(
                f"INSERT INTO retained ({_COLUMNS}, record_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*message, record.store_ms),
            )
            if message.expires_ms is not None:
                self._expires_from_ms = min(self._expires_from_ms, message.expires_ms)
            self._add(message, 1)

    def _remove(self, message: Retained) -> None:
        self._view.execute("DELETE FROM retained WHERE name = ?", (message.name,))
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
        """Return the number of messages of one publisher; ViewError."""
        row = self._view.execute(
            "SELECT count FROM retained_clients WHERE client_id = ?", (client_id,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def rows(
        self,
        lowest: str,
        after: str,
        highest: str,
        limit: int,
        *,
        bytes_max: int,
        glob: str | None = None,
        names_max: int = 0,
    ) -> tuple[list[Row], str | None]:
        """Return messages by name, and the name after which there may be more, else None.

        The names are in [lowest, highest) and after ``after``. There are up to ``limit`` messages,
        whose payloads and properties have at most ``bytes_max`` together, unless the first alone
        has more. With ``glob``, an expression for SQLite's GLOB, only names that fit are returned,
        among the next ``names_max`` names. ViewError.
        """
        # One lower bound: with two, SQLite seeks to one and then scans up to the other.
        conditions = ["name > ?" if after >= lowest else "name >= ?", "name < ?"]
        values: list[Any] = [max(after, lowest), highest]
        last: str | None = None
        if glob is not None:
            # The end is found by names alone; then only the payloads of fitting names are read.
            found = self._view.execute(
                f"SELECT name FROM retained WHERE {' AND '.join(conditions)}"
                " ORDER BY name LIMIT 1 OFFSET ?",
                (*values, names_max - 1),
            ).fetchone()
            if found is not None:
                last = values[1] = found[0]
                conditions[1] = "name <= ?"
            conditions.append("+name GLOB ?")  # "+" keeps SQLite from deriving bounds from it
            values.append(glob)
        cursor = self._view.execute(
            f"SELECT {_ROW} FROM retained WHERE {' AND '.join(conditions)} ORDER BY name LIMIT ?",
            (*values, limit),
        )
        average_bytes = max(1, self.size_bytes // max(1, self.count))
        at_once = min(max(1, bytes_max // average_bytes), _ROWS_AT_ONCE)
        rows: list[Row] = []
        size_bytes = 0
        while size_bytes <= bytes_max:
            part = cursor.fetchmany(at_once)
            rows += part
            size_bytes += sum([len(row[2]) + len(row[3]) for row in part])
            if len(part) < at_once:
                break
        cursor.close()
        is_more = len(rows) == limit or size_bytes > bytes_max
        while size_bytes > bytes_max and len(rows) > 1:
            row = rows.pop()
            size_bytes -= len(row[2]) + len(row[3])
        return rows, rows[-1][1].decode() if is_more else last

    def expire(self, now_ms: int, limit: int, jumped_ms: Callable[[int], int]) -> int:
        """Remove up to ``limit`` messages that have expired; return how many.

        ``jumped_ms`` returns how far the clock was set forward since a date; this time has not
        really passed.

        No record is needed for this: the records of the messages say when they expire.
        """
        if now_ms < self._expires_from_ms:
            return 0
        rows: list[tuple[Any, ...]] = []
        next_ms = _NEVER
        cursor = self._view.execute(
            f"SELECT {_COLUMNS} FROM retained WHERE expires_ms <= ? ORDER BY expires_ms", (now_ms,)
        )
        for row in cursor:
            over_ms = Retained(*row).over_ms(jumped_ms)
            if over_ms > now_ms:
                next_ms = min(next_ms, over_ms)
                continue
            rows.append(row)
            if len(rows) == limit:
                break
        cursor.close()
        if rows:
            with self._view.transaction():
                for row in rows:
                    self._view.execute("DELETE FROM retained WHERE name = ?", (row[0],))
                    self._count_client(Retained(*row).client_id, -1)
            for row in rows:
                self._add(Retained(*row), -1)
        if len(rows) < limit:
            first = self._view.execute(
                "SELECT expires_ms FROM retained WHERE expires_ms > ? ORDER BY expires_ms LIMIT 1",
                (now_ms,),
            ).fetchone()
            self._expires_from_ms = next_ms if first is None else min(next_ms, first[0])
        return len(rows)

    def oldest(self, limit: int) -> list[tuple[Retained, int]]:
        """Return the messages with the oldest records, and the store times of these."""
        rows = self._view.execute(
            f"SELECT {_COLUMNS}, record_ms FROM retained ORDER BY at LIMIT ?", (limit,)
        ).fetchall()
        return [(Retained(*row[:7]), row[7]) for row in rows]


def kept_property(message: Retained) -> bytes:
    """Return the property of a record that repeats a message."""
    return _KEPT + b"%d:%d:%d" % (message.queue_offset, message.store_ms, message.since) + _END


def moved_property(store_ms: int) -> bytes:
    """Return the property of a record that was stored at another broker before."""
    return _KEPT + b"%d" % store_ms + _END


def _kept(properties: bytes) -> tuple[bytes, int | None, int, int] | None:
    """Return the properties without that of a repeated or moved record, and its values."""
    begin = properties.rfind(_KEPT)
    if begin < 0:
        return None
    value = properties[begin + len(_KEPT) :].rstrip(_END)
    values = value.split(b":")
    if len(values) > 3 or not all(map(bytes.isdigit, values)):
        return None
    if len(values) == 1:
        return properties[:begin], None, int(value), 0
    # Earlier versions did not write the place of the first record.
    place, store_ms, since = map(int, (*values, values[0])[:3])
    return properties[:begin], place, store_ms, since
