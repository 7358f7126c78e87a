"""The bytes of a session's row in the view: its state, with numbers in place of queue names.

Owns: the table of queues, which gives them numbers so that a cursor takes few bytes; the encoding.
Must not touch: other tables (``session_rows``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from motelog.gateway.state.progress import SessionState
from motelog.gateway.state.stored import (
    Received,
    StoredFilter,
    StoredFlight,
    StoredReplay,
    StoredSession,
    StoredWill,
)
from motelog.gateway.state.view import View

QUEUES_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
)
_NO_QUEUES: Final[Mapping[int, int]] = {}
_row_encoder: Final = msgspec.msgpack.Encoder()
_row_decoder: Final = msgspec.msgpack.Decoder(
    tuple[
        int,
        int | None,
        list[tuple[str, int, int, dict[int, int]]],
        dict[int, int],
        list[tuple[int, int, int, int, int]],
        list[tuple[int, int, int, int]],
        list[tuple[int, int]],
        StoredWill | None,
        tuple[StoredReplay, ...],
        dict[int, int],
        bool,
        bool,
        str | None,
        int,
    ]
)


class Packing:
    """Packs states for ``view`` with the numbers of its queues."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._numbers: dict[str, int] = {}
        #: The names of queues by their numbers.
        self.names: dict[int, str] = {}

    def load(self) -> None:
        """Read the numbers, after the view was opened or rolled back."""
        self.names = dict(self._view.execute("SELECT id, name FROM queues").fetchall())
        self._numbers = {name: number for number, name in self.names.items()}

    def pack(self, state: SessionState) -> bytes:
        """Return the bytes of a row; queues that are new get numbers."""
        session = state.session
        queue_id, numbered = self.number, self._numbered
        return _row_encoder.encode(
            (
                session.expiry_s,
                session.left_ms,
                [
                    (f.topic_filter, f.options, f.identifier, numbered(f.since))
                    for f in session.filters
                ],
                numbered(session.cursors),
                [
                    (f.packet_id, queue_id(f.queue), f.queue_offset, f.qos, f.state)
                    for f in session.inflight
                ],
                [
                    (r.packet_id, queue_id(r.queue), r.queue_offset, r.taken_ms)
                    for r in session.received
                ],
                [(queue_id(queue), queue_offset) for queue, queue_offset in session.delivered],
                session.will,
                session.replays,
                numbered(state.pinned),
                state.has_progress,
                state.is_claimed,
                session.owner,
                session.begun_ms,
            )
        )

    def unpack(self, client_id: str, at: int, run: int, data: bytes) -> SessionState:
        """Return the state that ``data`` holds; the others are the state's fields."""
        (
            expiry_s,
            left_ms,
            filters,
            cursors,
            inflight,
            received,
            delivered,
            will,
            replays,
            pinned,
            has_progress,
            is_claimed,
            owner,
            begun_ms,
        ) = _row_decoder.decode(data)
        name, named = self.names, self._named
        session = StoredSession(
            client_id,
            expiry_s,
            left_ms,
            tuple([StoredFilter(f[0], f[1], f[2], named(f[3])) for f in filters]),
            named(cursors),
            tuple([StoredFlight(f[0], name[f[1]], f[2], f[3], f[4]) for f in inflight]),
            tuple([Received(r[0], name[r[1]], r[2], r[3]) for r in received]),
            tuple([(name[queue], queue_offset) for queue, queue_offset in delivered]),
            will,
            replays,
            owner,
            begun_ms,
        )
        return SessionState(session, run, at, named(pinned), has_progress, is_claimed)

    def _numbered(self, by_queue: Mapping[str, int]) -> Mapping[int, int]:
        if not by_queue:  # most are empty
            return _NO_QUEUES
        return {self.number(queue): queue_offset for queue, queue_offset in by_queue.items()}

    def _named(self, by_number: Mapping[int, int]) -> dict[str, int]:
        if not by_number:
            return {}
        name = self.names
        return {name[number]: queue_offset for number, queue_offset in by_number.items()}

    def number(self, queue: str) -> int:
        """Return the number of a queue's name; a new one if it has none."""
        number = self._numbers.get(queue)
        if number is None:
            cursor = self._view.execute("INSERT INTO queues (name) VALUES (?)", (queue,))
            assert cursor.lastrowid is not None
            number = self._numbers[queue] = cursor.lastrowid
            self.names[number] = queue
        return number
