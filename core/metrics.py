"""Metrics registry and exposition: parts count in plain attributes, the registry reads at scrape.

Owns: the registry of sources, the histogram, the Prometheus text. Must not touch: what is counted;
each folder's own metrics module decides that and hands its ``read`` to ``Registry.add``.

Invariants: counting costs one addition on an attribute or array element, no lock and no label
lookup; no label value without a bound comes from a client; prometheus_client is imported at the
first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Reading:
    """One value at scrape time; readings of the same name form one family."""

    name: str
    kind: MetricKind
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Histogram:
    """Counts of values per bucket; ``bounds`` are the inclusive upper ends, ascending."""

    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds ascend"
        self.name = name
        self.help = help_text
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Registry:
    """Everything that one process shows under /metrics."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[Reading | Histogram]]] = []

    def add(self, read: Callable[[], Iterable[Reading | Histogram]]) -> None:
        """Ask ``read`` for its readings at each scrape."""
        self._sources.append(read)

    def add_counters(self, prefix: str, sample: Callable[[], Mapping[str, float]]) -> None:
        """Show every entry of ``sample()``; names that end in ``_now`` are gauges."""

        def read() -> Iterable[Reading]:
            for name, value in sample().items():
                kind = MetricKind.GAUGE if name.endswith("_now") else MetricKind.COUNTER
                words = name.removesuffix("_now").replace("_", " ").capitalize()
                yield Reading(f"{prefix}_{name}", kind, f"{words}.", value)

        self._sources.append(read)

    def add_histograms(self, prefix: str, read: Callable[[], Iterable[Histogram]]) -> None:
        """Show every histogram of ``read()`` under its name behind ``prefix``."""

        def read_named() -> Iterable[Histogram]:
            for known in read():
                shown = Histogram(f"{prefix}_{known.name}", known.help, known.bounds)
                shown.counts, shown.total = known.counts, known.total
                yield shown

        self._sources.append(read_named)

    def values(self) -> dict[str, float]:
        """Return the value of each name, summed over its labels; histograms are left out."""
        values: dict[str, float] = {}
        for read in self._sources:
            for item in read():
                if isinstance(item, Reading):
                    values[item.name] = values.get(item.name, 0) + item.value
        return values

    def exposition(self) -> bytes:
        """Return all readings in the Prometheus text format (``CONTENT_TYPE``)."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterable[Metric]:
        """Yield one prometheus_client family per name; called by its registry."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for read in self._sources:
            for item in read():
                if isinstance(item, Histogram):
                    histogram = HistogramMetricFamily(item.name, item.help)
                    histogram.add_metric([], _cumulative(item), item.total)
                    yield histogram
                    continue
                family = families.get(item.name)
                if family is None:
                    counts = item.kind is MetricKind.COUNTER
                    kind = CounterMetricFamily if counts else GaugeMetricFamily
                    family = kind(item.name, item.help, labels=list(item.labels))
                    families[item.name] = family
                family.add_metric(list(item.labels.values()), item.value)
        yield from families.values()


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """Return (upper bound, values at or below it) as the exposition format has them."""
    buckets: list[tuple[str, float]] = []
    below = 0
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
