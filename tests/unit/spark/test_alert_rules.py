"""When a device is offline, and which of its values are out of the ordinary."""

from __future__ import annotations

import random

from motelog.spark.jobs.alert_rules import (
    ANOMALY,
    OFFLINE,
    ONLINE,
    READINGS_MIN,
    Alert,
    DeviceState,
    Reading,
    Rules,
)

RULES = Rules(silence_ms=60_000, deviations=6)
START_MS = 1_767_225_600_000


def at(seconds: float, value: float | None = None) -> Reading:
    return Reading(START_MS + round(seconds * 1000), round(seconds * 10), value)


def test_a_timer_that_runs_out_is_told_once() -> None:
    state, alerts = RULES.read(DeviceState(), [at(0), at(10)])
    assert alerts == []
    state, alerts = RULES.expired(state)
    assert alerts == [Alert(OFFLINE, START_MS + 70_000, since_ms=START_MS + 10_000)]
    state, alerts = RULES.expired(state)
    assert alerts == []
    state, alerts = RULES.read(state, [at(200), at(201)])
    assert alerts == [Alert(ONLINE, START_MS + 200_000, since_ms=START_MS + 10_000)]
    assert state == DeviceState(last_ms=START_MS + 201_000)


def test_a_gap_among_rows_is_found_without_a_timer() -> None:
    rows = [at(0), at(59.9), at(119.9), at(121)]
    _, alerts = RULES.read(DeviceState(), rows)
    assert [(alert.kind, alert.time_ms - START_MS) for alert in alerts] == [
        (OFFLINE, 119_900),
        (ONLINE, 119_900),
    ]


def test_however_rows_come_and_are_cut_the_alerts_are_the_same() -> None:
    drawn = random.Random(7)
    rows = [at(n * 20 + (n > 40) * 500, drawn.gauss(20, 1) + (n == 70) * 40) for n in range(100)]
    _, whole = RULES.read(DeviceState(), drawn.sample(rows, len(rows)))
    state, alerts = DeviceState(), []
    for begin in range(0, 100, 9):
        part = rows[begin : begin + 9]
        state, told = RULES.read(state, drawn.sample(part, len(part)))
        alerts += told
    assert alerts == whole
    assert [alert.kind for alert in whole] == [OFFLINE, ONLINE, ANOMALY]
    assert whole[-1].value == rows[70].value


def test_nothing_is_out_of_the_ordinary_before_there_are_readings() -> None:
    rows = [at(n, 20) for n in range(READINGS_MIN - 1)]
    assert RULES.read(DeviceState(), [*rows, at(30, 1000)])[1] == []
    _, alerts = RULES.read(DeviceState(), [*rows, at(29, 20), at(30, 1000)])
    assert [(alert.kind, alert.value, alert.mean) for alert in alerts] == [(ANOMALY, 1000, 20)]


def test_a_level_that_stays_becomes_ordinary_and_noise_is_no_alert() -> None:
    drawn = random.Random(3)
    rows = [at(n, drawn.gauss(20, 1)) for n in range(2000)]
    state, alerts = RULES.read(DeviceState(), rows)
    assert alerts == []
    shifted = [at(2000 + n, drawn.gauss(50, 1)) for n in range(500)]
    state, alerts = RULES.read(state, shifted)
    assert 1 <= len(alerts) < 5
    assert abs(state.mean - 50) < 2


def test_what_is_no_number_counts_as_a_message_only() -> None:
    rows = [at(n, value) for n, value in enumerate([None, float("nan"), float("inf"), 3.0])]
    state, alerts = RULES.read(DeviceState(), rows)
    assert (state.readings, state.mean, alerts) == (1, 3.0, [])
