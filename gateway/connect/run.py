"""Whether this gateway's run continues, or the other gateways count it as lost.

Owns: the end of all connections, for a shutdown or a new run.
Must not touch: the records of a run (``state.journal``).
"""

from __future__ import annotations

import logging

from motelog.gateway.connect.connections import Connections
from motelog.gateway.connect.life import Life
from motelog.gateway.connect.parking import Parking
from motelog.gateway.connect.parts import SessionParts
from motelog.gateway.mqtt.packet_types import ReasonCode

logger = logging.getLogger(__name__)


class Run:
    """The run of one gateway."""

    def __init__(
        self,
        sessions: SessionParts,
        parking: Parking,
        connections: Connections,
        life: Life,
    ) -> None:
        self._table = sessions.table
        self._parking = parking
        self._connections = connections
        self._life = life
        self._claims = sessions.claims
        self._journal = sessions.journal

    def check(self) -> None:
        """Begin a new run if this gateway has stood still so long that others count it as lost.

        Call this when clients have sent something, as another gateway may have their sessions.
        Before that much time has passed, ``SessionJournal.is_in_doubt`` asks the log.
        """
        if self._journal.has_stood_still:
            self._journal.abandon()
            self.begin_again("this gateway has stood still, so that others count it as lost")

    def begin_again(self, why: str) -> None:
        """Drop all sessions without storing them: for other gateways, this run is over."""
        count = len(self._table.by_client_id)
        logger.error("%s: its clients are disconnected count=%d", why, count)
        self.end_all(ReasonCode.SERVER_BUSY, "this gateway was taken for lost")
        self._claims.clear()
        self._journal.flush()
        self._journal.begin_again()

    def shut_down(self, why: str) -> None:
        """End all connections at shutdown: sessions are stored and wills published."""
        self._life.is_shut_down = True
        self.end_all(ReasonCode.SERVER_SHUTTING_DOWN, why)

    def end_all(self, reason_code: int, why: str) -> None:
        """End all connections, at shutdown or because this run is over."""
        for session in list(self._table.by_client_id.values()):
            if session.connection is not None:
                self._connections.close(session.connection, reason_code, why)
        for parked in self._parking:
            if parked.claim is not None:
                self._claims.overtake(parked.accepted.client_id)
            else:
                self._connections.refuse_parked(parked, why)
