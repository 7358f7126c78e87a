"""Metrics registry and exposition: parts count in plain attributes, the registry reads at scrape.

Owns: the registry of sources, the histogram, how a number is shown, the Prometheus text.
Must not touch: what is counted; each role has a table of its own and passes it with its sample.

    sample       name -> number                              plain, so that samples can be added up
    histograms   name -> counts and sum                      likewise
    table        name -> Shown: family, unit, labels, help   how /metrics shows both

Invariants: counting costs one addition on an attribute or array element, no lock and no label
lookup; no label value without a bound comes from a client; prometheus_client is imported at the
first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram:
    """Counts of values per bucket; ``bounds`` are the inclusive upper ends, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds ascend"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count ``count`` equal values."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def sample(self) -> list[float]:
        """Return the counts and, as the last number, the sum of the values."""
        return [*self.counts, self.total]


def percentile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float:
    """Return the bound below which ``share`` of a histogram's values are; 0 without values.

    For values above the last bound it returns that bound.
    """
    wanted = sum(counts) * share
    seen = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound if seen else 0.0
    return bounds[-1]


@dataclass(frozen=True, slots=True)
class Shown:
    """How one entry of a sample is shown; entries of the same family differ in their labels.

    ``unit`` is the size of a counted unit in shown ones: 1e-6 for microseconds shown as seconds.
    ``bounds`` are those of a histogram, in counted units.
    """

    family: str
    help: str
    kind: MetricKind = MetricKind.COUNTER
    labels: Mapping[str, str] = field(default_factory=dict)
    unit: float = 1
    bounds: tuple[float, ...] = ()

    def labelled(self, *values: str) -> Shown:
        """Return the same with other values of its labels."""
        return replace(self, labels=dict(zip(self.labels, values, strict=True)))


def counter(family: str, help_text: str, /, **labels: str) -> Shown:
    """Return how a number that only grows is shown; "_total" is appended to ``family``."""
    return Shown(family, help_text, MetricKind.COUNTER, labels)


def gauge(family: str, help_text: str, unit: float = 1, /, **labels: str) -> Shown:
    """Return how a number that goes up and down is shown."""
    return Shown(family, help_text, MetricKind.GAUGE, labels, unit)


def histogram(family: str, help_text: str, bounds: Sequence[float], /, *, unit: float = 1) -> Shown:
    """Return how the counts of a Histogram with ``bounds`` are shown."""
    return Shown(family, help_text, MetricKind.HISTOGRAM, {}, unit, tuple(bounds))


#: The metadata of a dataclass's field that tells how it is shown.
_SHOWN: Final = "shown"


def counted(shown: Shown) -> Any:
    """Return a dataclass field that begins at 0 and is shown in this way."""
    return field(default=0, metadata={_SHOWN: shown})


def table_of(counters: type[DataclassInstance]) -> dict[str, Shown]:
    """Return the table of a dataclass's ``counted`` fields."""
    known = ((one.name, one.metadata.get(_SHOWN)) for one in fields(counters))
    return {name: shown for name, shown in known if shown is not None}


@dataclass(frozen=True, slots=True)
class Reading:
    """One entry of a sample at scrape time; readings of the same family differ in their labels."""

    shown: Shown
    value: float | Sequence[float]


class Registry:
    """Everything that one process shows under /metrics."""

    def __init__(self) -> None:
        self._sources: list[tuple[str, Callable[[], Iterable[Reading]]]] = []
        self._samples: list[tuple[str, Mapping[str, Shown], Callable[[], Mapping[str, float]]]] = []

    def add(
        self,
        prefix: str,
        table: Mapping[str, Shown],
        sample: Callable[[], Mapping[str, float]],
        histograms: Callable[[], Mapping[str, Sequence[float]]] = dict,
    ) -> None:
        """Show every entry of ``sample()`` and ``histograms()`` according to ``table``.

        An entry that the table does not have is a KeyError at the scrape. The values of
        ``histograms()`` are as ``Histogram.sample`` has them.
        """

        def read() -> Iterable[Reading]:
            for name, value in sample().items():
                yield Reading(table[name], value)
            for name, counts in histograms().items():
                yield Reading(table[name], counts)

        self._samples.append((prefix, table, sample))
        self.add_readings(prefix, read)

    def add_readings(self, prefix: str, read: Callable[[], Iterable[Reading]]) -> None:
        """Call ``read`` at each scrape; for readings whose labels are not known in advance."""
        self._sources.append((prefix, read))

    def values(self) -> dict[str, float]:
        """Return the number of each family that was ``add``ed, summed over its labels."""
        values: dict[str, float] = {}
        for prefix, table, sample in self._samples:
            for name, value in sample().items():
                shown = table[name]
                family = f"{prefix}_{shown.family}"
                values[family] = values.get(family, 0) + value * shown.unit
        return values

    def readings(self, prefix: str, families: Container[str]) -> list[Reading]:
        """Return the readings of some families under ``prefix``, with their labels."""
        sources = [read for source, read in self._sources if source == prefix]
        return [one for read in sources for one in read() if one.shown.family in families]

    def exposition(self) -> bytes:
        """Return all readings, and those of the process, in Prometheus' text format."""
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            PlatformCollector,
            ProcessCollector,
            generate_latest,
        )

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        return generate_latest(registry)

    def collect(self) -> Iterable[Metric]:
        """Yield one prometheus_client family per name; called by its registry."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        kinds = {
            MetricKind.COUNTER: CounterMetricFamily,
            MetricKind.GAUGE: GaugeMetricFamily,
            MetricKind.HISTOGRAM: HistogramMetricFamily,
        }
        families: dict[str, Any] = {}
        for prefix, read in self._sources:
            for shown, value in ((one.shown, one.value) for one in read()):
                name = f"{prefix}_{shown.family}"
                family = families.get(name)
                if family is None:
                    family = kinds[shown.kind](name, shown.help, labels=list(shown.labels))
                    families[name] = family
                labels = list(shown.labels.values())
                if isinstance(value, Sequence):
                    family.add_metric(labels, _cumulative(shown, value), value[-1] * shown.unit)
                else:
                    family.add_metric(labels, value * shown.unit)
        yield from families.values()


def _cumulative(shown: Shown, sample: Sequence[float]) -> list[tuple[str, float]]:
    """Return (upper bound, values at or below it) as the exposition format has them."""
    buckets: list[tuple[str, float]] = []
    below = 0.0
    bounds = [*(f"{bound * shown.unit:g}" for bound in shown.bounds), "+Inf"]
    for bound, count in zip(bounds, sample[:-1], strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
