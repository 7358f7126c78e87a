"""The clocks that the store and the broker are given."""

from __future__ import annotations

from core.clock import ManualClock, SteadyClock, SystemClock


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5_000, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5_250, 250)


def test_a_step_of_the_wall_clock_leaves_the_monotonic_one_alone() -> None:
    clock = ManualClock(5_000)
    clock.step_wall(-4_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)


def test_the_system_clock_counts_in_milliseconds() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_600_000_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_a_steady_clock_goes_on_at_half_speed_where_the_wall_clock_goes_back() -> None:
    manual = ManualClock(1_000_000)
    steady = SteadyClock(manual)
    assert steady.now_ms() == 1_000_000
    manual.step_wall(-1_000)
    seen = []
    for _ in range(30):
        manual.advance(99)
        seen.append(steady.now_ms() - 1_000_000)
    assert seen[:3] == [49, 99, 148]
    assert seen[-1] == manual.now_ms() - 1_000_000 == 1_970
    manual.step_wall(5_000)
    assert steady.now_ms() == manual.now_ms()
    steady.not_before(manual.now_ms() + 10)
    assert steady.now_ms() == manual.now_ms() + 10
