"""What a gateway has appended to ``MQTT_SESSION`` and not read back yet, by client.

Owns: the changes, and the moves of positions, since the view's last record of this run.
Must not touch: the log, the view's rows (``session_rows``), live sessions.
Invariant: a change that the log may lack because of an error is ignored; if it is in the log after
all, it is found when it is read back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from motelog.gateway.log.log_port import Ticket
from motelog.gateway.state.progress import Changing, SessionState, move, state_of
from motelog.gateway.state.records import (
    EndRecord,
    FiltersRecord,
    MarksRecord,
    Record,
    SessionRecord,
    TickRecord,
    decode_record,
)
from motelog.gateway.state.session_rows import Run
from motelog.gateway.state.stored import FiltersChange, Mark, Progress, StoredSession

#: With this many records of changes not read back, reading back does not wait for the next second.
#: Otherwise, when a fleet connects, a second's records would be in memory, and the process does not
#: return memory to the system.
UNREAD_MAX: Final = 250
#: The place of records that are not read back: after everything in the view.
_NOT_READ: Final = 1 << 62

#: A change of one session: an entry or mark of a record, or a record. A whole state is kept as its
#: bytes: there may be thousands, and they are rarely needed before they are read back.
_Change: TypeAlias = bytes | EndRecord | Progress | Mark | FiltersChange


class _Written(NamedTuple):
    """One change that has not been read back, and the number of its record."""

    number: int
    ticket: Ticket
    change: _Change


class Unread:
    """The changes that one run of a gateway has appended and not read back."""

    def __init__(self) -> None:
        #: Changes by client, and the clients of each record by its number.
        self._written: dict[str, deque[_Written]] = {}
        self._writers: deque[tuple[int, tuple[str, ...]]] = deque()
        self._moves: deque[tuple[Ticket, TickRecord]] = deque()

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._written

    def __iter__(self) -> Iterator[str]:
        """Iterate over the client identifiers with changes."""
        return iter(self._written)

    @property
    def is_much(self) -> bool:
        """Whether so many records wait to be read back that memory grows."""
        return len(self._writers) >= UNREAD_MAX

    def note(self, record: Record, body: bytes, ticket: Ticket) -> None:
        """Keep what a record changes until it has been read back."""
        changes: Iterable[tuple[str, _Change]] = ()
        if isinstance(record, SessionRecord):
            changes = ((record.session.client_id, body),)
        elif isinstance(record, EndRecord):
            changes = ((record.client_id, record),)
        elif isinstance(record, FiltersRecord):
            changes = ((record.change.progress.client_id, record.change),)
        elif isinstance(record, MarksRecord):
            changes = ((mark.client_id, mark) for mark in record.marks)
        elif isinstance(record, TickRecord):
            changes = ((entry.client_id, entry) for entry in record.progress)
            if record.positions or record.left:
                self._moves.append((ticket, record))
        made = list(changes)
        if made:  # first, because ``forget`` finds a client's changes by its name here
            names = dict(made)
            self._writers.append((record.number, tuple(names)))
        written = self._written
        for client_id, change in made:
            one = _Written(record.number, ticket, change)
            known = written.get(client_id)
            is_settled = ticket.is_settled and (ticket.error is None or not ticket.may_be_missing)
            is_whole = type(change) is bytes and is_settled
            if known is None or is_whole:  # a whole state contains all changes before it
                written[client_id] = deque((one,))
            else:
                known.append(one)

    def forget(self, last: int) -> None:
        """Drop the changes that the view has: those of records up to the number ``last``."""
        writers, written = self._writers, self._written
        while writers and writers[0][0] <= last:
            for client_id in writers.popleft()[1]:
                changes = written.get(client_id, ())
                while changes and changes[0].number <= last:
                    changes.popleft()
                if not changes:
                    written.pop(client_id, None)
        while self._moves and self._moves[0][1].number <= last:
            self._moves.popleft()

    def applied(
        self, client_id: str, state: SessionState | None, key: int, run: Run | None
    ) -> tuple[SessionState | None, _Positions]:
        """Return a row's state after the changes of the run ``key``, and its positions now."""
        changing: Changing | None = None
        positions = _Positions(run, self._moves)
        for number, ticket, change in self._written.get(client_id, ()):
            if ticket.error is not None and ticket.may_be_missing:
                continue
            positions.go_to(number)
            if isinstance(change, Mark | FiltersChange):
                if changing is None and state is not None and state.run == key:
                    changing = Changing(state)
                if changing is None:
                    continue
                if isinstance(change, Mark):
                    changing.take(change, positions.now)
                else:
                    changing.take_filters(change)
                continue
            if changing is not None:
                state, changing = changing.state(positions.now), None
            if isinstance(change, bytes):
                state = state_of(_whole(change), _NOT_READ + number)
            elif isinstance(change, EndRecord):
                state = None
            elif state is not None and state.run == key:
                state = state.with_progress(change, positions.now)
        positions.go_to(_NOT_READ)
        if changing is not None:
            state = changing.state(positions.now)
        return state, positions

    def whole(self) -> Iterator[StoredSession]:
        """Yield the sessions of the whole records."""
        for changes in self._written.values():
            for one in changes:
                if isinstance(one.change, bytes):
                    yield _whole(one.change).session


class _Positions:
    """The positions of a run at the time of one record after another."""

    __slots__ = ("_moves", "now")

    def __init__(self, run: Run | None, moves: Collection[tuple[Ticket, TickRecord]]) -> None:
        self.now = run.positions if run is not None else {}
        self._moves = deque(moves)
        if moves:
            self.now = self.now.copy()

    def go_to(self, number: int) -> None:
        """Set ``now`` to the positions before the record ``number``; numbers must increase."""
        while self._moves and self._moves[0][1].number < number:
            ticket, tick = self._moves.popleft()
            if not ticket.may_be_missing:
                move(self.now, tick.left, tick.positions, _NOT_READ + tick.number)


def _whole(body: bytes) -> SessionRecord:
    record = decode_record(body)
    assert isinstance(record, SessionRecord)
    return record
