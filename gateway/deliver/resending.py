"""What is sent again after a reconnect: the messages in flight before it, oldest first.

Owns: the reads of these messages. Must not touch: windows, packet identifiers, how one message is
sent (``sender``).
Spec: MQTT 5.0 section 4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from motelog.core.records.decode import decode_brief
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.outgoing import OutgoingMessage, native_topic_name
from motelog.gateway.deliver.replay import QUEUE_NAME
from motelog.gateway.deliver.watched import WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.log.reads import Reads
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.mqtt.topics import matches
from motelog.gateway.sessions.inflight import read_flight
from motelog.gateway.sessions.session import Session

#: Maximum bytes of a message that is sent again.
RESEND_BYTES_MAX: Final = 262_144


class Resending:
    """Sends messages again to the sessions of one gateway."""

    def __init__(
        self,
        log: LogPort,
        queues: WatchedQueues,
        offers: Offers,
        *,
        read_again: Callable[[Session], None],
    ) -> None:
        """``read_again`` is called with a session for which ``send`` can go on."""
        self._queues = queues
        self._offers = offers
        self._sender = offers.sender
        self._metrics = offers.metrics
        self._reads: Reads[Session] = Reads(log, read_again=read_again)
        #: Forget the reads of a session that has lost its connection.
        self.forget = self._reads.forget

    def send(self, session: Session, now_ms: int) -> bool:
        """Send them, oldest first; return False if the rest must wait. [MQTT-4.6.0-1]"""
        resend, window = session.particulars.resend, session.inflight
        while resend:
            packet_id = resend[0]
            flight = window.get(packet_id)
            if flight is not None:
                place = read_flight(flight)
                if place.is_released:
                    self._sender.release_again(session, packet_id)
                elif len(window) - len(resend) >= window.limit:
                    return False  # the client accepts fewer at once than before [MQTT-3.3.4-9]
                elif not self._send_flight(session, packet_id, flight, now_ms):
                    return False
            resend.popleft()
        return True

    def _send_flight(self, session: Session, packet_id: int, flight: int, now_ms: int) -> bool:
        """Send one message again; return False if it must wait for the log or the socket."""
        place = read_flight(flight)
        handle, queue_name = self._queues.places[place.queue_number]
        read = self._reads.read(
            session, handle, place.queue_offset, count_max=1, bytes_max=RESEND_BYTES_MAX
        )
        if read is None:
            return False
        records = decode_brief(read.records, TOPIC_PROPERTY)
        if not records or records[0][0] != place.queue_offset:
            count_lost(self._metrics, queue_name, place.queue_offset, place.queue_offset + 1)
            self._sender.give_up(session, packet_id, place.qos)
            return True
        record = records[0]
        name = record[1] or native_topic_name(record)
        if session.particulars.withdrawn and not _wants(session, name):
            self._sender.give_up(session, packet_id, place.qos)
            return True
        message = OutgoingMessage(record, name, now_ms, was_sent=True)
        options = self._offers.matches(name).get(session, 0)
        return self._sender.send_again(
            session, packet_id, options, message, place.qos, is_replayed=queue_name == QUEUE_NAME
        )


def _wants(session: Session, name: bytes) -> bool:
    """Whether one of a session's current subscriptions, shared or not, matches a topic name."""
    topic_name = name.decode(errors="replace")
    own = any(matches(topic_filter, topic_name) for topic_filter in session.filters)
    return own or any(matches(group.topic_filter, topic_name) for group in session.shares.values())
