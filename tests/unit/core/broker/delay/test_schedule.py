"""Delivery of messages that wait: on time, in order, over restarts, kills and cleaning."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.delay.delays import find_waiting_place
from motelog.core.broker.delay.schedule import ScheduleService
from motelog.core.broker.delay.timer_queue import TimerQueue
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import ManualClock
from motelog.core.message import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import AppendMessage
from motelog.core.records.decode import StoredMessage
from motelog.core.state_file import StateFile
from motelog.core.store.due_time import timer_queue
from motelog.core.store.message_store import MessageStore
from motelog.core.store.queues.consume_queue import UNIT
from motelog.core.topic_names import TIMER_TOPIC
from tests.support.counted import executed
from tests.support.stores import (
    BORN_HOST,
    STORE_HOST,
    RecordingStorage,
    make_store,
    read_queue,
)

DAY_MS = 86_400_000
SLOT_MS = 600_000
ROUNDS_MAX = 2_000


class Stage:
    """A store, its schedule, and the hand on the clock."""

    def __init__(self, store: MessageStore, schedule: ScheduleService, manual: ManualClock) -> None:
        self.store = store
        self.schedule = schedule
        self.manual = manual
        self.scope = trio.CancelScope()

    def send(self, body: bytes, topic: str = "T", queue_id: int = 0, **pairs: str) -> int:
        """Send as the broker does; return when it is due."""
        now_ms = self.store.now_ms()
        place = find_waiting_place(pairs, topic, queue_id, self.store.due_times, now_ms)
        assert place is not None
        tail = self.store.queue_tail(place.topic, place.queue_id)
        message: AppendMessage = (
            tail, body, encode_properties(place.pairs), place.due_ms, 77, BORN_HOST, 0, 5, 2, 0,
        )  # fmt: skip
        self.store.append([message], store_timestamp_ms=now_ms)
        return place.due_ms

    def api(self) -> BrokerApi:
        """Return what a gateway in this process appends with."""
        topics = TopicTable(
            broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=100
        )
        return BrokerApi(
            self.store, topics, clock=self.manual, store_host=STORE_HOST, cold_reads_max=10
        )

    def recall(self, key: str, due_ms: int, topic: str = "T") -> None:
        """Recall a message as the broker does."""
        pairs = {TIMER_DEL_UNIQKEY: key, REAL_TOPIC: topic, TIMER_OUT_MS: str(due_ms)}
        tail = self.store.queue_tail(TIMER_TOPIC, timer_queue(due_ms))
        text = encode_properties(pairs)
        self.store.append([(tail, b"0", text, -due_ms, 77, BORN_HOST, 0, 0, 0, 0)])

    async def pass_ms(self, ms: int) -> None:
        self.manual.advance(ms)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(ms / 1000)
        await wait_all_tasks_blocked()

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        return read_queue(self.store, topic, queue_id)

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.delivered()]


@asynccontextmanager
async def staged(
    folder: Path,
    manual: ManualClock,
    *,
    kill: bool = False,
    near_max: int = 100_000,
    save_interval_s: float = 1.0,
    **config: Any,
) -> AsyncIterator[Stage]:
    """Run a store and its schedule; with ``kill`` nothing is written at the end."""
    store = make_store(folder, clock=manual, cleanup_interval_ms=DAY_MS * 50, **config)
    store.open()
    schedule = ScheduleService(
        store,
        levels_file=StateFile(str(folder / "config" / "delayOffset.json"), holds="progress"),
        timer_file=StateFile(str(folder / "config" / "timerOffset.json"), holds="progress"),
        near_max=near_max,
        save_interval_s=save_interval_s,
    )
    schedule.load()
    stage = Stage(store, schedule, manual)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        async with trio.open_nursery() as inner:
            await inner.start(schedule.run)
            await wait_all_tasks_blocked()
            yield stage
            if kill:
                schedule._saved = (dict(schedule._levels), schedule._timer.mark)
                abandon_running(store)
            inner.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def abandon_running(store: MessageStore) -> None:
    """Leave the folder as a killed process would, although tasks still hold the files."""
    store._is_open = False
    store._release = lambda: None  # type: ignore[method-assign]  # unmaps what the tasks use
    assert store._lock is not None
    store._lock.release()


async def test_a_level_is_delivered_after_its_delay_and_once(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with staged(tmp_path, ManualClock()) as stage:
        assert stage.send(b"a", queue_id=3, DELAY="2", TAGS="blue") == stage.store.now_ms() + 5_000
        await stage.pass_ms(4_999)
        assert stage.delivered(queue_id=3) == []
        await stage.pass_ms(1)
        (message,) = stage.delivered(queue_id=3)
        assert (message.body, message.tags, message.flag) == (b"a", "blue", 5)
        assert (message.reconsume_times, message.born_timestamp_ms) == (2, 77)
        assert stage.store.reader.units("T", 3, 0, 1)[12:] == tags_code("blue").to_bytes(8, "big")
        # Its text still asks for a delay; the topic it is in says that it has had it.
        assert message.properties["DELAY"] == "2"
        await stage.pass_ms(DAY_MS)
        assert len(stage.delivered(queue_id=3)) == 1


async def test_a_delayed_message_is_in_light_queues_when_its_time_has_come(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with staged(tmp_path, ManualClock(), lmq=True) as stage:
        stage.send(b"late", INNER_MULTI_DISPATCH="%LMQ%a", DELAY="1")
        stage.send(b"late", INNER_MULTI_DISPATCH="%LMQ%a", TIMER_DELAY_MS="1000")
        await stage.pass_ms(999)
        assert stage.store.reader.max_offset("%LMQ%a", 0) == 0
        await stage.pass_ms(1)
        assert stage.bodies() == [b"late"] * 2
        assert stage.store.reader.read("%LMQ%a", 0, 0).count == 2


async def test_times_are_kept_to_the_millisecond_up_to_forty_days(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    delays = [1, 2, 999, SLOT_MS - 1, SLOT_MS, SLOT_MS + 1, 3 * DAY_MS, 40 * DAY_MS]
    async with staged(tmp_path, ManualClock(1_700_000_123_457)) as stage:
        begin = stage.store.now_ms()
        for delay in reversed(delays):
            stage.send(b"%d" % delay, TIMER_DELAY_MS=str(delay))
        for count, delay in enumerate(delays):
            await stage.pass_ms(begin + delay - 1 - stage.manual.now_ms())
            assert len(stage.bodies()) == count
            await stage.pass_ms(1)
            assert stage.bodies()[-1] == b"%d" % delay
        assert stage.schedule.delivered_count == len(delays)


async def test_memory_is_bounded_however_many_are_due_in_a_slot(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    # No second file is waited for: to the test's clock a thread that makes one takes minutes.
    clock = ManualClock(SLOT_MS * 1000)
    async with staged(tmp_path, clock, near_max=5, commitlog_file_bytes=1 << 20) as stage:
        dues = [(number * 37) % 50 + 1 for number in range(60)]
        for number, due in enumerate(dues):
            stage.send(b"%d" % number, TIMER_DELAY_MS=str(due * 1000))
            await wait_all_tasks_blocked()
            assert stage.schedule.near_count <= 5
        for _ in range(60):
            await stage.pass_ms(1000)
            assert stage.schedule.near_count <= 5
        order = [int(body) for body in stage.bodies()]
        assert [dues[number] for number in order] == sorted(dues)
        assert sorted(order) == list(range(60))


def names(messages: Iterable[StoredMessage]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_loses_nothing_and_repeats_only_what_was_not_noted(
    tmp_path: Path, mock_clock: MockClock, kill: bool
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual, kill=kill) as stage:
        for number in range(20):
            stage.send(b"%d" % number, TIMER_DELAY_MS=str((number + 1) * 1_000))
            stage.send(b"%d" % (100 + number), DELAY=str(number % 18 + 1))
        for _ in range(10):
            await stage.pass_ms(1_000)
            await noted(stage)
        before = set(names(stage.delivered()))
        await stage.pass_ms(500)
    async with staged(tmp_path, manual) as stage:
        await stage.pass_ms(3 * 3_600_000)
        # To the clock of the test, a flush or a note that is with its thread takes three hours.
        for _ in range(ROUNDS_MAX):
            if len(stage.delivered()) >= 40:
                break
            await threads_go_on()
        await noted(stage)
        found = names(stage.delivered())
        assert set(found) == {*range(20), *range(100, 120)}
        assert len(found) == 40, before


async def noted(stage: Stage) -> None:
    """Return when progress is on disk; saving needs threads, which take real time."""
    schedule = stage.schedule
    for _ in range(ROUNDS_MAX):
        if schedule._saved == (dict(schedule._levels), schedule._timer.mark):
            return
        await threads_go_on()
    raise AssertionError("progress was never noted")


async def threads_go_on() -> None:
    """Let half a second pass for timeouts, but not on the store's clock."""
    await trio.to_thread.run_sync(time.sleep, 0.001)
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(0.5)
    await wait_all_tasks_blocked()


