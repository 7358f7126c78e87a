"""The ends of connections, orderly or not, and the log lines and counters for them.

Owns: DISCONNECT packets of the server, refused CONNECTs, metrics and log lines of connections.
Must not touch: packets of clients (``clients``), what happens to a session (``life``).
Spec: MQTT 5.0 sections 3.2.2.2 and 3.14.
"""

from __future__ import annotations

import logging

from motelog.core.clock import Clock
from motelog.core.limited_log import LimitedByKey, LimitedLog
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.connect.life import Life
from motelog.gateway.connect.parking import Parked, Parking
from motelog.gateway.connect.proofs import Proofs
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.sessions.connect_rules import Refused, refuse_for_now
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.output import Output
from motelog.gateway.turn import Turn

logger = logging.getLogger(__name__)


class Connections:
    """Opens and ends the connections of one gateway."""

    def __init__(
        self,
        turn: Turn,
        parking: Parking,
        proofs: Proofs | None,
        life: Life,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
    ) -> None:
        """``proofs`` is None if no login takes several packets."""
        self._turn = turn
        self._table = turn.connections
        self._parking = parking
        self._proofs = proofs
        self._life = life
        self._metrics = metrics
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        self._closings = LimitedByKey(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)

    def open(self, output: Output, number: int) -> None:
        """Add a connection that has sent nothing yet."""
        self._metrics.connections_opened += 1
        self._table[number] = Connection(output, number)

    def waiting(self, number: int) -> Connection | None:
        """Return a connection whose CONNECT waits, and which is therefore not in the table."""
        parked = self._parking.get(number)
        if parked is not None:
            return parked.connection
        return None if self._proofs is None else self._proofs.connection(number)

    def closed(self, number: int, reason: CloseReason) -> None:
        """Note that a connection is gone."""
        connection = self._table[number] or self.waiting(number)
        if connection is None:
            return
        session = connection.session
        if reason is CloseReason.OUTPUT_FULL and session is not None:
            self._peer_log.warning(
                "a client reads too slowly and is disconnected: its output is full client_id=%r",
                session.client_id,
            )
        self.forget(connection)

    def end(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection now, with a line in the log. MQTT 3 has no reason codes.

        Use ``Turn.end`` unless the caller needs the session to be stored when this returns.
        """
        session = connection.session
        if session is None:
            return  # ended meanwhile
        self._closings.warning(
            session.client_id,
            "the gateway closes a connection client_id=%r reason_code=0x%02x why=%s times=%d",
            session.client_id,
            reason_code,
            why,
        )
        self.close(connection, reason_code, why)

    def shed(self, number: int) -> None:
        """End a connection because of the memory that it takes.

        A client that does not read its output cannot be sent the reason; other clients are.
        """
        connection = self._table[number]
        if connection is None:
            return  # ended meanwhile
        self._metrics.connections_shed += 1
        if connection.output.output_bytes(number):
            self.cut(connection)
        else:
            self.close(connection, ReasonCode.QUOTA_EXCEEDED, "connections hold too much memory")

    def close(self, connection: Connection, reason_code: int, why: str) -> None:
        """Send a client the reason why its connection ends, and end it."""
        if connection.version == 5:
            reasoned = encode_disconnect(5, reason_code, reason_string(why))
            connection.send(connection.choose(reasoned, encode_disconnect(5, reason_code)))
        self.leave(connection)

    def leave(self, connection: Connection) -> None:
        """End a connection after what is queued has been sent."""
        connection.output.close(connection.number)
        self.forget(connection)

    def cut(self, connection: Connection) -> None:
        """End a connection at once; what is queued is dropped."""
        connection.output.abort(connection.number)
        self.forget(connection)

    def refuse(self, connection: Connection, refused: Refused) -> None:
        """Refuse a CONNECT, and end its connection."""
        output, number = connection.output, connection.number
        self._metrics.connections_refused += 1
        self._peer_log.warning(
            "the gateway refuses a connection peer=%s:%d client_id=%r reason_code=0x%02x why=%s",
            *output.peer(number),
            refused.client_id,
            refused.reason_code,
            refused.why,
        )
        if refused.connack:
            output.send(number, refused.connack)
        self.leave(connection)

    def refuse_parked(self, parked: Parked, why: str) -> None:
        """Refuse a CONNECT that is parked."""
        self.refuse(parked.connection, refuse_for_now(parked.accepted, why))

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended; its session is stored, or ends with it."""
        self._metrics.connections_closed += 1
        self._table[connection.number] = None
        self._parking.forget(connection.number)
        if self._proofs is not None:
            self._proofs.forget(connection.number)
        session = connection.session
        if session is not None:
            listener = connection.output.listener(connection.number)
            self._metrics.clients[listener][connection.version] -= 1
            self._life.leave(session)
