"""``motelog top``: the rates of a running server, a line per interval.

Owns: which rates are shown. Must not touch: what is counted; it asks the server's admin listener.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from motelog.cli.admin import ADMIN, Admin, ask
from motelog.cli.output import write, write_json

#: Gauges, from the members of "now".
NOW = ("connections", "sessions", "queue_clients")
#: The columns of each part: member of a line -> head. Names without a unit are rates.
PARTS: Final = {
    "MQTT, messages a second": {
        "connections": "open",
        "sessions": "clients",
        "mqtt_in": "in",
        "mqtt_out": "out",
        "mqtt_refused": "refused",
    },
    "queues, messages a second": {
        "queue_clients": "clients",
        "queue_in": "in",
        "queue_out": "out",
        "lag": "behind",
    },
}
#: The time and all columns together fill a terminal's width.
COLUMN: Final = 8
LINES_PER_HEAD = 20


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between lines.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many lines.")] = None,
    admin: Admin = ADMIN,
    json: Annotated[bool, typer.Option("--json", help="JSON, one object per line.")] = False,
) -> None:
    """Print messages a second and clients of a running server, until --count or Ctrl-C.

    The output may be piped: lines are only appended.
    """
    before = ask(admin, "GET", "/status", {})
    written = 0
    while count is None or written < count:
        time.sleep(interval)
        after = ask(admin, "GET", "/status", {})
        line = rates(before, after)
        if json:
            write_json(line)
        else:
            if written % LINES_PER_HEAD == 0:
                for head in heads(line):
                    write(head)
            write(row(line))
        before = after
        written += 1


def heads(line: dict[str, Any]) -> tuple[str, str]:
    """Return the two heading lines for a server whose lines have these members."""
    above, below = " " * COLUMN, "time".ljust(COLUMN)
    for part, columns in _shown(line).items():
        above += " " + f" {part} ".center(COLUMN * len(columns) - 1, "-")
        below += "".join(name.rjust(COLUMN) for name in columns.values())
    return above, below


def row(line: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(line["time_ms"] / 1000))
    columns = [name for part in _shown(line).values() for name in part]
    return at + "".join(number(line[name]).rjust(COLUMN) for name in columns)


def number(value: float) -> str:
    """Return a number that leaves at least one blank in a column."""
    if value < 9.95:
        return f"{value:.1f}".removesuffix(".0")
    for unit in ("", "k", "M"):
        if value < (99_999.5 if unit else 999_999.5):
            return f"{value:,.0f}{unit}"
        value /= 1000
    return f"{value:,.0f}G"


def _shown(line: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the parts and columns of this server; without a gateway there is no MQTT."""
    found = {
        part: {name: head for name, head in columns.items() if name in line}
        for part, columns in PARTS.items()
    }
    # There is always a lag, even if it is 0.
    return {part: columns for part, columns in found.items() if columns.keys() - {"lag"}}


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the gauges, and the rates between two answers of /status.

    ``lag`` is the number of messages that wait for the groups that are furthest behind.
    """
    seconds = (after["time_ms"] - before["time_ms"]) / 1000
    line: dict[str, Any] = {"time_ms": after["time_ms"]}
    line |= {name: after["now"][name] for name in NOW if name in after["now"]}
    for name, total in after["totals"].items():
        # A restarted server counts from 0.
        grown = max(0, total - before["totals"].get(name, 0))
        line[name] = round(grown / seconds, 1) if seconds > 0 else 0.0
    return line | {"lag": sum(one["messages"] for one in after["lag"])}
