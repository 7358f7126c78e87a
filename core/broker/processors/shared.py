"""What all processors of one broker share.

Owns: nothing; it is filled in one place (core.broker.assembly, or a test's stage). Must not touch:
sockets, tasks. Things that only one processor needs are arguments of that processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from motelog.core.acl.gate import AclGate
from motelog.core.broker.api import BrokerApi
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.replication.master import Master
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.tables import Tables
from motelog.core.clock import Clock
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.replication.role import ALONE, Role
from motelog.core.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Shared:
    """One broker, as its processors see it; ``api`` appends, reads and waits for the disk."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    api: BrokerApi
    tables: Tables
    filters: SqlFilters
    stats: BrokerStats
    acl: AclGate | None = None
    # The key of clients that can read the files of the log; None: clients must not read them.
    reader_key: str | None = None
    role: Role = ALONE
    # The slaves of a master that lets them copy its log.
    master: Master | None = None
