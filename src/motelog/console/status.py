"""What the process says of itself at a glance: the JSON behind the first page.

Owns: its members. Must not touch: HTTP, what is counted (it reads the metrics' registry).

    {"version": "0.1.0", "time_ms": 1795365614123, "up_s": 12.5,
     "ready": true, "faults": {},                 as /health/ready has them
     "addresses": {"gateway": "127.0.0.1:1883", ...}, "listeners": {"tls": "mqtts://...", ...},
     "data": "/var/lib/motelog" or null,
     "now": {"connections": 2, "sessions": 3, "subscriptions": 4, ...},
     "totals": {"mqtt_in": 17, "mqtt_out": 51, "mqtt_refused": 0, "queue_in": 4, "queue_out": 8},
     "disk": {"total_bytes": ..., "free_bytes": ..., "reserve_bytes": ...,
              "retention_left_s": ... or null} or null,
     "lag": [{"group": "reports", "topic": "telemetry", "messages": 12, "seconds": 3.1}, ...]}

A rate is the difference of two ``totals`` by that of their ``time_ms``. What this process does not
run is missing from ``addresses``, ``now`` and ``totals``. ``retention_left_s`` is null where the
disk has room for all of the retention; ``lag`` has the groups that are furthest behind, ``seconds``
where it is known.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import trio

from motelog import __version__
from motelog.console.health import Health
from motelog.core.metrics import Registry

_NOW: Final = {
    "sessions": "motelog_gateway_sessions",
    "subscriptions": "motelog_gateway_subscriptions",
    "retained_messages": "motelog_gateway_retained_messages",
    "queue_clients": "motelog_broker_connections",
}
_TOTALS: Final = {
    "mqtt_in": "motelog_gateway_publishes_received",
    "mqtt_out": "motelog_gateway_messages_delivered",
    "mqtt_refused": "motelog_gateway_publishes_refused",
    "queue_in": "motelog_broker_messages_received",
    "queue_out": "motelog_broker_messages_pulled",
}
_OPENED: Final = "motelog_gateway_connections_opened"
_CLOSED: Final = "motelog_gateway_connections_closed"
_DISK: Final = "motelog_broker_store_disk_"
_RETENTION_LEFT: Final = "motelog_broker_store_retention_left_seconds"
_LAGS: Final = {"group_lag_messages": "messages", "group_lag_seconds": "seconds"}
LAGS_SHOWN: Final = 5
#: How often totals are kept for the rates, and how many: five minutes of them.
SAMPLE_S: Final = 2.0
SAMPLES_MAX: Final = 150
#: A rate is that of the last samples, so that it does not jump about.
_RATE_SAMPLES: Final = 3


class Rate(NamedTuple):
    """Messages a second: ``now`` is None until that is known; ``points`` are an SVG line's.

    The line shows the last ``span_s`` seconds in a box of 100 by 30.
    """

    now: float | None
    points: str
    span_s: float


class Status:
    """``addresses`` and ``listeners`` are what clients are told of what has started.

    They are filled by ``motelog.roles``.
    """

    def __init__(
        self,
        health: Health,
        registry: Registry,
        addresses: Mapping[Any, str],
        listeners: Mapping[str, str] = MappingProxyType({}),
        *,
        data: str | None,
    ) -> None:
        self._health = health
        self._registry = registry
        self._addresses = addresses
        self._listeners = listeners
        self._data = data
        self._began_s = time.monotonic()
        #: (seconds, totals), the oldest first.
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES_MAX)

    async def run(self) -> None:
        """Keep totals for the rates until cancelled."""
        while True:
            self.take_totals(time.monotonic())
            await trio.sleep(SAMPLE_S)

    def take_totals(self, at_s: float) -> None:
        self._samples.append((at_s, _totals(self._registry.values())))

    def rates(self) -> dict[str, Rate]:
        """Return how many messages a second there are, and have been, of each total."""
        samples = list(self._samples)
        names = _totals(self._registry.values())
        return {
            name: _rate([(at, totals.get(name, 0)) for at, totals in samples]) for name in names
        }

    def read(self) -> dict[str, Any]:
        values = self._registry.values()
        faults = self._health.faults()
        now = {name: int(values[metric]) for name, metric in _NOW.items() if metric in values}
        if _OPENED in values:
            now["connections"] = int(values[_OPENED] - values[_CLOSED])
        return {
            "version": __version__,
            "time_ms": time.time_ns() // 1_000_000,
            "up_s": round(time.monotonic() - self._began_s, 1),
            "ready": not faults,
            "faults": faults,
            "addresses": dict(self._addresses),
            "listeners": dict(self._listeners),
            "data": self._data,
            "now": now,
            "totals": _totals(values),
            "disk": _disk(values),
            "lag": _lag(self._registry),
        }


def _totals(values: Mapping[str, float]) -> dict[str, int]:
    return {name: int(values[metric]) for name, metric in _TOTALS.items() if metric in values}


def _rate(samples: Sequence[tuple[float, int]]) -> Rate:
    if len(samples) < 2:
        return Rate(None, "", 0.0)
    rates = [
        max(after - before, 0) / (to_s - at_s)
        for (at_s, before), (to_s, after) in pairwise(samples)
    ]
    top = max(*rates, 1.0)
    step = 100 / (SAMPLES_MAX - 2)
    begin = 100 - step * (len(rates) - 1)
    points = [f"{begin + step * n:.1f},{29 - 28 * rate / top:.1f}" for n, rate in enumerate(rates)]
    last = rates[-_RATE_SAMPLES:]
    return Rate(round(sum(last) / len(last), 1), " ".join(points), samples[-1][0] - samples[0][0])


def _disk(values: Mapping[str, float]) -> dict[str, int | None] | None:
    names = ("total_bytes", "free_bytes", "reserve_bytes")
    if not values.get(f"{_DISK}total_bytes"):
        return None  # no store in this process, or it has not looked yet
    disk: dict[str, int | None] = {name: int(values[f"{_DISK}{name}"]) for name in names}
    left_s = values.get(_RETENTION_LEFT, math.inf)
    return disk | {"retention_left_s": None if math.isinf(left_s) else int(left_s)}


def _lag(registry: Registry) -> list[dict[str, str | float]]:
    """Return the groups that are behind, those furthest behind first."""
    rows: dict[tuple[str, ...], dict[str, str | float]] = {}
    for reading in registry.readings("motelog_broker", _LAGS):
        assert not isinstance(reading.value, Sequence), "a gauge"
        labels = reading.shown.labels
        row = rows.setdefault(tuple(labels.values()), dict(labels))
        row[_LAGS[reading.shown.family]] = round(reading.value * reading.shown.unit, 1)
    return list(rows.values())[:LAGS_SHOWN]
