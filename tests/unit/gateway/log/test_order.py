"""The order of a topic's queues: its text, its slots, and who moves when it changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.message import MessageQueue
from motelog.gateway.log.remote.order import QUEUES_MAX, SLOTS_MIN, Order


def at(broker: str, *ids: int) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for queue_id in ids]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    order = Order.of(at("broker0", *range(counts[0])))
    for number, count in enumerate(counts[1:], start=1):
        order = order.with_more(at(f"broker{number}", *range(count)), from_ms=number * 10)
    return order


@given(orders())
def test_an_order_is_read_as_it_was_written(order: Order) -> None:
    assert Order.parse("T", str(order)) == order


@given(orders())
def test_publishers_stay_or_come_to_a_queue_that_was_added(order: Order) -> None:
    for number in range(1, len(order.groups)):
        before = order.until(order.groups[number].from_ms - 1).slots()
        after = order.until(order.groups[number].from_ms).slots()
        added = order.groups[number].queues
        for selector in range(len(after)):
            was, now = before[selector % len(before)], after[selector]
            assert now == was or now in added


@given(orders())
def test_each_queue_has_about_the_same_share(order: Order) -> None:
    shares = Counter(order.slots())
    assert set(shares) == set(order.queues)
    assert max(shares.values()) - min(shares.values()) <= 2
    assert len(order.groups) == 1 or min(shares.values()) >= SLOTS_MIN - 1


@given(orders(), st.data())
def test_queues_that_leave_are_in_no_slot(order: Order, data: st.DataObject) -> None:
    closed = data.draw(st.sets(st.sampled_from(order.queues)))
    left = order.without(closed)
    assert set(left.queues) == set(order.queues) - closed
    if left.groups:
        assert set(left.slots()) == set(left.queues)
        assert left.until(0).slots()  # those that are left first are there from the beginning


def test_the_first_queues_have_a_slot_each_by_name() -> None:
    assert Order.of([*at("b", 1, 0), *at("a", 0)]).slots() == [*at("a", 0), *at("b", 0, 1)]


def test_a_queue_names_those_that_were_there_before_it() -> None:
    first, second, third = at("a", 0, 1), at("b", 0), at("c", 0)
    order = Order.of(first).with_more(second, from_ms=5).with_more(third, from_ms=7)
    assert order.before(first[0]) is None
    assert order.before(second[0]) == (5, first)
    assert order.before(third[0]) == (7, [*first, *second])
    assert order.until(6).before(third[0]) is None


@pytest.mark.parametrize(
    "text",
    ["", "none", "[]", "{}", "[[0,[]]]", '[[-1,[["a",0,1]]]]', f'[[0,[["a",0,{QUEUES_MAX + 1}]]]]',
     f'[[0,[["a",0,{QUEUES_MAX}],["b",0,1]]]]', '[[0,[["a",1,0]]]]'],
)  # fmt: skip
def test_a_text_that_is_no_order(text: str) -> None:
    assert Order.parse("T", text) is None


def test_a_queue_that_a_text_names_twice_is_where_it_came_first() -> None:
    order = Order.parse("T", '[[0,[["a",0,2]]],[5,[["a",1,3]]]]')
    assert order == Order.of(at("a", 0, 1)).with_more(at("a", 2), from_ms=5)
