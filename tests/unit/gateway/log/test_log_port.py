"""The log of a broker in this process and the tests' own: both do what the gateway's port says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import ManualClock
from motelog.core.errors import BrokerError, StoreFullError
from motelog.core.remoting.codes import Permission
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.cleanup import HOUR_MS
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.disk.page_cache import KNOWN_MS
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import MQTT_RETAINED_TOPIC, MQTT_SESSION_TOPIC
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.log.log_port import SETTLED, LogRead, QueueHandle, Ticket
from tests.support.broker_stack import eventually
from tests.support.fake_log import FakeLog
from tests.support.log_port_check import check_log_port, message
from tests.support.stores import STORE_HOST, make_store


class ColdDisk(OsStorage):
    """The real file system, of which a test says whether anything is in memory."""

    def __init__(self) -> None:
        self.is_warm = True

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        return self.is_warm


class LocalStage:
    """A LocalLog on a store that runs."""

    refuses_late = False
    can_lose = True

    def __init__(self, store: MessageStore, disk: ColdDisk, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._disk = disk
        self.topics = TopicTable(
            broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=100
        )
        self.api = BrokerApi(
            store, self.topics, clock=clock, store_host=STORE_HOST, cold_reads_max=10
        )
        self.log = LocalLog(self.api)
        self.settles_late = store.config.flush == "sync"

    async def settle(self) -> None:
        self.log.settle_soon()
        if self.settles_late:
            await self.store.wait_durable(self.store.end_offset)
            await trio.testing.wait_all_tasks_blocked()

    def refuse_appends(self, *, refused: bool) -> None:
        self.store.disk_watch.full_reason = "the disk is 99 % full" if refused else None

    async def taken(self) -> None:
        """It is in the log when the append returns."""

    async def created(self) -> None:
        """A broker creates at once."""

    def hold_topics(self) -> None:
        """A broker creates at once."""

    async def finish_topic(self, topic: str, error: BrokerError | None) -> bool:
        return False

    async def change_queues(self, topic: str, *, read: int, write: int) -> None:
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read,
            write_queue_nums=write or read,
            perm=Permission.READ | Permission.WRITE if write else Permission.READ,
        )
        self.topics.put(config, self.clock.now_ms())

    async def grown(self) -> None:
        """Growth is told by the append."""

    def put_away(self) -> None:
        self._disk.is_warm = False
        self.store.reader.cached_bytes = 0
        self.clock.advance(KNOWN_MS)  # what was found in memory is asked for again

    async def bring(self, *, keeps: bool = True) -> None:
        self._disk.is_warm = keeps
        await eventually(lambda: not self.api.cold_reads.waiting_count)

    async def expire(self, queue: QueueHandle) -> None:
        files = self.store._log.queue.files
        while len(files) < 4:
            self.log.append([message(queue, bytes(1_000))])
            await self.settle()
            await eventually(lambda: not self.api.line.is_waiting)
        self.clock.advance(73 * HOUR_MS)
        assert await self.store.cleaner.clean()

    def hide_tails(self) -> None:
        """They are always known."""

    async def tell_tails(self) -> None:
        """They are always known."""


@asynccontextmanager
async def local(folder: Path, flush: Literal["async", "sync"]) -> AsyncIterator[LocalStage]:
    clock, disk = ManualClock(int(time.time() * 1000)), ColdDisk()
    store = make_store(
        folder,
        storage=disk,
        clock=clock,
        flush=flush,
        cleanup_hours=tuple(range(24)),
        cleanup_interval_ms=600_000,
        cleanup_pause_ms=1,
    )
    await trio.to_thread.run_sync(store.open)
    stage = LocalStage(store, disk, clock)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await nursery.start(stage.api.cold_reads.run, lambda: None)
            await nursery.start(stage.api.line.run, lambda: None)
            yield stage
            nursery.cancel_scope.cancel()


class FakeStage:
    """The tests' log."""

    refuses_late = False
    can_lose = True

    def __init__(self, *, settles_late: bool) -> None:
        self.log = FakeLog()
        self.log.settles_at_once = not settles_late
        self.settles_late = settles_late

    async def settle(self) -> None:
        self.log.settle()

    def refuse_appends(self, *, refused: bool) -> None:
        self.log.error = StoreFullError("the disk is 99 % full") if refused else None

    async def taken(self) -> None:
        """It is decided when the append returns."""

    async def created(self) -> None:
        """They are until they are held."""

    def hold_topics(self) -> None:
        self.log.creates_at_once = False

    async def finish_topic(self, topic: str, error: BrokerError | None) -> bool:
        self.log.created(topic, error)
        return True

    async def change_queues(self, topic: str, *, read: int, write: int) -> None:
        self.log.change_queues(topic, read=read, write=write)

    async def grown(self) -> None:
        """Growth is told by the append."""

    def put_away(self) -> None:
        self.log.cold = set(range(100))

    async def bring(self, *, keeps: bool = True) -> None:
        self.log.paged_in(is_warm=keeps)

    async def expire(self, queue: QueueHandle) -> None:
        self.log.begin_offsets["one", 0] = 4

    def hide_tails(self) -> None:
        self.log.knows_tails = False

    async def tell_tails(self) -> None:
        self.log.tell_tails()
        self.log.knows_tails = True


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_the_log_of_a_broker_in_this_process(
    tmp_path: Path, flush: Literal["async", "sync"]
) -> None:
    async with local(tmp_path, flush) as stage:
        await check_log_port(stage)


@pytest.mark.parametrize("settles_late", [False, True])
async def test_the_log_of_the_tests(settles_late: bool) -> None:
    await check_log_port(FakeStage(settles_late=settles_late))


async def test_the_gateway_appends_to_its_own_topics_and_users_do_not_see_them(
    tmp_path: Path,
) -> None:
    async with local(tmp_path, "async") as stage:
        log, created = stage.log, list[str]()
        log.on_topic_created(created.append)
        for topic in (MQTT_SESSION_TOPIC, MQTT_RETAINED_TOPIC):
            assert not log.has_topic(topic)
            log.create_topic(topic, 1)
            assert log.has_topic(topic)
            queue = log.queue_of(topic, "any")
            assert log.queues(topic) == [queue]
            assert log.append([message(queue, b"state")]) is SETTLED
            read = log.read(queue, 0, count_max=9, bytes_max=9_999)
            assert isinstance(read, LogRead)
            assert read.next_offset == 1
        assert (log.topics(), created) == ([], [])


async def test_without_syncs_no_ticket_is_made(tmp_path: Path) -> None:
    async with local(tmp_path, "async") as stage:
        stage.log.create_topic("T", 1)
        batch = [message(stage.log.queue_of("T", "x"), b"body")]
        assert [stage.log.append(batch) for _ in range(3)] == [SETTLED] * 3
        assert not stage.log._answers.is_waiting


async def test_one_sync_serves_all_that_wait(tmp_path: Path) -> None:
    async with local(tmp_path, "sync") as stage:
        told: list[list[Ticket]] = []
        stage.log.on_settled(lambda settled: told.append([ticket for ticket, _ in settled]))
        stage.log.create_topic("T", 1)
        batch = [message(stage.log.queue_of("T", "x"), b"body")]
        tickets = [stage.log.append(batch) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert told == []  # nobody has asked for a sync yet
        await stage.settle()
        assert told == [tickets]
