"""The tables of one broker: its state besides messages.

Owns: the list of tables, and their limits, which the configuration sets. Must not touch: their
content, files (saved).
"""

from __future__ import annotations

from dataclasses import dataclass

from motelog.core.acl.users import UserTable
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.tables.consumer_groups import GroupMembers
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.order_info import OrderTable
from motelog.core.broker.tables.queue_locks import QueueLocks
from motelog.core.broker.tables.request_modes import RequestModes
from motelog.core.broker.tables.subscription_groups import SubscriptionGroups
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import Clock
from motelog.core.remoting.server import Connection
from motelog.core.replication.role import Role
from motelog.core.saved_table import Table


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables. The last three are about connected clients; the others are saved."""

    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    orders: OrderTable
    request_modes: RequestModes
    users: UserTable
    consumers: GroupMembers[Connection]
    producers: GroupMembers[Connection]
    locks: QueueLocks

    def settings(self) -> dict[str, Table]:
        """Return what users have set, by the names under which slaves get it."""
        return {
            "topics": self.topics,
            "groups": self.groups,
            "requestModes": self.request_modes,
            "users": self.users,
        }

    def progress(self) -> dict[str, Table]:
        """Return how far groups have consumed, by the names under which slaves get it."""
        return {"offsets": self.offsets, "orders": self.orders}

    @classmethod
    def of(cls, config: BrokerConfig, clock: Clock) -> Tables:
        """Return a broker's tables before anything is loaded."""
        return cls(
            TopicTable(
                broker_name=config.name,
                cluster=config.cluster,
                default_queue_count=config.default_queue_count,
                auto_create=config.auto_create_topics,
                topics_max=config.topics_max,
                has_lmq=config.store.lmq,
                is_copied=Role(config.id, config.replicate).feeds,
            ),
            SubscriptionGroups(
                auto_create=config.auto_create_groups,
                groups_max=config.groups_max,
                clock=clock,
                has_lmq=config.store.lmq,
            ),
            ConsumerOffsets(
                entries_max=config.offset_entries_max, clock=clock, has_lmq=config.store.lmq
            ),
            OrderTable(),
            RequestModes(entries_max=config.groups_max),
            UserTable(),
            GroupMembers(members_max=config.clients_max),
            GroupMembers(members_max=config.clients_max),
            QueueLocks(),
        )
