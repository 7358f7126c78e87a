"""The process's status at a glance: the JSON behind the first page.

Owns: its members. Must not touch: HTTP, what is counted (it reads the metrics' registry).

    {"version": "0.1.0", "time_ms": 1795365614123, "up_s": 12.5,
     "ready": true, "faults": {},                 as /health/ready has them
     "warnings": {},                              faults that do not make it unready
     "addresses": {"gateway": "127.0.0.1:1883", ...}, "listeners": {"tls": "mqtts://...", ...},
     "data": "/var/lib/motelog" or null,
     "now": {"connections": 2, "sessions": 3, "subscriptions": 4, ...},
     "totals": {"mqtt_in": 17, "mqtt_out": 51, "mqtt_refused": 0, "queue_in": 4, "queue_out": 8},
     "latencies": {"acknowledge": {"p50_s": 0.0002, "p99_s": 0.002}, "deliver": ...},
     "disk": {"total_bytes": ..., "free_bytes": ..., "reserve_bytes": ...,
              "retention_left_s": ... or null} or null,
     "copies": {"role": "master" or "slave", "slaves": 1, "behind_bytes": 0} or null,
     "lag": [{"group": "reports", "topic": "telemetry", "messages": 12, "seconds": 3.1}, ...]}

A rate is the difference of two ``totals`` divided by that of their ``time_ms``. ``latencies`` are
the 50th and 99th percentiles of the last ten seconds, as bucket bounds of the metrics; null if
there were none. "acknowledge" is from a PUBLISH to its PUBACK, "deliver" from the append of a
message to its delivery, "sync" is a sync of the log. Roles that this process does not run are
missing from ``addresses``, ``now``, ``totals`` and ``latencies``. ``retention_left_s`` is null if
the disk has room for the full retention. ``copies`` is null if the broker has no part in copying.
Its ``behind_bytes`` are what this slave lacks, whose ``slaves`` are null, or at a master its
nearest slave, null without one. ``lag`` lists the groups that are furthest behind, with ``seconds``
if known.
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
from motelog.core.metrics import Registry, percentile

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
#: Name -> prefix and family of the histogram.
_LATENCIES: Final = {
    "acknowledge": ("motelog_gateway", "publish_acknowledge_seconds"),
    "deliver": ("motelog_gateway", "deliver_seconds"),
    "sync": ("motelog_broker", "store_sync_seconds"),
}
_OPENED: Final = "motelog_gateway_connections_opened"
_CLOSED: Final = "motelog_gateway_connections_closed"
_DISK: Final = "motelog_broker_store_disk_"
_RETENTION_LEFT: Final = "motelog_broker_store_retention_left_seconds"
_LAGS: Final = {"group_lag_messages": "messages", "group_lag_seconds": "seconds"}
_COPIES: Final = ("slaves", "slave_behind_bytes", "copying_behind_bytes")
LAGS_SHOWN: Final = 5
#: How often totals are sampled for the rates, and how many are kept: five minutes.
SAMPLE_S: Final = 2.0
SAMPLES_MAX: Final = 150
#: A rate is taken over several samples, which smooths it.
_RATE_SAMPLES: Final = 3
#: Number of steps of a line that fills its box.
_VALUES_MIN: Final = 10
#: Latencies are taken over the last samples: ten seconds.
_LATENCY_SAMPLES: Final = 5


class Latency(NamedTuple):
    """The 50th and 99th percentiles of the last seconds, in seconds.

    None if there were no values. ``points`` and ``span_s`` show the 99th, as in ``Rate``.
    """

    p50_s: float | None
    p99_s: float | None
    points: str
    span_s: float


class _Counts(NamedTuple):
    """A histogram at one moment; ``bounds_s`` are the upper ends of its buckets."""

    bounds_s: Sequence[float]
    counts: Sequence[float]


class Rate(NamedTuple):
    """Messages a second; ``now`` is None until it is known; ``points`` are those of an SVG line.

    The line shows the last ``span_s`` seconds in a box of 100 by 30.
    """

    now: float | None
    points: str
    span_s: float


class Status:
    """``addresses`` and ``listeners`` are the addresses for clients of the started roles.

    ``motelog.roles`` fills them.
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
        #: (seconds, totals, latencies), oldest first.
        self._samples: deque[tuple[float, dict[str, int], dict[str, _Counts]]] = deque(
            maxlen=SAMPLES_MAX
        )

    async def run(self) -> None:
        """Sample totals for rates and latencies until cancelled."""
        while True:
            self.take_totals(time.monotonic())
            await trio.sleep(SAMPLE_S)

    def take_totals(self, at_s: float) -> None:
        latencies = {
            name: _Counts(
                [round(bound * reading.shown.unit, 9) for bound in reading.shown.bounds],
                reading.value[:-1],
            )
            for name, (prefix, family) in _LATENCIES.items()
            for reading in self._registry.readings(prefix, (family,))
            if isinstance(reading.value, Sequence)
        }
        self._samples.append((at_s, _totals(self._registry.values()), latencies))

    def rates(self) -> dict[str, Rate]:
        """Return the present and past rate of each total."""
        samples = list(self._samples)
        names = _totals(self._registry.values())
        return {
            name: _rate([(at, totals.get(name, 0)) for at, totals, _ in samples]) for name in names
        }

    def latencies(self) -> dict[str, Latency]:
        """Return the present and past latencies."""
        samples = list(self._samples)
        names = samples[-1][2] if samples else {}
        return {
            name: _latency([(at, known[name]) for at, _, known in samples if name in known])
            for name in names
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
            "warnings": self._health.warned(),
            "addresses": dict(self._addresses),
            "listeners": dict(self._listeners),
            "data": self._data,
            "now": now,
            "totals": _totals(values),
            "latencies": {
                name: {"p50_s": one.p50_s, "p99_s": one.p99_s}
                for name, one in self.latencies().items()
            },
            "disk": _disk(values),
            "copies": _copies(self._registry),
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
    last = rates[-_RATE_SAMPLES:]
    points = _points(rates, top=max(*rates, 1.0))
    return Rate(round(sum(last) / len(last), 1), points, samples[-1][0] - samples[0][0])


def _latency(samples: Sequence[tuple[float, _Counts]]) -> Latency:
    if len(samples) < 2:
        return Latency(None, None, "", 0.0)
    counts = [one for _, one in samples]
    shown = [_percentile(before, after, 0.99) or 0.0 for before, after in pairwise(counts)]
    begin = counts[max(len(counts) - 1 - _LATENCY_SAMPLES, 0)]
    p50_s, p99_s = (_percentile(begin, counts[-1], share) for share in (0.5, 0.99))
    points = _points(shown, top=max(*shown, 0.001))
    return Latency(p50_s, p99_s, points, samples[-1][0] - samples[0][0])


def _percentile(before: _Counts, after: _Counts, share: float) -> float | None:
    """Return the bound below which ``share`` of the values between two moments lie, or None."""
    new = [max(now - then, 0) for then, now in zip(before.counts, after.counts, strict=True)]
    return percentile(after.bounds_s, new, share) if any(new) else None


def _points(values: Sequence[float], top: float) -> str:
    """Return an SVG line in a box of 100 by 30, the newest value at its right end.

    It fills the width of the box once there are enough values.
    """
    step = 100 / max(len(values) - 1, _VALUES_MIN)
    begin = 100 - step * (len(values) - 1)
    return " ".join(
        f"{begin + step * n:.1f},{29 - 28 * value / top:.1f}" for n, value in enumerate(values)
    )


def _disk(values: Mapping[str, float]) -> dict[str, int | None] | None:
    names = ("total_bytes", "free_bytes", "reserve_bytes")
    if not values.get(f"{_DISK}total_bytes"):
        return None  # no store in this process, or the disk has not been checked yet
    disk: dict[str, int | None] = {name: int(values[f"{_DISK}{name}"]) for name in names}
    left_s = values.get(_RETENTION_LEFT, math.inf)
    return disk | {"retention_left_s": None if math.isinf(left_s) else int(left_s)}


def _copies(registry: Registry) -> dict[str, str | int | None] | None:
    found: dict[tuple[str, ...], int] = {}
    for reading in registry.readings("motelog_broker", _COPIES):
        assert not isinstance(reading.value, Sequence), "a gauge"
        found[reading.shown.family, *reading.shown.labels.values()] = int(reading.value)
    if ("copying_behind_bytes",) in found:
        behind: int | None = found["copying_behind_bytes",]
        return {"role": "slave", "slaves": None, "behind_bytes": behind}
    if ("slaves",) in found:
        behind = found.get(("slave_behind_bytes", "nearest"))
        return {"role": "master", "slaves": found["slaves",], "behind_bytes": behind}
    return None


def _lag(registry: Registry) -> list[dict[str, str | float]]:
    """Return the groups that are behind, the furthest behind first."""
    rows: dict[tuple[str, ...], dict[str, str | float]] = {}
    for reading in registry.readings("motelog_broker", _LAGS):
        assert not isinstance(reading.value, Sequence), "a gauge"
        labels = reading.shown.labels
        row = rows.setdefault(tuple(labels.values()), dict(labels))
        row[_LAGS[reading.shown.family]] = round(reading.value * reading.shown.unit, 1)
    return list(rows.values())[:LAGS_SHOWN]
