"""docs/reference/metrics.md: each family of /metrics, from the tables that /metrics itself uses.

Owns: that page's text. Must not touch: what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from motelog.console.process import LoopLag, build_readings
from motelog.core.broker.shown.metrics import BROKER_METRICS, NAMED_MAX, TOPIC_METRICS
from motelog.core.metrics import MetricKind, Shown
from motelog.core.namesrv.server import NAMESRV_METRICS
from motelog.gateway.metrics import GATEWAY_METRICS
from motelog.workers.supervisor import WORKERS_METRICS
from tests.reference.markdown import prose

_HEAD: Final = """\
# Metrics

What `/metrics` of the console (`[admin] listen`, by default 127.0.0.1:8080) shows in Prometheus'
text format. All count from the start of the process. Times are in seconds, sizes in bytes. Names in
`_total` are counters; a histogram `NAME` is shown as `NAME_bucket{le}`, `NAME_count` and
`NAME_sum`. In brackets are the kind of others and the labels with their values.
[docs/monitoring](../monitoring/) has a Grafana dashboard and alert rules.

This page is written by `python -m tests.reference`.
"""


def page() -> str:
    process = [one.shown for one in (*build_readings(), *LoopLag().readings())]
    only_workers = [s for name, s in WORKERS_METRICS.items() if name not in GATEWAY_METRICS]
    named = f"Those with the most messages, {NAMED_MAX} of a kind at most."
    lines = [
        *_part("Gateway", "motelog_gateway", GATEWAY_METRICS.values()),
        *_part(
            "Gateway of several processes",
            "motelog_gateway",
            only_workers,
            "With `workers` above 1 those above are sums over the processes, and there are:",
        ),
        *_part("Broker and store", "motelog_broker", BROKER_METRICS.values()),
        *_part("Topics and groups", "motelog_broker", TOPIC_METRICS.values(), named),
        *_part("Name server", "motelog_namesrv", NAMESRV_METRICS.values()),
        *_part(
            "Process",
            "motelog",
            process,
            "Beside these there are `process_...` and `python_...` of Prometheus' own client.",
        ),
    ]
    return "\n".join([_HEAD, *lines])


def _part(title: str, prefix: str, entries: Iterable[Shown], text: str = "") -> Iterator[str]:
    yield f"## {title}\n"
    yield f"Each name begins with `{prefix}_`.\n"
    if text:
        yield f"{text}\n"
    families: dict[str, list[Shown]] = {}
    for shown in entries:
        families.setdefault(shown.family, []).append(shown)
    for family, several in families.items():
        first = several[0]
        is_counter = first.kind is MetricKind.COUNTER
        facts = "; ".join(filter(None, ("" if is_counter else first.kind.value, _labels(several))))
        name = f"`{family}{'_total' if is_counter else ''}`"
        text = prose(first.help) + _buckets(first)
        yield f"- {name} ({facts}): {text}" if facts else f"- {name}: {text}"
    yield ""


def _labels(several: list[Shown]) -> str:
    """Return the labels, and their values where these are known before."""
    texts = []
    for label in several[0].labels:
        values = {shown.labels[label]: None for shown in several}
        known = ", ".join(value for value in values if value) if len(several) > 1 else ""
        texts.append(f"`{label}`: {known}" if known else f"`{label}`")
    return "; ".join(texts)


def _buckets(shown: Shown) -> str:
    if not shown.bounds:
        return ""
    low, high = (f"{bound * shown.unit:.10g}" for bound in (shown.bounds[0], shown.bounds[-1]))
    return f" {len(shown.bounds)} buckets from {low} to {high}."
