"""``motelog status``: the state of a running server at a glance.

Owns: the output. Must not touch: what is counted; it asks the server's admin listener.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin, ask
from motelog.cli.output import stop, table, write, write_json
from motelog.cli.status import Status

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def server_status(
    admin: Admin = ADMIN,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show whether a running server is ready, and what it holds.

    The exit status is 1 if it is not ready.
    """
    found = ask(admin, "GET", "/status", {})
    if json:
        write_json(found)
        stop(Status.DONE if found["ready"] else Status.FAILED)
    write(f"motelog {found['version']}, up for {span(found['up_s'])}")
    if found["ready"]:
        write("ready")
    else:
        write("not ready:")
        for fault in found["faults"].values():
            write(f"  {fault}")
    for warning in found["warnings"].values():
        write(f"warning: {warning}")
    rows = [*found["addresses"].items(), *_counts(found)]
    if found["data"]:
        rows.append(("data", found["data"]))
    if found["disk"]:
        rows.append(("disk", _disk(found["disk"])))
    if found["copies"]:
        rows.append(("copies", _copies(found["copies"])))
    write()
    write(table([(name, str(value)) for name, value in rows]))
    if found["lag"]:
        lags = [
            (one["group"], one["topic"], str(one["messages"]), _seconds(one))
            for one in found["lag"]
        ]
        write()
        write(table([("group", "topic", "waiting", "behind"), *lags], right=frozenset({2, 3})))
    stop(Status.DONE if found["ready"] else Status.FAILED)


def span(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    for worth, name in _UNITS:
        if seconds >= 2 * worth:
            return f"{seconds / worth:.0f} {name}"
    return f"{seconds:.0f} s"


def _counts(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), f"{value:,}")
        for part in ("now", "totals")
        for name, value in found[part].items()
    ]


def _disk(disk: dict[str, Any]) -> str:
    gib = 1024**3
    text = f"{disk['free_bytes'] / gib:.1f} of {disk['total_bytes'] / gib:.1f} GiB free"
    left_s = disk["retention_left_s"]
    return (
        f"{text}, enough for the full retention"
        if left_s is None
        else f"{text}, {span(left_s)} left"
    )


def _copies(copies: dict[str, Any]) -> str:
    count, behind = copies["slaves"], copies["behind_bytes"]
    if count is None:
        return f"slave, {behind:,} bytes behind"
    if not count:
        return "master without slaves"
    return f"master, {count} slave{'s' if count > 1 else ''}, the nearest {behind:,} bytes behind"


def _seconds(one: dict[str, Any]) -> str:
    return span(one["seconds"]) if "seconds" in one else "-"
