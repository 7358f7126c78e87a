"""From the log to subscribers: the live path and the receivers that lag behind it.

Owns: the live path, where a subscription begins, how far delivery to a session has got. Its parts
own the rest: who receives a topic name (``plans``), which queues are read (``watched``), receivers
with a cursor (``catch_up``), one message to one receiver (``sender``).
Must not touch: CONNECT (``connect``), SUBSCRIBE (``subscribing``), appends (``publish``).
Invariants: only what was read from the log is delivered. A queue is read once for all its
receivers. A receiver with a cursor for a queue gets nothing of that queue from the live path, so
that it receives in the queue's order. The inflight windows and the outputs' marks bound memory.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.6, 4.9.

                      live                                  lagging
    grown queue -> read -> plan of the topic name -> fan out
                     window or socket full -> cursor at this record -> PUBACK or drained socket
                              ^-- still full <- read on, match, send -> at the tail: live
    If records are no longer in memory, the log fetches them first; other queues continue meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from motelog.core.errors import MotelogError
from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.beginnings import Beginnings
from motelog.gateway.deliver.catch_up import CatchUp, Quota
from motelog.gateway.deliver.handing import Handing, Matched
from motelog.gateway.deliver.live import Live
from motelog.gateway.deliver.moves import Moves
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.outgoing import native_topic_name
from motelog.gateway.deliver.part_states import Flights
from motelog.gateway.deliver.plans import Plans
from motelog.gateway.deliver.replay import QUEUE_NAME as RETAINED_QUEUE
from motelog.gateway.deliver.replay import Replays
from motelog.gateway.deliver.shares import Shares
from motelog.gateway.deliver.sys_topics import SysTopics
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.sessions.groups import Group, Part, Receiver
from motelog.gateway.sessions.inflight import flight_of, read_flight
from motelog.gateway.sessions.session import ALL_FILTERS, NO_QUEUES, Session
from motelog.gateway.sessions.stream import StreamStart
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.stored import FlightState, Progress, StoredFlight, StoredSession
from motelog.gateway.turn import Turn

#: Maximum records of one queue, and their bytes, that the live path reads in one turn.
LIVE_COUNT_MAX: Final = 2048
LIVE_BYTES_MAX: Final = 1_048_576

#: Queue -> queue offset at which a stream begins.
Starts: TypeAlias = dict[WatchedQueue, int]


class Delivery:
    """Delivers messages of the log to one gateway's clients.

    State changes only between awaits of its callers.
    """

    def __init__(
        self,
        turn: Turn,
        log: LogPort,
        queues: WatchedQueues,
        offers: Offers,
        subscriptions: SubscriptionTree[Receiver],
        journal: SessionJournal,
        retained: RetainedStore,
        *,
        quota: Quota,
    ) -> None:
        self._log_port = log
        self._metrics = metrics = offers.metrics
        self._turn = turn
        self._wake = wake = turn.wake
        self._retained = retained
        self._journal = journal
        self._queues = queues
        queues.may_go_on = self._tail_known
        self._plans = Plans(subscriptions, metrics)
        self._sender = sender = offers.sender
        self._replays = Replays(
            retained, queues, subscriptions, sender, journal, go_on=self._replay_on
        )
        self.sys_topics = SysTopics(subscriptions, sender, metrics, journal.clock)
        self._moves = moves = Moves(log, queues, known=self._move_known)
        self._catch_up = CatchUp(
            log,
            queues,
            moves,
            offers,
            self._replays,
            resent=self.acknowledged,
            quota=quota,
            wake=wake,
        )
        self._live = Live(turn, sender, self._catch_up, metrics)
        handing = Handing(queues, sender, journal, metrics)
        self.shares = Shares(log, queues, handing, has_grown=self._has_grown, wake=wake)
        self._beginnings = Beginnings(log)
        self._growth = log.follow(self._log_has_grown)
        # Queues that have more to read, in addition to those that the log has noted.
        self._grown: dict[WatchedQueue, None] = {}
        #: Queue whose tail is not known yet -> callbacks that wait for it.
        self._when_known: dict[WatchedQueue, list[Callable[[], None]]] = {}
        # These calls go straight to the parts.
        self.keep_to_quota = self._catch_up.keep_to_quota
        self.limit = self._catch_up.limit
        self.replays = self._replays.stored

    # --- sessions ------------------------------------------------------------------------

    def subscribe(self, session: Session, topic_filter: str) -> None:
        """Deliver messages published from now on that match a filter new to ``session``."""
        self._queues.subscribe(topic_filter)
        for queue in self._queues.needed(topic_filter):
            is_lagging = queue.lagging and session in queue.lagging
            if not (is_lagging or queue.is_waiting or self._has_grown(queue)):
                continue
            # The session has not reached the tail: messages before it are not for this filter.
            # [MQTT-4.5.0-1]
            tail = self._log_port.tail(queue.handle)
            if tail is None or (tail <= queue.next_offset and not is_lagging):
                continue
            session.particulars.since.setdefault(topic_filter, {})[queue] = tail
            if not is_lagging:
                self._catch_up.lag(session, queue, queue.next_offset)
        if session.lagging:
            self._catch_up.filters_changed(session)

    def reads(self, topic_filter: str) -> bool:
        """Whether all queues that a filter needs are read from a known tail, or can be at once."""
        return self._log_port.knows_tails or self._queues.reads(topic_filter)

    def find_starts(
        self, topic_filter: str, start: StreamStart | None, then: Callable[[Starts], None]
    ) -> None:
        """Call ``then`` with the offset of ``start`` in each queue that ``topic_filter`` needs.

        The call comes when the tails of all these queues are known; without a ``start``, it waits
        for that alone. It is made before this returns if the log knows the answer at once.
        ``end_starts`` has to be called afterwards.
        """
        self._queues.subscribe(topic_filter)  # so that the queues are watched meanwhile
        starts: Starts = {}
        missing = set(self._queues.needed(topic_filter))
        if not missing:
            then(starts)

        def note(queue: WatchedQueue, start_offset: int, queue_offset: int) -> None:
            starts[queue] = max(queue_offset, start_offset)
            when_known(queue)

        def when_known(queue: WatchedQueue) -> None:
            if queue.is_known:
                note_known(queue)
            else:
                self._when_known.setdefault(queue, []).append(partial(note_known, queue))

        def note_known(queue: WatchedQueue) -> None:
            missing.remove(queue)
            if not missing:
                then(starts)

        for queue in list(missing):
            if start is None:
                when_known(queue)
                continue
            noted = partial(note, queue, start.queue_offset)
            known = self._log_port.offset_at(queue.handle, start.time_ms, noted)
            if known is not None:
                noted(known)

    def end_starts(self, topic_filter: str) -> None:
        """Release the queues that ``find_starts`` has kept watched."""
        self._queues.unsubscribe(topic_filter)

    def stream(self, session: Session, topic_filter: str, starts: Starts, *, is_new: bool) -> None:
        """Read the log from ``starts`` on for one filter; other filters get no message twice.

        A filter that is not new still gets the messages that it is owed, even older ones.
        """
        if is_new:
            self._queues.subscribe(topic_filter)
        if session.lagging:
            self._catch_up.filters_changed(session)
        since = session.particulars.since
        positions: Starts = {}
        for queue in starts:
            cursor = (session.lagging or {}).get(queue, queue.next_offset)
            positions[queue] = max(cursor, since.get(ALL_FILTERS, {}).pop(queue, 0))
        if not since.get(ALL_FILTERS, True):
            del since[ALL_FILTERS]
        for other in session.filters:
            for queue in self._queues.needed(other):
                if queue in positions:
                    offsets = since.setdefault(other, {})
                    offsets[queue] = max(positions[queue], offsets.get(queue, 0))
        of_filter = since.setdefault(topic_filter, {})
        for queue, start in starts.items():
            begin = start
            if not is_new:
                begin = min(start, of_filter[queue])
            elif start > queue.next_offset:
                tail = self._log_port.tail(queue.handle)
                begin = min(start, queue.next_offset if tail is None else tail)
            of_filter[queue] = begin
            self._catch_up.lag(session, queue, min(begin, positions[queue]))
        self._catch_up.acknowledged(session)
        self._wake()

    def add_replay(self, session: Session, topic_filter: str) -> None:
        """Note that a subscription made just now is owed retained messages."""
        self._replays.add(session, topic_filter)
        if not self._journal.others_live:
            return
        # A message is retained before it is published. So the retained copies of messages that the
        # queues had before the subscription are below the tail that is requested afterwards.
        missing = {queue for queue in self._queues.needed(topic_filter) if not queue.is_known}

        def known(queue: WatchedQueue) -> None:
            missing.remove(queue)
            if not missing:
                self._replays.ask(session, topic_filter)

        for queue in list(missing):
            self._when_known.setdefault(queue, []).append(partial(known, queue))
        if not missing:
            self._replays.ask(session, topic_filter)

    def begin_replays(self, session: Session) -> None:
        """Send what ``add_replay`` has noted, now that SUBACK has been sent."""
        if session.has_replays:
            self._replays.begin(session)
            self._replay_on(session)

    def _replay_on(self, session: Session) -> None:
        self._catch_up.acknowledged(session)
        self._wake()

    def refresh_retained(self, limit: int) -> bool:
        """Bring the view of retained messages up to date; return whether there is more to read."""
        is_more = self._retained.refresh(limit)
        self._metrics.retained_messages_now = self._retained.count
        self._metrics.retained_bytes_now = self._retained.size_bytes
        for session in self._replays.refreshed():
            self._replay_on(session)
        return is_more

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """Stop delivery for a filter that ``session`` no longer has."""
        if session.lagging:
            needed: set[WatchedQueue] = set()
            for other in session.filters:
                needed.update(self._queues.needed(other))
            for queue in set(session.lagging) - needed:
                self._catch_up.reached(session, queue)
        self._queues.unsubscribe(topic_filter)

    def unwatch(self, session: Session) -> None:
        """Stop reading queues that only this session's filters need, at the next ``positions``.

        ``forget`` has dropped its cursors.
        """
        for topic_filter in session.filters:
            self._queues.leave(topic_filter)

    def knows_queues(self, stored: StoredSession) -> bool:
        """Return whether all queues that a stored session names are known here.

        Another gateway may have created their topics a moment ago.
        """
        names = {flight.queue for flight in stored.inflight} | stored.cursors.keys()
        return all(
            name == RETAINED_QUEUE or self._queues.number_of(name) is not None for name in names
        )

    def resume(self, session: Session, stored: StoredSession) -> None:
        """Resume a session that was away; its filters are in the tree again.

        Its client gets the first message from ``deliver``, after CONNACK. If the session outlives
        its connection, ``stored_again`` has to be called.
        """
        has_flights = bool(stored.inflight) and self._resume_flights(session, stored)
        if stored.filters or stored.cursors:
            self._resume_queues(session, stored, has_flights=has_flights)
        if stored.replays:
            self._replays.resume(session, stored)
        if self._catch_up.acknowledged(session):
            self._wake()

    def _resume_flights(self, session: Session, stored: StoredSession) -> bool:
        """Have messages in flight sent again; return whether any is in a queue known here."""
        flights = []
        for flight in stored.inflight:
            number = self._queues.number_of(flight.queue)
            if number is None:
                count_lost(
                    self._metrics, flight.queue, flight.queue_offset, flight.queue_offset + 1
                )
                continue
            value = flight_of(number, flight.queue_offset, flight.qos)
            is_released = flight.state == FlightState.RELEASED
            flights.append((flight.packet_id, ~value if is_released else value))
        if flights:
            session.inflight.restore(flights)
            session.particulars.resend = deque(packet_id for packet_id, _ in flights)
            is_exactly_once = any(flight.qos == 2 for flight in stored.inflight)
            session.particulars.is_unsure = is_exactly_once and session.expiry_s > 0
        return bool(flights)

    def _resume_queues(self, session: Session, stored: StoredSession, *, has_flights: bool) -> None:
        """Let a session lag in the queues in which it is not at the live position."""
        topic_filters = [one.topic_filter for one in stored.filters]
        by_name = self._queues.resume(topic_filters, stored.cursors)
        strange = stored.cursors.keys() - by_name.keys() - {RETAINED_QUEUE}
        if strange:
            self._queues.count_gone(self._metrics, stored.client_id, strange)
        behind: dict[WatchedQueue, int] = {}
        live: list[WatchedQueue] = []
        begins = {one.topic_filter: one.since for one in stored.filters if one.since}
        early = {
            name
            for since in begins.values()
            for name, at in since.items()
            if name in by_name and at > by_name[name].next_offset
        }
        for name, queue in by_name.items():
            cursor = stored.cursors.get(name)
            if cursor is None:
                cursor = self._begin_of(session, queue)
            is_live = cursor == queue.next_offset and queue.is_known
            if is_live and not has_flights and name not in early:
                live.append(queue)
                continue
            behind[queue] = self._not_ahead(session, queue, cursor)
        for queue in live if behind else ():
            if self._moves.is_early(behind, queue, queue.next_offset):
                behind[queue] = queue.next_offset
        if behind:
            self._catch_up.resume(session, behind)
        for topic_filter, since in begins.items():
            for name, queue_offset in since.items():
                if name in by_name:
                    offsets = session.particulars.since.setdefault(topic_filter, {})
                    offsets[by_name[name]] = queue_offset
        for name, queue_offset in stored.delivered:
            if name in by_name:
                session.particulars.delivered.add((by_name[name], queue_offset))

    def _not_ahead(self, session: Session, queue: WatchedQueue, cursor: int) -> int:
        """Return the cursor, or the live position if that is lower; then the rest is for others."""
        if queue.is_known and cursor > queue.next_offset:
            session.particulars.since.setdefault(ALL_FILTERS, {})[queue] = cursor
            return queue.next_offset
        return cursor

    def _begin_of(self, session: Session, queue: WatchedQueue) -> int:
        """Return where a session begins in a queue in which it has no cursor, 0 while unknown."""
        begun_ms = session.begun_ms
        if begun_ms > self._turn.now_ms:
            return 0  # the clock has been set back: messages since then may have older times
        found_later = partial(self._begin_found, session, queue)
        found = self._beginnings.find(queue, begun_ms, found_later)
        if found is None:
            particulars = session.particulars
            particulars.unplaced = particulars.unplaced or set()
            particulars.unplaced.add(queue)
        return found or 0

    def _begin_found(self, session: Session, queue: WatchedQueue, queue_offset: int) -> None:
        session.particulars.unplaced.discard(queue)
        if session.lagging is None or queue not in session.lagging:
            return  # it has left, or no longer needs the queue
        self._catch_up.place(session, queue, self._not_ahead(session, queue, queue_offset))

    def stored_again(self, session: Session, error: MotelogError | None) -> None:
        """Note that the state from which a session was resumed has been written again, or not.

        The state that was read may not have been on the disk. Until it is, no QoS 2 message may be
        sent again under its packet identifier, and no PUBREL.
        """
        connection = session.connection
        if connection is None or not (session.has_particulars and session.particulars.is_unsure):
            return
        session.particulars.is_unsure = False
        if error is not None:
            why = f"a message cannot be marked as sent: {error}"
            self._turn.end(connection, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, why)
        elif self._catch_up.acknowledged(session):
            self._wake()

    def acknowledged(self, session: Session) -> None:
        """Note that ``session`` has room in its window or socket again."""
        self._catch_up.acknowledged(session)
        self.shares.lagging.has_room(session)

    def forget(self, session: Session) -> None:
        """Drop the cursors of a session that has lost its connection; call ``unwatch`` next."""
        self._catch_up.forget(session)
        self._sender.changed.pop(session, None)

    # --- progress, as it is stored -------------------------------------------------------

    def cursors(self, session: Session, topic_filters: Iterable[str]) -> dict[str, int]:
        """Return the offset at which delivery continues, for each queue that the filters need."""
        lagging = session.lagging or {}
        cursors: dict[str, int] = {}
        unplaced = NO_QUEUES
        if session.connection is None and session.has_particulars:
            unplaced = session.particulars.unplaced  # the next connection finds out
        queues_count = len(self._queues.by_handle)
        for topic_filter in topic_filters:
            if len(cursors) == queues_count:
                break  # many filters share few queues
            for queue in self._queues.needed(topic_filter):
                if queue in unplaced:
                    continue
                if queue in lagging:
                    cursors[queue.name] = self._catch_up.cursor_of(session, queue)
                elif queue.is_known:
                    cursors[queue.name] = queue.next_offset
        since: Mapping[WatchedQueue, int] = {}
        if session.has_particulars:
            since = session.particulars.since.get(ALL_FILTERS, {})
            for replay in self._replays.stored(session):
                # So places of retained messages are not stored as delivered: ``after`` says which
                # messages were.
                cursors[RETAINED_QUEUE] = max(replay.before, cursors.get(RETAINED_QUEUE, 0))
        for queue, begin in since.items():
            if cursors.get(queue.name, begin) < begin:
                cursors[queue.name] = begin
        return cursors

    def waiting(self, cursors: Mapping[str, int]) -> dict[str, int | None]:
        """Return how many records each queue has from the cursor on; None if that is not known.

        Some of them may be for other sessions: the receivers are known when a record is read.
        """
        found: dict[str, int | None] = {}
        for name, cursor in cursors.items():
            number = self._queues.number_of(name)
            if number is not None and name != RETAINED_QUEUE:
                tail = self._log_port.tail(self._queues.places[number][0])
                found[name] = None if tail is None else max(tail - cursor, 0)
        return found

    def inflight(self, session: Session) -> tuple[StoredFlight, ...]:
        """Return the messages in flight to a session, oldest first."""
        if not session.has_inflight:
            return ()
        places = self._queues.places
        stored = []
        for packet_id, flight in session.inflight:
            if self.shares.keeps(flight):
                continue
            place = read_flight(flight)
            state = FlightState.RELEASED if place.is_released else FlightState.SENT
            name = places[place.queue_number][1]
            stored.append(StoredFlight(packet_id, name, place.queue_offset, place.qos, state))
        return tuple(stored)

    def queue_name(self, number: int) -> str:
        """Return the name of the queue that has this number in flights."""
        return self._queues.places[number][1]

    def positions(self) -> dict[str, int]:
        """Return the live position of each queue by name; unneeded queues are released first."""
        self._queues.let_go()
        queues = self._queues.by_handle.values()
        return {queue.name: queue.next_offset for queue in queues if queue.is_known}

    def take_left(self) -> set[str]:
        """Return the queues that were unneeded at any moment since the last call."""
        left, self._queues.left = self._queues.left, set()
        return left

    def progress(self) -> list[Progress]:
        """Return the progress since the last call of receivers not at the live positions."""
        changed = self._sender.changed
        entries = []
        flights: dict[Group, Flights] = {}
        for receiver, before in list(changed.items()):
            if isinstance(receiver, Part):
                of_group = flights.get(receiver.group)
                if of_group is None:
                    of_group = flights[receiver.group] = self.shares.states.flights(receiver.group)
                now = self.shares.states.progress(receiver, of_group)
            else:
                now = self.progress_of(receiver)
            if now.cursors or now.inflight or now.replays:
                changed[receiver] = now
            else:
                del changed[receiver]
            if now != before:
                entries.append(now)
        return entries

    def progress_of(self, session: Session) -> Progress:
        """Return where a session is not at the live positions."""
        lagging = session.lagging or ()
        cursors = {q.name: self._catch_up.cursor_of(session, q) for q in lagging}
        replays = self._replays.stored(session)
        return Progress(session.client_id, cursors, self.inflight(session), replays)

    # --- the log has grown ---------------------------------------------------------------

    def _log_has_grown(self) -> None:
        if not self._turn.is_open:  # else ``deliver`` ends the turn
            self._note_growth()
            if self._grown:
                self._wake()

    def _note_growth(self) -> None:
        by_handle = self._queues.by_handle
        for handle in self._growth.take():
            if handle in by_handle:
                self._grown[by_handle[handle]] = None

    def _has_grown(self, queue: WatchedQueue) -> bool:
        return queue in self._grown or queue.handle in self._growth.queues

    @property
    def is_due(self) -> bool:
        """Whether a queue has grown that ``deliver`` has not looked at yet."""
        return bool(self._grown or self._growth.queues)

    def deliver(self, now_ms: int) -> bool:
        """Deliver one slice to live and to lagging receivers; return whether there is more."""
        if self._growth.queues:
            self._note_growth()
        if self._grown:
            grown, self._grown = self._grown, {}
            for queue in grown:
                if self._deliver_queue(queue, now_ms):
                    self._grown[queue] = None
        catch_up, groups, sender = self._catch_up, self.shares.lagging, self._sender
        if (catch_up.returning or catch_up.elevators) and catch_up.has_more:
            catch_up.serve(now_ms)
        if groups.returning or groups.roomy:
            groups.serve(now_ms)
        if sender.marking.waiting:
            sender.marking.send()
        is_more = bool(self._grown or groups.returning or catch_up.returning) or (
            bool(catch_up.elevators) and catch_up.has_more
        )
        if is_more:
            self._wake()  # the caller may not call again
        return is_more

    def _deliver_queue(self, queue: WatchedQueue, now_ms: int) -> bool:
        if queue.is_waiting or self._queues.by_handle.get(queue.handle) is not queue:
            return False  # the log will call back, or the queue is no longer needed
        if queue in self._moves.resting:
            if not self._moves.may_go_on(queue):
                return False  # what is older has not been read yet
            for session in self._moves.behind(queue):
                if session not in queue.lagging:
                    self._catch_up.lag(session, queue, queue.next_offset)
        read = self._log_port.read(
            queue.handle,
            queue.next_offset,
            count_max=LIVE_COUNT_MAX,
            bytes_max=LIVE_BYTES_MAX,
            waited=queue.waited,
        )
        if not isinstance(read, LogRead):
            queue.waited = read
            queue.is_waiting = self._log_port.when_at_hand(read, partial(self._go_on, queue))
            return not queue.is_waiting
        queue.waited = None
        if read.begin_offset > queue.next_offset:
            count_lost(self._metrics, queue.name, queue.next_offset, read.begin_offset)
        plans = self._plans
        by_name = plans.by_name
        shared: dict[Group, list[Matched]] = {}
        records = decode_brief(read.records, TOPIC_PROPERTY)
        queue.note_sizes(len(read.records), len(records))
        if records:
            self._metrics.deliver_ms.observe(max(now_ms - records[0][6], 0), len(records))
        for record in records:
            name = record[1] or native_topic_name(record)
            try:
                plan = by_name[name]
            except KeyError:
                plan = plans.make(name)
            if plan is not None:
                if plan.version < plans.version:
                    plans.refresh(plan)
                if plan.direct or plan.windowed or plan.particular:
                    self._live.send(plan, name, record, queue, now_ms)
                for group in plan.shared:
                    shared.setdefault(group, []).append((name, record))
        if shared:
            self.shares.deliver(shared, queue, now_ms)
        queue.next_offset = read.next_offset
        if queue.lagging:
            self._catch_up.live_moved(queue)
        if self.shares.lagging.early:
            self.shares.lagging.live_moved(queue)
        if self._moves.resting:
            self._grown.update(dict.fromkeys(self._moves.after(queue)))
        return read.is_more

    def _go_on(self, queue: WatchedQueue) -> None:
        """Continue with a queue that has waited for the log."""
        queue.is_waiting = False
        self._grown[queue] = None
        self._wake()

    def _move_known(self, queue: WatchedQueue) -> None:
        """Continue with a queue to which publishers have moved, or let it rest."""
        for session in list(queue.lagging):
            self._catch_up.filters_changed(session)
        self._grown[queue] = None
        self._wake()

    def _tail_known(self, queue: WatchedQueue) -> None:
        """Continue with a queue whose tail is known now: live, and for resumed receivers."""
        for session in list(queue.lagging):
            self._catch_up.tail_known(session, queue)
            self._catch_up.acknowledged(session)
        self.shares.tail_known(queue)
        self._go_on(queue)
        for then in self._when_known.pop(queue, ()):
            then()
