"""Acknowledgements of publishes: when they leave, and what is said instead when they may not.

Owns: PUBACKs of appended publishes, those that wait for the log, refusals, Receive Maximum.
Must not touch: appends (``reactor_listener``), when the log allows it (core.broker.acknowledge).
Invariants: a publish is acknowledged only after the log's mode allows it; one that was refused is
never acknowledged later. What is acknowledged goes to the connection that published, and to nobody
who has its number afterwards.
Spec: MQTT 5.0 sections 3.4, 4.6 and 4.9; 3.1.1 likewise.

A publish is a tuple (connection, packet identifier); those of one append stay together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from motelog.core.broker.acknowledge import Acknowledge, AnswerQueue
from motelog.core.clock import Clock
from motelog.core.errors import StoreError, StoreFullError
from motelog.gateway.errors import GatewayError
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.acks import encode_puback
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.output import Output
from motelog.gateway.sessions.session import Session

_log = logging.getLogger(__name__)

#: PUBACK with reason "success", the same in every version; the packet identifier goes to position
#: 2.
PUBACK: Final = b"\x40\x02\x00\x00"
PUBACK_NUMBER_AT: Final = 2

Acks = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class WaitingAcks:
    """The acknowledgements of one append that wait for the log.

    ``sessions`` are those that published, one for each; ``counted`` the ones among them that
    Receive Maximum binds.
    """

    acks: Acks
    sessions: list[Session | None]
    counted: list[Session]


class PublishAcks:
    """Answers one gateway's publishes; state changes between two awaits of its callers."""

    def __init__(
        self,
        output: Output,
        acknowledge: Acknowledge,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        sessions: list[Session | None],
        receive_maximum: int,
        disconnect: Callable[[int, int, str], None],
    ) -> None:
        self._output = output
        self._metrics = metrics
        self._sessions = sessions
        self._receive_maximum = receive_maximum
        self._disconnect = disconnect
        self.queue: AnswerQueue[WaitingAcks] = AnswerQueue(
            acknowledge, clock=clock, answer=self._release, refuse=self._refuse_waiting
        )

    def appended(self, acks: Acks, end_offset: int) -> None:
        """Answer publishes whose append ended at ``end_offset``, as soon as the mode allows it."""
        if self.queue.may_answer(end_offset):
            self._acknowledge(acks)
            return
        sessions = self._sessions_of(acks)
        counted = [s for s in sessions if s is not None and s.version == 5]
        self.queue.add(end_offset, WaitingAcks(acks, sessions, counted))
        for session in counted:
            session.unacknowledged += 1
            if session.unacknowledged > self._receive_maximum:
                self._exceeded(session)

    def refuse(self, acks: Acks, error: StoreError) -> None:
        """Tell publishers that the log has not taken what they sent, or cannot keep it."""
        _log.error("publishes are refused count=%d reason=%s", len(acks), error)
        is_full = isinstance(error, StoreFullError)
        code = ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        refusal = GatewayError(str(error), reason_code=code)
        for connection, packet_id in acks:
            session = self._sessions[connection]
            if session is None:
                self._metrics.publishes_refused += 1
            else:
                self.refuse_one(session, packet_id, refusal)

    def refuse_one(self, session: Session, packet_id: int, error: GatewayError) -> None:
        """Tell one publisher at QoS 1; MQTT 3 can refuse only by ending the connection."""
        self._metrics.publishes_refused += 1
        if session.version == 5:
            packet = encode_puback(session.version, packet_id, error.reason_code)
            self._output.send(session.connection, packet)
        else:
            self._disconnect(session.connection, error.reason_code, str(error))

    def _sessions_of(self, acks: Acks) -> list[Session | None]:
        sessions = self._sessions
        return [sessions[connection] for connection, _ in acks]

    def _acknowledge(self, acks: Acks) -> None:
        skipped = self._output.send_numbered(PUBACK, PUBACK_NUMBER_AT, acks)
        if skipped:
            # Above its output mark a connection takes no more messages, but an acknowledgement is
            # owed; there are few, as such a connection is not read from either.
            for connection, packet_id in acks:
                if connection in skipped:
                    packet = PUBACK[:PUBACK_NUMBER_AT] + packet_id.to_bytes(2, "big")
                    self._output.send(connection, packet)

    def _exceeded(self, session: Session) -> None:
        """End a client that has more publishes unacknowledged than CONNACK allowed it."""
        if self._sessions[session.connection] is session:  # [MQTT-3.3.4-9]
            code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
            self._disconnect(session.connection, code, "Receive Maximum exceeded")

    # --- what has waited -----------------------------------------------------------------

    def _release(self, released: list[WaitingAcks]) -> None:
        acks: Acks = []
        for waiting in released:
            acks += self._still_open(waiting)
        if acks:
            self._acknowledge(acks)
        self._output.flush()

    def _refuse_waiting(self, refused: list[WaitingAcks], error: StoreError) -> None:
        for waiting in refused:
            self.refuse(self._still_open(waiting), error)
        self._output.flush()

    def _still_open(self, waiting: WaitingAcks) -> Acks:
        """Return the acknowledgements whose connection is still the one that published."""
        for session in waiting.counted:
            session.unacknowledged -= 1
        # Nearly always all of them are, and comparing lists of the same objects is quick.
        if self._sessions_of(waiting.acks) == waiting.sessions:
            return waiting.acks
        return [
            ack
            for ack, session in zip(waiting.acks, waiting.sessions, strict=True)
            if session is not None and self._sessions[ack[0]] is session
        ]
