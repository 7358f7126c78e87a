"""What groups that consume in order have in work: blocked, freed, popped again, saved."""

from __future__ import annotations

import json
from typing import Final

import pytest

from motelog.core.broker.tables.order_info import FORGET_MS, OrderTable
from motelog.core.remoting.frames import loads

QUEUE: Final = ("T", "G", 0)


def popped(
    table: OrderTable, offsets: list[int], *, now_ms: int = 0, attempt: str | None = None
) -> None:
    table.pop(QUEUE, offsets, attempt=attempt, now_ms=now_ms, invisible_ms=100)
    table._check()


def test_a_queue_is_blocked_while_something_is_in_work() -> None:
    table = OrderTable()
    popped(table, [5, 6])
    assert table.is_blocked(QUEUE, None, 99)
    assert not table.is_blocked(QUEUE, None, 100)
    assert table.ack(QUEUE, 5, 0) == 6
    assert table.is_blocked(QUEUE, None, 99)
    assert table.ack(QUEUE, 6, 0) == 7
    assert not table.is_blocked(QUEUE, None, 0)
    assert len(table) == 0


def test_the_group_goes_on_at_the_first_that_is_open() -> None:
    table = OrderTable()
    popped(table, [5, 7, 9])
    assert table.ack(QUEUE, 9, 0) == 5
    assert table.ack(QUEUE, 5, 0) == 7
    assert table.ack(QUEUE, 7, 0) == 10
    popped(table, [10])
    with pytest.raises(ValueError, match="11"):
        table.ack(QUEUE, 11, 0)


def test_deliveries_are_counted() -> None:
    table = OrderTable()
    assert table.pop(QUEUE, [1, 2], attempt=None, now_ms=0, invisible_ms=1) == ([], 0)
    assert table.pop(QUEUE, [1, 2], attempt=None, now_ms=1, invisible_ms=1) == ([(1, 1), (2, 1)], 1)
    # A message is new: the least is 0, for clients that look at the queue alone.
    assert table.pop(QUEUE, [2, 3], attempt="a", now_ms=2, invisible_ms=1) == ([(2, 2)], 0)
    # The same attempt is the same delivery.
    assert table.pop(QUEUE, [2, 3], attempt="a", now_ms=3, invisible_ms=1) == ([(2, 2)], 0)


def test_an_earlier_receipt_is_void() -> None:
    table = OrderTable()
    popped(table, [1], now_ms=0)
    popped(table, [1], now_ms=200)
    assert table.ack(QUEUE, 1, 0) is None
    assert not table.change(QUEUE, 1, 0, 1_000)
    assert table.open_in(QUEUE, 0) == []
    assert table.open_in(QUEUE, 200) == [1]
    assert table.ack(QUEUE, 1, 200) == 2


def test_it_tells_when_a_queue_is_free_again() -> None:
    table = OrderTable()
    popped(table, [1, 2])
    assert table.change(QUEUE, 1, 0, 500)
    assert table.take_freed(499) == []
    assert table.take_freed(500) == [QUEUE]
    assert table.next_free_ms() is None
    for _ in range(1000):
        assert table.change(QUEUE, 1, 0, 600)
    assert len(table._free) <= 4 * len(table) + 65


def test_it_is_saved_as_rocketmq_does() -> None:
    table = OrderTable()
    popped(table, [5, 7], attempt="a")
    table.ack(QUEUE, 5, 0)
    table.change(QUEUE, 7, 0, 300)
    content = json.loads(json.dumps(table.snapshot()))
    (info,) = content["table"]["T@G"].values()
    assert info == {
        "popTime": 0, "i": 100, "o": [5, 2], "l": 0, "cm": 1, "ot": {"7": 300}, "a": "a",
    }  # fmt: skip
    again = OrderTable()
    again.load(content)
    again._check()
    assert again.is_blocked(QUEUE, None, 299)
    assert not again.is_blocked(QUEUE, "a", 299)
    assert again.take_freed(300) == [QUEUE]
    # As fastjson writes it, with integer keys.
    text = b'{"table":{"T@G":{0:{"popTime":9,"i":100,"o":[3],"l":9,"cm":0,"oc":{3:2}}}}}'
    again.load(loads(text))
    assert again.pop(QUEUE, [3], attempt=None, now_ms=200, invisible_ms=1) == ([(3, 3)], 3)


def test_what_is_gone_is_forgotten() -> None:
    table = OrderTable()
    popped(table, [1])
    table.clean(lambda queue: True, FORGET_MS)
    assert len(table) == 1
    table.clean(lambda queue: True, FORGET_MS + 1)
    assert len(table) == 0
    popped(table, [1])
    table.clean(lambda queue: False, 0)
    assert len(table) == 0
