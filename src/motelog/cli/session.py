"""``motelog session``: show and end the sessions of a running server.

Owns: the text and JSON output. Must not touch: the log; it asks the server's admin listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin, Json, apart_text, ask, ask_list, time_text
from motelog.cli.native import Servers
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, agreed, table, write, write_done, write_json
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status
from motelog.core.units import span_text

session = commands("Show and end sessions.")

ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client identifier.")]
PAGE = 100
_EXPIRY_NEVER = 0xFFFFFFFF


@session.callback()
def group() -> None:
    """Show and end the sessions of a running server."""


@session.command("list", epilog="Example: motelog session list --json")
def list_sessions(
    prefix: Annotated[str, typer.Option(help="Only client identifiers that begin with this.")] = "",
    count: Annotated[int, typer.Option(min=1, help="At most this many sessions.")] = 1000,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """List sessions by client identifier, whether connected or not."""
    rows: list[tuple[str, ...]] = [
        ("client", "connected", "since", "filters", "in flight", "expires")
    ]
    query = {"prefix": prefix}
    for one in ask_list(admin, "/api/v1/sessions", "sessions", query, count=count, page_count=PAGE):
        if json:
            write_json(one)
            continue
        rows.append(
            (
                one["client_id"],
                _yes(one["is_connected"]),
                apart_text(one["since_ms"]),
                str(one["filters"]),
                str(one["inflight"]),
                _expiry(one, apart_text),
            )
        )
    if not json:
        write(table(rows, right=frozenset({3, 4})) if len(rows) > 1 else "no sessions")


@session.command(epilog="Example: motelog session describe dev42")
def describe(client_id: ClientId, admin: Admin = ADMIN, json: Json = False) -> None:
    """Print everything that is known about one session."""
    one = ask(admin, "GET", "/api/v1/sessions/session", {"client_id": client_id})
    if json:
        write_json(one)
        return
    will = one["will"]
    rows = [
        ("client", one["client_id"]),
        ("connected", f"{_yes(one['is_connected'])}, since {time_text(one['since_ms'])}"),
        ("peer", one["peer"] or "-"),
        ("user", one["user"] or "-"),
        ("expires", _expiry(one)),
        ("in flight", str(len(one["inflight"]))),
        ("received, not released", str(len(one["received"]))),
        ("dropped", ", ".join(f"{n} {why}" for why, n in one["dropped"].items()) or "-"),
        ("will", f"{will['topic']}, due {time_text(one['will_due_ms'])}" if will else "-"),
    ]
    write(table(rows))
    _write_table(
        [("filter", "qos", "options", "identifier")],
        [
            (f["filter"], str(f["qos"]), _options(f), str(f["identifier"] or "-"))
            for f in one["filters"]
        ],
    )
    _write_table(
        [("queue", "cursor", "messages waiting")],
        [
            (name, str(queue["cursor"]), _count(queue["messages_waiting"]))
            for name, queue in one["queues"].items()
        ],
    )


@session.command(epilog="Example: motelog session end dev42")
def end(client_id: ClientId, admin: Admin = ADMIN, json: Json = False) -> None:
    """End one session; its client is disconnected and its will is published."""
    ask(admin, "DELETE", "/api/v1/sessions/session", {"client_id": client_id})
    write_done({"ended": client_id}, f"ended {client_id}", json=json)


@session.command(epilog="Example: motelog session purge 'sensor-*' --away 30d --dry-run")
def purge(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="Client identifiers; * and ? as in a shell."),
    ],
    away: Annotated[
        str | None,
        typer.Option(
            metavar="AGO", help="Only clients that disconnected at least this long ago: 12h, 30d."
        ),
    ] = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="End nothing; print which sessions would be ended.")
    ] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """End the sessions of clients that are not connected, and drop the messages that wait for them.

    Their wills are published, as always when a session ends. A client that is connected, or that
    reconnects meanwhile, keeps its session.
    """
    from motelog.core.past_times import before_now

    query = {"pattern": pattern}
    if away is not None:
        left_before_ms = before_now(away)
        if left_before_ms is None:
            raise CliError(f"--away {away!r}: use 90s, 15m, 12h or 30d", status=Status.USAGE)
        query["left_before_ms"] = str(left_before_ms)
    if not is_dry_run and not is_agreed:
        count = sum(len(page["ended"]) for page in _purge(admin, query | {"dry_run": "true"}))
        agreed(count == 0, f"end {count} sessions")
    ended = kept = 0
    for page in _purge(admin, query | {"dry_run": "true"} if is_dry_run else query):
        ended += len(page["ended"])
        kept += len(page["kept"])
        for client_id in page["ended"]:
            if json:
                write_json({"client_id": client_id, "ended": not is_dry_run})
            elif is_dry_run:
                write(ascii(client_id)[1:-1])
    if not json:
        write(f"{ended} sessions would be ended" if is_dry_run else f"ended {ended} sessions")
        if kept:
            write(f"kept {kept} that are now in use")


def _purge(admin: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield each page of a purge."""
    after: str | None = ""
    while after is not None:
        page = ask(admin, "POST", "/api/v1/sessions/purge", query | {"after": after})
        yield page
        after = page["after"]


def _write_table(head: list[tuple[str, ...]], rows: list[tuple[str, ...]]) -> None:
    if rows:
        write()
        write(table(head + rows))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _count(value: int | None) -> str:
    return "not known" if value is None else str(value)


def _options(found: dict[str, Any]) -> str:
    names = [name for name in ("no_local", "retain_as_published") if found[name]]
    return " ".join(names) or "-"


def _expiry(one: dict[str, Any], at: Callable[[int | None], str] = time_text) -> str:
    """Return when a session expires; ``at`` formats a time."""
    if one["expiry_s"] == _EXPIRY_NEVER:
        return "never"
    if one["expires_ms"] is not None:
        return at(one["expires_ms"])
    expiry_s = one["expiry_s"]
    return f"{span_text(expiry_s)} after disconnecting" if expiry_s else "on disconnecting"


@session.command("move-home", epilog="Example: motelog session move-home broker-b --yes")
@takes_options
def move_home(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the new home.")],
    loses: Annotated[
        bool,
        typer.Option(
            "--lose", help="Do not read the old home: all sessions and retained messages are lost."
        ),
    ] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Move the sessions and retained messages of all gateways to another broker.

    For gateways whose brokers run elsewhere. Stop all gateways first. The old home counts until the
    new one has everything.
    """
    from motelog.gateway.operator import moving

    what = "end all sessions and delete all retained messages" if loses else "move all sessions"
    agreed(is_agreed, f"{what}, and make {broker} the home of gateways")
    moved = run_interruptibly(partial(moving.move_home, broker, loses=loses, **servers.options))
    text = f"{moved.sessions} sessions and {moved.retained} retained messages are at {broker}"
    write_done(
        {
            "before": moved.before,
            "broker": moved.broker,
            "sessions": moved.sessions,
            "retained": moved.retained,
        },
        f"{text}; they were at {moved.before}" if moved.before else text,
        json=json,
    )
