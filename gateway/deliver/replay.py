"""Retained messages for new subscriptions: sent in slices until the subscription has all of them.

Owns: how far the replay of each subscription has got, what it may send.
Must not touch: which receiver is served next (``catch_up``), how one message is sent (``sender``),
the store of retained messages.
Invariants: a replay sends messages that were retained before its SUBSCRIBE; newer ones come live.
Before each slice, the view is brought up to the log's tail, so that no message is replayed after a
newer one with its topic name came live. While other gateways live, a replay begins when the view
has reached the log's end as it was after the SUBSCRIBE: so it has all messages that they
acknowledged before. Messages read ahead of a window are sent only if none of their topic names has
changed since; they are bounded, and can be read again.
Spec: MQTT 5.0 sections 3.3.1.3, 3.8.3.1 and 3.8.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from typing import Final

from motelog.core.limited_log import LimitedLog
from motelog.core.topic_names import MQTT_RETAINED_TOPIC
from motelog.gateway.deliver.outgoing import BriefRecord, OutgoingMessage
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.mqtt.topics import has_wildcard
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, SubscriptionTree
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import HIGHEST, Before, RetainedStore
from motelog.gateway.state.retained_rows import NOT_READ
from motelog.gateway.state.stored import StoredReplay, StoredSession
from motelog.gateway.state.view import ViewError

logger = logging.getLogger(__name__)

#: Maximum messages that one receiver is sent before it is the next one's turn.
REPLAY_COUNT_MAX: Final = 128
#: A filter that is a topic name counts as this many extra messages: a client that has subscribed to
#: many names gets the messages of several at once. A filter with a wildcard ends the slice, because
#: it may look at many names and find nothing.
NAME_COST: Final = 4
#: Maximum messages that are read ahead of one receiver's window, and their bytes. For a receiver
#: that takes all of them, twice as many are read the next time.
AHEAD_COUNT_MAX: Final = 1024
AHEAD_BYTES_MAX: Final = 131_072
#: Replays whose messages read ahead are kept: if there is one more, the oldest are read again.
AHEADS_MAX: Final = 32
#: Changes of retained messages that are read back before it is the others' turn.
READ_BACK_MAX: Final = 1000
#: The queue name of retained messages in flights.
QUEUE_NAME: Final = f"{MQTT_RETAINED_TOPIC}/0"

_NOWHERE: Final[frozenset[int]] = frozenset()
#: The offset of a SUBSCRIBE until the log has said where its tail was.
_NOT_KNOWN: Final = 1 << 62


class Ahead:
    """Messages that have been read and not sent: those from ``records[position]`` on.

    They are all messages up to topic name ``last``, as of change number ``changes`` of the store.
    ``after`` is as in ``RowSlice``. ``is_cut``: the message that follows is not in the view yet.
    """

    __slots__ = ("after", "changes", "is_cut", "is_used", "last", "position", "records")

    def __init__(self, records: list[BriefRecord], after: str | None, changes: int) -> None:
        self.records = records
        self.position = 0
        self.after = after
        self.changes = changes
        self.last = HIGHEST if after is None else after
        self.is_cut = False
        self.is_used = True


class Replay:
    """The retained messages that one subscription still has to get: those after ``after``, by name.

    ``before`` is the moment of the SUBSCRIBE. ``delivered`` has places that must not be sent: they
    are in flight. ``is_begun``: SUBACK has been sent. ``wait_for`` is the offset that the view must
    reach first, None while it is not known. ``ahead`` has the messages read and not sent; the next
    read asks for ``ahead_count`` messages, 0: as many as can be sent.
    """

    __slots__ = (
        "after",
        "ahead",
        "ahead_count",
        "before",
        "delivered",
        "is_begun",
        "wait_for",
    )

    def __init__(
        self, after: str, before: Before, *, is_begun: bool = False, delivered: Set[int] = _NOWHERE
    ) -> None:
        self.after = after
        self.before = before
        self.is_begun = is_begun
        self.delivered = delivered
        self.wait_for: int | None = 0
        self.ahead: Ahead | None = None
        self.ahead_count = 0


class Replays:
    """The replays of one gateway's sessions."""

    def __init__(
        self,
        retained: RetainedStore,
        queues: WatchedQueues,
        subscriptions: SubscriptionTree[Receiver],
        sender: Sender,
        journal: SessionJournal,
        *,
        go_on: Callable[[Session], None],
    ) -> None:
        self._retained = retained
        self._journal = journal
        self._go_on = go_on
        self._queues = queues
        self._subscriptions = subscriptions
        self._sender = sender
        self._faults = LimitedLog(logger, lines_max=1, period_s=60.0)
        #: Sessions that wait until the view has what they need.
        self._waiting: dict[Session, None] = {}
        #: Replays with messages read ahead, in the order in which they were read.
        self._aheads: dict[Replay, None] = {}

    # --- life of a replay ----------------------------------------------------------------

    def add(self, session: Session, topic_filter: str) -> None:
        """Note that a subscription made now is owed a replay; ``begin`` lets it be sent.

        While other gateways live, ``ask`` has to be called when the log has said where the
        subscription begins.
        """
        if self._journal.others_live:
            before = self._retained.now()
            replay = Replay("", Before(_NOT_KNOWN, before.written))
            replay.wait_for = None
            session.particulars.replays[topic_filter] = replay
            return
        if self._retained.is_empty:
            return
        before = self._retained.now()
        if self._is_empty(topic_filter, before):
            return
        session.particulars.replays[topic_filter] = Replay("", before)

    def ask(self, session: Session, topic_filter: str) -> None:
        """Let a replay wait until the view has reached the current end of the log."""
        replay: Replay | None = session.particulars.replays.get(topic_filter)
        if replay is None or replay.wait_for is not None:
            return

        def known(tail: int) -> None:
            replay.wait_for = tail
            if replay.before.queue_offset == _NOT_KNOWN:
                replay.before = Before(tail, replay.before.written)
            if session.connection is not None:
                self._go_on(session)

        self._retained.ask_tail(known)

    def begin(self, session: Session) -> None:
        """Let all replays of a session be sent: SUBACK has been sent."""
        for replay in session.particulars.replays.values():
            replay.is_begun = True

    def resume(self, session: Session, stored: StoredSession) -> None:
        """Resume the replays of a session that was away."""
        if not stored.replays:
            return
        # The process may have been killed between the marks of these and the tick that stores them.
        inflight = {f.queue_offset for f in stored.inflight if f.queue == QUEUE_NAME}
        for one in stored.replays:
            replay = Replay(one.after, Before(one.before, 0), is_begun=True, delivered=inflight)
            session.particulars.replays[one.topic_filter] = replay
            if self._journal.others_live:
                # Another gateway, whose view was ahead of this one, may have had the session.
                replay.wait_for = None
                self.ask(session, one.topic_filter)

    def stored(self, session: Session) -> tuple[StoredReplay, ...]:
        """Return the replays of a session as the log keeps them."""
        if not session.has_replays:
            return ()
        return tuple(
            StoredReplay(topic_filter, replay.after, replay.before.queue_offset)
            for topic_filter, replay in session.particulars.replays.items()
        )

    def _is_empty(self, topic_filter: str, before: Before) -> bool:
        """Return whether there is certainly nothing to replay, as for most filters of a fleet."""
        if not self._retained.is_current:
            return False
        try:
            found = self._retained.scan(topic_filter, "", 1, before)
        except ViewError:
            return False
        return not found.messages and found.after is None

    # --- a slice -------------------------------------------------------------------------

    def serve(self, session: Session, now_ms: int) -> bool:
        """Send one slice to a session with replays; return whether it can go on at once.

        If not, it waits for its window, its socket or the view, or it has received everything.
        """
        topic_filter = self._next(session)
        if topic_filter is None:
            return False
        if self._retained.refresh(READ_BACK_MAX):
            return True
        left = REPLAY_COUNT_MAX
        try:
            while topic_filter is not None and left > 0:
                wait_for = session.particulars.replays[topic_filter].wait_for
                if wait_for is None or self._retained.next_offset < wait_for:
                    self._waiting[session] = None
                    return False
                taken = self._send_slice(session, topic_filter, now_ms, left)
                if session.expiry_s:
                    self._sender.note_change(session)
                if taken is None:
                    return False
                left = 0 if has_wildcard(topic_filter) else left - taken - NAME_COST
                topic_filter = self._next(session)
        except ViewError as exc:
            self._faults.warning("retained messages wait for the view: %s", exc)
            self._waiting[session] = None
            return False
        # If no replay can go on, it must not be tried again before its window has room.
        return topic_filter is not None

    def _next(self, session: Session) -> str | None:
        """Return the filter whose replay is next, None while none can go on."""
        if not session.has_replays:
            return None
        for topic_filter, replay in session.particulars.replays.items():
            if replay.is_begun:
                return topic_filter if self._room(session, topic_filter) else None
        return None

    def _room(self, session: Session, topic_filter: str) -> int:
        """Return how many messages a slice may have; 0 while too little of the window is free."""
        options = self._subscriptions.options(topic_filter, session)
        assert options is not None, "a session's filters are in the tree"
        if not options & QOS_MASK:
            return REPLAY_COUNT_MAX
        window = session.inflight
        return min(window.room, REPLAY_COUNT_MAX) if window.is_half_free else 0

    def _send_slice(
        self, session: Session, topic_filter: str, now_ms: int, count_max: int
    ) -> int | None:
        """Send up to ``count_max`` messages and note the progress; return their number.

        None if the next messages have to wait.
        """
        replay: Replay = session.particulars.replays[topic_filter]
        options = self._subscriptions.options(topic_filter, session)
        assert options is not None, "a session's filters are in the tree"
        count = min(self._room(session, topic_filter), count_max)
        ahead = self._read_ahead(replay, topic_filter, count)
        records = ahead.records[ahead.position : ahead.position + count]
        if records:
            number = self._queues.number_of(QUEUE_NAME)
            if number is None:
                self._waiting[session] = None
                return None
            taken = self._hand(session, options, records, number, now_ms, topic_filter)
            if taken:
                replay.after = (records[taken - 1][1] or b"").decode()
                ahead.position += taken
            if taken < len(records):
                return None
        if ahead.position < len(ahead.records):
            return len(records)
        replay.ahead = None
        del self._aheads[replay]
        if ahead.is_cut:
            self._waiting[session] = None
            return None
        if ahead.after is None:
            del session.particulars.replays[topic_filter]
        else:
            replay.after = ahead.after
        return len(records)

    def _read_ahead(self, replay: Replay, topic_filter: str, count: int) -> Ahead:
        """Return the messages to send next, read again if any may have changed; ViewError."""
        ahead = replay.ahead
        if ahead is not None:
            if self._retained.has_changed(ahead.changes, replay.after, ahead.last):
                self._forget(replay)
            else:
                ahead.is_used = True
                return ahead
        wanted = max(replay.ahead_count, count)
        ahead = replay.ahead = self._read(replay, topic_filter, wanted)
        replay.ahead_count = min(2 * wanted, AHEAD_COUNT_MAX)
        self._aheads[replay] = None
        if len(self._aheads) > AHEADS_MAX:
            self._forget(next(iter(self._aheads)))
        return ahead

    def _read(self, replay: Replay, topic_filter: str, count: int) -> Ahead:
        changes = self._retained.changes
        found = self._retained.rows(
            topic_filter, replay.after, count, replay.before, bytes_max=AHEAD_BYTES_MAX
        )
        delivered = replay.delivered
        records: list[BriefRecord] = [
            (place, name, b"", properties, payload, 0, store_ms, 0)
            for place, name, properties, payload, store_ms, _ in found.rows
            if place not in delivered
        ]
        ahead = Ahead(records, found.after, changes)
        if not self._retained.is_read_back:
            for position, record in enumerate(records):
                if record[0] >= NOT_READ:
                    del records[position:]
                    ahead.is_cut = True
                    break
        return ahead

    def _forget(self, replay: Replay) -> None:
        """Drop the messages read ahead; the next read asks for as many as can be sent at once."""
        self._aheads.pop(replay, None)
        replay.ahead = None
        replay.ahead_count = 0

    def _hand(
        self,
        session: Session,
        options: int,
        records: list[BriefRecord],
        number: int,
        now_ms: int,
        topic_filter: str,
    ) -> int:
        """Hand the messages over in order; return how many were taken before room ran out."""
        position = 0
        while True:
            position = self._sender.hand_run(
                session, records, position, options, number, is_replay=True
            )
            if position == len(records):
                return position
            record = records[position]
            by_then_ms = now_ms - self._retained.jumped_ms(record[6])
            message = OutgoingMessage(record, record[1] or b"", by_then_ms)
            if not self._sender.hand(
                session, options, message, number, record[0], replayed=topic_filter
            ):
                return position
            position += 1

    def refreshed(self) -> list[Session]:
        """Return the sessions that have waited for the view, to be tried again; called each second.

        Messages read ahead that were not used since the last call are dropped.
        """
        for replay in list(self._aheads):
            ahead = replay.ahead
            if ahead is not None and ahead.is_used:
                ahead.is_used = False
            else:
                self._forget(replay)
        waiting, self._waiting = self._waiting, {}
        return [session for session in waiting if session.connection is not None]
