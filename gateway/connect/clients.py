"""Handles all packets of clients except publishes and their answers, and does the work of a tick.

Owns: which part a packet is for, and that a fault ends only one connection. Must not touch: what
the packets lead to (``admission``, ``subscribing``, ``connections``).
State changes between two awaits of its callers.
Spec: MQTT 5.0 and 3.1.1 chapter 3.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from motelog.core.clock import Clock
from motelog.core.limited_log import LimitedLog
from motelog.core.net.reactor_types import CloseReason, Fault
from motelog.gateway.config import GatewayConfig
from motelog.gateway.connect.admission import Admission
from motelog.gateway.connect.parts import ConnectionParts, SessionParts
from motelog.gateway.connect.rechecks import Rechecks
from motelog.gateway.mqtt.disconnect import decode_disconnect
from motelog.gateway.mqtt.errors import GatewayError, MalformedPacketError
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.sessions.connect_rules import check_disconnect, refuse_unread
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.output import Output
from motelog.gateway.sessions.publish_rules import unexpected
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.session_rows import ClaimHeard
from motelog.gateway.state.view import ViewError
from motelog.gateway.subscribe.subscribing import Subscribing
from motelog.gateway.turn import Packet, Turn

logger = logging.getLogger(__name__)


_FAULTS: Final = {
    Fault.FRAME_TOO_LARGE: (ReasonCode.PACKET_TOO_LARGE, "packet above Maximum Packet Size"),
    Fault.MALFORMED_LENGTH: (ReasonCode.MALFORMED_PACKET, "remaining length of five bytes"),
    Fault.IDLE: (ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within 1.5 times the keep alive"),
}
#: Faults that the frames kernel finds in packets after CONNECT; it reports a code and a position.
_FRAME_FAULTS: Final = {
    ReasonCode.TOPIC_NAME_INVALID: "topic name is empty, or has '+', '#' or a control character",
    ReasonCode.PROTOCOL_ERROR: "packet identifier is 0, or there is no topic name and no alias",
}


class Clients:
    """The clients of one gateway.

    Callers refer to a connection by its number. A connection that has ended meanwhile is ignored.
    """

    def __init__(
        self,
        config: GatewayConfig,
        turn: Turn,
        sessions: SessionParts,
        parts: ConnectionParts,
        admission: Admission,
        subscribing: Subscribing,
        rechecks: Rechecks | None,
        *,
        clock: Clock,
    ) -> None:
        """``rechecks`` is None if clients do not log in."""
        self._config = config
        self._turn = turn
        self._table = sessions.table
        self._shared = sessions.shared
        self._delivery = sessions.delivery
        self._journal = sessions.journal
        self._claims = sessions.claims
        self._metrics = sessions.metrics
        self._parking = parts.parking
        self._proofs = parts.proofs
        self._connections = parts.connections
        self._run = parts.run
        self._expiry = parts.expiry
        self._admission = admission
        self._subscribing = subscribing
        self._rechecks = rechecks
        self._clock = clock
        self._claims.hand_over = self._yield_to
        self._journal.watch(self._table.by_client_id)
        self.check_life = parts.run.check
        self.expect = admission.expect
        self.opened = parts.connections.open
        self.shed = parts.connections.shed
        peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        #: Work that one peer has caused runs inside it.
        self.boundary = peer_log.boundary(
            "the gateway failed to handle what a client sent; other clients are served"
        )

    def configure(self, config: GatewayConfig) -> None:
        """Apply the limits of ``config`` to CONNECTs and SUBSCRIBEs from now on."""
        self._config = config
        self._admission.configure(config)
        self._subscribing.configure(config)

    # --- connections ---------------------------------------------------------------------

    def faulted(self, output: Output, number: int, fault: Fault) -> None:
        """Answer a peer whose stream has a fault; nothing more is read from this connection."""
        with self.boundary:
            if fault is Fault.TRANSPORT:
                why = output.codec_fault(number)
                self._end_faulty(number, ReasonCode.PROTOCOL_ERROR, why)
            else:
                self._end_faulty(number, *_FAULTS[fault])

    def closed(self, number: int, reason: CloseReason) -> None:
        """Note that the connection is gone."""
        with self.boundary:
            self._connections.closed(number, reason)

    def failed(self, number: int) -> None:
        """End a connection because this gateway failed while it handled one of its packets."""
        connection = self._turn.connections[number]
        with self.boundary:
            self._end_faulty(number, ReasonCode.UNSPECIFIED_ERROR, "a fault of this gateway")
            return
        if connection is not None:
            connection.output.abort(number)
        if connection is not None and self._turn.connections[number] is connection:
            with self.boundary:
                self._connections.forget(connection)

    def end_all(self) -> None:
        """End the connections in the turn's ``ended``."""
        ended, self._turn.ended = self._turn.ended, []
        for one in ended:
            with self.boundary:
                self._connections.end(*one)

    def malformed(self, number: int, reason_code: int, offset_bytes: int) -> None:
        """End a connection whose packet the frames kernel refused."""
        self._metrics.packets_malformed += 1
        connection = self._turn.connections[number]
        if connection is not None and connection.session is None:
            refused = refuse_unread(reason_code, "the first packet is not CONNECT")
            self._connections.refuse(connection, refused)
            return
        what = _FRAME_FAULTS.get(ReasonCode(reason_code), "malformed packet")
        self._end_faulty(number, reason_code, f"{what} (at byte {offset_bytes})")

    def _end_faulty(self, number: int, reason_code: int, why: str) -> None:
        connection = self._turn.connections[number]
        if connection is not None and connection.session is not None:
            self._connections.end(connection, reason_code, why)
            return
        parked = self._parking.get(number)
        if parked is not None:
            self._connections.refuse_parked(parked, why)
            return
        where = "before CONNECT" if connection is not None else "in a login"
        connection = connection or self._connections.waiting(number)
        if connection is not None:
            self._connections.refuse(connection, refuse_unread(reason_code, f"{why} {where}"))

    # --- packets -------------------------------------------------------------------------

    def keep(self, packet: Packet) -> bool:
        """Keep a packet if its connection is parked; return whether it is."""
        parked = self._parking.keep(packet)
        if parked is not None and parked.kept_bytes > parked.kept_bytes_max:
            why = "too many bytes follow a CONNECT that waits"
            self._connections.refuse_parked(parked, why)
        return parked is not None

    def handle(self, number: int, first_byte: int, body: bytes) -> None:
        """Handle one control packet; a fault, even this gateway's own, ends its connection."""
        with self.boundary:
            self._handle_one(number, first_byte, body)
            return
        self.failed(number)

    def _handle_one(self, number: int, first_byte: int, body: bytes) -> None:
        connection = self._turn.connections[number]
        if connection is None:  # its login is in progress, or it was closed earlier in this turn
            proved = self._proofs and self._proofs.go_on(number, first_byte, body)
            if proved:
                self._admission.proved(proved)
            return
        session = connection.session
        if session is None:
            self._admission.connect(connection, first_byte, body)
            return
        try:
            self._handle(connection, session, first_byte, body)
        except GatewayError as exc:
            self._metrics.packets_malformed += isinstance(exc, MalformedPacketError)
            self._turn.end(connection, exc.reason_code, str(exc))

    def _handle(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        packet_type = first_byte >> 4
        if packet_type in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
            self._subscribing.handle(connection, session, first_byte, body)
        elif packet_type == PacketType.DISCONNECT:
            self._disconnected(connection, session, first_byte, body)
        elif packet_type == PacketType.AUTH and self._proofs is not None:
            self._proofs.again(connection, session, first_byte, body)
        else:
            raise unexpected(first_byte)

    def _disconnected(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        packet = decode_disconnect(connection.version, first_byte, body)
        # If no expiry is granted at all, the gateway cannot know whether the client asked for one.
        may_set = session.expiry_s > 0 or self._config.session_expiry_max_s == 0
        check_disconnect(packet, asked_for_expiry=may_set)
        expiry_s = packet.properties.session_expiry_interval_s
        if expiry_s is not None:
            was_stored = session.expiry_s > 0
            session.expiry_s = min(expiry_s, self._config.session_expiry_max_s)
            if was_stored and not session.expiry_s:
                self._journal.end(session.client_id)
        if packet.reason_code == ReasonCode.NORMAL_DISCONNECTION and session.has_particulars:
            session.particulars.will = None  # [MQTT-3.14.4-3]
        self._connections.leave(connection)

    # --- each second ---------------------------------------------------------------------

    def tick(self) -> bool:
        """Store delivery progress, end sessions and publish wills that are due.

        Called each second. Return whether more is due already.
        """
        if self._journal.is_in_doubt():
            return False
        self._end_logins()
        self._subscribing.give_up_waiting()
        delivery = self._delivery
        delivery.keep_to_quota()
        self._journal.tick(delivery.positions(), delivery.progress(), delivery.take_left())
        delivery.sys_topics.tick()
        self._shared.tick()
        self._claims.tick()
        return self._journal.is_first and self._expiry.tick()

    def _end_logins(self) -> None:
        """End the connections whose logins have expired with a token or a client certificate."""
        for number in self._admission.endings.due(self._clock.now_ms() / 1000):
            connection = self._turn.connections[number]
            if connection is not None:
                self._turn.end(connection, ReasonCode.NOT_AUTHORIZED, "the login has expired")

    def access_changed(self) -> None:
        """Begin a check of all sessions, because logins or rights have changed."""
        if self._rechecks is not None:
            self._rechecks.begin()

    def recheck(self) -> bool:
        """Check some of the sessions; return whether there are more."""
        if self._rechecks is None:
            return False
        self._run.check()
        return self._rechecks.look()

    # --- other gateways ------------------------------------------------------------------

    def read_back(self, limit: int) -> bool:
        """Bring the view of sessions up to date, and do what the records of other gateways ask for.

        Applies about ``limit`` changes; returns whether more are in memory.
        """
        self._journal.is_in_doubt()  # in doubt, this asks the log before anything is read
        is_more = self._journal.refresh(limit)
        if self._journal.is_over:
            self._run.begin_again("another gateway counts this one as lost")
            return True
        if self._journal.is_in_doubt():
            return is_more
        for heard in self._journal.take_heard():
            if isinstance(heard, ClaimHeard) and heard.takes and not self._journal.is_own(heard):
                self._yield_to(heard)
            elif heard is None:
                self._shared.run_ended()
            self._claims.hear(heard)
        if self._claims.go_on(limit):
            is_more = True
        self._expiry.go_on()
        self._claims.commit()
        return is_more

    def _yield_to(self, heard: ClaimHeard) -> None:
        """Hand over a session that another gateway has claimed, if it is here.

        Our own claim of such a session is older.
        """
        live = self._table.live(heard.client_id)
        if live is None:
            with suppress(ViewError):  # the client of the other gateway tries again
                self._journal.release(heard)
        elif heard.owner is None or live[0].owner in (None, heard.owner):
            self._admission.take_over(heard.client_id)

    def shut_down(self, why: str) -> None:
        """End all connections at shutdown: sessions are stored and wills published."""
        self._run.shut_down(why)
