"""Delivery plans: who receives a topic name, grouped by what is sent to them.

Owns: Plan, the bounded table of plans.
Must not touch: outputs (a plan names them), queues, cursors.
Invariants: a plan holds only receivers that are connected. So ``replan`` is called for each filter
whose subscribers or options change, and for each filter of a session that gets or loses its
connection.
Spec: MQTT 5.0 sections 3.3 and 4.3.
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.errors import MalformedPacketError, TopicNameError
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.topics import check_topic_name, has_wildcard
from motelog.gateway.output import Output
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import (
    HAS_IDENTIFIER,
    NO_LOCAL,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
    SubscriptionTree,
)

PLANS_MAX: Final = 100_000

_PARTICULAR: Final = NO_LOCAL | RETAIN_AS_PUBLISHED | HAS_IDENTIFIER


class Plan:
    """Who receives a topic name, in groups that take one encoding and one call each."""

    __slots__ = ("direct", "matches", "particular", "windowed")

    def __init__(self, matches: dict[Session, int]) -> None:
        self.matches = matches
        groups: dict[tuple[Output, int, int], tuple[list[Session], list[int]]] = {}
        #: Sessions for which each message is made and checked by itself.
        self.particular: list[Session] = []
        for session, options in matches.items():
            connection = session.connection
            if connection is None:
                continue
            if (
                options & _PARTICULAR
                or connection.packet_bytes_max < PACKET_BYTES_LIMIT
                or connection.topic_alias_max
            ):
                self.particular.append(session)
                continue
            variant = connection.output, connection.version, options & QOS_MASK
            sessions, numbers = groups.setdefault(variant, ([], []))
            sessions.append(session)
            numbers.append(connection.number)
        #: (output, MQTT version, sessions with a QoS 0 subscription, their connections)
        self.direct = [
            (output, version, *receivers)
            for (output, version, qos), receivers in groups.items()
            if not qos
        ]
        #: (output, MQTT version, QoS 1 or 2, sessions with such a subscription, their connections)
        self.windowed = [
            (*variant, *receivers) for variant, receivers in groups.items() if variant[2]
        ]


class Plans:
    """Topic name -> Plan, None where nobody receives it; made when a message of that name comes."""

    def __init__(self, subscriptions: SubscriptionTree[Session], metrics: GatewayMetrics) -> None:
        self._subscriptions = subscriptions
        self._metrics = metrics
        #: Read by the live path; ``make`` answers a miss.
        self.by_name: dict[bytes, Plan | None] = {}

    def make(self, name: bytes) -> Plan | None:
        """Return the plan of a name that has none yet, and keep it."""
        plan = None
        try:
            check_topic_name(name)
            matches = self._subscriptions.match(name.decode())
            plan = Plan(matches) if matches else None
        except (TopicNameError, MalformedPacketError):
            # A native producer's name; devices' names were checked before they were stored.
            self._metrics.messages_undeliverable += 1
        if len(self.by_name) >= PLANS_MAX:
            self.by_name.clear()
        self.by_name[name] = plan
        return plan

    def replan(self, topic_filter: str) -> None:
        """Drop the plans that a change of this filter's subscribers or options may touch."""
        if has_wildcard(topic_filter):
            self.by_name.clear()
        else:
            # An exact filter matches one name, so all other plans survive a storm of connects.
            self.by_name.pop(topic_filter.encode(), None)
