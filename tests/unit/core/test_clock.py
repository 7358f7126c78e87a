"""The clocks that the store and the broker are given."""

from __future__ import annotations

import random

from motelog.core.clock import JUMPS_MAX, ManualClock, SteadyClock, SystemClock


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


def test_an_age_is_no_more_than_the_time_that_has_passed() -> None:
    """Whatever the wall clock does, also while nothing looks at it, and however often."""
    manual = ManualClock(1_700_000_000_000)
    steady = SteadyClock(manual)
    passed_ms = 0
    noted_ms, jumps = steady.now_ms(), steady.jumps
    dated: list[tuple[int, int]] = []
    chance = random.Random(5)
    for _ in range(3_000):
        step_ms = chance.randrange(200_000)
        if chance.random() < 0.1:
            manual.step_wall(chance.choice((-1, 1)) * chance.choice((5_000, 86_400_000)))
        if chance.random() < 0.05:
            # What is noted may be older than the last date.
            dated_ms = steady.now_ms()
            if chance.random() < 0.5:
                noted_ms, jumps = dated_ms, steady.jumps
            manual.advance(step_ms)
            steady = SteadyClock(manual)
            steady.not_before(dated_ms)
            steady.go_on_from(noted_ms, jumps, dated_ms=dated_ms)
        else:
            manual.advance(step_ms)
        passed_ms += step_ms
        dated.append((steady.now_ms(), passed_ms))
        assert len(steady.jumps) <= JUMPS_MAX
        for date_ms, at_ms in (chance.choice(dated), dated[-1]):
            assert steady.age_ms(date_ms) <= passed_ms - at_ms


def test_without_steps_an_age_is_the_time_that_has_passed_but_for_stops() -> None:
    manual = ManualClock(1_700_000_000_000)
    steady = SteadyClock(manual)
    first_ms = steady.now_ms()
    for _ in range(100):
        manual.advance(3_600_001)
        steady.now_ms()
    assert steady.age_ms(first_ms) == 100 * 3_600_001
    stopped_ms = steady.now_ms()
    manual.advance(86_400_000)
    again = SteadyClock(manual)
    again.go_on_from(stopped_ms, steady.jumps, dated_ms=stopped_ms)
    second_ms = again.now_ms()
    manual.advance(1_000)
    assert (again.age_ms(first_ms), again.age_ms(second_ms)) == (100 * 3_600_001 + 1_000, 1_000)
    again.forget_before(second_ms)
    assert again.jumps == []


def test_what_is_dated_after_a_step_ages_as_it_should() -> None:
    """A machine without a clock of its own begins in 1970 until somebody tells it the time."""
    manual = ManualClock(1_000)
    steady = SteadyClock(manual)
    before_ms = steady.now_ms()
    manual.advance(60_000)
    manual.step_wall(1_700_000_000_000)
    after_ms = steady.now_ms()
    manual.advance(3_600_000)
    assert (steady.age_ms(before_ms), steady.age_ms(after_ms)) == (3_660_000, 3_600_000)


def test_what_another_clock_dates_has_no_age_when_it_arrives() -> None:
    theirs = ManualClock(1_000_000)
    manual = ManualClock(500_000_000)
    steady = SteadyClock(manual)
    for step_ms in (0, 3_600_000, 0):
        manual.step_wall(step_ms)
        for _ in range(3):
            steady.dated_elsewhere(theirs.now_ms())
            assert steady.age_ms(1_000_000) == theirs.now_ms() - 1_000_000
            for clock in (theirs, manual):
                clock.advance(10_000)
    assert len(steady.jumps) == 2
    assert steady.jumped_ms(1_000_000) == 3_600_000
    # Its own dates come later, and another clock that agrees takes back nothing.
    date_ms = steady.now_ms()
    manual.advance(5_000)
    assert steady.age_ms(date_ms) == 5_000
    noted = steady.jumps
    steady.dated_elsewhere(steady.now_ms())
    assert steady.jumps == noted


def test_a_backlog_that_is_copied_makes_few_notes_and_hardly_rejuvenates() -> None:
    hour_ms = 3_600_000
    manual = ManualClock(200 * hour_ms)
    steady = SteadyClock(manual)
    arrived = []
    for date_ms in range(128 * hour_ms, 200 * hour_ms, 60_000):
        steady.dated_elsewhere(date_ms)
        manual.advance(1)
        arrived.append((date_ms, steady.now_ms()))
    assert len(steady.jumps) < 20
    # Later the slave lags a little now and then.
    for _ in range(100):
        manual.advance(hour_ms)
        steady.dated_elsewhere(steady.now_ms() - 5_000)
    for date_ms, arrived_ms in arrived:
        lag_ms = arrived_ms - date_ms
        real_ms = steady.now_ms() - date_ms
        assert real_ms - 2 * lag_ms - 10_000 <= steady.age_ms(date_ms) <= real_ms - lag_ms + 2


def test_steps_forward_are_told_from_time_that_passes() -> None:
    manual = ManualClock(1_000_000)
    steady = SteadyClock(manual)
    assert steady.jumped_ms(0) == 0
    manual.advance(10_000_000)
    first_ms = steady.now_ms()
    manual.advance(5_000)
    manual.step_wall(3_600_000)
    second_ms = steady.now_ms()
    manual.step_wall(1_999)
    assert (steady.jumped_ms(first_ms), steady.jumped_ms(second_ms)) == (3_600_000, 0)
    manual.step_wall(-7_200_000)
    manual.advance(1_000)
    assert steady.jumped_ms(first_ms) == 3_600_000
    # How much of a stop has passed is not known, but what waits need not wait for it again.
    again = SteadyClock(manual)
    again.go_on_from(steady.now_ms() - 50_000, steady.jumps, dated_ms=second_ms)
    assert again.jumped_ms(first_ms) == 3_600_000
