"""Pulls on a real store without sockets: who is read for, and what clients are answered.

Owns: a PullProcessor with three topics and what it needs. Must not touch: time; its clock stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from motelog.core.broker.api import BrokerApi, NotInMemoryError, QueueTail, ReadResult
from motelog.core.broker.processors.pull import PullProcessor
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.consumer_groups import GroupMembers
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.subscription_groups import SubscriptionGroups
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.broker.waiting.long_poll import HeldRequests
from motelog.core.clock import ManualClock
from motelog.core.errors import StoreError
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.core.remoting.server import Connection, answer_with
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.disk.page_cache import Places
from motelog.core.store.message_store import MessageStore
from tests.support.broker_stack import pull_ext
from tests.support.stores import STORE_HOST, opened

QUEUES = 4096
TOPICS = ("A", "B", "C")


@dataclass(eq=False)
class Client:
    """A connection that keeps what it is answered."""

    answers: list[RemotingCommand] = field(default_factory=list)
    is_open = True
    is_congested = False

    def reply(self, command: RemotingCommand) -> None:
        self.answers.append(command)


class CountingApi(BrokerApi):
    """The broker's face; notes which queues are read, and fails when it is told to."""

    reads: list[tuple[str, int]]
    fault: StoreError | None = None
    # How often reads that may not wait still miss something.
    misses = 0

    def watch(self) -> None:
        self.reads = []
        read = self.read

        def counted(topic: str, queue_id: int, queue_offset: int, **how: Any) -> ReadResult:
            self.reads.append((topic, queue_id))
            if self.fault is not None:
                raise self.fault
            if self.misses and not how["may_wait"]:
                self.misses -= 1
                raise NotInMemoryError([Places("no such file", ((self.misses, self.misses + 1),))])
            return read(topic, queue_id, queue_offset, **how)

        self.read = counted


class PullStage:
    def __init__(self, store: MessageStore, topics: TopicTable) -> None:
        self.store = store
        clock = ManualClock()
        self.api = CountingApi(
            store,
            topics,
            clock=clock,
            store_host=STORE_HOST,
            cold_reads_max=10,
        )
        self.api.watch()
        self.stats = BrokerStats(
            cluster="c",
            clock=clock,
            messages_in=lambda: store.stats.put_messages,
            messages_out=lambda: self.pulls.messages_count,
        )
        self.offsets = ConsumerOffsets(entries_max=10)
        self.held = HeldRequests(requests_max=20_000, requests_per_owner_max=20_000)
        self.pulls = PullProcessor(
            self.api,
            topics,
            SubscriptionGroups(auto_create=True, groups_max=10),
            GroupMembers(members_max=10),
            self.offsets,
            self.held,
            self.api.cold_reads,
            SqlFilters(),
            self.stats,
            clock=clock,
            count_max=100,
            bytes_max=1 << 20,
            hold_ms_max=60_000,
            short_poll_ms=None,
            cached_bytes=None,
        )
        store.on_growth.append(self.pulls.queues_grew)

    def pull(
        self, client: Client, topic: str, queue_id: int, *, flag: int = 0, **fields: int
    ) -> None:
        """Process a pull from offset 0 that may be held, unless ``fields`` say otherwise."""
        fields = {"sysFlag": 6, "suspendTimeoutMillis": 30_000} | fields
        ext = pull_ext(topic, 0, queue_id=queue_id, **fields)
        texts = {name: str(value) for name, value in ext.items()}
        request = RemotingCommand(RequestCode.PULL_MESSAGE, flag=flag, ext=texts)
        processor = self.pulls.processors()[RequestCode.PULL_MESSAGE]
        answer_with(processor, request, cast("Connection", client))

    def tail(self, topic: str, queue_id: int) -> QueueTail:
        return self.store.queue_tail(topic, queue_id)


@contextmanager
def pull_stage(folder: Path, **config: Any) -> Iterator[PullStage]:
    topics = TopicTable(
        broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=100
    )
    for name in TOPICS:
        topics.put(TopicConfig(topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES), 0)
    with opened(folder, **config) as store:
        yield PullStage(store, topics)
