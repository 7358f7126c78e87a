"""The journal of sessions: their changes become records of ``MQTT_SESSION``, and are found again.

Owns: what this gateway has appended and not read back, what a turn has collected, what a tick still
has to tell, the gateway's run. Must not touch: live sessions (the caller says what they are), rows
(``session_rows``).

    collect, mark --> end of turn, commit --.
                          save, end, tick --+--> log --> refresh --> view
                                            '--> not read back yet --.  |
    load  <----------------------------------------------------------+--'

Invariants: the view changes by reading back alone, so it may be deleted. ``load`` waits for
nothing: it lays what this gateway has appended since over the row. A record whose ticket has an
error is left out; should it be in the log all the same, reading back finds it. Records are appended
in the order of their numbers. What is collected comes before any later record.

A gateway that starts writes a ``started`` record. Reading it back, everybody takes the gateway's
earlier runs for over: their sessions left when the run wrote last. ``stopped`` ends a run in order.
While other gateways live, each writes at least one record a second, and whoever has seen none of a
run between LOST_TICKS of its own writes ``lost``. ``session_rows`` has the rules.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from motelog.core.clock import LastingClock
from motelog.core.errors import StoreFullError
from motelog.core.limited_log import LimitedLog
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import SETTLED, After, LogPort, QueueHandle, Then, Ticket
from motelog.gateway.state.follower import Follower
from motelog.gateway.state.progress import Marked, SessionState, move, state_of
from motelog.gateway.state.records import (
    ClaimRecord,
    EndRecord,
    LostRecord,
    MarksRecord,
    Record,
    SessionRecord,
    StartedRecord,
    StoppedRecord,
    TickRecord,
    decode_record,
    message_of,
)
from motelog.gateway.state.session_rows import ClaimHeard, Heard, Run, SessionRows
from motelog.gateway.state.stored import Mark, Progress, StoredSession
from motelog.gateway.state.view import View, ViewError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Entries or marks in one record: what reading it back may cost without a pause.
ENTRIES_MAX: Final = 50
#: A tick that has nothing to tell is left out, but not for longer: after a crash, its time says how
#: long sessions have been away.
SILENCE_MS_MAX: Final = 10_000
#: Ticks of our own between which a run has written nothing: then it is lost.
LOST_TICKS: Final = 5
#: Time between two ticks after which others may take this gateway for lost: less than LOST_TICKS of
#: theirs.
STILL_MS_MAX: Final = 4_000
#: Time after which this gateway asks the log about itself. What it has begun meanwhile, it may end:
#: on a busy machine a turn takes a while, and whoever asks at the last moment is late in some.
DOUBT_MS: Final = 3_000
#: Records of changes that wait to be read back, from which on that does not wait for the next
#: second: a fleet that connects would have a second's records in memory, and the process keeps what
#: it has once taken.
UNREAD_MAX: Final = 250
#: The ticket of what memory is lacking for.
_NO_MEMORY: Final = Ticket(StoreFullError("no memory for an append"), is_settled=True)
#: Stands for "behind everything in the view" in the places of records that are not read back.
_NOT_READ: Final = 1 << 62


#: What changes one session: an entry or mark of a record, or a record. A whole one is kept as its
#: bytes: there may be thousands, and hardly any is asked for before it has been read back.
_Change: TypeAlias = bytes | EndRecord | Progress | Mark

#: What is collected is appended when it has so many bytes, a hundred sessions or so: as many
#: clients may leave in one turn as there are. Until then a change takes several times its record's
#: bytes, and the process keeps what it has once taken.
_COLLECTED_BYTES_MAX: Final = 32_768
#: Sessions that ``due`` puts off in one call, as the clock was set forward since they were left.
LATER_MAX: Final = 1000
#: A record so large is appended by itself: if the log does not take it, the others are no part of
#: that.
_ALONE_BYTES: Final = 65_536


class _Written(NamedTuple):
    """One change that has not been read back, and the number of its record."""

    number: int
    ticket: Ticket
    change: _Change


class SessionJournal:
    """The sessions of one gateway in the log, by client identifier.

    ``refresh`` is called each second, and until ``is_current`` before the first client is let in.
    """

    def __init__(self, log: LogPort, view: View, clock: LastingClock, *, gateway: str) -> None:
        self._log_port = log
        self.clock = clock
        self._gateway = gateway
        log.create_topic(MQTT_SESSION_TOPIC, 1)
        self._queue = log.queue_of(MQTT_SESSION_TOPIC, "")
        self._rows = SessionRows(view)
        self._follower = Follower(log, view, MQTT_SESSION_TOPIC, self._rows)
        self._view = view
        self._life = view.life
        #: Client identifiers whose changes by other gateways are to be heard of.
        self.awaited = self._rows.awaited
        #: Rows that the turn has asked for with ``fetch``.
        self.fetched = self._rows.fetched
        #: Returns what this gateway has served alone without storing it, and where that lags; from
        #: then on it does store it.
        self.served_alone: Callable[[], list[tuple[StoredSession, list[str]]]] = list
        #: Has a ``Then`` called when a ticket has settled.
        self.after: After = _at_once
        #: Whether ``collect`` waits for ``flush``, as a turn is under way.
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
        # The record that asks the log whether this run lives, and when it was appended; None if
        # that is not in doubt.
        self._question: tuple[int, Ticket, int] | None = None
        #: When this run has last been sure that it lives.
        self.ticked_ms = self.clock.monotonic_ms()
        # The record that says so; the view is current once it has been read back.
        self._started: tuple[int, Ticket] | None = None
        self._marks: list[Mark] = []
        # Collected in this turn, with their messages, before the marks; whose sessions they are.
        self.collected: list[tuple[Record, tuple[Any, ...]]] = []
        self._collected_names: set[str] = set()
        self._collected_bytes = 0
        self._thens: list[Then] = []
        # The last append since the last tick that had some: a turn is shorter.
        self._marked: Ticket = SETTLED
        # Not read back: the changes of each client, who has some by the record's number, positions.
        self._written: dict[str, deque[_Written]] = {}
        self._writers: deque[tuple[int, tuple[str, ...]]] = deque()
        self._moves: deque[tuple[Ticket, TickRecord]] = deque()
        # Ticks: what the log has been told, what it still has to be, what the last one has told.
        self._told: dict[str, int] = {}
        self._owed: dict[str, Progress] = {}
        self._left: set[str] = set()
        self._tick: tuple[Ticket, dict[str, Progress], set[str]] = (SETTLED, {}, set())
        # The last tick, that before the last append, and whether that has been since the last tick.
        self._tick_ms = self._appended_ms = self.ticked_ms
        self._has_appended = False
        self._has_saved = False
        # Other runs: the number of the last record, and our ticks since it was that.
        self._silent: dict[int, tuple[int, int]] = {}
        self._last_tick = 0
        # The last start of another run that this one has told that it knows of, and the record that
        # does so; whether all know of this one.
        self._answered: tuple[int, Ticket] = (-1, SETTLED)
        self._is_known = False

    # --- writing -------------------------------------------------------------------------

    def save(
        self, session: StoredSession, *, lagging: Iterable[str] = (), claim: int = 0
    ) -> Ticket:
        """Append the whole state; ``lagging`` names the queues in which it is not at the tail.

        The next tick repeats what is not at the live positions, unless it gets a newer entry.
        ``claim`` is the number of the claim that is settled by this.
        """
        self._owe(session, lagging)
        return self._append_session(session, None, claim)

    def save_all(self, sessions: Iterable[tuple[StoredSession, Iterable[str]]]) -> Ticket:
        """Append several states at once, in this order; each with its ``lagging``."""
        records = self._marks_records()
        for session, lagging in sessions:
            self._owe(session, lagging)
            records.append(SessionRecord(*self._head(), session))
        return self._append(records)

    def flush(self) -> None:
        """Append what a turn has collected, as one batch, and forget what it has fetched."""
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
        """Save as ``save`` does, but with the rest of the turn (``flush``), before other records.

        ``then`` is called when the append has settled, maybe before this returns.
        """
        self._owe(session, lagging)
        now_ms = self.clock.now_ms()
        size_bytes = 0
        collected: list[tuple[Record, tuple[Any, ...]]] = []
        for record in (*self._marks_records(), SessionRecord(*self._head(), session, None, claim)):
            message = message_of(record, self._queue, now_ms)
            size_bytes += len(message[1])
            collected.append((record, message))
        is_large = size_bytes > _ALONE_BYTES
        if is_large:
            self._flush()
        self.collected += collected
        self._collected_names.add(session.client_id)
        self._collected_bytes += size_bytes
        if then is not None:
            self._thens.append(then)
        is_full = self._collected_bytes > _COLLECTED_BYTES_MAX
        if is_large or is_full or not self.is_gathering:
            self._flush()

    def _owe(self, session: StoredSession, lagging: Iterable[str]) -> None:
        """Have the next tick tell what a whole record that is appended now does not."""
        client_id = session.client_id
        self._owed.pop(client_id, None)
        self._tick[1].pop(client_id, None)
        self._has_saved = True
        if session.left_ms is None:
            cursors = {queue: session.cursors[queue] for queue in lagging} if lagging else {}
            if cursors or session.inflight or session.replays:
                entry = Progress(client_id, cursors, session.inflight, session.replays)
                self._owed[client_id] = entry

    def end(self, client_id: str, *, claim: int = 0, unless: str = "") -> Ticket:
        """Append that the session is no more; ``claim`` as for ``save``.

        With ``unless`` it stays if this group has a member in the log that has not been read back.
        """
        self._owed.pop(client_id, None)
        self._tick[1].pop(client_id, None)
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
        """Append what is wanted and what is not any more; return the record's number.

        ``ClaimRecord`` says what is what. At most ENTRIES_MAX are wanted, and as many given up.
        """
        wanted = (tuple(lasting), tuple(passing), tuple(away))
        record = ClaimRecord(*self._head(), *wanted, tuple(given_up), dict(owners or {}))
        return record.number, self._append([record])

    def stop(self) -> None:
        """Append that this run is over: its sessions have been saved."""
        self._append([*self._marks_records(), StoppedRecord(*self._head())])

    def received_marks(self, marks: Sequence[Mark]) -> tuple[Any, ...]:
        """Return the message with ``marks`` that goes into the publishes' batch, before them.

        To be appended before anything else is. The steps collected so far are not in it.
        """
        self._flush()
        record = MarksRecord(*self._head(), tuple(marks))
        # If the batch fails, its publishes are not there: a mark that is left over finds nothing.
        message = message_of(record, self._queue, self.clock.now_ms())
        self._note(record, message[1], SETTLED)
        return message

    def mark(self, mark: Mark) -> None:
        """Collect a step of a QoS 2 exchange; it is appended by ``commit``, or before others."""
        self._marks.append(mark)

    def commit(self) -> Ticket:
        """Append the steps that were collected, as one batch; return the ticket of this turn's.

        Another record may have taken them along: no answer must leave before that is in the log.
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
        """Append how far delivery has got: live positions, and who is not at them.

        ``left`` are queues that nobody needed for a moment since the last call. Whoever needs one
        of them now may have been saved when its tail was not known.

        ``progress`` has an entry for each session whose cursors behind the live positions, or whose
        flights, are others than at the last tick that had one for it. Without an entry, a session
        is where its last one says, and otherwise at ``positions``: a place whose message is not
        sent yet must be in an entry. Nothing is lost by a tick that fails: the next one tells all
        of it. While one waits to be settled, the next one waits too.

        While other gateways live, there is always a record, and runs that are silent are lost.
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
        ticket, told, told_left = self._tick
        if not ticket.is_settled:
            self._silent.clear()
            return ticket
        if ticket.error is not None:
            for client_id, entry in told.items():
                owed.setdefault(client_id, entry)
            self._told.clear()
            self._left |= told_left
        for queue in self._left:
            self._told.pop(queue, None)
        moved = {queue: at for queue, at in positions.items() if self._told.get(queue) != at}
        silence_ms = self.ticked_ms - self._appended_ms
        is_silent = self._has_saved and silence_ms >= SILENCE_MS_MAX
        if not (moved or owed or self._left or is_silent or self.others_live):
            self._tick = (SETTLED, {}, set())
            return SETTLED
        self._end_silent()
        # The positions come last: without the entries they would tell too much.
        records: list[Record] = self._marks_records()
        records += [TickRecord(*self._head(), {}, part) for part in _parts(list(owed.values()))]
        records.append(TickRecord(*self._head(), moved, (), self._heard, tuple(sorted(self._left))))
        ticket = self._append(records)
        self._last_tick = self._number
        self._told.update(moved)
        self._tick = (ticket, owed, self._left)
        self._owed, self._left = {}, set()
        return ticket

    def _end_silent(self) -> None:
        """Say of the runs that have been silent for long that they are over.

        A tick counts if the one before it has been read back: then all that others wrote before it
        has been read, however long this gateway or the log stood still.
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
        """Return the records of the steps collected so far: they come before what comes now."""
        if not self._marks:
            return []
        marks, self._marks = self._marks, []
        self._marked = _NO_MEMORY  # unless they get into an append
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
        """Append what has been collected, and have those who wait for it called."""
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
        """Append records as one batch; where memory is lacking for that, the ticket says so.

        ``records`` have no messages yet, which are of ``now_ms``.
        """
        try:
            if records:
                collected = [(r, message_of(r, self._queue, now_ms)) for r in records]
            ticket = self._log_port.append([message for _, message in collected])
            self._has_appended = True
            for record, message in collected:
                self._note(record, message[1], ticket)
                if type(record) is MarksRecord:
                    self._marked = ticket
        except NO_MEMORY:
            # What is in the log all the same, reading back finds.
            self._faults.fault("changes of sessions lack memory and are refused: free memory")
            return _NO_MEMORY
        return ticket

    def _note(self, record: Record, body: bytes, ticket: Ticket) -> None:
        """Keep what a record changes until it has been read back."""
        changes: Iterable[tuple[str, _Change]] = ()
        if isinstance(record, SessionRecord):
            changes = ((record.session.client_id, body),)
        elif isinstance(record, EndRecord):
            changes = ((record.client_id, record),)
        elif isinstance(record, MarksRecord):
            changes = ((mark.client_id, mark) for mark in record.marks)
        elif isinstance(record, TickRecord):
            changes = ((entry.client_id, entry) for entry in record.progress)
            if record.positions or record.left:
                self._moves.append((ticket, record))
        made = list(changes)
        if made:  # first: what is kept of a client goes with its name here
            names = dict(made)
            self._writers.append((record.number, tuple(names)))
        written = self._written
        for client_id, change in made:
            one = _Written(record.number, ticket, change)
            known = written.get(client_id)
            is_whole = type(change) is bytes and ticket.is_settled and ticket.error is None
            if known is None or is_whole:  # what came before a whole state is in it
                written[client_id] = deque((one,))
            else:
                known.append(one)

    # --- reading -------------------------------------------------------------------------

    def load(self, client_id: str) -> StoredSession | None:
        """Return the session as it is now, with all that this gateway has appended.

        ViewError while the view is not current or cannot be used.
        """
        self._check()
        if client_id in self._collected_names:
            self._flush()
        found = self._find(client_id)
        return None if found is None else found[0]

    def fetch(self, client_ids: Collection[str]) -> None:
        """Have ``load`` find these sessions at hand, in this turn: one look for all."""
        with suppress(ViewError):  # then ``load`` says so
            self._rows.fetch(client_ids)

    def _check(self) -> None:
        if not self.is_current:
            raise ViewError("the view is being brought up to date")

    def _find(self, client_id: str) -> tuple[StoredSession, SessionState] | None:
        state = self._rows.state(client_id)
        marked: Marked | None = None
        positions = _Positions(self._rows.runs.get(self._run), self._moves)
        for number, ticket, change in self._written.get(client_id, ()):
            if ticket.error is not None:
                continue
            positions.go_to(number)
            if isinstance(change, Mark):
                if marked is None and state is not None and state.run == self._run:
                    marked = Marked(state)
                if marked is not None:
                    marked.take(change, positions.now)
                continue
            if marked is not None:
                state, marked = marked.state(positions.now), None
            if isinstance(change, bytes):
                state = state_of(_whole(change), _NOT_READ + number)
            elif isinstance(change, EndRecord):
                state = None
            elif state is not None and state.run == self._run:
                state = state.with_progress(change, positions.now)
        positions.go_to(_NOT_READ)
        if marked is not None:
            state = marked.state(positions.now)
        if state is None:
            return None
        own = positions.now if state.run == self._run else None
        return self._rows.as_of_now(state, own), state

    def due(self, now_ms: int, limit: int) -> list[StoredSession]:
        """Return up to ``limit`` sessions without a connection whose expiry or will is due.

        While the view is not current, nothing is.
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
        """Say whether a time that counts from the end of a session's connection has come.

        The time by which the clock was set forward meanwhile has not passed.
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
        written = [
            client_id
            for client_id, changes in self._written.items()
            if any(
                isinstance(one.change, bytes)
                and _subscribes(_whole(one.change).session, topic_filter)
                for one in changes
            )
        ]
        for client_id in chain(written, self._rows.subscribers(topic_filter)):
            session = self.load(client_id)
            if session is not None and _subscribes(session, topic_filter):
                return True
        return False

    def begins_of(self, topic_filter: str) -> list[dict[str, int]]:
        """Return where each member of a shared subscription knows that it begins."""
        sessions = map(self.load, self._rows.subscribers(topic_filter))
        filters = chain.from_iterable(one.filters for one in sessions if one is not None)
        return [one.since for one in filters if one.topic_filter == topic_filter]

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return client identifiers that begin with ``prefix``, behind ``after``, in order.

        ``load`` may find that some of the sessions have ended.
        """
        self._flush()
        rows = self._rows.named(prefix, after, limit)
        new = (name for name in self._written if name > after and name.startswith(prefix))
        return sorted({*rows, *new})[:limit]

    def list_sessions(
        self, prefix: str = "", *, after: str = "", limit: int = 100
    ) -> list[StoredSession]:
        """Return sessions in the order of their client identifiers, those behind ``after``."""
        found = (self.load(name) for name in self._rows.named(prefix, after, limit))
        return [session for session in found if session is not None]

    # --- reading back --------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the view has all that the log had when this gateway started, or rebuilt it."""
        is_same = self._life == self._view.life
        return is_same and self._started is not None and self._last_number >= self._started[0]

    @property
    def _last_number(self) -> int:
        """The number of this run's last record in the view."""
        run = self._rows.runs.get(self._run)
        return 0 if run is None else run.last_number

    @property
    def is_far_behind(self) -> bool:
        """Whether so much of what was appended here waits to be read back that it takes memory."""
        return len(self._writers) >= UNREAD_MAX

    def refresh(self, limit: int) -> bool:
        """Apply about ``limit`` changes from the log to the view; return whether there are more."""
        is_more = self._follower.refresh(limit)
        if self._life != self._view.life:
            # What was read back before is not in the view any more, and comes before a new record.
            self._life, self._started = self._view.life, None
        if self._started is None or self._started[1].error is not None:
            self._start()
            is_more = self._started is not None and self._started[1].error is None
        if not self.is_current:
            self.ticked_ms = self.clock.monotonic_ms()  # nobody is served yet
            # All else is of the past.
            heard = self._rows.heard
            heard[:] = [h for h in heard if isinstance(h, ClaimHeard) and h.run == self._run]
        elif self._last_begin > self._answered[0] or self._answered[1].error is not None:
            self._answer()
        self._forget_read()
        return is_more

    @property
    def _last_begin(self) -> int:
        """Where the last ``started`` of another run that lives lies, -1 if none has been read."""
        rows = self._rows
        if not self.others_live:
            return -1
        others = [at for k, at in rows.begins.items() if k != self._run and k in rows.living]
        return max(others, default=-1)

    def _answer(self) -> None:
        """Say that this run knows of those that have begun, and what it has served alone."""
        records: list[Record] = self._marks_records()
        for stored, lagging in self.served_alone():
            self._owe(stored, lagging)
            records.append(SessionRecord(*self._head(), stored))
        records.append(TickRecord(*self._head(), {}, (), self._follower.next_offset))
        self._answered = self._last_begin, self._append(records)

    @property
    def _heard(self) -> int:
        """How far a tick may say that this run has read: no farther than it has answered."""
        answered, ticket = self._answered
        has_answered = ticket.is_settled and ticket.error is None and self._last_begin <= answered
        return self._follower.next_offset if self.is_current and has_answered else 0

    def _start(self) -> None:
        started = StartedRecord(*self._head())
        self._started = started.number, self._append([started])

    def _forget_read(self) -> None:
        """Drop the changes that the view has."""
        last = self._last_number
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

    # --- other gateways ------------------------------------------------------------------

    def is_wanted_elsewhere(self, client_id: str) -> bool:
        """Whether another gateway has claimed a client identifier; ViewError."""
        return any(key != self._run for key in self._rows.claimants(client_id))

    def place_among(self, client_id: str) -> tuple[int, int] | None:
        """Return (which, of how many) this run is of those that have claimed ``client_id``.

        In the order of their claims; None if it has not. ViewError.
        """
        self._check()
        runs = self._rows.claimants(client_id)
        return (runs.index(self._run), len(runs)) if self._run in runs else None

    def has_grown(self, queues: Sequence[QueueHandle]) -> bool:
        """Whether the queue of sessions is among these, as the log names queues for reading."""
        return any(queue in queues for queue in self._log_port.queues(MQTT_SESSION_TOPIC))

    def gateways(self) -> list[tuple[str, int, bool]]:
        """Return (name, when it last wrote, whether it is this run) of the runs that live."""
        runs = (self._rows.runs[key] for key in self._rows.living if key in self._rows.runs)
        return [(run.gateway, run.last_ms, run.key == self._run) for run in runs]

    @property
    def others_live(self) -> bool:
        """Whether another gateway lives; then client identifiers have to be claimed."""
        return not self._rows.living <= {self._run}

    @property
    def others_count(self) -> int:
        """How many other gateways live."""
        return len(self._rows.living - {self._run})

    @property
    def is_known(self) -> bool:
        """Whether all gateways that live have said that they know of this run.

        Before that, one that believes to be alone may let a client in without a claim.
        """
        if not self._is_known:
            begin = self._rows.begins.get(self._run)
            runs = self._rows.runs
            others = [runs[key] for key in self._rows.living if key != self._run]
            self._is_known = begin is not None and all(one.heard > begin for one in others)
        return self._is_known

    @property
    def is_first(self) -> bool:
        """Whether this gateway does what one of those that live has to do for all."""
        return self._rows.is_first(self._run)

    @property
    def has_stood_still(self) -> bool:
        """Whether others may have taken this run for lost, as it has not ticked for so long."""
        return self._is_late(STILL_MS_MAX)

    def _is_late(self, ms: int) -> bool:
        return self.clock.monotonic_ms() - self.ticked_ms > ms and self.others_live

    def is_in_doubt(self) -> bool:
        """Whether it is open if this run lives: then nothing is to be taken or sent.

        So it is soon before others may have taken it for lost. A record of the run that is read
        back answers: if another gateway has said before it that the run is lost, the run is over,
        and if behind it, that is nothing. The log is asked here; ``refresh`` reads the answer.
        """
        while self._is_late(DOUBT_MS):
            if self._question is not None and self._question[1].error is None:
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
        """What names this life of the gateway; 0 if it has stood still and has to begin another."""
        return 0 if self.has_stood_still else self._run

    @property
    def is_over(self) -> bool:
        """Whether this run has ended for the others: what it writes is nothing."""
        return self._is_abandoned or self._rows.is_over(self._run)

    def abandon(self) -> None:
        """Take this run for over, as the others may; ``begin_again`` says so to them."""
        self._is_abandoned = True

    def begin_again(self) -> None:
        """Begin a new run, as this one is over; all its sessions have been dropped.

        If another process has the gateway's name now, this one goes on under another: with the
        same, each would end the other's runs in turn.
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
        """Have the claims of client identifiers in ``present`` be heard of, as ``awaited`` are."""
        self._rows.present = present

    def take_heard(self) -> list[Heard]:
        """Return what has been read back of claims and holders since the last call."""
        heard = self._rows.heard.copy()
        self._rows.heard.clear()
        return heard

    def is_own(self, heard: ClaimHeard) -> bool:
        """Whether a claim is of this run."""
        return heard.run == self._run

    def may_have(self, client_id: str, at: int) -> bool:
        """Whether it is the turn of this gateway's claim that lies at ``at``; ViewError."""
        self._check()
        return self._rows.may_have(client_id, self._run, at)

    def is_elsewhere(self, client_id: str) -> bool:
        """Whether a client with a stored session is connected to another gateway; ViewError."""
        return self._rows.is_held(client_id, self._run)

    def is_here(self, client_id: str) -> bool:
        """Whether this run holds what is stored as ``client_id``, as the log has it; ViewError."""
        return self._rows.holder(client_id)[1] == self._run

    def release(self, heard: ClaimHeard) -> None:
        """Have another gateway go on, for which we seem to hold a session whose client has gone.

        That is so if the record which said so was refused. ViewError.
        """
        if heard.holder == self._run:
            session = self.load(heard.client_id)
            if session is not None and session.left_ms is None:
                self.save(msgspec.structs.replace(session, left_ms=self.clock.now_ms()))

    # --- keeping -------------------------------------------------------------------------

    def rewrite_older(self, than_ms: int, limit: int) -> int:
        """Append again up to ``limit`` sessions whose whole record is older; return how many.

        So the log may delete what is older. If it has deleted more, sessions whose record is gone
        are appended again too: the view still has them. A record that another gateway has replaced
        meanwhile is not replaced by this one. Sessions that are connected to another gateway are
        that one's to keep.
        """
        rewritten = 0
        with suppress(ViewError):
            oldest = self._rows.oldest(self._run, limit) if self.is_current else []
            begin = self._follower.begin_behind(oldest[0][0]) if oldest else 0
            for at, client_id, store_ms in oldest:
                if store_ms >= than_ms and at >= begin:
                    break
                # What was written just now is younger already, or soon in the view.
                if client_id not in self._written:
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


