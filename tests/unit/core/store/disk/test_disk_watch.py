"""DiskWatch: how much of which disk must stay free, and what is said when it is not."""

from __future__ import annotations

import logging

import pytest

from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.disk_watch import NO_ROOM_LOOKS, DiskWatch
from motelog.core.store.disk.files import DiskUsage, OsStorage

GIB = 1 << 30


class Disk(OsStorage):
    def __init__(self, free_bytes: int, total_bytes: int) -> None:
        self.usage = DiskUsage(free_bytes, total_bytes)

    def disk_usage(self, path: str) -> DiskUsage:
        return self.usage


def watch(disk: Disk, **settings: int) -> DiskWatch:
    made = DiskWatch(disk, StoreConfig(directory="/data", **settings))  # type: ignore[arg-type]  # ints
    made.check()
    return made


@pytest.mark.parametrize(
    ("total_bytes", "reserve_bytes"),
    [
        (1 * GIB, 256 << 20),  # a tenth would be less than a small disk must keep
        (50 * GIB, 5 * GIB),
        (100 * GIB, 10 * GIB),
        (10_000 * GIB, 10 * GIB),  # a tenth would be 1000 GiB
    ],
)
def test_the_reserve_is_a_share_of_the_disk_within_bounds(
    total_bytes: int, reserve_bytes: int
) -> None:
    disk = Disk(reserve_bytes, total_bytes)
    watched = watch(disk)
    assert watched.reserve_bytes == reserve_bytes
    assert watched.full_reason is None
    disk.usage = DiskUsage(reserve_bytes - 1, total_bytes)
    watched.check()
    assert watched.full_reason is not None


def test_the_reason_names_use_and_limit() -> None:
    small, large = watch(Disk(9 * GIB, 97 * GIB)), watch(Disk(9 * GIB, 10_240 * GIB))
    assert small.full_reason == "disk 90.7 % full, limit 90 %; 9.0 GiB free, 9.7 GiB needed"
    assert large.full_reason == "disk 99.9 % full, limit 99.9 %; 9.0 GiB free, 10.0 GiB needed"
    assert small.fault is not None
    assert small.fault.startswith(f"{small.full_reason}: messages are refused")
    assert "free space on the disk of /data" in small.fault


def test_the_end_of_the_refusals_says_how_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk(GIB, 97 * GIB)
    watched = watch(disk)
    caplog.clear()
    watched.refuse(3)
    watched.refuse(4)
    disk.usage = DiskUsage(50 * GIB, 97 * GIB)
    with caplog.at_level(logging.WARNING):
        watched.check()
    assert [record.getMessage() for record in caplog.records] == [
        "appends are accepted again messages_refused=7"
    ]
    assert watched.refused_count == 7


def test_a_call_that_found_no_room_is_told_for_a_while() -> None:
    watched = watch(Disk(50 * GIB, 100 * GIB))
    assert watched.fault is None
    watched.refuse(1, "Disk quota exceeded; free space or raise the quota")
    for _ in range(NO_ROOM_LOOKS):
        watched.check()
        assert watched.fault is not None
        assert watched.fault.startswith("Disk quota exceeded")
        assert watched.full_reason is None, "appends are tried"
    watched.check()
    assert watched.fault is None
