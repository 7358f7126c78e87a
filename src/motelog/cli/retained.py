"""``motelog retained``: look at the retained messages of a running server, and delete them.

Owns: the words and the JSON. Must not touch: the log; the server's admin listener is asked.
"""

from __future__ import annotations

import base64
import http.client
import json as json_module
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from motelog.cli.addresses import address
from motelog.cli.output import CliError, table, write, write_json

retained = typer.Typer(
    help="Look at retained messages and delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

Admin = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The server's admin listener.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
ADMIN = "127.0.0.1:8080"
ANSWER_WITHIN_S = 30.0
PAGE = 500


@retained.callback()
def group() -> None:
    """Look at the retained messages of a running server, and delete them."""


@retained.command("list")
def list_messages(
    topic_filter: Annotated[str, typer.Option("--filter", "-t", help="Topic filter.")] = "#",
    count: Annotated[int, typer.Option(min=1, help="How many messages at most.")] = 1000,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """List messages by topic name."""
    rows: list[tuple[str, ...]] = [("topic", "bytes", "qos", "client", "stored", "expires")]
    for message in _messages(admin, topic_filter, count):
        if json:
            write_json(message)
            continue
        rows.append(
            (
                message["topic"],
                str(message["payload_bytes"]),
                str(message["qos"]),
                message["client_id"],
                _time(message["stored_ms"]),
                _time(message["expires_ms"]),
            )
        )
    if not json:
        write(table(rows, right=frozenset({1, 2})) if len(rows) > 1 else "no retained messages")


@retained.command()
def get(topic: Topic, admin: Admin = ADMIN, json: Json = False) -> None:
    """Print the payload of one message."""
    message = _ask(admin, "GET", "/retained/message", {"topic": topic})
    if json:
        write_json(message)
    else:
        write(base64.b64decode(message["payload"]).decode(errors="backslashreplace"))


@retained.command()
def delete(topic: Topic, admin: Admin = ADMIN, json: Json = False) -> None:
    """Delete one message. Nothing is published: subscribers are not told."""
    _ask(admin, "DELETE", "/retained/message", {"topic": topic})
    if json:
        write_json({"deleted": topic})
    else:
        write(f"deleted {topic}")


def _messages(admin: str, topic_filter: str, count: int) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None and count:
        query = {"filter": topic_filter, "after": after, "limit": str(min(count, PAGE))}
        page = _ask(admin, "GET", "/retained", query)
        yield from page["messages"]
        count -= len(page["messages"])
        after = page["after"]


def _ask(admin: str, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
    """Return what the server answers; CliError if it refuses or cannot be reached."""
    host, port = address("--admin", admin)
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request(method, f"{path}?{urlencode(query)}")
        response = connection.getresponse()
        answer: dict[str, Any] = json_module.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise CliError(
            f"the server's admin listener at {admin} does not answer: {exc}",
            remedy="start a server, or name its admin listener with --admin",
        ) from exc
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise CliError(str(answer.get("error", response.reason)))
    return answer


def _time(ms: int | None) -> str:
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
