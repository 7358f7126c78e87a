"""Runs turns: packets come in from the reactor, one append, one batch of answers goes out.

Owns: the hot loop over a turn's packets, when a turn begins and ends. Must not touch: what a packet
means (``publishing``, ``exchanges``, ``clients``), the append (``commit``), who receives a message
(``delivery``), how fast packets may come (``rates``).
Invariant: the packets of one connection take effect in the order in which they came. ``turn``
explains the rest of the order.
Spec: MQTT 5.0 sections 3.3, 3.4 and 4.6; 3.1.1 likewise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

from motelog.core.clock import Clock
from motelog.core.limited_log import LimitedLog
from motelog.core.net import reactor
from motelog.core.spare_memory import NO_MEMORY
from motelog.gateway.access.access import Access
from motelog.gateway.connect.clients import Clients
from motelog.gateway.connect.parts import SessionParts
from motelog.gateway.log.log_port import Settled
from motelog.gateway.log.reckoning import STILL_MS_MAX
from motelog.gateway.mqtt.errors import GatewayError, ProtocolViolationError
from motelog.gateway.mqtt.frames import split, split_one
from motelog.gateway.publish.parts import PublishParts
from motelog.gateway.publish.routes import QOS_TEXTS
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.output import Output
from motelog.gateway.turn import Packet, Turn

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

LACK_PERIOD_S: Final = 60.0


class Listener:
    """Runs every turn of one gateway."""

    def __init__(
        self,
        turn: Turn,
        output: Output,
        clients: Clients,
        sessions: SessionParts,
        publish: PublishParts,
        *,
        clock: Clock,
        access: Access | None = None,
    ) -> None:
        """``access`` is None if clients do not log in."""
        self._turn = turn
        self._output = output
        self._clients = clients
        self._journal = sessions.journal
        self._claims = sessions.claims
        self._storing = sessions.storing
        self._delivery = sessions.delivery
        self._metrics = sessions.metrics
        self._rates = publish.rates
        self._make_message = publish.routes.message
        self._publishing = publish.publishing
        self._exchanges = publish.exchanges
        self._commit = publish.commit
        self._answers = publish.answers
        self._connections = turn.connections
        self._clock = clock
        self._access = access
        self._faults = LimitedLog(
            logger,
            lines_max=1,
            period_s=LACK_PERIOD_S,
            monotonic_s=lambda: clock.monotonic_ms() / 1000,
        )

    # --- turns ---------------------------------------------------------------------------

    def handle_turn(self, received: reactor.Turn) -> None:
        """Handle one batch of the reactor; called by ``core.net.driver.drive``."""
        turn = self._turn
        self._begin()
        try:
            if turn.monotonic_ms - self._journal.ticked_ms > STILL_MS_MAX:
                self._clients.check_life()
            if turn.ended or turn.again:  # put there between turns
                self._carry()
            self._receive(received)
            self._settle()
            self._delivery.deliver(turn.now_ms)
            if turn.ended or turn.again or turn.stored:
                self._settle()
        finally:
            turn.is_open = self._journal.is_gathering = False

    def during(self, work: Callable[[], _T]) -> _T:
        """Do ``work`` in the current turn, or in a new turn if there is none; return its result."""
        turn = self._turn
        if turn.is_open:
            return work()
        self._begin()
        try:
            done = work()
            self._commit.run()
            self._settle()
        finally:
            turn.is_open = self._journal.is_gathering = False
        if self._delivery.is_due:
            turn.wake()
        return done

    def settled(self, settled: Settled) -> None:
        """Send the answers that waited for these tickets."""
        self.during(partial(self._answers.settled, settled))
        self._output.flush()

    def deliver(self) -> bool:
        """Process what was put on the turn between turns, and deliver; return whether more is left.

        The owner calls this after ``wake``.
        """
        is_more = self.during(partial(self._delivery.deliver, self._clock.now_ms()))
        self._output.flush()
        return is_more

    def _begin(self) -> None:
        turn, clock = self._turn, self._clock
        turn.now_ms, turn.monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        turn.is_open = self._journal.is_gathering = True

    def _receive(self, received: reactor.Turn) -> None:
        turn, clients = self._turn, self._clients
        for number, _, _ in received.opened:
            clients.opened(self._output, number)
        if self._rates.is_on:
            self._note_rates(received)
        if received.frames:
            turn.began_ns = perf_counter_ns()
            self._metrics.received_bytes += len(received.data)
            metrics = self._metrics
            try:
                packets = split(received.data, received.index, metrics.received_packets, True)
                # Some connections have not sent CONNECT, or their CONNECT waits.
                unnamed = metrics.connections_opened - metrics.connections_closed
                if unnamed > metrics.sessions_now and received.frames > 1:
                    self._expect(packets)
                self._handle_packets(packets)
                self._commit.run()
            except NO_MEMORY:
                self._lose(received)
        for number, fault in received.faults:
            clients.faulted(self._output, number, fault)
        for number, reason in received.closed:
            clients.closed(number, reason)
        for number in received.drained:
            connection = self._connections[number]
            if connection is not None and connection.session is not None:
                turn.have_room[connection.session] = None

    def _settle(self) -> None:
        """Process what is on the turn after the append, until nothing is left."""
        turn, journal, claims = self._turn, self._journal, self._claims
        is_left = True
        while is_left:
            if turn.ended or turn.again:
                self._carry()
            if turn.have_room:
                have_room, turn.have_room = turn.have_room, {}
                for session in have_room:
                    if session.connection is not None:  # not ended in this turn
                        self._delivery.acknowledged(session)
            if turn.stored:
                stored, turn.stored = turn.stored, {}
                self._storing.store_all(stored)
            if journal.collected or journal.fetched:
                journal.flush()
            is_left = bool(turn.ended or turn.again or turn.have_room or turn.stored)
        if turn.decided:
            turn.decided.clear()
        if claims.new or claims.given_up:
            claims.commit_soon()

    def _carry(self) -> None:
        """End connections and handle packets that have waited, until there are none."""
        turn = self._turn
        while turn.ended or turn.again:
            self._clients.end_all()
            again, turn.again = turn.again, []
            for connection, packets in again:
                if self._connections[connection.number] is connection:
                    self._handle_packets(packets)
            self._commit.run()

    def _note_rates(self, received: reactor.Turn) -> None:
        rates, now_ms = self._rates, self._turn.monotonic_ms
        if received.opened:
            rates.opened([item[0] for item in received.opened], now_ms)
        if received.frames and rates.limits_publishes:
            rates.received(received.data, received.index, now_ms)

    # --- packets -------------------------------------------------------------------------

    def _expect(self, packets: list[Packet]) -> None:
        """Find the stored sessions of several CONNECTs with one query."""
        connects = [(p[0], p[3] or b"") for p in packets if p[1] == 0x10]
        if len(connects) > 1:
            self._clients.expect(connects)

    def _lose(self, received: reactor.Turn) -> None:
        """Disconnect the clients of a turn for which there is not enough memory.

        They send unacknowledged messages again. What was collected before is appended, but no
        client is left to answer.
        """
        self._faults.fault("a turn lacks memory, and its clients are disconnected: free memory")
        numbers = memoryview(received.index).cast("B").cast("I")
        for i in range(0, 4 * received.frames, 4):
            self._clients.shed(numbers[i])
        try:
            self._commit.run()
        except NO_MEMORY:
            self._commit.lose()

    def _handle_packets(self, packets: list[Packet]) -> None:
        access = self._access
        if access is not None and access.acl is not None:
            self._publishing.put_aside_unasked(packets)
        # The hot loop runs once per PUBLISH and PUBACK, so it avoids calls where it can.
        turn, connections, make_message = self._turn, self._connections, self._make_message
        now_ms, messages, acks, have_room = turn.now_ms, turn.messages, turn.acks, turn.have_room
        for packet in packets:
            number, first_byte, topic, payload, packet_id, extra = packet
            connection = connections[number]
            if connection is not None:
                if first_byte & 0xF0 == 0x30:  # PUBLISH
                    # A packet is split into a topic name only after CONNECT, so there is a session.
                    if topic and extra is None and not first_byte & 1:
                        message = make_message(
                            topic,
                            payload,
                            QOS_TEXTS[first_byte >> 1 & 3],
                            connection.origin or self._publishing.make_origin(connection),
                            now_ms,
                            connection.host,
                        )
                        if message is not None:
                            if first_byte & 2:
                                acks.append((number, packet_id))
                                if first_byte & 8:
                                    self._publishing.note_sent_again(connection)
                            elif first_byte & 4:
                                message = self._publishing.receive(connection, packet_id, message)
                                if message is None:
                                    continue
                            messages.append(message)
                            continue
                elif first_byte == 0x40 and packet_id:  # PUBACK
                    # The PUBACKs of one turn are joined into a list. For a PUBACK that came alone,
                    # ``extra`` is its reason code.
                    packet_ids = extra if type(extra) is list else (packet_id,)
                    session = connection.session
                    try:
                        if session is not None and session.acknowledge(packet_ids):
                            have_room[session] = None
                    except ProtocolViolationError as exc:
                        turn.end(connection, exc.reason_code, str(exc))
                    continue
                elif first_byte == 0xC0 and not payload:  # PINGREQ
                    turn.pings.append(number)
                    continue
                elif 0x50 <= first_byte < 0x80 and connection.session is not None and packet_id:
                    # PUBREC, PUBREL or PUBCOMP, unless it came in the same turn as its CONNECT.
                    with self._clients.boundary:
                        self._exchanges.go_on(connection, first_byte >> 4, packet_id, extra)
                        continue
                    self._clients.failed(number)
                    continue
            self._handle_rare(packet, connection)

    def _handle_rare(self, packet: Packet, connection: Connection | None) -> None:
        number, first_byte, topic, payload, packet_id, extra = packet
        if connection is None and self._clients.keep(packet):
            return
        session = connection.session if connection is not None else None
        if connection is not None and session is not None and 0x30 <= first_byte < 0x80:
            if payload is not None and topic is None:
                # It came in the same turn as its CONNECT, when the version was not known yet.
                self._handle_packets([split_one(first_byte, payload, connection.version, number)])
                return
            with self._clients.boundary:
                try:
                    self._publishing.publish(connection, session, packet)
                except GatewayError as exc:
                    self._metrics.publishes_refused += 1
                    self._turn.end(connection, exc.reason_code, str(exc))
                return
            self._clients.failed(number)
            return
        # Any other packet takes effect after the publishes before it.
        self._commit.run()
        if self._turn.ended:
            self._clients.end_all()
        if first_byte == 0:
            self._clients.malformed(number, packet_id, extra)
        else:
            self._clients.handle(number, first_byte, payload or b"")
