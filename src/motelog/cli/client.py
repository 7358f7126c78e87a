"""``motelog client``: the connected clients of a running server.

Owns: the text and JSON output. Must not touch: the gateway; it asks the server's admin listener.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin, Json, apart_text, ask, ask_list, time_text
from motelog.cli.options import commands
from motelog.cli.output import table, write, write_done, write_json, write_note

client = commands("List, trace and disconnect connected clients.")

ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client identifier.")]
PAGE = 100
PATH = "/api/v1/clients"
TRACE_PATH = f"{PATH}/trace"


@client.callback()
def group() -> None:
    """List, trace and disconnect the connected clients of a running server.

    For the sessions of clients that are not connected, see motelog session.
    """


@client.command("list", epilog="Example: motelog client list --prefix dev --count 20")
def list_clients(
    prefix: Annotated[str, typer.Option(help="Only client identifiers that begin with this.")] = "",
    count: Annotated[int, typer.Option(min=1, help="How many clients at most.")] = 1000,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """List connected clients by client identifier."""
    rows: list[tuple[str, ...]] = [("client", "user", "MQTT", "peer", "connected", "filters")]
    query = {"prefix": prefix}
    for one in ask_list(admin, PATH, "clients", query, count=count, page_count=PAGE):
        if json:
            write_json(one)
            continue
        rows.append(
            (
                one["client_id"],
                one["user"] or "-",
                one["protocol"],
                one["peer"],
                apart_text(one["since_ms"]),
                str(one["filters"]),
            )
        )
    if not json:
        write(table(rows, right=frozenset({5})) if len(rows) > 1 else "no clients")


@client.command(epilog="Example: motelog client describe dev42")
def describe(client_id: ClientId, admin: Admin = ADMIN, json: Json = False) -> None:
    """Print what was negotiated with a client, and how much is waiting for it."""
    one = ask(admin, "GET", f"{PATH}/client", {"client_id": client_id})
    if json:
        write_json(one)
        return
    session = one["session"]
    rows = [
        ("client", one["client_id"]),
        ("user", one["user"] or "-"),
        ("peer", f"{one['peer']}, MQTT {one['protocol']} over {one['listener']}"),
        ("connected", time_text(one["since_ms"])),
        ("keep alive", f"{one['keep_alive_s']} s" if one["keep_alive_s"] else "none"),
        ("in flight", f"{one['inflight']} of {one['inflight_max']}"),
        ("unread output", f"{one['output_bytes']} bytes"),
        ("largest packet", f"{one['packet_bytes_max']} bytes"),
        ("topic aliases", str(one["topic_alias_max"])),
        ("dropped", ", ".join(f"{n} {why}" for why, n in session["dropped"].items()) or "-"),
        ("filters", ", ".join(f["filter"] for f in session["filters"]) or "-"),
    ]
    write(table(rows))


@client.command(epilog="Example: motelog client trace dev42 --seconds 300")
def trace(
    client_id: ClientId,
    seconds: Annotated[
        int, typer.Option(min=1, max=600, help="Stop after this time at the latest.")
    ] = 60,
    packets: Annotated[
        int, typer.Option(min=1, max=10_000, help="Stop after this many packets.")
    ] = 1000,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """Print the packets that a client sends and receives, as they come, without payloads.

    "<" is from the client, ">" to the client. The trace stops at its limits, when the connection
    ends, and at Ctrl-C. It needs the role operate, and is recorded in the audit log.
    """
    query = {"client_id": client_id, "seconds": str(seconds), "packets": str(packets)}
    answer = ask(admin, "POST", TRACE_PATH, query)
    name = {"trace": answer["trace"]}
    after = 0
    try:
        while True:
            for one in answer["packets"]:
                if json:
                    write_json(one)
                else:
                    write(_packet_text(one))
                after = one["number"]
            if answer["over"] is not None:
                break
            answer = ask(admin, "GET", TRACE_PATH, name | {"after": str(after)})
    except KeyboardInterrupt:
        ask(admin, "DELETE", TRACE_PATH, name)
        raise
    if not json:
        write_note(f"the trace is over: {answer['over']}")


def _packet_text(one: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(one["at_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
    words = [at[11:23], "<" if one["direction"] == "in" else ">", one["type"]]
    if one["packet_id"] is not None:
        words.append(f"id={one['packet_id']}")
    if one["topic"] is not None:
        words.append(f"topic={one['topic']!r}" if one["topic"] else f"alias={one['topic_alias']}")
    if one["qos"] is not None:
        words.append(f"qos={one['qos']}")
    words += [flag for flag in ("retain", "dup") if one[flag]]
    words += [f"filter={name!r}" for name in one["filters"]]
    words += [f"code=0x{code:02x}" for code in one["reason_codes"]]
    words.append(f"bytes={one['packet_bytes']}")
    return " ".join(words)


@client.command(epilog="Example: motelog client kick dev42")
def kick(client_id: ClientId, admin: Admin = ADMIN, json: Json = False) -> None:
    """Disconnect a client; its session stays, and it may connect again.

    An MQTT 5 client receives reason code 0x98, administrative action.
    """
    ask(admin, "DELETE", f"{PATH}/client", {"client_id": client_id})
    write_done({"kicked": client_id}, f"kicked {client_id}", json=json)
