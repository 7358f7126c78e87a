"""Unique ids: layout as Java's, no repetition."""

from __future__ import annotations

from datetime import datetime

import pytest

from motelog.core.unique_id import UniqueIds


@pytest.mark.parametrize("address", [bytes([10, 0, 0, 1]), bytes(16)])
def test_id_holds_address_process_time_and_counter(address: bytes) -> None:
    ids = UniqueIds(address=address, process_id=0x12345)
    now = datetime(2026, 11, 2, 0, 0, 1, 500_000)
    data = bytes.fromhex(ids.next(int(now.timestamp() * 1000)))
    assert len(data) == len(address) + 12
    assert data.startswith(address + b"\x23\x45")
    assert int.from_bytes(data[-6:-2], "big") == 24 * 3600 * 1000 + 1500
    assert data[-2:] == b"\0\1"


def test_new_month_begins_again() -> None:
    ids = UniqueIds(address=bytes(4), process_id=1)
    for now in (datetime(2026, 12, 31, 23), datetime(2027, 1, 1, 0, 0, 1)):
        data = bytes.fromhex(ids.next(int(now.timestamp() * 1000)))
    assert int.from_bytes(data[-6:-2], "big") == 1000


def test_ids_of_one_millisecond_differ() -> None:
    ids = UniqueIds(address=bytes(4), process_id=1)
    assert len({ids.next(1_000_000) for _ in range(65_536)}) == 65_536
