"""The registry of held pulls, with connections that are plain names and a time the test moves."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.broker.waiting.long_poll import HeldPull, HeldPulls
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.server import Connection


def connection(name: str) -> Connection:
    return cast("Connection", name)


def pull(
    topic: str = "T",
    queue_id: int = 0,
    *,
    owner: str = "c",
    deadline_ms: int = 1000,
    opaque: int = 0,
) -> HeldPull:
    return HeldPull(
        request=RemotingCommand(11, opaque),
        connection=connection(owner),
        group=SubscriptionGroup(group_name="G"),
        topic=topic,
        queue_id=queue_id,
        first_offset=0,
        queue_offset=0,
        count_max=32,
        bytes_max=1000,
        tag_codes=None,
        sql_filter=None,
        deadline_ms=deadline_ms,
    )


def make_held(**limits: Any) -> HeldPulls:
    return HeldPulls(**{"pulls_max": 100, "pulls_per_connection_max": 100, **limits})


def test_a_queue_that_grew_gives_its_pulls_in_order() -> None:
    held = make_held()
    pulls = [pull(opaque=i) for i in range(3)]
    other = pull(queue_id=1)
    for one in (*pulls, other):
        held.hold(one)
    assert held.is_held("T", 0)
    assert held.take_queue("T", 0) == pulls
    assert not held.is_held("T", 0)
    assert held.take_queue("T", 0) == []
    assert len(held) == 1
    held._check()


def test_deadlines_come_due_within_a_bucket_and_never_early() -> None:
    held = make_held()
    first, second = pull(deadline_ms=950), pull(deadline_ms=2000)
    held.hold(first)
    held.hold(second)
    assert held.next_due_ms() == 1000
    assert held.take_due(949) == []
    assert held.take_due(1000) == [first]
    assert held.next_due_ms() == 2000
    assert held.take_due(5000) == [second]
    assert held.next_due_ms() is None
    held._check()


def test_a_woken_pull_may_be_held_again_until_the_same_deadline() -> None:
    held = make_held()
    one = pull()
    held.hold(one)
    assert held.take_queue("T", 0) == [one]
    held.hold(one)
    held._check()
    assert held.take_due(1000) == [one]
    held._check()


def test_a_closed_connection_takes_its_pulls_along() -> None:
    held = make_held()
    mine, other = pull(owner="a"), pull(owner="b")
    held.hold(mine)
    held.hold(other)
    held.close_connection(connection("a"))
    held.close_connection(connection("a"))
    assert held.take_queue("T", 0) == [other]
    held._check()


def test_limits_are_for_one_connection_and_for_all() -> None:
    held = make_held(pulls_max=3, pulls_per_connection_max=2)
    held.hold(pull(owner="a"))
    held.hold(pull(owner="a"))
    assert held.is_full_for(connection("a"))
    assert not held.is_full_for(connection("b"))
    held.hold(pull(owner="b"))
    assert held.is_full_for(connection("b"))
    held.take_due(1000)
    assert not held.is_full_for(connection("a"))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "queue", "due", "close"]),
        st.integers(0, 2),
        st.sampled_from("ab"),
        st.integers(0, 1000),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_any_order_of_steps_keeps_the_indexes_together(
    steps: list[tuple[str, int, str, int]],
) -> None:
    held = make_held()
    now_ms = 0
    waiting: set[HeldPull] = set()
    for kind, queue_id, owner, ms in steps:
        match kind:
            case "hold":
                one = pull(queue_id=queue_id, owner=owner, deadline_ms=now_ms + ms)
                held.hold(one)
                waiting.add(one)
            case "queue":
                taken = held.take_queue("T", queue_id)
                assert set(taken) == {one for one in waiting if one.queue_id == queue_id}
                waiting -= set(taken)
            case "due":
                now_ms += ms
                taken = held.take_due(now_ms)
                assert all(one.deadline_ms <= now_ms for one in taken)
                waiting -= set(taken)
                assert all(one.deadline_ms > now_ms - 100 for one in waiting)
            case _:
                held.close_connection(connection(owner))
                waiting -= {one for one in waiting if one.connection == connection(owner)}
        held._check()
        assert len(held) == len(waiting)
