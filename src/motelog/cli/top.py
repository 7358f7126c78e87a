"""``motelog top``: what a running server does, a line each moment.

Owns: which rates are shown. Must not touch: what is counted; the server's admin listener is asked.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin, ask
from motelog.cli.output import write, write_json

#: Rates: member of "totals" -> head of its column. Then what there is now.
RATES = {
    "mqtt_in": "MQTT in/s",
    "mqtt_out": "MQTT out/s",
    "mqtt_refused": "refused/s",
    "queue_in": "queue in/s",
    "queue_out": "queue out/s",
}
NOW = {"connections": "clients", "sessions": "sessions", "queue_clients": "queue clients"}
LINES_PER_HEAD = 20


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two lines.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many lines.")] = None,
    admin: Admin = ADMIN,
    json: Annotated[bool, typer.Option("--json", help="JSON, one object per line.")] = False,
) -> None:
    """Print messages a second and clients of a running server, until --count or Ctrl-C.

    The lines may be piped: nothing is drawn over.
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
            columns = {**NOW, **RATES}
            shown = [name for name in columns if name in line]
            if written % LINES_PER_HEAD == 0:
                write("  ".join(["time    ", *(columns[name] for name in shown), "behind"]))
            at = time.strftime("%H:%M:%S", time.localtime(line["time_ms"] / 1000))
            cells = [f"{line[name]:,.0f}".rjust(len(columns[name])) for name in shown]
            write("  ".join([at, *cells, f"{line['lag']:,.0f}".rjust(len("behind"))]))
        before = after
        written += 1


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what there is now and what came a second between two answers of /status.

    ``lag`` is how many messages wait for the groups that are furthest behind.
    """
    seconds = (after["time_ms"] - before["time_ms"]) / 1000
    line: dict[str, Any] = {"time_ms": after["time_ms"]}
    line |= {name: after["now"][name] for name in NOW if name in after["now"]}
    for name, total in after["totals"].items():
        # A server that was started again counts from 0.
        grown = max(0, total - before["totals"].get(name, 0))
        line[name] = round(grown / seconds, 1) if seconds > 0 else 0.0
    return line | {"lag": sum(one["messages"] for one in after["lag"])}
