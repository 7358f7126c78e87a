"""Delivery of messages that wait: each once, on time and in order, over restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motelog.core.clock import ManualClock
from tests.unit.core.broker.delay.test_schedule import SLOT_MS, names, staged

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("timer"), st.integers(1, 3 * SLOT_MS)),
        st.tuples(st.just("level"), st.integers(1, 18)),
        st.tuples(st.just("pass"), st.integers(1, SLOT_MS)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=30, deadline=None)
@given(actions=ACTIONS, near_max=st.integers(1, 4))
def test_each_message_comes_once_when_it_is_due_and_in_that_order(
    actions: list[tuple[str, int]], near_max: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(act, Path(folder), actions, near_max, clock=MockClock())


async def act(folder: Path, actions: list[tuple[str, int]], near_max: int) -> None:
    manual = ManualClock()
    dues: list[int] = []
    rest = [*actions, ("pass", 8 * 3_600_000), ("restart", 0)]
    while rest:
        # The system notes progress in threads, which no test waits for: at the end it is noted.
        async with staged(folder, manual, near_max=near_max) as stage:
            while rest:
                kind, value = rest.pop(0)
                if kind == "timer":
                    dues.append(stage.send(b"%d" % len(dues), TIMER_DELAY_MS=str(value)))
                elif kind == "level":
                    dues.append(stage.send(b"%d" % len(dues), DELAY=str(value)))
                elif kind == "pass":
                    await stage.pass_ms(value)
                else:
                    break
                await wait_all_tasks_blocked()
                found = names(stage.delivered())
                due = {n for n, due_ms in enumerate(dues) if due_ms <= stage.store.now_ms()}
                assert set(found) == due
                assert len(found) == len(due)
                assert stage.schedule.near_count <= near_max
