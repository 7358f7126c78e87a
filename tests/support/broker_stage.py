"""A broker's processors on a real store, without sockets and tasks.

Owns: what the processors share, three topics, clients that keep what they are answered. Must not
touch: time; its clock stands until a test moves it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from motelog.core.broker.api import BrokerApi, NotInMemoryError, QueueTail, ReadResult
from motelog.core.broker.assembly import (
    Processors,
    make_check_back,
    make_reader_key,
    make_schedule,
    make_shared,
)
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.copies import (
    Copies,
    ServedAt,
    role_file,
)
from motelog.core.broker.pop.state import PopState
from motelog.core.broker.replication.promotion import Promotion
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.broker.waiting.cluster_queues import ClusterQueues
from motelog.core.clock import ManualClock
from motelog.core.errors import StoreError
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.frames import RemotingCommand, RequestCode, decode, encode
from motelog.core.remoting.server import Connection, answer_with
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.replication.role import ALONE, Role
from motelog.core.store.disk.page_cache import Places
from motelog.core.store.message_store import MessageStore
from tests.support.broker_stack import json_body, pull_ext
from tests.support.send_requests import turn
from tests.support.stores import BORN_HOST, STORE_HOST, opened

QUEUES = 4096
TOPICS = ("A", "B", "C")
PORT = 10911
# Small enough for a test to reach, large enough for the others.
LIMITS: dict[str, Any] = {
    "topics_max": 100,
    "groups_max": 10,
    "clients_max": 10,
    "offset_entries_max": 10,
    "held_pulls_max": 20_000,
    "held_pulls_per_connection_max": 20_000,
    "pull_count_max": 100,
    "pull_bytes_max": 1 << 20,
}

#: A value as Python writes it: TopicConfig(topic_name='T', ...), <object at 0x7f12>.
_IN_PYTHON: Final = re.compile(r"\w\(\w+=|<.* at 0x")


@dataclass(eq=False)
class Client:
    """A connection that keeps what it is sent."""

    answers: list[RemotingCommand] = field(default_factory=list)
    deferred: deque[RemotingCommand] = field(default_factory=deque)
    peer: tuple[str, int] = ("127.0.0.1", 4711)
    host = BORN_HOST
    is_open = True
    is_congested = False

    def reply(self, command: RemotingCommand) -> None:
        self.answers.append(command)

    def send(self, head: bytes, body: bytes = b"") -> None:
        self.answers.append(decode(head + body))


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


class BrokerStage:
    """``ask`` is a turn of one request; ``pull`` one that may be held."""

    def __init__(
        self, store: MessageStore, *, clock: ManualClock | None = None, **config: Any
    ) -> None:
        self.store = store
        self.clock = clock or ManualClock()
        settings = BrokerConfig(store=store.config, **LIMITS | config)
        self.tables = Tables.of(settings, self.clock)
        shared = make_shared(
            settings,
            self.clock,
            store,
            self.tables,
            store_host=STORE_HOST,
            reader_key=make_reader_key(settings),
            role=Role(settings.id, settings.replicate),
        )
        self.api = CountingApi(
            store,
            self.tables.topics,
            clock=self.clock,
            store_host=STORE_HOST,
            cold_reads_max=settings.held_pulls_max,
        )
        self.api.watch()
        self.shared = replace(shared, api=self.api, filters=SqlFilters())
        self.stats = shared.stats
        self.ledger = Ledger()
        self.pop_state = PopState(settings, store, self.tables)
        schedule = make_schedule(settings, store)
        queues = ClusterQueues(self.tables.topics, (), self.clock, name=settings.name)
        self.processors = Processors.of(
            self.shared,
            schedule,
            self.ledger,
            self.pop_state,
            queues,
            address=ServedAt(("127.0.0.1", PORT), PORT),
            copies=Copies([], None, None, Promotion(role_file(settings), None, ALONE, 0)),
        )
        self.check_back = make_check_back(self.shared, self.ledger)
        self.pulls = self.processors.pull
        self.held = self.pulls.held
        self._by_code = self.processors.by_code()
        self._plain = self.processors.plain()
        for name in TOPICS:
            self.topic(name, QUEUES)

    def topic(self, name: str, queues: int, *, perm: int = 6) -> None:
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )
        self.tables.topics.put(config, self.clock.now_ms())

    def tail(self, topic: str, queue_id: int) -> QueueTail:
        return self.store.queue_tail(topic, queue_id)

    def process(self, request: RemotingCommand, client: Client) -> None:
        """Process a request and end its turn, as the server does: first, is it plain?"""
        connection = cast("Connection", client)
        data, index = turn([encode(request)])
        (plain,) = self._plain.split(data, index, 1)
        if plain is None or not self._plain.takers[plain[0]](plain, connection):
            answer_with(self._by_code[request.code], request, connection)
        self.processors.end_turn()

    def ask(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: Any = b"",
        *,
        client: Client | None = None,
        **fields: Any,
    ) -> RemotingCommand:
        """Return the one answer to a request; a ``body`` that is no bytes is sent as JSON.

        Its remark is for people: it shows no value of the broker's as Python writes it.
        """
        client = client or Client()
        before = len(client.answers)
        texts = {name: str(value) for name, value in (ext or {}).items()}
        data = body if isinstance(body, bytes) else json_body(body)
        self.process(RemotingCommand(code, ext=texts, body=data, **fields), client)
        answers = [answer for answer in client.answers[before:] if answer.is_response]
        (answer,) = answers
        assert not _IN_PYTHON.search(answer.remark or ""), answer.remark
        return answer

    def code(self, code: int, ext: dict[str, Any] | None = None, body: Any = b"") -> ResponseCode:
        """Return the code that a request is answered with."""
        return ResponseCode(self.ask(code, ext, body).code)

    def beat(
        self, group: str, *, client: Client | None = None, client_id: str = "client"
    ) -> RemotingCommand:
        """Return the answer to the heartbeat of a producer and consumer of ``group``."""
        return self.ask(RequestCode.HEART_BEAT, body=heartbeat(group, client_id), client=client)

    def pull(
        self, client: Client, topic: str, queue_id: int, *, flag: int = 0, **fields: int
    ) -> None:
        """Process a pull from offset 0 that may be held, unless ``fields`` say otherwise."""
        fields = {"sysFlag": 6, "suspendTimeoutMillis": 30_000} | fields
        ext = pull_ext(topic, 0, queue_id=queue_id, **fields)
        texts = {name: str(value) for name, value in ext.items()}
        self.process(RemotingCommand(RequestCode.PULL_MESSAGE, flag=flag, ext=texts), client)


def heartbeat(group: str, client_id: str = "client", topics: tuple[str, ...] = ("A",)) -> Any:
    """Return the body of a heartbeat of a producer and consumer of ``group``."""
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": subscriptions,
    }
    return {
        "clientID": client_id,
        "producerDataSet": [{"groupName": group}],
        "consumerDataSet": [consumer],
    }


@contextmanager
def broker_stage(
    folder: Path,
    broker: dict[str, Any] | None = None,
    *,
    clock: ManualClock | None = None,
    **store: Any,
) -> Iterator[BrokerStage]:
    """A stage with settings of the ``broker`` and its ``store`` for the length of the block.

    Both share one clock.
    """
    clock = clock or ManualClock()
    with opened(folder, clock=clock, **store) as opened_store:
        yield BrokerStage(opened_store, clock=clock, **broker or {})
