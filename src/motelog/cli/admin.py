"""What the commands that query a running server's admin listener share.

Owns: the option ``--admin``, requests, reading a list page by page, how times are printed.
Must not touch: what is requested.
"""

from __future__ import annotations

import http.client
import json as json_module
import os
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from motelog.cli import contexts
from motelog.cli.addresses import address
from motelog.cli.output import CliError, write_note
from motelog.cli.status import IS_IT_RUNNING, Status
from motelog.core.units import span_text

Admin = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="The server's admin listener; https://HOST:PORT if it uses TLS.",
        show_default=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.")]
ADMIN = "127.0.0.1:8080"
#: A secret is never passed as an option or a variable: other users of the machine can see options,
#: and every child process inherits variables.
TOKEN_VARIABLE = "MOTELOG_TOKEN_FILE"
_HTTPS = "https://"
ANSWER_WITHIN_S = 30.0
STATUSES = {
    400: Status.USAGE,
    401: Status.REFUSED,
    403: Status.REFUSED,
    404: Status.NOT_FOUND,
    409: Status.REFUSED,
    503: Status.REFUSED,
}


def ask(admin: str, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
    """Return the server's answer; CliError if it refuses or cannot be reached."""
    response, body = send(admin, method, f"{path}?{urlencode(query)}")
    try:
        answer: dict[str, Any] = json_module.loads(body)
    except ValueError as exc:
        raise _silent(admin, f"its answer is not JSON: {exc}") from exc
    if response.status != http.client.OK:
        status = STATUSES.get(response.status, Status.FAILED)
        is_unknown = response.status == http.client.UNAUTHORIZED
        remedy = f"{TOKEN_VARIABLE}=FILE names a file that holds the token" if is_unknown else None
        raise CliError(str(answer.get("error", response.reason)), remedy=remedy, status=status)
    return answer


def send(admin: str, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Return the response and its body, whatever the status; CliError if there is no response."""
    context = contexts.of_admin(admin)
    connection = _connection(admin, context.ca_file if context else "")
    headers = {"X-Motelog": "motelog"} | _token(context.token_file if context else "")
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    except TimeoutError as exc:
        text = f"the server's admin listener at {admin} does not answer in {ANSWER_WITHIN_S:g} s"
        raise CliError(text, status=Status.TIME) from exc
    except (OSError, http.client.HTTPException) as exc:
        why = exc.strerror if isinstance(exc, OSError) else None
        raise _silent(admin, why or f"it does not speak HTTP: {exc}") from exc
    finally:
        connection.close()


def _silent(admin: str, why: str) -> CliError:
    return CliError(
        f"the server's admin listener at {admin} does not answer: {why}",
        remedy=f"{IS_IT_RUNNING}; --admin names its admin listener with HOST:PORT",
        status=Status.UNREACHABLE,
    )


def _connection(admin: str, ca_file: str) -> http.client.HTTPConnection:
    host, port = address("--admin", admin.removeprefix(_HTTPS))
    if not admin.startswith(_HTTPS):
        return http.client.HTTPConnection(host, port, timeout=ANSWER_WITHIN_S)
    import ssl

    # Certificates are checked as Python does by default; SSL_CERT_FILE adds authorities.
    try:
        tls = ssl.create_default_context(cafile=ca_file or None)
    except OSError as exc:
        text = f"TLS cannot use {ca_file}: {exc.strerror or exc}"
        raise CliError(text, status=Status.CONFIG) from exc
    return http.client.HTTPSConnection(host, port, timeout=ANSWER_WITHIN_S, context=tls)


def _token(file: str) -> dict[str, str]:
    """Return the header with the token, from the variable's file or else from ``file``."""
    path = os.environ.get(TOKEN_VARIABLE)
    if not path:
        return {"Authorization": f"Bearer {contexts.secret_in(file)}"} if file else {}
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not a token"
        raise CliError(f"cannot read the token in {path}: {reason}", status=Status.CONFIG) from exc
    return {"Authorization": f"Bearer {text}"}


def ask_pages(
    admin: str, path: str, name: str, query: dict[str, str], *, count: int, page_count: int
) -> Generator[dict[str, Any], None, str | None]:
    """Yield up to ``count`` entries of a list, ``page_count`` per request; ``name`` is its key.

    Return the key after which the list continues, None if it is complete.
    """
    after: str | None = ""
    while after is not None and count:
        limit = str(min(count, page_count))
        page = ask(admin, "GET", path, {**query, "after": after, "limit": limit})
        yield from page[name]
        count -= len(page[name])
        after = page["after"]
    return after


def ask_list(
    admin: str, path: str, name: str, query: dict[str, str], *, count: int, page_count: int
) -> Iterator[dict[str, Any]]:
    """Do as ``ask_pages``, and print a note if --count has cut the list."""
    after = yield from ask_pages(admin, path, name, query, count=count, page_count=page_count)
    if after is not None:
        write_note("there may be more: raise --count to list them")


def time_text(ms: int | None) -> str:
    """Return a time in UTC, or - for none."""
    if ms is None:
        return "-"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def apart_text(ms: int | None) -> str:
    """Return how far a time is from now, "3 min ago" or "in 2 d 4 h", or - for none."""
    if ms is None:
        return "-"
    apart_s = ms / 1000 - time.time()
    return f"in {span_text(apart_s)}" if apart_s > 0 else f"{span_text(-apart_s)} ago"
