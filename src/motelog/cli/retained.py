"""``motelog retained``: show and delete the retained messages of a running server.

Owns: the text and JSON output. Must not touch: the log; it asks the server's admin listener.
"""

from __future__ import annotations

import base64
from typing import Annotated

import typer

from motelog.cli.admin import ADMIN, Admin, Json, apart_text, ask, ask_list
from motelog.cli.options import commands
from motelog.cli.output import table, write, write_bytes, write_done, write_json

retained = commands("Show and delete retained messages.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
PAGE = 500


@retained.callback()
def group() -> None:
    """Show and delete the retained messages of a running server."""


@retained.command("list", epilog="Example: motelog retained list --filter 'conf/#'")
def list_messages(
    topic_filter: Annotated[str, typer.Option("--filter", "-t", help="Topic filter.")] = "#",
    count: Annotated[int, typer.Option(min=1, help="At most this many messages.")] = 1000,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """List messages by topic name."""
    rows: list[tuple[str, ...]] = [("topic", "bytes", "qos", "client", "stored", "expires")]
    query = {"filter": topic_filter}
    for message in ask_list(
        admin, "/api/v1/retained", "messages", query, count=count, page_count=PAGE
    ):
        if json:
            write_json(message)
            continue
        rows.append(
            (
                message["topic"],
                str(message["payload_bytes"]),
                str(message["qos"]),
                message["client_id"],
                apart_text(message["stored_ms"]),
                apart_text(message["expires_ms"]),
            )
        )
    if not json:
        write(table(rows, right=frozenset({1, 2})) if len(rows) > 1 else "no retained messages")


@retained.command(epilog="Example: motelog retained get conf/dev42")
def get(topic: Topic, admin: Admin = ADMIN, json: Json = False) -> None:
    """Print the payload of one message as it is, and a newline; --json prints it in base64."""
    message = ask(admin, "GET", "/api/v1/retained/message", {"topic": topic})
    if json:
        write_json(message)
    else:
        write_bytes(base64.b64decode(message["payload"]) + b"\n")


@retained.command(epilog="Example: motelog retained delete conf/dev42")
def delete(topic: Topic, admin: Admin = ADMIN, json: Json = False) -> None:
    """Delete one message. Nothing is published, so subscribers do not notice."""
    ask(admin, "DELETE", "/api/v1/retained/message", {"topic": topic})
    write_done({"deleted": topic}, f"deleted {topic}", json=json)
