"""The table that RocketMQ's tools print of a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from motelog.core.broker.shown.runtime_info import RuntimeInfo
from motelog.core.broker.waiting.append_line import AppendLine
from motelog.core.clock import ManualClock
from motelog.core.store.message_store import MessageStore
from tests.support.stores import message, opened

DAY_MS = 86_400_000


@dataclass
class Shown:
    store: MessageStore
    clock: ManualClock
    totals: list[int] = field(default_factory=lambda: [0, 0])
    info: RuntimeInfo = field(init=False)

    def __post_init__(self) -> None:
        self.info = RuntimeInfo(
            self.store,
            clock=self.clock,
            messages_in=lambda: self.totals[0],
            messages_out=lambda: self.totals[1],
            refused=lambda: 3,
            timers_near=lambda: 4,
            line=AppendLine(self.store.append, clock=self.clock, timeout_ms=1, busy_ms=1),
        )

    def days(self) -> list[tuple[str, str, str]]:
        table = self.info.table()
        return [
            (
                table[f"{name}YesterdayMorning"],
                table[f"{name}TodayMorning"],
                table[f"{name}TodayNow"],
            )
            for name in ("msgPutTotal", "msgGetTotal")
        ]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        yield Shown(store, clock)


def test_totals_of_the_last_two_mornings(shown: Shown) -> None:
    shown.totals = [10, 5]
    shown.info.tick()
    assert shown.days() == [("0", "0", "10"), ("0", "0", "5")]
    shown.clock.advance(DAY_MS)
    shown.info.tick()
    shown.totals = [30, 25]
    assert shown.days() == [("0", "10", "30"), ("0", "5", "25")]
    shown.clock.advance(DAY_MS)
    shown.info.tick()
    # A clock that is set back, and on again, makes no morning.
    shown.totals = [40, 35]
    for step_ms in (-DAY_MS, DAY_MS):
        shown.clock.step_wall(step_ms)
        shown.info.tick()
    assert shown.days() == [("10", "30", "40"), ("5", "25", "35")]


def test_the_store_s_numbers_as_rocketmq_writes_them(shown: Shown) -> None:
    tail = shown.store.queue_tail("T", 0)
    shown.info.tick()
    end = 0
    for _ in range(4):
        end = shown.store.append([message(tail)])
    shown.store.reader.read("T", 0, 0)
    shown.store.reader.read("T", 0, 4)
    shown.clock.advance(2_000)
    shown.info.tick()
    table = shown.info.table()
    assert table["putTps"] == "2.0 2.0 2.0"
    assert table["getTotalTps"] == "1.0 1.0 1.0"
    assert table["getFoundTps"] == table["getMissTps"] == "0.5 0.5 0.5"
    assert table["getTransferedTps"] == table["getTransferredTps"] == "2.0 2.0 2.0"
    assert table["putMessageTimesTotal"] == "4"
    assert table["putMessageSizeTotal"] == table["commitLogMaxOffset"] == str(end)
    assert table["putMessageAverageSize"] == f"{end / 4:.1f}"
    assert table["remainHowManyDataToFlush"] == f"{end} B"
    assert table["earliestMessageTimeStamp"] == str(shown.clock.now_ms() - 2_000)
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 2 seconds ]"
    assert (table["putMessageFailedTimes"], table["timerCongestNum"]) == ("3", "4")
    classes = table["putMessageDistributeTime"].split()
    assert [c.partition(":")[0] for c in classes] == [
        "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]",
        "[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
    ]  # fmt: skip
    assert sum(int(c.partition(":")[2]) for c in classes) == 4


def test_classes_of_latency_hold_what_they_are_named_after(shown: Shown) -> None:
    for took_ms in (0, 1, 2, 30, 700, 1_500, 7_000, 70_000):
        shown.store.stats.note_append(1, 1, took_ms * 1_000_000)
    table = shown.info.table()
    assert table["putMessageDistributeTime"] == (
        "[<=0ms]:2 [0~10ms]:1 [10~50ms]:1 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 "
        "[500ms~1s]:1 [1~2s]:1 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:1 "
    )
    assert table["putMessageEntireTimeMax"] == "70000"


@pytest.mark.parametrize(("config", "wanted"), [({}, 2**31 - 1), ({"write_buffer": True}, 2)])
def test_free_write_buffers(tmp_path: Path, config: dict[str, Any], wanted: int) -> None:
    with opened(tmp_path, **config) as store:
        store.append([message(store.queue_tail("T", 0))])
        table = Shown(store, ManualClock()).info.table()
        assert table["remainTransientStoreBufferNumbs"] == str(wanted)
