"""Delivery plans: who receives a topic name, grouped by what is sent to them.

Owns: Plan, the bounded table of plans.
Must not touch: outputs (a plan names them), queues, cursors.
Invariants: a plan holds only connected receivers. So a session is in the tree as long as it is
connected, and the tree reports each change.
Spec: MQTT 5.0 sections 3.3 and 4.3.

A plan belongs to the set of tree entries that a name matches, so that a million names under
"telemetry/#" share one. The cost of a change depends on its filter:

    exact "dev/42/set"           the plan of one name is forgotten
    narrow "dev/42/#"            so are those of the few names with the same hash of two levels
    wide "dev/+/set", "dev/#"    each plan with a wide filter is filled again when it is next used;
                                 if the filter is new or gone, all plans are forgotten
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import TopicNameError
from motelog.gateway.mqtt.topics import check_topic_name, has_wildcard
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from motelog.gateway.sessions.groups import Group, Receiver
from motelog.gateway.sessions.output import Output
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import (
    PARTICULAR,
    QOS_MASK,
    Entry,
    SubscriptionTree,
)

#: Names whose plan is kept. If there is one more, all are forgotten.
NAMES_MAX: Final = 100_000
#: Plans kept for names that match only wide filters.
SHARED_MAX: Final = 10_000
BUCKETS: Final = 1024

#: The version of a plan without a wide filter.
_ANY_VERSION: Final = 1 << 62


class Plan:
    """The receivers of a topic name, in groups that need one encoding and one call each."""

    __slots__ = ("direct", "entries", "matches", "particular", "shared", "version", "windowed")

    def __init__(
        self, entries: tuple[Entry, ...], matches: dict[Receiver, int], version: int
    ) -> None:
        #: The entries from which to fill it again; empty if that is never needed.
        self.entries = entries
        #: The plan is stale if this is less than ``Plans.version``.
        self.version = version
        self.fill(matches)

    def fill(self, matches: dict[Receiver, int]) -> None:
        """Plan for these receivers, in place: many names may share this plan."""
        self.matches = matches
        shared: list[Group] = []
        groups: dict[tuple[Output, int, int], tuple[list[Session], list[int]]] = {}
        particular: list[Session] = []
        for session, options in matches.items():
            if isinstance(session, Group):
                shared.append(session)
                continue
            connection = session.connection
            if connection is None:
                continue
            if (
                options & PARTICULAR
                or connection.packet_bytes_max < PACKET_BYTES_LIMIT
                or connection.topic_alias_max
            ):
                particular.append(session)
                continue
            variant = connection.output, connection.version, options & QOS_MASK
            receivers = groups.get(variant)
            if receivers is None:
                groups[variant] = [session], [connection.number]
            else:
                receivers[0].append(session)
                receivers[1].append(connection.number)
        # Tuples, because all empty ones are the same object: most plans have one receiver.
        #: Sessions for which each message is encoded and checked individually.
        self.particular = tuple(particular)
        #: Groups; one member of each gets the message.
        self.shared = tuple(shared)
        #: (output, MQTT version, sessions with a QoS 0 subscription, their connections)
        self.direct = tuple(
            [
                (output, version, *receivers)
                for (output, version, qos), receivers in groups.items()
                if not qos
            ]
        )
        #: (output, MQTT version, QoS 1 or 2, sessions with such a subscription, their connections)
        self.windowed = tuple(
            [(*variant, *receivers) for variant, receivers in groups.items() if variant[2]]
        )


class Plans:
    """Topic name -> Plan, or None if it has no receiver; made when a message of that name comes."""

    def __init__(self, subscriptions: SubscriptionTree[Receiver], metrics: GatewayMetrics) -> None:
        self._subscriptions = subscriptions
        self._metrics = metrics
        #: Read by the live path; ``make`` handles a miss, and ``refresh`` fills a stale plan.
        self.by_name: dict[bytes, Plan | None] = {}
        self.version = 0
        #: Plans of names that match only wide filters.
        self._shared: dict[tuple[Entry, ...], Plan] = {}
        #: The names in ``by_name``, and some that were in it, by the hash of their first two
        #: levels. Empty buckets are not kept, because each wide filter that comes or goes, such as
        #: that of a client that is taken over, empties all of them.
        self._buckets: dict[int, list[bytes]] = {}
        self._names_count = 0  # in the buckets
        subscriptions.on_entry = self._on_entry
        subscriptions.on_change = self.replan

    def make(self, name: bytes) -> Plan | None:
        """Return the plan of a name that has none yet, and keep it."""
        plan = None
        try:
            entries = self._subscriptions.entries(name.decode())
            if entries:
                check_topic_name(name)
                plan = self._shared.get(entries) or self._plan_for(entries)
        except (TopicNameError, UnicodeDecodeError):
            # The name is a native producer's; devices' names are checked before they are stored.
            self._metrics.messages_undeliverable += 1
        if self._names_count >= NAMES_MAX:
            self._forget_all()
        self.by_name[name] = plan
        self._buckets.setdefault(_bucket_of(name), []).append(name)
        self._names_count += 1
        return plan

    def refresh(self, plan: Plan) -> None:
        """Fill a plan with the current receivers of its filters."""
        plan.fill(self._subscriptions.merged(plan.entries))
        plan.version = self.version

    def _plan_for(self, entries: tuple[Entry, ...]) -> Plan:
        matches = self._subscriptions.merged(entries)
        wide_count = 0
        for _, topic_filter in entries:
            wide_count += _is_wide(topic_filter)
        if not wide_count:
            return Plan((), matches, _ANY_VERSION)
        plan = Plan(entries, matches, self.version)
        if wide_count == len(entries):
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[entries] = plan
        return plan

    def replan(self, topic_filter: str) -> None:
        """Update the plans affected by a change of this filter's subscribers or options."""
        if _is_wide(topic_filter):
            self.version += 1
        else:
            self._forget_few(topic_filter)

    def _on_entry(self, topic_filter: str) -> None:
        """Forget the plans of the names that match a filter that is new or gone."""
        if _is_wide(topic_filter):
            self._forget_all()
        else:
            self._forget_few(topic_filter)

    def _forget_few(self, topic_filter: str) -> None:
        """Forget the plans of the names that match a filter that is not wide."""
        if not has_wildcard(topic_filter):
            self.by_name.pop(topic_filter.encode(), None)
        elif self._names_count:
            self._forget(_bucket_of(topic_filter.encode()))

    def _forget(self, bucket_number: int) -> None:
        bucket = self._buckets.pop(bucket_number, [])
        for name in bucket:
            self.by_name.pop(name, None)
        self._names_count -= len(bucket)

    def _forget_all(self) -> None:
        self.by_name.clear()
        self._shared.clear()
        self._buckets.clear()
        self._names_count = 0

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        assert len(self._shared) <= SHARED_MAX
        for name in self.by_name:
            assert name in self._buckets[_bucket_of(name)]
        assert self._names_count == sum(map(len, self._buckets.values())) <= NAMES_MAX


def _is_wide(topic_filter: str) -> bool:
    """Whether the names that a filter matches differ in their first two levels."""
    end = topic_filter.find("/", topic_filter.find("/") + 1)
    return has_wildcard(topic_filter if end < 0 else topic_filter[:end])


def _bucket_of(name: bytes) -> int:
    """Return the bucket of a name's first two levels."""
    end = name.find(b"/", name.find(b"/") + 1)
    return crc32(name if end < 0 else name[:end]) % BUCKETS