class _Positions:
    """The positions of a run as one record after the other finds them."""

    __slots__ = ("_moves", "now")

    def __init__(self, run: Run | None, moves: Collection[tuple[Ticket, TickRecord]]) -> None:
        self.now = run.positions if run is not None else {}
        self._moves = deque(moves)
        if moves:
            self.now = self.now.copy()

    def go_to(self, number: int) -> None:
        """Make ``now`` what the record of this number finds; numbers go up."""
        while self._moves and self._moves[0][1].number < number:
            ticket, tick = self._moves.popleft()
            if ticket.error is None:
                move(self.now, tick.left, tick.positions, _NOT_READ + tick.number)


def _at_once(ticket: Ticket, then: Then) -> None:
    """Stand in for whoever waits for tickets, until there is one."""
    assert ticket.is_settled
    then(ticket.error)


def _whole(body: bytes) -> SessionRecord:
    record = decode_record(body)
    assert isinstance(record, SessionRecord)
    return record


def _subscribes(session: StoredSession, topic_filter: str) -> bool:
    return any(one.topic_filter == topic_filter for one in session.filters)


def _parts(entries: list[_T]) -> list[tuple[_T, ...]]:
    return [tuple(entries[at : at + ENTRIES_MAX]) for at in range(0, len(entries), ENTRIES_MAX)]
