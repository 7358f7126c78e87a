"""Acknowledgements of publishes: when they are sent, and the answers sent instead of them.

Owns: PUBACKs of appended publishes, those that wait for the log, refusals, Receive Maximum.
Must not touch: appends (``reactor_listener``), when a ticket settles (the log's port).
Invariants: a publish is acknowledged only after its ticket has settled without an error. A
refused publish is never acknowledged later. An acknowledgement goes to the connection that
published, and never to a later connection with the same number.
Spec: MQTT 5.0 sections 3.4, 4.6 and 4.9; 3.1.1 likewise.

A publish is a tuple (connection, packet identifier); the publishes of one append stay together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from motelog.core.errors import MotelogError, StoreFullError
from motelog.gateway.errors import GatewayError
from motelog.gateway.log.log_port import Settled, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.output import Output
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.publish_rules import refuse_publish

logger = logging.getLogger(__name__)

#: PUBACK with reason "success", the same in every version; the packet identifier is
#: at position 2.
PUBACK: Final = b"\x40\x02\x00\x00"
PUBACK_NUMBER_AT: Final = 2

Acks = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class WaitingAcks:
    """The answers to one append whose ticket has not settled, or to a refused publish behind it.

    ``connections`` has the publishing connection of each of ``acks``; ``counted`` has those among
    them that Receive Maximum binds. ``refusal`` is why ``acks`` are refused whatever the ticket
    says.
    """

    acks: Acks
    connections: list[Connection | None]
    counted: list[Connection]
    refusal: GatewayError | None = None


class PublishAcks:
    """Answers one gateway's publishes; state changes between two awaits of its callers."""

    def __init__(
        self,
        output: Output,
        metrics: GatewayMetrics,
        *,
        connections: list[Connection | None],
        receive_maximum: int,
        disconnect: Callable[[Connection, int, str], None],
    ) -> None:
        self._output = output
        self._metrics = metrics
        self._connections = connections
        self._receive_maximum = receive_maximum
        self._disconnect = disconnect
        #: Unsettled tickets in their order, each with the answers that it lets go.
        self._waiting: dict[Ticket, list[WaitingAcks]] = {}

    def appended(self, acks: Acks, ticket: Ticket) -> None:
        """Answer the publishes of one append, now or when its ticket settles."""
        if ticket.is_settled:  # then no ticket waits: they settle in order
            if ticket.error is not None:
                self.refuse(acks, ticket.error)
            elif acks:
                self._acknowledge(acks)
            return
        if acks:
            self._waiting[ticket] = [self._wait(acks)]

    def _wait(self, acks: Acks, refusal: GatewayError | None = None) -> WaitingAcks:
        """Note who is owed ``acks`` when they may leave."""
        connections = self._connections_of(acks)
        counted = [c for c in connections if c is not None and c.version == 5]
        for connection in counted:
            connection.unacknowledged += 1
            if connection.unacknowledged > self._receive_maximum:  # [MQTT-3.3.4-9]
                code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
                self._disconnect(connection, code, "Receive Maximum exceeded")
        return WaitingAcks(acks, connections, counted, refusal)

    def refuse(self, acks: Acks, error: MotelogError) -> None:
        """Tell publishers that the log has not taken their messages, or cannot keep them."""
        logger.error(
            "the log refuses publishes, whose devices must send them again acks=%d reason=%s",
            len(acks), error,
        )  # fmt: skip
        is_full = isinstance(error, StoreFullError)
        code = ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self._send_refusals(acks, GatewayError(str(error), reason_code=code))

    def refuse_one(self, connection: Connection, packet_id: int, error: GatewayError) -> None:
        """Refuse one QoS 1 publish, behind the answers that wait for the log. [MQTT-4.6.0-2]"""
        acks = [(connection.number, packet_id)]
        if self._waiting:
            last = next(reversed(self._waiting.values()))
            last.append(self._wait(acks, error))
        else:
            self._send_refusals(acks, error)

    def _send_refusals(self, acks: Acks, error: GatewayError) -> None:
        self._metrics.publishes_refused += len(acks)
        for number, packet_id in acks:
            connection = self._connections[number]
            if connection is not None:
                self._send_refusal(connection, packet_id, error)

    def _send_refusal(self, connection: Connection, packet_id: int, error: GatewayError) -> None:
        """Refuse one QoS 1 publish; MQTT 3 can do that only by ending the connection."""
        packet = refuse_publish(connection.version, packet_id, error.reason_code)
        if packet is None:
            self._disconnect(connection, error.reason_code, str(error))
        else:
            self._output.send(connection.number, packet)

    def _connections_of(self, acks: Acks) -> list[Connection | None]:
        connections = self._connections
        return [connections[number] for number, _ in acks]

    def _acknowledge(self, acks: Acks) -> None:
        skipped = self._output.send_numbered(PUBACK, PUBACK_NUMBER_AT, acks)
        if skipped:
            # A connection above its output mark takes no more messages, but it is owed its
            # acknowledgements. These are few, as such a connection is not read from either.
            for number, packet_id in acks:
                if number in skipped:
                    packet = PUBACK[:PUBACK_NUMBER_AT] + packet_id.to_bytes(2, "big")
                    self._output.send(number, packet)

    # --- tickets that have waited --------------------------------------------------------

    def settled(self, settled: Settled) -> None:
        """Answer the publishes whose tickets have settled, in their order."""
        acks: Acks = []
        for ticket, error in settled:
            # A ticket without answers is a batch of publishes at QoS 0.
            for waiting in self._waiting.pop(ticket, ()):
                still_open = self._still_open(waiting)
                if error is None and waiting.refusal is None:
                    acks += still_open
                    continue
                if acks:
                    self._acknowledge(acks)
                    acks = []
                if waiting.refusal is not None:
                    self._send_refusals(still_open, waiting.refusal)
                elif error is not None:
                    self.refuse(still_open, error)
        if acks:
            self._acknowledge(acks)
        self._output.flush()

    def _still_open(self, waiting: WaitingAcks) -> Acks:
        """Return the acknowledgements whose connection is still the one that published."""
        for connection in waiting.counted:
            connection.unacknowledged -= 1
        # Nearly always all of them still are. Comparing lists of the same objects is quick.
        if self._connections_of(waiting.acks) == waiting.connections:
            return waiting.acks
        return [
            ack
            for ack, connection in zip(waiting.acks, waiting.connections, strict=True)
            if connection is not None and self._connections[ack[0]] is connection
        ]
