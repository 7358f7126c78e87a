"""After a stall what has come is read before anybody is called silent."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from motelog.core.net.stalls import sleep_unstalled


@pytest.mark.parametrize(("stall_s", "ends_at"), [(0, 10), (4, 14), (200, 220), (3600, 3620)])
async def test_a_stall_gives_everybody_another_round(
    mock_clock: trio.testing.MockClock, stall_s: float, ends_at: float
) -> None:
    began_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep_unstalled, 10)
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(10 + stall_s)
            await trio.testing.wait_all_tasks_blocked()
            if not nursery.child_tasks:
                break
            stall_s = 0
    assert trio.current_time() - began_at == ends_at
