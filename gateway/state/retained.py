"""Retained messages: the last one of each topic name, stored in the log, found by name or filter.

Owns: the slices of a scan. Must not touch: the publish itself, subscriptions, what is not read back
yet (``retained_unread``), rows (``retained_rows``).

    write   --> the publish's own batch --> log --> refresh --> view
        '--> not read back yet ---------------.                  |
    get, scan  <------------------------------+------------------'

A retained publish is two records in one batch, so that there is never one without the other. The
view changes only by reading back, and what this gateway has appended overlays it.
Spec: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from motelog.core.clock import LastingClock
from motelog.core.message import (
    PROPERTIES_BYTES_MAX,
    TAGS,
    decode_properties,
    encode_host,
    tags_code,
)
from motelog.core.topic_names import MQTT_RETAINED_TOPIC
from motelog.gateway.log.log_port import LogPort, QueueHandle, Ticket
from motelog.gateway.mapping.message_properties import expires_ms
from motelog.gateway.mqtt.topics import has_wildcard, name_pattern
from motelog.gateway.state.follower import Follower
from motelog.gateway.state.retained_rows import (
    NOT_READ,
    Retained,
    RetainedRows,
    Row,
    kept_property,
    moved_property,
)
from motelog.gateway.state.retained_unread import UnreadRetained, Written
from motelog.gateway.state.view import View, ViewError

#: Topic names that one slice of a scan checks, whether they match or not.
NAMES_MAX: Final = 1000
#: Most bytes of a slice.
ROWS_BYTES_MAX: Final = 262_144
#: How many changed topic names are remembered for scans that have read ahead.
CHANGES_MAX: Final = 256
#: Sorts after all topic names.
HIGHEST: Final = "\U0010ffff"
_HOST: Final = encode_host("127.0.0.1", 0)


class Slice(NamedTuple):
    """A part of a scan; the next one begins after ``after``, None at the end."""

    messages: list[Retained]
    after: str | None


class RowSlice(NamedTuple):
    """Like ``Slice``; some of the messages may have expired."""

    rows: list[Row]
    after: str | None


class Before(NamedTuple):
    """A moment: the view's messages below a place, and those that this gateway had written."""

    queue_offset: int
    written: int


