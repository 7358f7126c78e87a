"""One message to one receiver: windows, packet identifiers, what is dropped by a rule.

Owns: the batches of a slice, which sessions' progress has to be stored. Must not touch: queues and
cursors (the caller keeps the place of a message that must wait), marks (``marking``).
Invariant: nothing is sent beyond a window or an output's mark.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.4 and 4.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from functools import reduce

from motelog.gateway.deliver.batch import DUP, Batch
from motelog.gateway.deliver.marking import Marking
from motelog.gateway.deliver.outgoing import (
    BriefRecord,
    OutgoingMessage,
    encode_for,
    identifiers_for,
    identifiers_of,
)
from motelog.gateway.deliver.runs import Wants
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver, Stored
from motelog.gateway.sessions.inflight import flight_of
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import (
    NO_LOCAL,
    PARTICULAR,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
    SOME_NO_LOCAL,
    SubscriptionTree,
    merge_options,
)
from motelog.gateway.state.stored import Progress

_RETAIN = 0x01


class Outcome(Enum):
    """The outcome of offering a message to a receiver."""

    SENT = auto()
    NO_ROOM = auto()
    """Its window or its output is full."""
    TOO_LARGE = auto()
    """The packet is larger than the client's maximum."""


class Sender:
    """Sends one gateway's messages to single receivers."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Receiver],
        marking: Marking,
        metrics: GatewayMetrics,
    ) -> None:
        self._subscriptions = subscriptions
        self.marking = marking
        self._metrics = metrics
        self.output_bytes_high = marking.output_bytes_high
        #: Receivers that outlive their connection and have changed since the last tick -> their
        #: progress as the last tick stored it, None if it stored none.
        self.changed: dict[Stored, Progress | None] = {}
        #: The batches of the slice that is being served.
        self._batches: dict[Session, Batch] = {}

    def hand(
        self,
        session: Session,
        options: int,
        message: OutgoingMessage,
        queue_number: int,
        queue_offset: int,
        *,
        replayed: str = "",
    ) -> bool:
        """As ``send_one``, but plain messages are sent with the next ``send_batches``."""
        batch = self._batch_of(session)
        qos = options & QOS_MASK
        if message.qos < qos:
            qos = message.qos
        body = message.body
        if qos <= batch.plain_qos and not options & PARTICULAR and body is not None:
            if message.is_expired:
                self._metrics.messages_expired += 1
                return True
            flight = flight_of(queue_number, queue_offset, qos)
            first_byte = 0x30 | _RETAIN if replayed else 0x30
            if batch.add(message.name, body, message.properties, qos, flight, first_byte):
                return True
            if qos or replayed:
                return False
            self._metrics.messages_dropped_qos0 += 1
            session.note_dropped("slow")
            return True
        self._send_batch(batch)  # its messages come before this one
        del self._batches[session]
        return self.send_one(
            session, options, message, queue_number, queue_offset, replayed=replayed
        )

    def hand_run(
        self,
        session: Session,
        records: Sequence[BriefRecord],
        begin: int,
        wants: Wants,
        queue_number: int,
        *,
        aged_ms: int = 0,
        is_replay: bool = False,
    ) -> int:
        """Take plain messages from ``records[begin]`` on, for the next ``send_batches``.

        Return the position of the first record that has to go through ``hand``, or for which there
        is no room. Most messages are plain: no OutgoingMessage is made for them.
        """
        first_byte = 0x30 | _RETAIN if is_replay else 0x30
        return self._batch_of(session).take_run(
            records, begin, wants, queue_number, first_byte=first_byte, aged_ms=aged_ms
        )

    def _batch_of(self, session: Session) -> Batch:
        batch = self._batches.get(session)
        if batch is None:
            waiting_bytes = self.output_bytes(session)
            batch = Batch(session, waiting_bytes, self.output_bytes_high)
            self._batches[session] = batch
        return batch

    def send_batches(self) -> None:
        """Send the messages that ``hand`` has taken."""
        for batch in self._batches.values():
            self._send_batch(batch)
        self._batches.clear()

    def _send_batch(self, batch: Batch) -> None:
        if batch.count:
            if batch.session.expiry_s:
                self.note_change(batch.session)
            self._metrics.messages_delivered += batch.send()

    def output_bytes(self, session: Session) -> int:
        """Return how many bytes wait to be sent to a connected session."""
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        return connection.output.output_bytes(connection.number)

    def send_one(
        self,
        session: Session,
        options: int,
        message: OutgoingMessage,
        queue_number: int,
        queue_offset: int,
        *,
        replayed: str = "",
    ) -> bool:
        """Send, or drop by a rule; return False if the message must wait for window or socket.

        ``replayed`` is the topic filter of the subscription that gets a retained message, "" if the
        message is sent because it was published.
        """
        if message.is_expired:
            self._metrics.messages_expired += 1
            return True
        if message.body is None:
            self._metrics.messages_undeliverable += 1
            return True
        wanted = self._wanted(session, options, message, replayed)
        if wanted is None:
            return True
        options, identifiers = wanted
        outcome = self.offer(
            session,
            options,
            message,
            queue_number,
            queue_offset,
            identifiers=identifiers,
            is_replay=bool(replayed),
        )
        if outcome is Outcome.TOO_LARGE:
            self._metrics.messages_dropped_too_large += 1  # [MQTT-3.1.2-25]
            session.note_dropped("too_large")
            return True
        # A retained message waits for a slow receiver: it may be the only one for its topic name.
        must_wait = replayed or min(message.qos, options & QOS_MASK)
        if outcome is Outcome.NO_ROOM and not must_wait:
            self._metrics.messages_dropped_qos0 += 1
            session.note_dropped("slow")
            return True
        return outcome is Outcome.SENT

    def _wanted(
        self, session: Session, options: int, message: OutgoingMessage, replayed: str
    ) -> tuple[int, bytes] | None:
        """Return the options and the identifiers of the subscriptions that want a message.

        None if the receiver published it and all of them have No Local. [MQTT-3.8.3-3]
        """
        if (
            options & (NO_LOCAL | SOME_NO_LOCAL)
            and not replayed
            and message.client_id == session.client_id
        ):
            own = self._subscriptions.own(message.name.decode(), session)
            if not own:
                return None
            return reduce(merge_options, own.values()), identifiers_of(session, own)
        return options, identifiers_for(
            self._subscriptions, session, options, message.name, replayed
        )

    def offer(
        self,
        session: Session,
        options: int,
        message: OutgoingMessage,
        queue_number: int,
        queue_offset: int,
        *,
        identifiers: bytes,
        is_replay: bool = False,
        group_number: int = 0,
        again: int = 0,
    ) -> Outcome:
        """Send a message that can be sent, if the receiver can take it.

        ``identifiers`` are its subscription identifiers as properties. ``group_number`` is the
        number of the shared subscription through which it gets the message, ``again`` the packet
        identifier under which it received the message before through that subscription.
        """
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        qos = min(message.qos, options & QOS_MASK)
        first_byte = 0x30 | qos << 1
        if is_replay or (message.is_retained and options & RETAIN_AS_PUBLISHED):
            first_byte |= _RETAIN
        if again and session.inflight.get(again) is None:
            first_byte |= DUP  # [MQTT-3.3.1-1]
        is_held = qos == 2 and session.expiry_s > 0
        # A held packet leaves after others, which must not use an alias that it introduces.
        packet, number_at = encode_for(
            connection, message, first_byte, identifiers, with_alias=not is_held
        )
        if len(packet) > connection.packet_bytes_max:
            return Outcome.TOO_LARGE
        flight = flight_of(queue_number, queue_offset, qos, group_number)
        if is_held:
            is_sent = self.marking.take(session, packet, number_at, flight)
            if is_sent:
                self.note_change(session)
        elif qos:
            is_sent = self._send_windowed(
                session, connection, packet, number_at, flight, again=again
            )
        else:
            is_sent = not connection.output.fan_out(packet, [connection.number])
            self._metrics.messages_delivered += is_sent
        if is_sent and not is_held and connection.topic_alias_max:
            connection.note_alias(message.name)
        return Outcome.SENT if is_sent else Outcome.NO_ROOM

    def _send_windowed(
        self,
        session: Session,
        connection: Connection,
        packet: bytes,
        number_at: int,
        flight: int,
        *,
        again: int = 0,
    ) -> bool:
        packet_id = session.inflight.allocate(flight, again=again)
        if not packet_id:
            return False
        if connection.output.send_numbered(packet, number_at, [(connection.number, packet_id)]):
            session.inflight.ack(packet_id)
            return False
        if session.expiry_s:
            self.note_change(session)
        self._metrics.messages_delivered += 1
        return True

    # --- again after a reconnect ---------------------------------------------------------

    def send_again(
        self,
        session: Session,
        packet_id: int,
        options: int,
        message: OutgoingMessage,
        qos: int,
        *,
        is_replayed: bool,
    ) -> bool:
        """Send a message in flight once more; return False if it must wait for the socket.

        ``options`` are those of the subscriptions that still want it, 0 if none does.
        The flight is given up if the message cannot be sent at all. [MQTT-4.4.0-1]
        """
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        options, identifiers = self._wanted(session, options, message, "") or (0, b"")
        first_byte = 0x30 | qos << 1 | DUP
        if is_replayed or (message.is_retained and options & RETAIN_AS_PUBLISHED):
            first_byte |= _RETAIN
        packet, number_at = b"", 0
        if message.body is not None:
            packet, number_at = encode_for(
                connection, message, first_byte, identifiers, with_alias=False
            )
        if not packet or len(packet) > connection.packet_bytes_max:
            self.give_up(session, packet_id, qos)
            return True
        if connection.output.send_numbered(packet, number_at, [(connection.number, packet_id)]):
            return False
        self._metrics.messages_delivered += 1
        return True

    def give_up(self, session: Session, packet_id: int, qos: int) -> None:
        """End the flight of a message that cannot be sent again.

        At QoS 2 the client may have received it. Until the client releases the identifier, it takes
        any message under it for a repetition: so it is sent PUBREL.
        """
        if qos == 2:
            session.inflight.release(packet_id)
            self.release_again(session, packet_id)
        else:
            session.inflight.ack(packet_id)

    def release_again(self, session: Session, packet_id: int) -> None:
        """Send PUBREL again for a message whose PUBREC has arrived. [MQTT-4.3.3-6]"""
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        packet = bytes((PacketType.PUBREL << 4 | 2, 2)) + packet_id.to_bytes(2, "big")
        connection.output.send(connection.number, packet)

    def note_change(self, receiver: Stored) -> None:
        """Have the next tick store how far delivery to this receiver has got."""
        if receiver not in self.changed:
            self.changed[receiver] = None
