"""The parts shared by the code that changes sessions and connections, as two values.

Owns: only that. Must not touch: what the parts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from motelog.gateway.connect.table import SessionTable
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.claims import Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.subscribe.sharing import SharedSubscriptions
from motelog.gateway.subscribe.storing import Storing

if TYPE_CHECKING:  # they use the first of the two
    from motelog.gateway.connect.connections import Connections
    from motelog.gateway.connect.expiry import Expiry
    from motelog.gateway.connect.life import Life
    from motelog.gateway.connect.parking import Parking
    from motelog.gateway.connect.proofs import Proofs
    from motelog.gateway.connect.run import Run


@dataclass(frozen=True, slots=True)
class SessionParts:
    """Where the sessions of a gateway are: in memory, in the log, at other gateways."""

    table: SessionTable
    subscriptions: SubscriptionTree[Receiver]
    shared: SharedSubscriptions
    delivery: Delivery
    journal: SessionJournal
    claims: Claims
    storing: Storing
    metrics: GatewayMetrics


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """What a client's connection goes through, from CONNECT to its end.

    ``proofs`` is None if no login takes several packets.
    """

    parking: Parking
    proofs: Proofs | None
    connections: Connections
    life: Life
    run: Run
    expiry: Expiry
