"""The journal of sessions: their changes become records of ``MQTT_SESSION``, and are found again.

Owns: what a turn has collected, what the next tick has to write, the gateway's run. Must not touch:
live sessions (the caller passes their state), rows (``session_rows``), what is not read back yet
(``unread``).

    collect, mark --> end of turn, commit --.
                          save, end, tick --+--> log --> refresh --> view
                                            '--> not read back yet --.  |
    load  <----------------------------------------------------------+--'

Invariants: the view changes only by reading back, so it may be deleted. ``load`` never waits: it
applies what this gateway has appended since to the row. It ignores a record that the log may lack
because of an error; if that record is in the log after all, reading back finds it. Records are
appended in the order of their numbers. What was collected comes before any later record. A session
that has left is no longer at the live positions: if the log refuses its record, it is appended
again until it is stored, and no tick writes positions before that.

A gateway that starts writes a ``started`` record. Each gateway that reads it back considers the
earlier runs of that gateway over: their sessions left when the run wrote its last record.
``stopped`` ends a run in an orderly way. While other gateways live, each writes at least one record
a second. A gateway that has seen no record of a run during LOST_TICKS of its own ticks writes
``lost``. ``session_rows`` has the rules, ``reckoning`` the times.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from motelog.core.clock import LastingClock
from motelog.core.errors import MotelogError, StoredError
from motelog.core.limited_log import LimitedLog
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import LACKING, SETTLED, After, LogPort, QueueHandle, Then, Ticket
from motelog.gateway.log.reckoning import DOUBT_MS, LOST_TICKS, STILL_MS_MAX
from motelog.gateway.state.follower import Follower
from motelog.gateway.state.progress import SessionState
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
    message_of,
)
from motelog.gateway.state.session_rows import ClaimHeard, Heard, SessionRows
from motelog.gateway.state.stored import FiltersChange, Mark, Progress, StoredSession
from motelog.gateway.state.unread import Unread
from motelog.gateway.state.view import View, ViewError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_message = itemgetter(1)

#: Most entries or marks in one record, as a record is read back without a pause.
ENTRIES_MAX: Final = 50
#: A tick without news writes no record, but not for longer than this: after a crash, the time of
#: the last record says how long sessions have been away.
SILENCE_MS_MAX: Final = 10_000


#: Collected records are appended when they have this many bytes, for about a hundred sessions,
#: because all clients may leave in one turn. Until it is appended, a change takes several times the
#: bytes of its record, and the process does not return memory to the system.
_COLLECTED_BYTES_MAX: Final = 32_768
#: Most sessions that one call of ``due`` puts off because the clock was set forward.
LATER_MAX: Final = 1000
#: Most sessions whose refused records one tick appends again.
AGAIN_MAX: Final = 1000
#: A record of this size is appended alone, so that the log can refuse it without refusing others.
_ALONE_BYTES: Final = 65_536


class SessionJournal:
    """The sessions of one gateway in the log, by client identifier.

    ``refresh`` is called each second, and before the first client is admitted until ``is_current``.
    """

    def __init__(self, log: LogPort, view: View, clock: LastingClock, *, gateway: str) -> None:
        self._log_port = log
        self.clock = clock
        self._gateway = gateway
        log.create_topic(MQTT_SESSION_TOPIC, 1)
        self._queue = log.queue_of(MQTT_SESSION_TOPIC, "")
        #: Returns why the log refuses records at once, if it does; None if it never does.
        self.refusal: Callable[[], MotelogError | None] | None = None
        if log.append_apart is not None:
            self.refusal = partial(log.refusal, self._queue)
        self._rows = SessionRows(view)
        self._follower = Follower(log, view, MQTT_SESSION_TOPIC, self._rows)
        self._view = view
        self._life = view.life
        #: Client identifiers whose changes by other gateways are reported by ``take_heard``.
        self.awaited = self._rows.awaited
        #: Rows that the turn has read with ``fetch``.
        self.fetched = self._rows.fetched
        #: Returns what this gateway has served alone without storing it, each with the queues in
        #: which it lags. From then on, it is stored.
        self.served_alone: Callable[[], list[tuple[StoredSession, list[str]]]] = list
        #: Calls a ``Then`` when a ticket has settled.
        self.after: After = _at_once
        #: Whether ``collect`` waits for ``flush``, because a turn is running.
        self.is_gathering = False
        self._faults = LimitedLog(logger)
        #: All runs that this process has begun.
        self._own_runs: set[int] = set()
        self._begin_run()

    def _begin_run(self) -> None:
        self._run = secrets.randbits(48) + 1
        self._own_runs.add(self._run)
        self._number = 0
        self._is_abandoned = False
        # The record that asks the log whether this run lives, and when it was appended; None if the
        # run certainly lives.
        self._question: tuple[int, Ticket, int] | None = None
        #: When this run was last known to live.
        self.ticked_ms = self.clock.monotonic_ms()
        # The ``started`` record of this run; the view is current once it has been read back.
        self._started: tuple[int, Ticket] | None = None
        # Sessions that have left and whose records are not known to be stored; those of them whose
        # record was refused, and has to be appended again.
        self._leaving: dict[str, StoredSession] = {}
        self._refused: dict[str, None] = {}
        self._marks: list[Mark] = []
        # Records collected in this turn and their messages, which precede the marks; the client
        # identifiers of their sessions.
        self.collected: list[tuple[Record, tuple[Any, ...]]] = []
        self._collected_names: set[str] = set()
        self._collected_bytes = 0
        self._thens: list[Then] = []
        # The last append with marks since the last tick: no turn is longer than that.
        self._marked: Ticket = SETTLED
        self._unread = Unread()
        # Ticks: positions in the log, entries for the next tick, queues that were left since, and
        # the content of the last tick.
        self._written_positions: dict[str, int] = {}
        self._owed: dict[str, Progress] = {}
        self._left: set[str] = set()
        self._tick: tuple[Ticket, dict[str, Progress], set[str]] = (SETTLED, {}, set())
        # Times of the last tick, and of the tick before the last append; whether there was an
        # append since the last tick.
        self._tick_ms = self._appended_ms = self.ticked_ms
        self._has_appended = False
        self._has_saved = False
        # Other runs: the number of the last record, and how many of our ticks have passed since.
        self._silent: dict[int, tuple[int, int]] = {}
        self._last_tick = 0
        # The last start of another run that this run has acknowledged, and the record with that;
        # whether all other runs have acknowledged this one.
        self._answered: tuple[int, Ticket] = (-1, SETTLED)
        self._is_known = False

    # --- writing -------------------------------------------------------------------------

    def save(
        self, session: StoredSession, *, lagging: Iterable[str] = (), claim: int = 0
    ) -> Ticket:
        """Append the whole state; ``lagging`` names the queues in which it is not at the tail.

        The next tick repeats what is not at the live positions, unless it gets a newer entry.
        ``claim`` is the number of the claim that this settles.
        """
        self._owe(session, lagging)
        return self._append_session(session, None, claim)

    def save_all(self, sessions: Iterable[tuple[StoredSession, Iterable[str]]]) -> Ticket:
        """Append several states in one batch, in this order, each with its ``lagging``."""
        records = self._marks_records()
        for session, lagging in sessions:
            self._owe(session, lagging)
            records.append(SessionRecord(*self._head(), session))
        return self._append(records)

    def flush(self) -> None:
        """Append what the turn has collected, as one batch, and forget the rows that it fetched."""
        self.is_gathering = False
        self.fetched.clear()
        if self.collected:
            self._flush()

    def collect(
        self,
        session: StoredSession,
        *,
        lagging: Iterable[str] = (),
        claim: int = 0,
        then: Then | None = None,
    ) -> None:
        """Save like ``save``, but with the rest of the turn (``flush``), before other records.

        ``then`` is called when the append has settled, perhaps before this returns; a session that
        has left has none.
        """
        self._owe(session, lagging)
        if session.left_ms is not None:
            self._leaving[session.client_id] = session
            then = partial(self._left_settled, session)
        records = self._marks_records() if self._marks else []
        records.append(SessionRecord(*self._head(), session, None, claim))
        self._collect(session.client_id, records, then)

    def _left_settled(self, session: StoredSession, error: MotelogError | None) -> None:
        client_id = session.client_id
        if self._leaving.get(client_id) is not session:
            return  # its client has come back
        if error is None or isinstance(error, StoredError):
            del self._leaving[client_id]
            self._refused.pop(client_id, None)
        else:
            self._refused[client_id] = None

    def _append_left_again(self) -> None:
        """Append again what the log has refused of sessions that have left."""
        if not self._refused or (self.refusal is not None and self.refusal() is not None):
            return
        again = [self._leaving[client_id] for client_id in islice(self._refused, AGAIN_MAX)]
        for session in again:
            del self._refused[session.client_id]
        ticket = self.save_all((session, ()) for session in again)
        for session in again:
            self._leaving[session.client_id] = session
            self.after(ticket, partial(self._left_settled, session))

    def collect_filters(self, change: FiltersChange, then: Then) -> None:
        """Append what a connected session's filters have changed, with the rest of the turn.

        The log must have a whole record of the session, appended by this run since the client
        connected. ``then`` as for ``collect``.
        """
        client_id = change.progress.client_id
        self._owe_entry(client_id, change.progress)
        records = self._marks_records() if self._marks else []
        records.append(FiltersRecord(*self._head(), change))
        self._collect(client_id, records, then)

    def _collect(self, client_id: str, records: list[Record], then: Then | None) -> None:
        now_ms = self.clock.now_ms()
        size_bytes = 0
        collected: list[tuple[Record, tuple[Any, ...]]] = []
        for record in records:
            message = message_of(record, self._queue, now_ms)
            size_bytes += len(message[1])
            collected.append((record, message))
        is_large = size_bytes > _ALONE_BYTES
        if is_large:
            self._flush()
        self.collected += collected
        self._collected_names.add(client_id)
        self._collected_bytes += size_bytes
        if then is not None:
            self._thens.append(then)
        is_full = self._collected_bytes > _COLLECTED_BYTES_MAX
        if is_large or is_full or not self.is_gathering:
            self._flush()

    def _owe(self, session: StoredSession, lagging: Iterable[str]) -> None:
        """Make the next tick write what a whole record that is appended now does not contain."""
        client_id, entry = session.client_id, None
        if session.left_ms is None and (lagging or session.inflight or session.replays):
            cursors = {queue: session.cursors[queue] for queue in lagging}
            entry = Progress(client_id, cursors, session.inflight, session.replays)
        self._owe_entry(client_id, entry)

    def _owe_entry(self, client_id: str, entry: Progress | None) -> None:
        self._tick[1].pop(client_id, None)
        self._leaving.pop(client_id, None)
        self._refused.pop(client_id, None)
        self._has_saved = True
        if entry is not None and (entry.cursors or entry.inflight or entry.replays):
            self._owed[client_id] = entry
        else:
            self._owed.pop(client_id, None)

    def end(self, client_id: str, *, claim: int = 0, unless: str = "") -> Ticket:
        """Append that the session has ended; ``claim`` as for ``save``.

        With ``unless``, the record has no effect if the log has a member of this group that was not
        read back yet.
        """
        self._owed.pop(client_id, None)
        self._tick[1].pop(client_id, None)
        self._leaving.pop(client_id, None)
        self._refused.pop(client_id, None)
        record = EndRecord(*self._head(), client_id, claim, unless)
        return self._append([*self._marks_records(), record])

    def claim(
        self,
        lasting: Sequence[str],
        passing: Sequence[str],
        away: Sequence[str],
        given_up: Sequence[tuple[str, int]],
        owners: Mapping[str, str] | None = None,
    ) -> tuple[int, Ticket]:
        """Append which client identifiers are wanted or given up; return the record's number.

        The arguments are the fields of ``ClaimRecord``. At most ENTRIES_MAX client identifiers are
        wanted, and at most as many given up.
        """
        wanted = (tuple(lasting), tuple(passing), tuple(away))
        record = ClaimRecord(*self._head(), *wanted, tuple(given_up), dict(owners or {}))
        return record.number, self._append([record])

    def stop(self) -> None:
        """Append that this run is over; its sessions have been saved."""
        self._append([*self._marks_records(), StoppedRecord(*self._head())])

    def received_marks(self, marks: Sequence[Mark]) -> tuple[Any, ...]:
        """Return the message with ``marks`` that goes into the batch of publishes, before them.

        The caller must append it before any other record. The steps collected so far are not in it.
        """
        self._flush()
        record = MarksRecord(*self._head(), tuple(marks))
        # If the batch fails, its publishes are not in the log: a mark that is left finds nothing.
        message = message_of(record, self._queue, self.clock.now_ms())
        self._unread.note(record, message[1], SETTLED)
        return message

    def mark(self, mark: Mark) -> None:
        """Collect a step of a QoS 2 exchange; ``commit`` or the next other record appends it."""
        self._marks.append(mark)

    def commit(self) -> Ticket:
        """Append the collected steps as one batch; return the ticket of this turn's steps.

        Another record may already have taken them along. Then this is the ticket of that append: no
        answer may leave before it has settled.
        """
        if self._marks:
            self._append(self._marks_records())
        self._flush()
        return self._marked

    def tick(
        self,
        positions: Mapping[str, int],
        progress: Sequence[Progress],
        left: Iterable[str] = (),
    ) -> Ticket:
        """Append how far delivery has got: live positions, and the sessions that are not at them.

        ``left`` are queues that no session needed at some time since the last call. A session that
        needs one of them now may have been saved when the tail of the queue was not known.

        ``progress`` has an entry for each session whose lagging cursors or flights differ from its
        last entry. Without a new entry, a session is where its last entry says, and otherwise at
        ``positions``: a place whose message is not sent yet must be in an entry. A tick that fails
        loses nothing, as the next one writes all of it again. While a tick has not settled, the
        next one waits.

        While other gateways live, each tick writes a record, and silent runs are declared lost.
        """
        self._marked = SETTLED
        self.ticked_ms = self.clock.monotonic_ms()
        if self._has_appended:
            self._has_appended, self._appended_ms = False, self._tick_ms
        self._tick_ms = self.ticked_ms
        owed = self._owed
        for entry in progress:
            owed[entry.client_id] = entry
        self._left.update(left)
        ticket, entries, left_then = self._tick
        if not ticket.is_settled:
            self._silent.clear()
            return ticket
        if ticket.error is not None and ticket.may_be_missing:
            for client_id, entry in entries.items():
                owed.setdefault(client_id, entry)
            self._written_positions.clear()
            self._left |= left_then
        for queue in self._left:
            self._written_positions.pop(queue, None)
        is_whole = not self._refused
        self._append_left_again()
        moved = {
            queue: at
            for queue, at in positions.items()
            if is_whole and self._written_positions.get(queue) != at
        }
        silence_ms = self.ticked_ms - self._appended_ms
        is_silent = self._has_saved and silence_ms >= SILENCE_MS_MAX
        if not (moved or owed or self._left or is_silent or self.others_live):
            self._tick = (SETTLED, {}, set())
            return SETTLED
        self._end_silent()
        return self._append_tick(moved)

    def _append_tick(self, moved: dict[str, int]) -> Ticket:
        # The positions come last: without the entries they would claim too much.
        owed = self._owed
        records: list[Record] = self._marks_records()
        records += [TickRecord(*self._head(), {}, part) for part in _parts(list(owed.values()))]
        records.append(TickRecord(*self._head(), moved, (), self._heard, tuple(sorted(self._left))))
        ticket = self._append(records)
        self._last_tick = self._number
        self._written_positions.update(moved)
        self._tick = (ticket, owed, self._left)
        self._owed, self._left = {}, set()
        if not ticket.is_settled and self.others_live and self.after is not _at_once:
            self.after(ticket, self._tick_again)  # not during the start, which ticks by itself
        return ticket

    def _tick_again(self, error: MotelogError | None) -> None:
        """Show that this run lives at once if a tick has failed late, not a second later."""
        if error is not None and not self.is_over:
            self._append([TickRecord(*self._head(), {}, (), self._heard)])

    def _end_silent(self) -> None:
        """Declare runs lost that have been silent for too long.

        A tick counts only if the previous one has been read back. Then everything that others wrote
        before the previous tick has been read too, however long this gateway or the log stood
        still.
        """
        runs = self._rows.runs
        others = [runs[key] for key in self._rows.living if key != self._run]
        if not (others and self.is_current) or self._last_number < self._last_tick:
            self._silent.clear()
            return
        silent = {}
        for run in others:
            number, ticks = self._silent.get(run.key, (0, 0))
            ticks = ticks + 1 if number == run.last_number else 0
            if ticks == LOST_TICKS:
                logger.warning(
                    "a gateway is silent: its sessions count as away from now on gateway=%s",
                    run.gateway,
                )
                self._append([LostRecord(*self._head(), run.key, run.last_number)])
            else:
                silent[run.key] = run.last_number, ticks
        self._silent = silent

    def _append_session(
        self, session: StoredSession, repeats: int | None, claim: int = 0
    ) -> Ticket:
        records: list[Record] = self._marks_records()
        records.append(SessionRecord(*self._head(), session, repeats, claim))
        return self._append(records)

    def _marks_records(self) -> list[Record]:
        """Return the records of the steps collected so far, which precede any other record."""
        if not self._marks:
            return []
        marks, self._marks = self._marks, []
        self._marked = LACKING  # unless they get into an append
        return [MarksRecord(*self._head(), part) for part in _parts(marks)]

    def _head(self) -> tuple[str, int, int]:
        self._number += 1
        return self._gateway, self._run, self._number

    def _append(self, records: Sequence[Record]) -> Ticket:
        collected, thens = self._append_collected()
        ticket = self._append_all([], records, self.clock.now_ms())
        for then in thens:  # they may append too
            self.after(collected, then)
        return ticket

    def _flush(self) -> None:
        """Append what was collected, and call those who wait for it."""
        ticket, thens = self._append_collected()
        for then in thens:
            self.after(ticket, then)

    def _append_collected(self) -> tuple[Ticket, list[Then]]:
        if not self.collected:
            return SETTLED, []
        collected, self.collected = self.collected, []
        thens, self._thens = self._thens, []
        self._collected_names.clear()
        self._collected_bytes = 0
        return self._append_all(collected), thens

    def _append_all(
        self,
        collected: list[tuple[Record, tuple[Any, ...]]],
        records: Sequence[Record] = (),
        now_ms: int = 0,
    ) -> Ticket:
        """Append records as one batch; if there is no memory for it, the ticket has an error.

        ``records`` have no messages yet; these get the time ``now_ms``.
        """
        try:
            if records:
                collected = [(r, message_of(r, self._queue, now_ms)) for r in records]
            ticket = self._log_port.append(list(map(_message, collected)))
            self._has_appended = True
            for record, message in collected:
                self._unread.note(record, message[1], ticket)
                if type(record) is MarksRecord:
                    self._marked = ticket
        except NO_MEMORY:
            # If the log has the records after all, reading back finds them.
            self._faults.fault("changes of sessions lack memory and are refused: free memory")
            return LACKING
        return ticket

    # --- reading -------------------------------------------------------------------------

    def load(self, client_id: str) -> StoredSession | None:
        """Return the session as it is now, with everything that this gateway has appended.

        ViewError while the view is not current or cannot be used.
        """
        self._check()
        if client_id in self._collected_names:
            self._flush()
        if client_id in self._refused:
            return self._leaving[client_id]
        found = self._find(client_id)
        return None if found is None else found[0]

    def fetch(self, client_ids: Collection[str]) -> None:
        """Read the rows of these sessions with one query, for ``load`` calls in this turn."""
        with suppress(ViewError):  # ``load`` will raise it
            self._rows.fetch(client_ids)

    def _check(self) -> None:
        if not self.is_current:
            raise ViewError("the view is being brought up to date")

    def _find(self, client_id: str) -> tuple[StoredSession, SessionState] | None:
        rows, run = self._rows, self._run
        state, positions = self._unread.applied(
            client_id, rows.state(client_id), run, rows.runs.get(run)
        )
        if state is None:
            return None
        return rows.as_of_now(state, positions.now if state.run == run else None), state

    def due(self, now_ms: int, limit: int) -> list[StoredSession]:
        """Return up to ``limit`` sessions without a connection whose expiry or will is due.

        While the view is not current, no session is due.
        """
        due: list[StoredSession] = []
        later: list[tuple[int, str]] = []
        with suppress(ViewError):
            for client_id in self._rows.due(now_ms, self.clock.jumped_ms):
                session = self.load(client_id)
                if session is None or session.left_ms is None:
                    continue
                if self.has_come(session, session.due_ms(session.left_ms), now_ms):
                    due.append(session)
                else:
                    later.append((self.clock.jumped_ms(session.left_ms), client_id))
                if len(due) == limit or len(later) == LATER_MAX:
                    break
            self._rows.put_off(later)
        return due

    def has_come(self, session: StoredSession, due_ms: int | None, now_ms: int) -> bool:
        """Return whether a time that counts from the end of a session's connection has come.

        If the clock was set forward meanwhile, that jump does not count as time passed.
        """
        if due_ms is None or session.left_ms is None:
            return False
        return due_ms <= now_ms and due_ms + self.clock.jumped_ms(session.left_ms) <= now_ms

    def count(self) -> int:
        """Return how many sessions the view has, with and without a connection."""
        return self._rows.count

    def names(self, prefix: str) -> list[str]:
        """Return all client identifiers in the view that begin with ``prefix``."""
        found: list[str] = []
        while page := self._rows.named(prefix, found[-1] if found else "", 1000):
            found += page
        return found

    def has_subscriber(self, topic_filter: str) -> bool:
        """Return whether some session, connected or not, has this shared subscription."""
        self._flush()
        written = [one.client_id for one in self._unread.whole() if _subscribes(one, topic_filter)]
        for client_id in chain(written, self._rows.subscribers(topic_filter)):
            session = self.load(client_id)
            if session is not None and _subscribes(session, topic_filter):
                return True
        return False

    def begins_of(self, topic_filter: str) -> list[dict[str, int]]:
        """Return the ``since`` of each member of a shared subscription."""
        sessions = map(self.load, self._rows.subscribers(topic_filter))
        filters = chain.from_iterable(one.filters for one in sessions if one is not None)
        return [one.since for one in filters if one.topic_filter == topic_filter]

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return client identifiers that begin with ``prefix``, those after ``after``, in order.

        ``load`` may find that some of the sessions have ended.
        """
        self._flush()
        rows = self._rows.named(prefix, after, limit)
        new = (name for name in self._unread if name > after and name.startswith(prefix))
        return sorted({*rows, *new})[:limit]

    def list_sessions(
        self, prefix: str = "", *, after: str = "", limit: int = 100
    ) -> list[StoredSession]:
        """Return sessions in the order of their client identifiers, those after ``after``."""
        found = (self.load(name) for name in self._rows.named(prefix, after, limit))
        return [session for session in found if session is not None]

    # --- reading back --------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the view has everything the log had when this run or the view last began."""
        is_same = self._life == self._view.life
        return is_same and self._started is not None and self._last_number >= self._started[0]

    @property
    def _last_number(self) -> int:
        """The number of this run's last record in the view."""
        run = self._rows.runs.get(self._run)
        return 0 if run is None else run.last_number

    @property
    def is_far_behind(self) -> bool:
        """Whether so many appended records wait to be read back that memory grows."""
        return self._unread.is_much

    def refresh(self, limit: int) -> bool:
        """Apply about ``limit`` changes from the log to the view; return whether there are more."""
        is_more = self._follower.refresh(limit)
        if self._life != self._view.life:
            # The view has begun empty. Everything read back before is also in the log before a new
            # ``started`` record, so that record is awaited.
            self._life, self._started = self._view.life, None
        if self._started is None or self._started[1].may_be_missing:
            self._start()
            is_more = self._started is not None and not self._started[1].may_be_missing
        if not self.is_current:
            self.ticked_ms = self.clock.monotonic_ms()  # no client is served yet
            # Everything but our own claims is in the past.
            heard = self._rows.heard
            heard[:] = [h for h in heard if isinstance(h, ClaimHeard) and h.run == self._run]
        elif self._last_begin > self._answered[0] or self._answered[1].may_be_missing:
            self._answer()
        self._unread.forget(self._last_number)
        return is_more

    @property
    def _last_begin(self) -> int:
        """The queue offset of the last ``started`` of another live run, -1 if none was read."""
        rows = self._rows
        if not self.others_live:
            return -1
        others = [at for k, at in rows.begins.items() if k != self._run and k in rows.living]
        return max(others, default=-1)

    def _answer(self) -> None:
        """Append that this run knows of the runs that have begun, and what it has served alone."""
        records: list[Record] = self._marks_records()
        for stored, lagging in self.served_alone():
            self._owe(stored, lagging)
            records.append(SessionRecord(*self._head(), stored))
        records.append(TickRecord(*self._head(), {}, (), self._follower.next_offset))
        self._answered = self._last_begin, self._append(records)

    @property
    def _heard(self) -> int:
        """How far a tick may say that this run has read: only as far as it has answered."""
        answered, ticket = self._answered
        is_there = ticket.is_settled and not ticket.may_be_missing
        has_answered = is_there and self._last_begin <= answered
        return self._follower.next_offset if self.is_current and has_answered else 0

    def _start(self) -> None:
        started = StartedRecord(*self._head())
        self._started = started.number, self._append([started])

    # --- other gateways ------------------------------------------------------------------

    def is_wanted_elsewhere(self, client_id: str) -> bool:
        """Whether another gateway has claimed a client identifier; ViewError."""
        return any(key != self._run for key in self._rows.claimants(client_id))

    def place_among(self, client_id: str) -> tuple[int, int] | None:
        """Return (index, count) of this run among the runs that have claimed ``client_id``.

        They are in the order of their claims. None if this run has no claim. ViewError.
        """
        self._check()
        runs = self._rows.claimants(client_id)
        return (runs.index(self._run), len(runs)) if self._run in runs else None

    def has_grown(self, queues: Sequence[QueueHandle]) -> bool:
        """Whether the queue of sessions is among ``queues``, which are handles for reading."""
        return any(queue in queues for queue in self._log_port.queues(MQTT_SESSION_TOPIC))

    def gateways(self) -> list[tuple[str, int, bool]]:
        """Return (name, time of the last record in ms, whether it is this run) of all live runs."""
        runs = (self._rows.runs[key] for key in self._rows.living if key in self._rows.runs)
        return [(run.gateway, run.last_ms, run.key == self._run) for run in runs]

    @property
    def others_live(self) -> bool:
        """Whether another gateway lives, so that client identifiers must be claimed."""
        return not self._rows.living <= {self._run}

    @property
    def others_count(self) -> int:
        """How many other gateways live."""
        return len(self._rows.living - {self._run})

    @property
    def is_known(self) -> bool:
        """Whether all live gateways have said that they know of this run.

        Before that, a gateway that believes it is alone may admit a client without a claim.
        """
        if not self._is_known:
            begin = self._rows.begins.get(self._run)
            runs = self._rows.runs
            others = [runs[key] for key in self._rows.living if key != self._run]
            self._is_known = begin is not None and all(one.heard > begin for one in others)
        return self._is_known

    @property
    def is_first(self) -> bool:
        """Whether this gateway is the one that does the common work of all live gateways."""
        return self._rows.is_first(self._run)

    @property
    def has_stood_still(self) -> bool:
        """Whether this run has not ticked for so long that others may count it as lost."""
        return self._is_late(STILL_MS_MAX)

    def _is_late(self, ms: int) -> bool:
        return self.clock.monotonic_ms() - self.ticked_ms > ms and self.others_live

    def is_in_doubt(self) -> bool:
        """Whether it is uncertain that this run lives; then do not accept or send anything.

        It becomes uncertain shortly before others may count the run as lost. A record of the run
        that is read back decides: if another gateway has declared the run lost before this record,
        the run is over; a declaration after it has no effect. This call appends the record, and
        ``refresh`` reads it back.
        """
        while self._is_late(DOUBT_MS):
            if self._question is not None and not self._question[1].may_be_missing:
                number, _, asked_ms = self._question
                if self._last_number < number or self.is_over:
                    return True
                self.ticked_ms, self._question = asked_ms, None
            else:
                record = TickRecord(*self._head(), {}, (), self._heard)
                asked_ms = self.clock.monotonic_ms()
                self._question = record.number, self._append([record]), asked_ms
                return True
        return False

    @property
    def run(self) -> int:
        """The number of this run; 0 if the gateway has stood still and must begin a new run."""
        return 0 if self.has_stood_still else self._run

    @property
    def is_over(self) -> bool:
        """Whether this run is over for other gateways: they ignore what it writes."""
        return self._is_abandoned or self._rows.is_over(self._run)

    def abandon(self) -> None:
        """Treat this run as over, as others may already do; ``begin_again`` announces a new one."""
        self._is_abandoned = True

    def begin_again(self) -> None:
        """Begin a new run, as this one is over; all its sessions have been dropped.

        If another process has the gateway's name now, this gateway takes another name: with the
        same name, each would end the runs of the other in turn.
        """
        runs = self._rows.runs
        living = self._rows.living - self._own_runs
        if any(runs[key].gateway == self._gateway for key in living):
            name = self._gateway
            self._gateway = f"{name}~{secrets.token_hex(4)}"
            logger.error(
                "another gateway has the same name: gateway.name must differ name=%s now=%s",
                name,
                self._gateway,
            )
        self._begin_run()
        self._start()

    def watch(self, present: Container[str]) -> None:
        """Report claims of client identifiers in ``present`` too, like those in ``awaited``."""
        self._rows.present = present

    def take_heard(self) -> list[Heard]:
        """Return the news about claims and holders that was read back since the last call."""
        heard = self._rows.heard.copy()
        self._rows.heard.clear()
        return heard

    def is_own(self, heard: ClaimHeard) -> bool:
        """Whether a claim was made by this run."""
        return heard.run == self._run

    def may_have(self, client_id: str, at: int) -> bool:
        """Whether this gateway's claim at queue offset ``at`` has its turn; ViewError."""
        self._check()
        return self._rows.may_have(client_id, self._run, at)

    def is_elsewhere(self, client_id: str) -> bool:
        """Whether the client of a stored session is connected to another gateway; ViewError."""
        return self._rows.is_held(client_id, self._run)

    def is_here(self, client_id: str) -> bool:
        """Whether this run is the holder of ``client_id`` according to the log; ViewError."""
        return self._rows.holder(client_id)[1] == self._run

    def is_claimed(self, client_id: str) -> bool:
        """Whether this run has got the session by a claim, as far as the view is read back."""
        with suppress(ViewError):
            state = self._rows.state(client_id)
            return state is not None and state.run == self._run and state.is_claimed
        return False

    def release(self, heard: ClaimHeard) -> None:
        """Release a session that this run seems to hold although its client has gone.

        This happens if the log refused the record of the client's leaving. ViewError.
        """
        if heard.holder == self._run:
            session = self.load(heard.client_id)
            if session is not None and session.left_ms is None:
                session = msgspec.structs.replace(session, left_ms=self.clock.now_ms())
            elif session is None or heard.client_id not in self._refused:
                return
            self.collect(session)

    # --- keeping -------------------------------------------------------------------------

    def rewrite_older(self, than_ms: int, limit: int) -> int:
        """Append again up to ``limit`` sessions whose whole record is older; return how many.

        So the log may delete older records. If it has deleted more, the sessions whose records are
        gone are appended again too, because the view still has them. A record that another gateway
        has replaced meanwhile is not replaced by this one. Each gateway rewrites the sessions that
        are connected to it.
        """
        rewritten = 0
        with suppress(ViewError):
            oldest = self._rows.oldest(self._run, limit) if self.is_current else []
            begin = self._follower.begin_behind(oldest[0][0]) if oldest else 0
            for at, client_id, store_ms in oldest:
                if store_ms >= than_ms and at >= begin:
                    break
                # A session that was just written is younger already, or soon will be in the view.
                if client_id not in self._unread and client_id not in self._leaving:
                    self._rewrite(client_id, at)
                    rewritten += 1
        return rewritten

    def _rewrite(self, client_id: str, at: int) -> None:
        found = self._find(client_id)
        assert found is not None, "its row was just found"
        session, state = found
        if session.left_ms is None and (state.pinned or session.inflight or session.replays):
            entry = Progress(client_id, state.pinned, session.inflight, session.replays)
            self._owed.setdefault(client_id, entry)
        self._append_session(session, at)


def _at_once(ticket: Ticket, then: Then) -> None:
    """Stand in for ``SessionJournal.after`` until it is set; the ticket must have settled."""
    assert ticket.is_settled
    then(ticket.error)


def _subscribes(session: StoredSession, topic_filter: str) -> bool:
    return any(one.topic_filter == topic_filter for one in session.filters)


def _parts(entries: list[_T]) -> list[tuple[_T, ...]]:
    return [tuple(entries[at : at + ENTRIES_MAX]) for at in range(0, len(entries), ENTRIES_MAX)]
