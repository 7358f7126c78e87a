"""Which records of the log a lagging session gets, and how each is offered to it.

Owns: the receivers of the topic names of a slice. Must not touch: cursors (``catch_up``), how the
log is read (``elevator``), how one message is sent (``sender``).
Spec: MQTT 5.0 sections 3.3 and 4.6.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from motelog.core.limited_log import LimitedLog
from motelog.core.message import tags_code
from motelog.gateway.deliver.outgoing import BriefRecord, OutgoingMessage, native_topic_name
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueue
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import MalformedPacketError, TopicNameError
from motelog.gateway.mqtt.topics import check_topic_name, matches
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import ALL_FILTERS, Session
from motelog.gateway.sessions.subscriptions import QOS_MASK, SubscriptionTree, merge_options

logger = logging.getLogger(__name__)

#: For a session that can want more tags than these, all records are read.
TAGS_MAX: Final = 64
#: Topic names whose receivers are remembered from one slice to the next.
NAMES_MAX: Final = 4096


class Offers:
    """Offers records to the lagging sessions of one gateway."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        mapping: TopicMapping,
        sender: Sender,
        metrics: GatewayMetrics,
    ) -> None:
        self._subscriptions = subscriptions
        self._mapping = mapping
        self.sender = sender
        self.metrics = metrics
        self._log = LimitedLog(logger)
        #: Messages stored before this time are too old for sessions that lag.
        self.aged_ms = 0
        #: Topic name -> its receivers, as long as no subscription changes.
        self._matches: dict[bytes, dict[Session, int]] = {}
        self._matches_at = 0

    def begin_slice(self) -> None:
        """Drop the receivers that may have changed since the last slice."""
        if self._matches_at != self._subscriptions.changes or len(self._matches) > NAMES_MAX:
            self._matches.clear()
            self._matches_at = self._subscriptions.changes

    def matches(self, name: bytes) -> dict[Session, int]:
        """Return the sessions that want a topic name, with the options to deliver by."""
        found = self._matches.get(name)
        if found is None:
            try:
                check_topic_name(name)
                matched = self._subscriptions.match(name.decode())
                found = {one: matched[one] for one in matched if isinstance(one, Session)}
            except (TopicNameError, MalformedPacketError):
                found = {}  # counted by the live path
            self._matches[name] = found
        return found

    def offer_run(
        self,
        session: Session,
        records: Sequence[BriefRecord],
        queue: WatchedQueue,
        now_ms: int,
        made: dict[int, OutgoingMessage],
    ) -> int | None:
        """Offer records to one session; return the queue offset of the first that must wait.

        ``made`` caches OutgoingMessages by queue offset, for records that need one.
        """
        is_particular = session.has_particulars and bool(
            session.particulars.delivered or session.particulars.since or session.particulars.away
        )
        position = 0
        while True:
            if not is_particular:
                position = self.sender.hand_run(
                    session, records, position, self._matches, queue.number, aged_ms=self.aged_ms
                )
            if position == len(records):
                return None
            # It is not plain, or there is no room, or its topic name has not been matched yet.
            record = records[position]
            name = record[1] or native_topic_name(record)
            options = self.matches(name).get(session)
            if options is not None:
                message = made.get(record[0])
                if message is None:
                    message = made[record[0]] = OutgoingMessage(record, name, now_ms)
                if not self._offer(session, options, name, message, queue, record[0]):
                    return record[0]
            position += 1

    def _offer(
        self,
        session: Session,
        options: int,
        name: bytes,
        message: OutgoingMessage,
        queue: WatchedQueue,
        queue_offset: int,
    ) -> bool:
        if session.has_particulars:
            particulars = session.particulars
            if (queue, queue_offset) in particulars.delivered:
                return True
            if particulars.since:
                since = self._options_since(session, name, queue, queue_offset)
                if since is None:
                    return True
                options = since
            if queue_offset < particulars.away.get(queue, 0) and not (
                message.qos and options & QOS_MASK
            ):
                self.metrics.messages_dropped_away += 1
                return True
        if message.store_ms < self.aged_ms:
            self.count_dropped(session, 1)
            return True
        return self.sender.hand(session, options, message, queue.number, queue_offset)

    def _options_since(
        self, session: Session, name: bytes, queue: WatchedQueue, queue_offset: int
    ) -> int | None:
        """Return the options for a session with subscriptions that are newer than its cursor.

        None if it does not want the record.
        """
        since = session.particulars.since
        if queue_offset < since.get(ALL_FILTERS, {}).get(queue, 0):
            return None
        merged: int | None = None
        topic_name = name.decode(errors="replace")
        for topic_filter in session.filters:
            if queue_offset < since.get(topic_filter, {}).get(queue, 0):
                continue
            if matches(topic_filter, topic_name):
                options = self._subscriptions.options(topic_filter, session)
                assert options is not None, "a session's filters are in the tree"
                merged = options if merged is None else merge_options(merged, options)
        return merged

    def count_dropped(self, session: Session, count: int) -> None:
        """Count messages that a session does not get because of its quota."""
        if "quota" not in session.particulars.dropped:
            self._log.warning(
                "messages that wait for a client are skipped: it lags by more than"
                " gateway.session_messages_max, session_bytes_max or session_age_max_s allows"
                " client_id=%r",
                session.client_id,
            )
        session.note_dropped("quota", count)
        self.metrics.messages_dropped_quota += count

    def tags_of(self, session: Session) -> frozenset[int] | None:
        """Return the hashes of the tags that a session can want; None: any tag."""
        found: set[int] = set()
        for topic_filter in session.filters:
            tags = self._mapping.tags(topic_filter)
            if tags is None or len(found) > TAGS_MAX:
                return None
            found.update(tags_code(tag) for tag in tags)
        return frozenset(found)
