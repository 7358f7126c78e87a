"""A report as one self-contained HTML page: no scripts, no other files, no network.

Owns: the page, its plots (SVG). Must not touch: files, what the numbers mean (report).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from motelog.spark.report import Batch, Report

WIDTH: Final = 860
HEIGHT: Final = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 24
#: The most points of a line; each is the highest of those that it represents.
POINTS_MAX: Final = 400
DOTS_MAX: Final = 120

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #5d6778; --line: #d9dee7;
  --card: #f6f7fa; --page: #fff; --blue: #2563c4; --orange: #b4540a; --green: #1d7a46; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --soft: #9aa4b5; --line: #333b49;
  --card: #1c222c; --page: #12161d; --blue: #79a8f7; --orange: #f0a05a; --green: #67c791; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 880px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .2rem; }
p { color: var(--soft); margin: .2rem 0 .6rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .6rem;
  margin: 1.2rem 0; }
dl div { background: var(--card); border-radius: 8px; padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-size: 1.3rem; font-weight: 600; }
dd small { font-size: .8rem; font-weight: 400; color: var(--soft); display: block; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); } .grid { stroke: var(--line); }
.rate { --hue: var(--blue); } .wait { --hue: var(--orange); } .time { --hue: var(--green); }
.plot polyline { fill: none; stroke: var(--hue); stroke-width: 1.8; stroke-linejoin: round; }
.plot polygon { fill: var(--hue); opacity: .13; } .plot circle { fill: var(--hue); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft);
  font-weight: 400; font-size: .85rem; } td, th { padding: .2rem .6rem .2rem 0; }
td:first-child { width: 14rem; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; width: 7rem; }
.bar { background: var(--blue); height: .7rem; border-radius: 3px; min-width: 2px; }
"""


def page(report: Report) -> str:
    """Return the page."""
    title = f"Motelog: {report.job}"
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style></head><body>",
            *_head(report),
            *_plots(report.batches),
            *_devices(report),
            "</body></html>\n",
        ]
    )


def _head(report: Report) -> Iterator[str]:
    numbers = report.as_json()
    topics = ", ".join(report.topics) or "unknown"
    span = " to ".join(dict.fromkeys((_clock(numbers["begin"]), _clock(numbers["end"]))))
    yield f"<h1>{html.escape(report.job)}</h1>"
    yield f"<p>topic {html.escape(topics)}, {span} UTC</p><dl>"
    rates, lag, delay = numbers["messages_per_s"], numbers["lag"], numbers["delay_s"]
    batches = _counted(numbers["batches"], "batch", "batches")
    yield _tile("Messages", _number(numbers["messages"]), f"in {batches}")
    yield _tile("Messages per second", _number(rates["mean"]), f"at most {_number(rates['max'])}")
    if lag is not None:
        yield _tile("Lag, last batch", _number(lag["last"]), f"at most {_number(lag['max'])}")
    if delay is not None:
        yield _tile("Delay, median", _seconds(delay["p50"]), f"p99 {_seconds(delay['p99'])}")
    yield _tile(
        "Batch, median",
        _seconds(numbers["batch_s"]["p50"]),
        f"p99 {_seconds(numbers['batch_s']['p99'])}",
    )
    if numbers["devices"]:
        yield _tile("Devices", _number(numbers["devices"]), "in one batch, about")
    yield _tile("Starts", _number(numbers["runs"]), "of the job")
    yield "</dl>"
    if report.damaged:
        lines = _counted(report.damaged, "line", "lines")
        yield f"<p>{lines} of the record could not be read and were skipped.</p>"


def _tile(name: str, value: str, more: str) -> str:
    return f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>"


