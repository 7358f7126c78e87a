"""The small files: RocketMQ's checkpoint page and our table of queues."""

from __future__ import annotations

import struct

import pytest

from core.store.checkpoint import QueueTable, StoreCheckpoint


def test_the_checkpoint_is_one_page_with_three_times() -> None:
    data = StoreCheckpoint(1_000, 900, 0).encode()
    assert data == struct.pack(">qqq", 1_000, 900, 0) + bytes(4096 - 24)
    assert StoreCheckpoint.decode(data) == StoreCheckpoint(1_000, 900, 0)
    assert StoreCheckpoint.decode(data).safe_ms == 900


@pytest.mark.parametrize("data", [None, b"", b"\0" * 23, b"\xff" * 4096])
def test_a_checkpoint_that_cannot_be_read_says_nothing(data: bytes | None) -> None:
    assert StoreCheckpoint.decode(data) == StoreCheckpoint()


def test_the_table_of_queues_comes_back() -> None:
    table = QueueTable(end_offset=9, is_closed=True, queues=[("T", 0, 5), ("%RETRY%g", 1, 2)])
    assert QueueTable.decode(table.encode()) == table


def test_a_table_with_any_byte_changed_is_not_believed() -> None:
    data = QueueTable(end_offset=9, is_closed=False, queues=[("T", 0, 5)]).encode()
    for at in range(len(data) - 1):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert QueueTable.decode(changed) is None
    assert QueueTable.decode(None) is None
    assert QueueTable.decode(b"") is None
