"""The view's rows of sessions, derived from the records of ``MQTT_SESSION``.

Owns: the tables of sessions, runs and positions, and how records change them.
Must not touch: the log (``follower`` reads it), records appended but not read back (``journal``).

    sessions   one row per session; ``at`` is the queue offset of its whole record, so that the
               rows with the oldest records come first
               ``run``, ``due``: without a connection 0, and the time at which something is due;
               with one the gateway's run, and how long after the end of that run it is due
    runs       one row for each run of a gateway with sessions, and when it last wrote
    positions  live positions of the runs
    queues     see ``packing``
    shared     which sessions have which shared subscriptions
    claims     see ``open_claims``
    over       the last OVER_MAX runs that are over and no longer have a row

The end of a run is one row: its sessions then count as disconnected without being written.

Which of several gateways has a session is decided only by the order of the records, so that all
views agree:

- A run lives from its first record to a ``started`` of the same gateway, its ``stopped``, or a
  ``lost``. Its later records are ignored.
- A client identifier belongs to its holder: the live run that wrote the last whole record while the
  client was connected. Runs that have claimed it get it next, in the order of the claims: a run
  waits until there is no other holder and no older claim, then writes the record that settles its
  claim.
- Records of another run about a session that is held by a claim, or is claimed, are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from motelog.core.limited_log import LimitedLog
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.state.follower import ReadBack
from motelog.gateway.state.open_claims import CLAIMS_TABLE, Claimed, OpenClaims
from motelog.gateway.state.packing import QUEUES_TABLE, Packing
from motelog.gateway.state.progress import (
    AWAY,
    Changing,
    Position,
    SessionState,
    move,
    state_of,
)
from motelog.gateway.state.records import (
    ClaimRecord,
    EndRecord,
    FiltersRecord,
    LostRecord,
    MarksRecord,
    Record,
    SessionRecord,
    StartedRecord,
    StoppedRecord,
    TickRecord,
    decode_record,
)
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import View

logger = logging.getLogger(__name__)

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS sessions (
        at INTEGER PRIMARY KEY, client_id TEXT NOT NULL UNIQUE, run INTEGER NOT NULL,
        due INTEGER, store_ms INTEGER NOT NULL, state BLOB NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS sessions_due ON sessions (run, due)",
    """CREATE TABLE IF NOT EXISTS runs (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL UNIQUE, gateway TEXT NOT NULL,
        last_ms INTEGER NOT NULL, last_number INTEGER NOT NULL, is_over INTEGER NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS positions (
        run INTEGER, queue INTEGER, queue_offset INTEGER, at INTEGER, first_at INTEGER,
        PRIMARY KEY (run, queue)
    ) WITHOUT ROWID""",
    QUEUES_TABLE,
    """CREATE TABLE IF NOT EXISTS shared (
        name TEXT, client_id TEXT, PRIMARY KEY (name, client_id)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS shared_client_id ON shared (client_id)",
    CLAIMS_TABLE,
    "CREATE TABLE IF NOT EXISTS over (id INTEGER PRIMARY KEY, run INTEGER NOT NULL UNIQUE)",
)
#: Rows of the sessions in a JSON array: one query for many costs a tenth of a query for each.
_FETCH: Final = (
    "SELECT client_id, {} FROM json_each(?) CROSS JOIN sessions ON client_id = json_each.value"
)
_FETCH_ROWS: Final = _FETCH.format("at, sessions.run, state")
_FETCH_RUNS: Final = _FETCH.format("sessions.run")
#: A session's (at, run, state).
_Row: TypeAlias = tuple[Any, ...]
#: How many ended runs without a row are remembered, so that their late records are ignored.
OVER_MAX: Final = 1000


class ClaimHeard(NamedTuple):
    """A claim as the log has it: ``run`` has claimed ``client_id`` in its record ``number``.

    ``holder`` is the run that held the client identifier then, 0 if none did; ``takes``: the holder
    must hand it over. ``is_open``: others wait until the claim is settled. ``owner`` is the user
    for whom it is claimed, None if not known.
    """

    client_id: str
    run: int
    number: int
    at: int
    holder: int
    takes: bool
    is_open: bool
    owner: str | None


#: News that was read back: a claim, a client identifier whose holder or claims have changed, or
#: None for the end of a run.
Heard: TypeAlias = ClaimHeard | str | None


class Run:
    """One run of a gateway: ``number`` identifies its row, ``key`` identifies it in records.

    ``last_ms`` and ``last_number`` are time and number of its last record. ``heard`` is the queue
    offset up to which it is known to have read back; it is 0 when the view is opened.
    """

    __slots__ = (
        "gateway",
        "heard",
        "is_over",
        "key",
        "last_ms",
        "last_number",
        "number",
        "positions",
    )

    def __init__(
        self,
        number: int,
        key: int,
        gateway: str,
        last_ms: int,
        last_number: int = 0,
        is_over: bool = False,
    ) -> None:
        self.number = number
        self.key = key
        self.gateway = gateway
        self.last_ms = last_ms
        self.last_number = last_number
        self.is_over = is_over
        self.heard = 0
        self.positions: dict[str, Position] = {}


class SessionRows:
    """The rows of sessions in ``view``; a part of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._packing = Packing(view)
        self._claims = OpenClaims(view)
        self._faults = LimitedLog(logger)
        #: The runs by ``key``.
        self.runs: dict[int, Run] = {}
        self._by_number: dict[int, Run] = {}
        #: Queue offset of the last ``started`` by run, as far as read since the view was opened.
        self.begins: dict[int, int] = {}
        #: The keys of live runs.
        self.living: set[int] = set()
        self._over: dict[int, None] = {}
        self.count = 0
        self._has_shared = False  # whether some session has a shared subscription, or has had one
        #: News read back since the list was last emptied, in the order of the log.
        self.heard: list[Heard] = []
        self._heard_before = 0
        #: Client identifiers whose changes are reported in ``heard``.
        self.awaited: set[str] = set()
        #: Client identifiers whose claims are reported there.
        self.present: Container[str] = ()
        # Within one transaction: the new states of sessions; None for a session that has ended.
        self._changed: dict[str, SessionState | None] = {}
        # Newer still: states that marks are changing, with the positions of their run.
        self._changing: dict[str, tuple[Changing, Mapping[str, Position]]] = {}
        self._changed_ms: dict[str, int] = {}
        self._changed_runs: set[int] = set()
        self._begin_offset = 0
        #: The rows that ``fetch`` has read, by client identifier.
        self.fetched: dict[str, _Row | None] = {}

    # --- a part of the view --------------------------------------------------------------

    def open(self) -> None:
        for statement in _TABLES:
            self._view.execute(statement)
        self._load()

    def rolled_back(self) -> None:
        del self.heard[self._heard_before :]
        self._load()

    def _load(self) -> None:
        self.fetched.clear()
        self._changed.clear()
        self._changing.clear()
        self._changed_ms.clear()
        self._changed_runs.clear()
        execute = self._view.execute
        self._packing.load()
        self._by_number = by_number = {}
        for number, key, gateway, last_ms, last_number, is_over in execute(
            "SELECT id, run, gateway, last_ms, last_number, is_over FROM runs"
        ):
            run = Run(number, key, gateway, last_ms, last_number, bool(is_over))
            by_number[number] = run
        self.runs = {run.key: run for run in by_number.values()}
        self.living = {run.key for run in by_number.values() if not run.is_over}
        self._over = dict.fromkeys(key for (key,) in execute("SELECT run FROM over ORDER BY id"))
        for number, queue, *position in execute(
            "SELECT run, queue, queue_offset, at, first_at FROM positions"
        ):
            by_number[number].positions[self._packing.names[queue]] = Position(*position)
        self.count = execute("SELECT count(*) FROM sessions").fetchone()[0]
        self._has_shared = execute("SELECT 1 FROM shared LIMIT 1").fetchone() is not None
        self._claims.load()

    def apply(self, records: Sequence[ReadBack], *, begin_offset: int, limit: int) -> int:
        self._begin_offset = begin_offset
        self.fetched.clear()
        self._heard_before = len(self.heard)
        changes = taken = 0
        for record in records:
            if changes >= limit:
                break
            taken += 1
            try:
                changes += self._apply(record, decode_record(record.body))
            except (msgspec.DecodeError, ValueError, RecursionError) as exc:
                self._faults.warning(
                    "a record of a session cannot be read and is ignored queue_offset=%d error=%s",
                    record.queue_offset,
                    exc,
                )
        self._write()
        return taken

    # --- records to states ---------------------------------------------------------------

    def _apply(self, read: ReadBack, record: Record) -> int:
        """Apply one record; return how many rows it changes."""
        run = self._run_of(record, read.store_ms)
        if run is None:
            return 1
        match record:
            case SessionRecord():
                self._save(read, record)
                return 1
            case EndRecord():
                self._end(record)
                return 1
            case FiltersRecord():
                changing = self._changing_by(record.change.progress.client_id, run)
                if changing is not None:
                    changing.take_filters(record.change)
                return 1
            case MarksRecord():
                before = len(self._changing)
                for mark in record.marks:
                    changing = self._changing_by(mark.client_id, run)
                    if changing is not None:
                        changing.take(mark, run.positions)
                return len(self._changing) - before
            case TickRecord():
                run.heard = max(run.heard, record.heard)
                self._move(run, record, read.queue_offset)
                for entry in record.progress:
                    state = self._current(entry.client_id)
                    if state is not None and state.run == record.run:
                        changed = state.with_progress(entry, run.positions)
                        self._change(entry.client_id, changed)
                return 1 + len(record.progress)
            case StartedRecord():
                self.begins = {k: at for k, at in self.begins.items() if k in self.living}
                self.begins[run.key] = read.queue_offset
                for other in self.runs.values():
                    if other.gateway == record.gateway and other is not run:
                        self._end_run(other)
                return 1
            case StoppedRecord():
                self._end_run(run)
                return 1
            case LostRecord():
                lost = self.runs.get(record.lost_run)
                if lost is None:
                    self._note_over(record.lost_run)
                elif lost.last_number == record.last_number:
                    self._end_run(lost)
                return 1
            case ClaimRecord():
                return 1 + self._claim(run, record, read.queue_offset)

    def _save(self, read: ReadBack, record: SessionRecord) -> None:
        client_id = record.session.client_id
        state = state_of(record, read.queue_offset)
        if record.repeats is not None:
            known = self._current(client_id)
            if known is not None:
                if known.at != record.repeats:
                    return
            elif record.repeats >= self._begin_offset:
                # The repeated record would have been read here, so the session has ended since.
                return
        if record.claim:
            self._settle(client_id, record.run, record.claim)
        elif len(self.living) > 1:
            held = self._current(client_id)
            if held is None or held.run != record.run:
                if self._is_others(client_id, held, record):
                    return
            elif held.is_claimed and state.run == record.run:
                state = msgspec.structs.replace(state, is_claimed=True)
        self._change(client_id, state)
        self._changed_ms[client_id] = read.store_ms
        self._hear(client_id)

    def _is_others(self, client_id: str, held: SessionState | None, record: SessionRecord) -> bool:
        """Whether another run has the session of ``record``, or is next to get it."""
        if held is not None and held.is_claimed and not self.is_away(held):
            return True
        if record.session.left_ms is not None:
            return False
        return any(key != record.run for key in self.claimants(client_id))

    def _end(self, record: EndRecord) -> None:
        if record.claim:
            self._settle(record.client_id, record.run, record.claim)
        state = self._current(record.client_id)
        if state is None:
            return
        if state.run != record.run and not self.is_away(state):
            return  # the client has meanwhile connected to another gateway
        if record.unless and self._has_member(record.unless, record.run):
            return  # the writer had not read about this member yet
        self._change(record.client_id, None)
        self._hear(record.client_id)

    def _has_member(self, name: str, run: int) -> bool:
        """Whether a session subscribes to a group, or a gateway other than ``run`` has a member."""
        if any(key != run for key in self.claimants(name)):
            return True
        states = map(self._current, {*self.subscribers(name), *self._changed})
        return any(
            one.topic_filter == name
            for state in states
            if state is not None
            for one in state.session.filters
        )

    # --- runs and claims -----------------------------------------------------------------

    def _run_of(self, record: Record, store_ms: int) -> Run | None:
        """Return the run that wrote a record; None if it is over: then the record is ignored."""
        run = self.runs.get(record.run)
        if record.run in self._over or (run is not None and run.is_over):
            return None
        if run is None:
            cursor = self._view.execute(
                "INSERT INTO runs (run, gateway, last_ms, last_number, is_over)"
                " VALUES (?, ?, ?, 0, 0)",
                (record.run, record.gateway, store_ms),
            )
            assert cursor.lastrowid is not None
            run = Run(cursor.lastrowid, record.run, record.gateway, store_ms)
            self.runs[record.run] = self._by_number[run.number] = run
            self.living.add(record.run)
        run.last_ms = max(run.last_ms, store_ms)
        run.last_number = record.number
        self._changed_runs.add(record.run)
        return run

    def _end_run(self, run: Run) -> None:
        if run.is_over:
            return
        run.is_over = True
        self.living.discard(run.key)
        self._changed_runs.add(run.key)
        self._claims.end_run(run.number)
        self.heard.append(None)

    def _note_over(self, key: int) -> None:
        """Remember a run that is over and has no row, so that its late records are ignored."""
        if key in self._over:
            return
        self._over[key] = None
        self._view.execute("INSERT INTO over (run) VALUES (?)", (key,))
        if len(self._over) > OVER_MAX:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self._view.execute("DELETE FROM over WHERE run = ?", (oldest,))

    def is_first(self, key: int) -> bool:
        """Whether the run ``key`` does the common work of all live runs.

        This is the run of the gateway whose name sorts first.
        """
        runs = self.runs
        return key == min(self.living, key=lambda one: (runs[one].gateway, one), default=key)

    def is_over(self, key: int) -> bool:
        """Whether a run has ended, as far as the view is applied."""
        run = self.runs.get(key)
        return key in self._over or (run is not None and run.is_over)

    def _claim(self, run: Run, record: ClaimRecord, at: int) -> int:
        """Apply claims; return how many rows that changes."""
        for client_id, number in record.given_up:
            self._settle(client_id, run.key, number)
            self._hear(client_id)
        runs = self._runs_of((*record.lasting, *record.passing, *record.away))
        open_count = 0
        for client_ids, lasts, takes in (
            (record.lasting, True, True),
            (record.passing, False, True),
            (record.away, True, False),
        ):
            for client_id in client_ids:
                # This loop is hot: among many gateways, few claims concern this one.
                is_stored, holder = self._holder(client_id, runs.get(client_id))
                is_open = lasts or is_stored or client_id in self._claims.by_client
                if is_open:
                    self._claims.open(client_id, Claimed(at, run.number, record.number))
                    open_count += 1
                if holder or client_id in self.awaited or client_id in self.present:
                    owner = record.owners.get(client_id) if takes else None
                    heard = (run.key, record.number, at, holder, takes, is_open, owner)
                    self.heard.append(ClaimHeard(client_id, *heard))
        return len(record.given_up) + open_count

    def _settle(self, client_id: str, key: int, number: int) -> None:
        self._claims.settle(client_id, self.runs[key].number, number)

    def _runs_of(self, client_ids: Collection[str]) -> dict[str, int]:
        """Return the run in the row of each of these sessions that has a row."""
        if not (client_ids and self.count):
            return {}
        return dict(self._view.execute(_FETCH_RUNS, (_json(client_ids),)).fetchall())

    def holder(self, client_id: str) -> tuple[bool, int]:
        """Return (whether the session is stored, the run that holds it or 0)."""
        row = self._row(client_id)
        return self._holder(client_id, None if row is None else row[1])

    def _holder(self, client_id: str, number: int | None) -> tuple[bool, int]:
        """Like ``holder``; ``number`` is the run in the session's row, None without a row."""
        if client_id in self._changed:
            state = self._changed[client_id]
            if state is None:
                return False, 0
            return True, 0 if self.is_away(state) else state.run
        if number is None:
            return False, 0
        run = self._by_number.get(number)
        return True, 0 if run is None or run.is_over else run.key

    def is_held(self, client_id: str, key: int) -> bool:
        """Whether a run other than ``key`` holds a client identifier."""
        return self.holder(client_id)[1] not in (0, key)

    def claimants(self, client_id: str) -> list[int]:
        """Return the runs that have claimed a client identifier, in the order of their claims."""
        claims = self._claims.by_client.get(client_id, ())
        return list(dict.fromkeys(self._by_number[one.run].key for one in claims))

    def may_have(self, client_id: str, key: int, at: int) -> bool:
        """Whether the run ``key``, whose claim is at queue offset ``at``, has its turn."""
        if self.is_held(client_id, key):
            return False
        older = (one for one in self._claims.by_client.get(client_id, ()) if one.at < at)
        return all(self._by_number[one.run].key == key for one in older)

    def _hear(self, client_id: str) -> None:
        if client_id in self.awaited:
            self.heard.append(client_id)

    def _move(self, run: Run, record: TickRecord, at: int) -> None:
        # So a row does not depend on how many records are read at once.
        for client_id, (changing, _) in list(self._changing.items()):
            if changing.run == run.key:
                self._end_changing(client_id)
        positions, number = record.positions, self._packing.number
        move(run.positions, record.left, positions, at)
        for queue in record.left:
            self._view.execute(
                "DELETE FROM positions WHERE run = ? AND queue = ?",
                (run.number, number(queue)),
            )
        self._view.execute_many(
            "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
            [(run.number, number(queue), *run.positions[queue]) for queue in positions],
        )

    def _changing_by(self, client_id: str, run: Run) -> Changing | None:
        """Return the state that marks of ``run`` change; None if another run has the session."""
        if client_id in self._changing:
            changing, _ = self._changing[client_id]
            return changing if changing.run == run.key else None
        state = self._current(client_id)
        if state is None or state.run != run.key:
            return None
        changing = Changing(state)
        self._changing[client_id] = changing, run.positions
        return changing

    def _end_changing(self, client_id: str) -> None:
        changing, positions = self._changing[client_id]
        self._change(client_id, changing.state(positions))

    def _change(self, client_id: str, state: SessionState | None) -> None:
        self._changing.pop(client_id, None)
        self._changed[client_id] = state

    def _current(self, client_id: str) -> SessionState | None:
        if client_id in self._changing:
            self._end_changing(client_id)
        if client_id in self._changed:
            return self._changed[client_id]
        return self.state(client_id)

    # --- states to rows ------------------------------------------------------------------

    def _write(self) -> None:
        for client_id in list(self._changing):
            self._end_changing(client_id)
        execute_many = self._view.execute_many
        ended: list[tuple[str]] = []
        whole: list[tuple[Any, ...]] = []
        updated: list[tuple[Any, ...]] = []
        for client_id, state in self._changed.items():
            if state is None or client_id in self._changed_ms:
                self._write_shared(client_id, state)
            if state is None:
                ended.append((client_id,))
                continue
            run, due = self._due_of(state)
            row = (run, due, self._packing.pack(state), client_id)
            store_ms = self._changed_ms.get(client_id)
            if store_ms is None:
                updated.append(row)
            else:
                whole.append((state.at, store_ms, *row))
        if ended:
            self.count -= execute_many("DELETE FROM sessions WHERE client_id = ?", ended)
        if updated:
            execute_many(
                "UPDATE sessions SET run = ?, due = ?, state = ? WHERE client_id = ?", updated
            )
        if whole:
            # The place of a row is its primary key, so the row is replaced.
            self.count += len(whole) - execute_many(
                "DELETE FROM sessions WHERE client_id = ?", [(row[-1],) for row in whole]
            )
            execute_many(
                "INSERT INTO sessions (at, store_ms, run, due, state, client_id)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                whole,
            )
        runs = map(self.runs.__getitem__, self._changed_runs)
        execute_many(
            "UPDATE runs SET last_ms = ?, last_number = ?, is_over = ? WHERE id = ?",
            [(run.last_ms, run.last_number, run.is_over, run.number) for run in runs],
        )
        self._changed.clear()
        self._changed_ms.clear()
        self._changed_runs.clear()
        self._forget_runs()

    def _write_shared(self, client_id: str, state: SessionState | None) -> None:
        execute = self._view.execute
        if self._has_shared:
            execute("DELETE FROM shared WHERE client_id = ?", (client_id,))
        for one in () if state is None else state.session.filters:
            if one.topic_filter.startswith(SHARED_PREFIX):
                execute("INSERT INTO shared VALUES (?, ?)", (one.topic_filter, client_id))
                self._has_shared = True

    def _forget_runs(self) -> None:
        """Forget the runs that are over and no longer have sessions."""
        execute = self._view.execute
        for run in [run for run in self.runs.values() if run.is_over]:
            number = (run.number,)
            if execute("SELECT 1 FROM sessions WHERE run = ? LIMIT 1", number).fetchone() is None:
                execute("DELETE FROM runs WHERE id = ?", number)
                execute("DELETE FROM positions WHERE run = ?", number)
                del self.runs[run.key], self._by_number[run.number]
                self._note_over(run.key)

    def _due_of(self, state: SessionState) -> tuple[int, int | None]:
        """Return (run, due) of a session's row."""
        session = state.session
        if session.left_ms is not None:
            return AWAY, session.due_ms(session.left_ms)
        return self.runs[state.run].number, session.due_ms(0)  # as long after the run's end

    def is_away(self, state: SessionState) -> bool:
        """Return whether the session has no connection, perhaps because its run is over."""
        if state.session.left_ms is not None:
            return True
        run = self.runs.get(state.run)
        return run is not None and run.is_over

    # --- rows to sessions ----------------------------------------------------------------

    def state(self, client_id: str) -> SessionState | None:
        """Return the state of a session according to the view, None if there is none; ViewError."""
        row = self._row(client_id)
        if row is None:
            return None
        at, run, data = row
        key = self._by_number[run].key if run != AWAY else AWAY
        return self._packing.unpack(client_id, at, key, data)

    def _row(self, client_id: str) -> _Row | None:
        if client_id in self.fetched:
            return self.fetched[client_id]
        row: _Row | None = self._view.execute(
            "SELECT at, run, state FROM sessions WHERE client_id = ?", (client_id,)
        ).fetchone()
        return row

    def fetch(self, client_ids: Collection[str]) -> None:
        """Read the rows of these into ``fetched``, for ``state`` and ``holder``; ViewError.

        The caller clears ``fetched`` before rows change.
        """
        fetched: dict[str, _Row | None] = dict.fromkeys(client_ids)
        if fetched and self.count:
            for client_id, *row in self._view.execute(_FETCH_ROWS, (_json(fetched),)):
                fetched[client_id] = tuple(row)
        self.fetched.clear()
        self.fetched.update(fetched)

    def as_of_now(
        self, state: SessionState, positions: Mapping[str, Position] | None = None
    ) -> StoredSession:
        """Return a state's session with its present cursors.

        ``positions`` replace the positions of its run in the view, if newer ones are known.
        """
        run = self.runs.get(state.run)
        if run is None:
            return state.as_of_now(positions or {})
        return state.as_of_now(
            run.positions if positions is None else positions,
            left_ms=run.last_ms if run.is_over else None,
        )

    def due(self, now_ms: int, jumped_ms: Callable[[int], int]) -> Iterator[str]:
        """Yield the client identifiers whose expiry or will is due, the earliest first.

        For sessions that are away, jumps of the clock are not considered: the caller puts off those
        that are not due yet.
        """
        times = [(AWAY, now_ms)]
        times += [
            (run.number, now_ms - run.last_ms - jumped_ms(run.last_ms))
            for run in self.runs.values()
            if run.is_over
        ]
        for number, due in times:
            for (client_id,) in self._view.execute(
                "SELECT client_id FROM sessions WHERE run = ? AND due <= ? ORDER BY due",
                (number, due),
            ):
                yield client_id

    def put_off(self, later: Sequence[tuple[int, str]]) -> None:
        """Make sessions that are away due later than their records say.

        ``later`` are (ms, client identifier).
        """
        for jumped_ms, client_id in later:
            state = self.state(client_id)
            if state is not None and state.session.left_ms is not None:
                due_ms = state.session.due_ms(state.session.left_ms)
                if due_ms is not None:
                    self._view.execute(
                        "UPDATE sessions SET due = ? WHERE client_id = ? AND run = ?",
                        (due_ms + jumped_ms, client_id, AWAY),
                    )

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return client identifiers that begin with ``prefix``, those after ``after``, in order."""
        rows = self._view.execute(
            "SELECT client_id FROM sessions WHERE client_id > ? AND client_id >= ?"
            " ORDER BY client_id LIMIT ?",
            (after, prefix, limit),
        ).fetchall()
        return [name for (name,) in rows if name.startswith(prefix)]

    def subscribers(self, name: str) -> Iterator[str]:
        """Yield the client identifiers of the sessions that have a shared subscription."""
        for (client_id,) in self._view.execute(
            "SELECT client_id FROM shared WHERE name = ?", (name,)
        ):
            yield client_id

    def oldest(self, key: int, limit: int) -> list[tuple[int, str, int]]:
        """Return (queue offset, client identifier, store time) of the oldest whole records.

        These are records of sessions that are connected in the run ``key``, and also of those that
        are away if that run is the first.
        """
        numbers = [r.number for r in self.runs.values() if r.key == key]
        if self.is_first(key):
            numbers += [AWAY, *(r.number for r in self.runs.values() if r.is_over)]
        return self._view.execute(
            "SELECT at, client_id, store_ms FROM sessions"
            f" WHERE run IN ({','.join(map(str, numbers))}) ORDER BY at LIMIT ?",
            (limit,),
        ).fetchall()


def _json(client_ids: Iterable[str]) -> str:
    return msgspec.json.encode(list(client_ids)).decode()