def _plots(batches: Sequence[Batch]) -> Iterator[str]:
    yield from _plot(
        "Messages per second",
        "Of each batch while it ran.",
        "rate",
        [(one.begin, one.messages_per_s) for one in batches],
    )
    yield from _plot(
        "Lag",
        "Messages that waited when the batch was planned: those it read and those it left.",
        "wait",
        [(one.begin, float(one.lag)) for one in batches if one.lag is not None],
    )
    yield from _plot(
        "Delay, seconds",
        "Age of the batch's oldest message when all of them were written.",
        "wait",
        [(one.begin, one.delay_s) for one in batches if one.delay_s is not None],
    )
    yield from _plot(
        "Batch, seconds",
        "How long the batch took.",
        "time",
        [(one.begin, one.seconds) for one in batches],
    )


def _plot(
    title: str, text: str, kind: str, values: Sequence[tuple[datetime, float]]
) -> Iterator[str]:
    if not values:
        return
    points = sorted(thinned(values))
    first, last = points[0][0], points[-1][0]
    span_s = (last - first).total_seconds()
    top = _round_up(max(value for _, value in points))
    bottom_y, width = HEIGHT - _BOTTOM, WIDTH - _LEFT - _RIGHT

    def place(time: datetime, value: float) -> tuple[float, float]:
        across = (time - first).total_seconds() / span_s if span_s else 0.5
        return _LEFT + across * width, bottom_y - value / top * (bottom_y - _TOP)

    places = [place(*point) for point in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f"<h2>{title}</h2><p>{text}</p>"
    yield f'<svg class="plot {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    yield f"<title>{title}</title>"
    for part in (0.0, 0.5, 1.0):
        y = bottom_y - part * (bottom_y - _TOP)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        mark = _number(part * top)
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark}</text>'
    ends = [(_LEFT, "start", first), (WIDTH - _RIGHT, "end", last)]
    for at, anchor, time in ends if span_s else [(_LEFT + width // 2, "middle", first)]:
        mark = f"{time:%b %d %H:%M:%S}"
        yield f'<text x="{at}" y="{HEIGHT - 6}" text-anchor="{anchor}">{mark}</text>'
    base = f"{places[-1][0]:.1f},{bottom_y} {places[0][0]:.1f},{bottom_y}"
    yield f'<polygon points="{line} {base}"/><polyline points="{line}"/>'
    if len(points) <= DOTS_MAX:
        for (x, y), (time, value) in zip(places, points, strict=True):
            label = f"{time:%H:%M:%S}: {_number(value)}"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{label}</title></circle>'
    yield "</svg>"


def _devices(report: Report) -> Iterator[str]:
    busiest = report.busiest()
    if not busiest:
        return
    yield "<h2>Busiest devices</h2>"
    yield "<p>Approximate message counts of devices that were among the busiest of a batch.</p>"
    yield '<table><tr><th>device</th><th class="number">messages</th><th></th></tr>'
    most = busiest[0][1]
    for device, count in busiest:
        bar = f'<div class="bar" style="width: {100 * count / most:.1f}%"></div>'
        yield (
            f'<tr><td>{html.escape(device)}</td><td class="number">{_number(count)}</td>'
            f"<td>{bar}</td></tr>"
        )
    yield "</table>"


def thinned(values: Sequence[tuple[datetime, float]]) -> list[tuple[datetime, float]]:
    """Return at most POINTS_MAX of the values, the highest one of each section."""
    step = -(-len(values) // POINTS_MAX)
    return [
        max(values[begin : begin + step], key=lambda point: point[1])
        for begin in range(0, len(values), step)
    ]


def _round_up(value: float) -> float:
    """Return the end of an axis that shows ``value``: a number that is easy to halve."""
    if value <= 0:
        return 1
    scale = 10.0 ** math.floor(math.log10(value))
    while True:
        for factor in (1, 1.5, 2, 3, 4, 5, 6, 8):
            if value <= factor * scale:
                return factor * scale
        scale *= 10


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{_number(value)} s"


def _counted(count: int, one: str, more: str) -> str:
    return f"{_number(count)} {one if count == 1 else more}"


def _clock(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
