"""When a device is offline, and which of its values are unusual.

Owns: the rules, the state of a device, the content of an alert. Must not touch: Spark, clocks
(times are arguments). Times are milliseconds since 1970.
A device is offline if none of its messages was read for ``silence_ms``. This is detected by a timer
that expires or, among rows that are read late, by two messages that are so far apart. An anomaly is
a value further from the device's moving mean than ``deviations`` moving standard deviations. Both
adapt to the device: a new level that persists becomes normal after some readings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

OFFLINE: Final = "offline"
ONLINE: Final = "online"
ANOMALY: Final = "anomaly"

#: Readings before a value can be unusual, and how much a reading moves the mean.
READINGS_MIN: Final = 20
WEIGHT: Final = 0.05
#: The deviation that is always allowed, for a device whose value was always the same.
SPREAD_MIN: Final = 1e-6


class Reading(NamedTuple):
    """When a message was stored, its queue offset, and its value if it has one."""

    time_ms: int
    queue_offset: int
    value: float | None


class DeviceState(NamedTuple):
    """The stored state of one device."""

    last_ms: int = 0
    is_offline: bool = False
    readings: int = 0
    mean: float = 0.0
    variance: float = 0.0


class Alert(NamedTuple):
    """An alert: an anomaly with its value, or silence with when it began."""

    kind: str
    time_ms: int
    value: float | None = None
    mean: float | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a run."""

    silence_ms: int
    deviations: float

    def read(
        self, state: DeviceState, readings: Iterable[Reading]
    ) -> tuple[DeviceState, list[Alert]]:
        """Return the state and the alerts after readings, which may come in any order."""
        alerts: list[Alert] = []
        for time_ms, _, value in sorted(readings, key=lambda reading: reading[:2]):
            state = self._heard(state, time_ms, alerts)
            if value is not None and math.isfinite(value):
                state = self._valued(state, time_ms, value, alerts)
        return state, alerts

    def expired(self, state: DeviceState) -> tuple[DeviceState, list[Alert]]:
        """Return the state and the alerts after nothing was read for ``silence_ms``."""
        if state.is_offline:
            return state, []
        offline = Alert(OFFLINE, state.last_ms + self.silence_ms, since_ms=state.last_ms)
        return state._replace(is_offline=True), [offline]

    def _heard(self, state: DeviceState, time_ms: int, alerts: list[Alert]) -> DeviceState:
        if not state.is_offline and 0 < state.last_ms <= time_ms - self.silence_ms:
            # It was silent and came back before the timer could expire.
            state, told = self.expired(state)
            alerts += told
        if state.is_offline:
            alerts.append(Alert(ONLINE, time_ms, since_ms=state.last_ms))
        return state._replace(last_ms=max(time_ms, state.last_ms), is_offline=False)

    def _valued(
        self, state: DeviceState, time_ms: int, value: float, alerts: list[Alert]
    ) -> DeviceState:
        spread = max(math.sqrt(state.variance), SPREAD_MIN, abs(state.mean) * SPREAD_MIN)
        away = value - state.mean
        if state.readings >= READINGS_MIN and abs(away) > self.deviations * spread:
            alerts.append(Alert(ANOMALY, time_ms, value=value, mean=state.mean))
        # Over the first readings it is a plain mean.
        weight = max(WEIGHT, 1 / (state.readings + 1))
        step = weight * away
        return state._replace(
            readings=min(state.readings + 1, READINGS_MIN),
            mean=state.mean + step,
            variance=(1 - weight) * (state.variance + away * step),
        )