async def test_without_its_notes_it_delivers_again_what_the_log_has(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        stage.send(b"1", TIMER_DELAY_MS="1000")
        stage.send(b"2", DELAY="1")
        stage.send(b"3", TIMER_DELAY_MS=str(DAY_MS))
        await stage.pass_ms(2_000)
        assert sorted(names(stage.delivered())) == [1, 2]
    for path in (tmp_path / "config").iterdir():
        path.unlink()
    async with staged(tmp_path, manual) as stage:
        await stage.pass_ms(DAY_MS)
        assert sorted(names(stage.delivered())) == [1, 1, 2, 2, 3]


async def test_what_waits_survives_the_removal_of_its_file(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    storage = RecordingStorage()
    async with staged(tmp_path, manual, storage=storage, cleanup_pause_ms=1) as stage:
        stage.send(b"1", TIMER_DELAY_MS=str(10 * DAY_MS), TAGS="x")
        stage.send(b"2", DELAY="18")
        stage.send(b"3", DELAY="1")
        await stage.pass_ms(1_000)
        assert names(stage.delivered()) == [3]
        storage.used_percent = 90.0
        for _ in range(3):
            await fill_and_clean(stage)
            assert len(stage.store._log.queue.files) == 1
        assert stage.store.reader.min_offset("SCHEDULE_TOPIC_XXXX", 17) == 1
    async with staged(tmp_path, manual, storage=RecordingStorage()) as stage:
        await stage.pass_ms(2 * 3_600_000 - 1_002)
        assert names(stage.delivered()) == []
        await stage.pass_ms(2)
        assert names(stage.delivered()) == [2]
        await stage.pass_ms(10 * DAY_MS)
        assert names(stage.delivered()) == [2, 1]
        assert stage.delivered()[-1].tags == "x"


async def fill_and_clean(stage: Stage) -> None:
    """Fill a file of the log, so that another begins, and clean four rounds."""
    queue = stage.store._log.queue
    files_before = len(queue.files)
    while len(queue.files) == files_before:
        tail = stage.store.queue_tail("other", 0)
        stage.store.append([(tail, bytes(500), b"", 0, 0, BORN_HOST, 0, 0, 0, 0)])
    for _ in range(4):
        await cleaned(stage)


async def cleaned(stage: Stage) -> None:
    """Clean one round while time, which its pauses and the flusher need, goes on."""
    async with trio.open_nursery() as nursery:

        async def go_on() -> None:
            for _ in range(ROUNDS_MAX):
                await threads_go_on()
            raise AssertionError("cleaning did not end")

        nursery.start_soon(go_on)
        await stage.store.cleaner.clean()
        nursery.cancel_scope.cancel()


async def test_a_full_store_delivers_when_there_is_room_again(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path, ManualClock(), disk_check_interval_ms=DAY_MS) as stage:
        stage.send(b"1", TIMER_DELAY_MS="10")
        stage.send(b"2", DELAY="1")
        stage.store.disk_watch.full_reason = "the disk is full"
        for _ in range(3):
            await stage.pass_ms(2_000)
        assert stage.delivered() == []
        # Lines must not take the last room on a disk, however long it is full.
        assert caplog.text.count("the store takes no messages") == 1
        stage.store.disk_watch.full_reason = None
        await stage.pass_ms(1_000)
        assert sorted(names(stage.delivered())) == [1, 2]


async def test_progress_is_not_noted_before_the_disk_has_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    storage = RecordingStorage()
    async with staged(tmp_path, ManualClock(), storage=storage) as stage:
        stage.send(b"1", DELAY="1")
        await stage.pass_ms(999)
        await noted(stage)
        storage.fail_at["sync"] = (0, OSError(errno.EIO, "I/O error"))
        await stage.pass_ms(1)
        assert names(stage.delivered()) == [1]
        for _ in range(ROUNDS_MAX):
            await threads_go_on()
            if stage.store.fence_reason is not None:
                break
        assert stage.store.fence_reason is not None
        await threads_go_on()
    noted_levels = StateFile(str(tmp_path / "config" / "delayOffset.json"), holds="").load(dict)
    assert noted_levels is not None
    assert set(noted_levels["offsetTable"].values()) == {0}


async def test_a_message_that_cannot_be_delivered_does_not_hold_up_the_others(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with staged(tmp_path, ManualClock()) as stage:
        stage.send(b"1", topic="SCHEDULE_TOPIC_XXXX", DELAY="1")
        stage.send(b"2", topic="../etc", DELAY="1")
        stage.send(b"3 damaged", DELAY="1")
        stage.send(b"4", DELAY="1")
        at = stage.store._log.queue.files[0].view
        begin = bytes(at[:4096]).index(b"3 damaged")
        at[begin + 2] ^= 1
        await stage.pass_ms(1_000)
        assert stage.bodies() == [b"4"]


async def test_a_clock_that_goes_back_delays_by_half_at_most(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        stage.send(b"1", DELAY="1")
        manual.step_wall(-DAY_MS)
        stage.send(b"2", DELAY="1")
        await stage.pass_ms(2_010)
        assert sorted(names(stage.delivered())) == [1, 2]
    async with staged(tmp_path, manual) as stage:
        stage.send(b"3", TIMER_DELAY_MS="1000")
        await stage.pass_ms(2_010)
        assert sorted(names(stage.delivered())) == [1, 2, 3]


async def test_a_clock_that_goes_forward_brings_no_level_early(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        stage.send(b"1", DELAY="5")
        await stage.pass_ms(20_000)
        manual.step_wall(DAY_MS)
        stage.send(b"2", DELAY="5")
        await stage.pass_ms(39_000)
        assert stage.bodies() == []
        await stage.pass_ms(1_010)
        assert names(stage.delivered()) == [1]
        manual.step_wall(-DAY_MS)
        manual.step_wall(2 * DAY_MS)
        await stage.pass_ms(18_000)
        assert names(stage.delivered()) == [1]
        await stage.pass_ms(2_000)
        assert names(stage.delivered()) == [1, 2]


async def test_a_time_is_due_when_the_clock_says_so(tmp_path: Path, mock_clock: MockClock) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        stage.send(b"1", TIMER_DELIVER_MS=str(stage.store.now_ms() + DAY_MS))
        manual.step_wall(DAY_MS - 1_000)
        await stage.pass_ms(500)
        assert stage.bodies() == []
        await stage.pass_ms(510)
        assert names(stage.delivered()) == [1]


async def test_a_gateways_delay_counts_from_the_stores_clock(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        api = stage.api()
        for number, step_ms in enumerate((0, -30_000, 30_000, 30_000, -30_000)):
            manual.step_wall(step_ms)
            message = (api.queue_tail("T", 0), b"%d" % number, b"", 0, 77, BORN_HOST, 0, 0, 0, 0)
            assert api.line.append([api.delayed(message, 2_000)]) is not None
            # Time that others are due in passes.
            stage.send(b"other", "U", TIMER_DELAY_MS="10")
            await stage.pass_ms(100)
        await stage.pass_ms(4_000)
        assert sorted(names(stage.delivered())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("waits_ms", [5_000, SLOT_MS])
async def test_what_waited_in_line_beyond_its_time_comes_at_once(
    tmp_path: Path, mock_clock: MockClock, waits_ms: int
) -> None:
    async with staged(tmp_path, ManualClock()) as stage:
        api = stage.api()
        message = (api.queue_tail("T", 2), b"1", b"k\x01v\x02", 0, 77, BORN_HOST, 0, 0, 0, 0)
        late = api.delayed(message, 1_000)
        api.line.wait([late], appended=lambda end_offset: None, refused=lambda error: None)
        stage.send(b"other", "U", TIMER_DELAY_MS=str(waits_ms))
        await stage.pass_ms(waits_ms)
        assert stage.delivered("U") != []
        api.line.go_on()
        await stage.pass_ms(1)
        assert names(stage.delivered(queue_id=2)) == [1]
        assert stage.delivered(queue_id=2)[0].properties["k"] == "v"


async def test_a_level_that_the_clock_has_left_behind_survives_the_removal_of_its_file(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    manual = ManualClock()
    storage = RecordingStorage()
    async with staged(tmp_path, manual, storage=storage, cleanup_pause_ms=1) as stage:
        stage.send(b"1", DELAY="5")
        manual.step_wall(DAY_MS)
        await stage.pass_ms(1_000)
        storage.used_percent = 90.0
        await fill_and_clean(stage)
        assert len(stage.store._log.queue.files) == 1
        assert stage.bodies() == []
        await stage.pass_ms(60_000)
        assert names(stage.delivered()) == [1]


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
async def test_a_clock_set_between_stop_and_start_loses_none(
    tmp_path: Path, mock_clock: MockClock, step_ms: int
) -> None:
    manual = ManualClock()
    async with staged(tmp_path, manual) as stage:
        stage.send(b"1", DELAY="5")
        stage.send(b"2", TIMER_DELAY_MS="60000")
        await stage.pass_ms(1_000)
    manual.step_wall(step_ms)
    async with staged(tmp_path, manual) as stage:
        # Time that the clock showed has passed; after it was set back, all wait twice as long.
        await stage.pass_ms(120_010)
        assert sorted(names(stage.delivered())) == [1, 2]


async def test_a_recalled_message_is_not_delivered(tmp_path: Path, mock_clock: MockClock) -> None:
    async with staged(tmp_path, ManualClock()) as stage:
        due = [
            stage.send(b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_MS="300")
            for number in range(600)
        ]
        stage.send(b"9000", topic="U", UNIQ_KEY="K3", TIMER_DELAY_MS="300")
        later = stage.send(b"9001", UNIQ_KEY="K9001", TIMER_DELAY_MS=str(3 * SLOT_MS))
        # One of another time or topic is not meant.
        stage.recall("K9001", later - 1)
        stage.recall("K4", due[4], "U")
        for number in (3, 300, 599):
            stage.recall(f"K{number}", due[number])
        await stage.pass_ms(300)
        while len(stage.delivered()) < 597:
            # A file of the log is made meanwhile.
            await threads_go_on()
            await stage.pass_ms(1_000)
        wanted = [number for number in range(600) if number not in (3, 300, 599)]
        assert names(stage.delivered()) == wanted
        assert names(stage.delivered("U")) == [9000]
        assert (stage.schedule.delivered_count, stage.schedule.recalled_count) == (598, 3)
        await stage.pass_ms(3 * SLOT_MS)
        assert names(stage.delivered())[-1] == 9001


@pytest.mark.parametrize("recover", [False, True])
async def test_a_recall_outlives_a_kill_and_the_removal_of_its_file(
    tmp_path: Path, mock_clock: MockClock, recover: bool
) -> None:
    manual = ManualClock()
    storage = RecordingStorage()
    async with staged(tmp_path, manual, kill=True, storage=storage, cleanup_pause_ms=1) as stage:
        due_ms = stage.send(b"1", UNIQ_KEY="K1", TIMER_DELAY_MS=str(DAY_MS))
        stage.send(b"2", UNIQ_KEY="K2", TIMER_DELAY_MS=str(DAY_MS))
        stage.recall("K1", due_ms)
        if not recover:
            storage.used_percent = 90.0
            await fill_and_clean(stage)
            assert stage.store.begin_offset > 0
    if recover:
        # The units are made again from the records.
        shutil.rmtree(tmp_path / "consumequeue")
    async with staged(tmp_path, manual, storage=RecordingStorage()) as stage:
        await stage.pass_ms(DAY_MS)
        assert names(stage.delivered()) == [2]
        assert stage.schedule.recalled_count == 1


async def test_a_timer_costs_the_same_beside_twice_as_many(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    counts = []
    for waiting in (300, 600):
        async with staged(tmp_path / str(waiting), ManualClock(50 * SLOT_MS)) as stage:
            for number in range(waiting):
                stage.send(b"x", TIMER_DELAY_MS=str(60_000 + number))
            await stage.pass_ms(1000)
            timer = stage.schedule._timer
            assert stage.schedule.near_count == waiting
            due_ms = stage.store.now_ms() + 10_000

            def one_more(timer: TimerQueue = timer, due_ms: int = due_ms) -> None:
                timer._take(UNIT.pack(0, 0, due_ms), 10_000)
                timer.pass_over(timer.due(due_ms))

            counts.append(executed(one_more))
            assert stage.schedule.near_count == waiting
    assert counts[1] <= counts[0] * 1.1