class RetainedStore:
    """The retained messages of all gateways; ``refresh`` is called each second."""

    def __init__(self, log: LogPort, view: View, clock: LastingClock) -> None:
        self._log_port = log
        self._clock = clock
        #: How far the clock was set forward since a message was stored: its age excludes that.
        self.jumped_ms = clock.jumped_ms
        log.create_topic(MQTT_RETAINED_TOPIC, 1)
        self._queue = log.queue_of(MQTT_RETAINED_TOPIC, "")
        self._rows = RetainedRows(view)
        self._follower = Follower(log, view, MQTT_RETAINED_TOPIC, self._rows)
        self._number = 0
        # Callbacks for the tail that was requested from the log, and for the next request.
        self._asking: list[Callable[[int], None]] = []
        self._asking_next: list[Callable[[int], None]] = []
        self._unread = UnreadRetained()
        #: How often a message has changed; the topic names of the last changes.
        self.changes = 0
        self._changed: deque[str] = deque(maxlen=CHANGES_MAX)

    # --- writing -------------------------------------------------------------------------

    def write(self, name: str, published: tuple[Any, ...]) -> Written:
        """Return the message whose record goes into the batch of ``published``, as its copy.

        ``published`` is what is appended for the publish itself, under topic name ``name``. An
        empty payload removes the retained message.
        """
        _, payload, properties, _, now_ms, *_ = published
        self._number += 1
        retained = None
        if payload:
            place = NOT_READ + self._number
            expiry_ms = expires_ms(properties, now_ms)
            retained = Retained(name, payload, properties, now_ms, place, expiry_ms, place)
        replaced = None
        with suppress(ViewError):  # the count is exact again once this message is read back
            replaced = self.get(name)
        record = (self._queue, *published[1:])
        written = Written(name, self._number, record, retained, replaced)
        self._unread.note(written)
        self._note_change(name)
        return written

    def rewrite_older(self, than_ms: int, limit: int) -> int:
        """Append again up to ``limit`` messages whose record is older; return how many.

        So the log may delete older records. If it has deleted more, the messages whose records are
        gone are appended again too, because the view still has them. A message that was replaced
        meanwhile stays replaced.
        """
        now_ms = self._clock.now_ms()
        batch = []
        with suppress(ViewError):
            oldest = self._rows.oldest(limit) if self.is_current else []
            begin = self._follower.begin_behind(oldest[0][0].queue_offset) if oldest else 0
            for message, record_ms in oldest:
                if record_ms >= than_ms and message.queue_offset >= begin:
                    break
                text = message.properties + kept_property(message)
                is_over = message.name in self._unread or self._is_expired(message)
                if is_over or len(text) > PROPERTIES_BYTES_MAX:
                    continue
                code = tags_code(decode_properties(text).get(TAGS))
                batch.append((self._queue, message.payload, text, code, now_ms, _HOST, 0, 0, 0, 0))
        if batch:
            self._log_port.append(batch)
        return len(batch)

    def page(self, after: str, limit: int) -> RowSlice:
        """Return the next messages by name, of all names; ViewError."""
        found, end = self._rows.rows("", after, HIGHEST, limit, bytes_max=ROWS_BYTES_MAX)
        return RowSlice(found, end)

    def adopt(self, rows: Iterable[Row], *, are_removed: bool = False) -> Ticket:
        """Append messages that another broker has stored, with their times, or their removal."""
        now_ms, batch = self._clock.now_ms(), []
        for _, _, properties, payload, store_ms, _ in rows:
            code = tags_code(decode_properties(properties).get(TAGS))
            body, end = (b"", b"") if are_removed else (payload, moved_property(store_ms))
            batch.append((self._queue, body, properties + end, code, now_ms, _HOST, 0, 0, 0, 0))
        return self._log_port.append(batch)

    # --- reading -------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of messages, including those that are not read back."""
        return self._rows.count + self._unread.count

    @property
    def is_empty(self) -> bool:
        """Whether there are certainly no messages."""
        return not (self._unread.written or self._rows.count) and self.is_current

    @property
    def size_bytes(self) -> int:
        """The bytes of names, payloads and properties."""
        return self._rows.size_bytes + self._unread.size_bytes

    def count_of(self, client_id: str) -> int:
        """Return the number of retained messages that one client has published; ViewError."""
        return self._rows.count_of(client_id) + self._unread.count_of(client_id)

    def get(self, name: str) -> Retained | None:
        """Return the message of a topic name, None if there is none; ViewError."""
        self._check()
        written = self._unread.last(name)
        message = self._rows.get(name) if written is None else written.message
        return None if message is None or self._is_expired(message) else message

    def now(self) -> Before:
        """Return the moment before which messages are older than a subscription made now."""
        tail = self._log_port.tail(self._queue)
        if tail is None:
            tail = self._follower.next_offset + len(self._unread)
        return Before(tail, self._number)

    def ask_tail(self, then: Callable[[int], None]) -> None:
        """Call ``then`` with the end of the log, which is after everything acknowledged until now.

        It is called at once if the log knows its end at once.
        """
        queues = self._log_port.queues(MQTT_RETAINED_TOPIC)
        if self._asking:
            self._asking_next.append(then)
        elif not queues:
            then(0)
        else:
            tail = self._log_port.tail(queues[0], self._tail_known)
            if tail is None:
                self._asking.append(then)
            else:
                then(tail)

    def _tail_known(self, tail: int) -> None:
        known, self._asking = self._asking, []
        for then in known:
            then(tail)
        waiting, self._asking_next = self._asking_next, []
        for then in waiting:
            self.ask_tail(then)

    @property
    def is_read_back(self) -> bool:
        """Whether the view has everything that this gateway has written."""
        return not self._unread.written

    @property
    def next_offset(self) -> int:
        """The queue offset up to which the view has been updated."""
        return self._follower.next_offset

    def scan(self, topic_filter: str, after: str, limit: int, before: Before) -> Slice:
        """Return up to ``limit`` messages that match and are older than ``before``, by name.

        Only messages after topic name ``after`` ("" at first) that have not expired. A slice may
        have few messages or none, even if more follow. ViewError.
        """
        found = self.rows(topic_filter, after, limit, before)
        messages = [
            Retained(
                name.decode(), payload, properties, store_ms, place,
                expires_ms(properties, store_ms), since,
            )
            for place, name, properties, payload, store_ms, since in found.rows
        ]  # fmt: skip
        return Slice([one for one in messages if not self._is_expired(one)], found.after)

    def rows(
        self,
        topic_filter: str,
        after: str,
        limit: int,
        before: Before,
        *,
        bytes_max: int = ROWS_BYTES_MAX,
    ) -> RowSlice:
        """Return what ``scan`` returns, as rows, some of which may have expired.

        A slice checks at most NAMES_MAX names, whether they match or not. The payloads and
        properties that come from the view have at most ``bytes_max`` together, unless a single
        message has more.
        """
        self._check()
        rows: list[Row] = []
        if not (self._rows.count or self._unread.written):
            return RowSlice(rows, None)
        if not has_wildcard(topic_filter):
            return RowSlice(self._older(self._rows_of([topic_filter]), before), None)
        lowest, parent = _literal_prefix(topic_filter)
        if after < parent:
            after = parent
            rows += self._rows_of([parent])
        highest = lowest + HIGHEST
        has_plus = "+" in topic_filter
        # If only a literal prefix is given, all names match; "#" excludes names with a leading "$".
        fits = name_pattern(topic_filter).fullmatch if has_plus or not lowest else None
        found, end = self._rows.rows(
            lowest,
            after,
            highest,
            limit,
            bytes_max=bytes_max,
            glob=_glob(topic_filter) if has_plus else None,
            names_max=NAMES_MAX,
        )
        if fits is not None:
            found = [row for row in found if fits(row[1])]
        written = self._unread.names(max(lowest, after), end or highest)
        names = (n for n in written if n != after and (fits is None or fits(n.encode())))
        changed = list(islice(names, limit))
        if changed:
            if len(changed) == limit:
                end = changed[-1]
            found, end = self._laid_over(found, changed, limit, end)
        return RowSlice(self._older(rows + found, before), end)

    def _laid_over(
        self, rows: list[Row], changed: list[str], limit: int, end: str | None
    ) -> tuple[list[Row], str | None]:
        """Return up to ``limit`` rows with this gateway's own writes applied, and where they end.

        ``changed`` are the topic names that it has written.
        """
        by_name = {row[1]: row for row in rows if end is None or row[1] <= end.encode()}
        for name in changed:
            by_name.pop(name.encode(), None)
        by_name.update((row[1], row) for row in self._rows_of(changed))
        merged = [by_name[name] for name in sorted(by_name)]
        if len(merged) > limit:
            return merged[:limit], merged[limit - 1][1].decode()
        return merged, end

    def _rows_of(self, names: Iterable[str]) -> list[Row]:
        """Return the messages of these topic names as rows."""
        messages = [message for message in map(self.get, names) if message is not None]
        return [
            (m.queue_offset, m.name.encode(), m.properties, m.payload, m.store_ms, m.since)
            for m in messages
        ]

    def _older(self, rows: list[Row], before: Before) -> list[Row]:
        """Return those that are older than ``before``."""
        read_back, written = before.queue_offset, NOT_READ + before.written
        return [row for row in rows if row[5] < read_back or NOT_READ <= row[5] <= written]

    def has_changed(self, since: int, lowest: str, highest: str) -> bool:
        """Return whether messages may have changed since ``changes`` was ``since``.

        Only names after ``lowest``, up to ``highest``, count. ViewError.
        """
        self._check()
        count = self.changes - since
        if count > len(self._changed):
            return True
        last = islice(reversed(self._changed), count)
        return any(lowest < name <= highest for name in last)

    def _is_expired(self, message: Retained) -> bool:
        return message.over_ms(self.jumped_ms) <= self._clock.now_ms()

    def _check(self) -> None:
        if not self.is_current:
            raise ViewError("the view is being updated")

    # --- reading back --------------------------------------------------------------------

    def has_grown(self, queues: Sequence[QueueHandle]) -> bool:
        """Whether the queue of retained messages is among these."""
        return any(queue in queues for queue in self._log_port.queues(MQTT_RETAINED_TOPIC))

    @property
    def is_current(self) -> bool:
        """Whether the view has everything that was in the log when it was opened or rebuilt."""
        return self._follower.is_current

    def refresh(self, limit: int) -> bool:
        """Apply about ``limit`` changes to the view; return whether there are more.

        Messages that have expired are removed from it too.
        """
        is_more = self._follower.refresh(limit)
        for name, body in self._rows.read:
            self._unread.forget(name, body)
            self._note_change(name)
        self._rows.read.clear()
        for name in self._unread.drop_refused():
            self._note_change(name)
        if is_more:
            return True
        try:
            return self._rows.expire(self._clock.now_ms(), limit, self.jumped_ms) == limit
        except ViewError:
            return False

    def _note_change(self, name: str) -> None:
        self.changes += 1
        self._changed.append(name)


def _literal_prefix(topic_filter: str) -> tuple[str, str]:
    """Return the prefix of all matching topic names, and the one match without it, or "".

    The second is for filters such as "a/#", which also matches "a".
    """
    literal = topic_filter[: min(at for at in map(topic_filter.find, "+#") if at >= 0)]
    return literal, literal[:-1] if topic_filter == literal + "#" else ""


def _glob(topic_filter: str) -> str:
    """Return an expression for SQLite's GLOB that fits what a filter matches, and more."""
    text = topic_filter.removesuffix("/#").removesuffix("#")
    for special in "[?*":
        text = text.replace(special, f"[{special}]")
    return text.replace("+", "*") + ("*" if topic_filter.endswith("#") else "")
