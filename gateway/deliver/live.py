"""A record at the live position, to the receivers that have had everything before it.

Owns: nothing. Must not touch: who receives a topic name (``plans``), shared subscriptions
(``shares``); a receiver that has no room lags from then on (``catch_up``).
Spec: MQTT 5.0 sections 3.3, 4.3 and 4.6.
"""

from __future__ import annotations

from motelog.gateway.deliver.catch_up import CatchUp
from motelog.gateway.deliver.outgoing import (
    BriefRecord,
    OutgoingMessage,
    body_and_block,
    encode,
    message_qos,
)
from motelog.gateway.deliver.plans import Plan
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueue
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.inflight import flight_of
from motelog.gateway.sessions.output import Output
from motelog.gateway.sessions.session import Session
from motelog.gateway.turn import Turn


class Live:
    """Sends one gateway's messages as they are stored."""

    def __init__(
        self, turn: Turn, sender: Sender, catch_up: CatchUp, metrics: GatewayMetrics
    ) -> None:
        self._connections = turn.connections
        self._sender = sender
        self._catch_up = catch_up
        self._metrics = metrics

    def send(
        self, plan: Plan, name: bytes, record: BriefRecord, queue: WatchedQueue, now_ms: int
    ) -> None:
        """Send one record of topic name ``name``, or count why no client gets it."""
        body, block = body_and_block(record, now_ms, self._metrics.count_left_out)
        if body is None:
            self._metrics.messages_undeliverable += 1
            return
        if block is None:
            self._metrics.messages_expired += 1
            return
        queue_offset, qos = record[0], message_qos(record[3])
        for output, version, sessions, numbers in plan.direct:
            packet, _ = encode(name, body, 0x30, version, block)
            self._fan_out(output, packet, sessions, numbers, queue)
        for output, version, granted, sessions, numbers in plan.windowed:
            if not qos:
                packet, _ = encode(name, body, 0x30, version, block)
                self._fan_out(output, packet, sessions, numbers, queue)
                continue
            sent_qos = min(qos, granted)
            packet, number_at = encode(name, body, 0x30 | sent_qos << 1, version, block)
            flight = flight_of(queue.number, queue_offset, sent_qos)
            self._send_windowed(
                output, packet, number_at, sessions, numbers, queue, queue_offset, flight
            )
        if plan.particular:
            message = OutgoingMessage(record, name, now_ms)
            for session in plan.particular:
                if session in queue.lagging:
                    continue
                options = plan.matches[session]
                if not self._sender.send_one(session, options, message, queue.number, queue_offset):
                    self._catch_up.lag(session, queue, queue_offset)

    def _fan_out(
        self,
        output: Output,
        packet: bytes,
        sessions: list[Session],
        numbers: list[int],
        queue: WatchedQueue,
    ) -> None:
        """Send at QoS 0 to those that do not lag in this queue; the rest get it later, in order."""
        lagging = queue.lagging
        if lagging:
            pairs = zip(sessions, numbers, strict=True)
            numbers = [number for session, number in pairs if session not in lagging]
        skipped = output.fan_out(packet, numbers)
        self._metrics.messages_dropped_qos0 += len(skipped)
        self._metrics.messages_delivered += len(numbers) - len(skipped)
        for number in skipped:
            connection = self._connections[number]
            if connection is not None and connection.session is not None:
                connection.session.note_dropped("slow")

    def _send_windowed(
        self,
        output: Output,
        packet: bytes,
        number_at: int,
        sessions: list[Session],
        numbers: list[int],
        queue: WatchedQueue,
        queue_offset: int,
        flight: int,
    ) -> None:
        receivers = []
        is_exactly_once = flight & 3 == 2
        lagging = queue.lagging
        for session, number in zip(sessions, numbers, strict=True):
            if lagging and session in lagging:
                continue
            if session.expiry_s:
                if is_exactly_once:
                    if self._sender.marking.take(session, packet, number_at, flight):
                        self._sender.note_change(session)
                    else:
                        self._catch_up.lag(session, queue, queue_offset)
                    continue
                self._sender.note_change(session)
            packet_id = session.inflight.allocate(flight)
            if packet_id:
                receivers.append((number, packet_id))
            else:
                self._catch_up.lag(session, queue, queue_offset)
        skipped = output.send_numbered(packet, number_at, receivers)
        self._metrics.messages_delivered += len(receivers) - len(skipped)
        if skipped:
            packet_ids = dict(receivers)
            by_number = dict(zip(numbers, sessions, strict=True))
            for number in skipped:
                by_number[number].inflight.ack(packet_ids[number])
                self._catch_up.lag(by_number[number], queue, queue_offset)
