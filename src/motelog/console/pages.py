"""The console's pages: the API's answers as HTML, and forms for its changes.

Owns: the pages, formatting values for people, logging in with a browser.
Must not touch: where answers come from (``api``), authentication (``gate``).
Invariants: a page is complete without JavaScript; its script only refreshes it. Nothing is loaded
from other hosts, and a Content-Security-Policy says so. The templates escape every name. A form
returns a key that no foreign page can know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlencode

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from motelog.console.api import Api, Done, query_of
from motelog.console.asking import RefusedError
from motelog.console.configuration import ConfigChanges
from motelog.console.gate import COOKIE, Role, caller_of, cookie_of
from motelog.console.health import Health
from motelog.console.status import Status
from motelog.console.tokens import LOGIN_S, FormKeys, Tokens
from motelog.core.units import span_text
from motelog.gateway.operator.answers import Trace

_HERE: Final = Path(__file__).parent
FORM_BYTES_MAX: Final = 65_536
#: The bytes of a payload that a page shows.
SHOWN_BYTES_MAX: Final = 16_384
_BRIEF_CHARACTERS: Final = 60
_EXPIRY_NEVER: Final = 0xFFFFFFFF
_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript"}

#: Rates on the overview.
_RATES: Final = {
    "mqtt_in": "MQTT in",
    "mqtt_out": "MQTT out",
    "mqtt_refused": "MQTT refused",
    "queue_in": "queues in",
    "queue_out": "queues out",
}
#: Latencies on the overview.
_LATENCIES: Final = {
    "acknowledge": "PUBLISH to PUBACK",
    "deliver": "stored to delivered",
    "sync": "sync of the log",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its template shows the answer of the endpoint of this name."""

    path: str
    endpoint: str
    template: str
    #: Its name in the navigation; "" for a page that others link to.
    name: str = ""
    #: The page of the navigation to which it belongs.
    below: str = ""


PAGES: Final = (
    Page("/clients", "list_clients", "clients.html", "Clients"),
    Page("/clients/client", "get_client", "client.html", below="/clients"),
    Page("/clients/trace", "get_trace", "trace.html", below="/clients"),
    Page("/sessions", "list_sessions", "sessions.html", "Sessions"),
    Page("/sessions/session", "get_session", "session.html", below="/sessions"),
    Page("/topics", "list_topics", "topics.html", "Topics"),
    Page("/topics/topic", "get_topic", "topic.html", below="/topics"),
    Page("/mqtt-topics", "mqtt_tree", "mqtt_topics.html", "MQTT topics"),
    Page("/groups", "list_groups", "groups.html", "Groups"),
    Page("/groups/group", "get_group", "group.html", below="/groups"),
    Page("/groups/reset", "preview_reset", "reset.html", below="/groups"),
    Page("/messages", "list_messages", "messages.html", "Messages"),
    Page("/messages/path", "message_path", "message_path.html", below="/messages"),
    Page("/retained", "list_retained", "retained.html", "Retained"),
    Page("/retained/message", "get_retained", "retained_message.html", below="/retained"),
    Page("/dead-letters", "list_dead_letters", "dead_letters.html", "Dead letters"),
    Page("/nodes", "list_nodes", "nodes.html", "Nodes"),
    Page("/config", "get_config", "configuration.html", "Configuration"),
    Page("/config/changes", "get_config_changes", "configuration_changes.html", below="/config"),
)

#: The same text as `motelog config set` prints.
NOTHING_CHANGED: Final = "nothing was changed: the configuration cannot be used"

#: The message after a change, and the page that is shown then.
CHANGED: Final = {
    "kick_client": ("The client is disconnected.", "/clients"),
    "start_trace": ("The client is being traced.", "/clients/trace"),
    "end_trace": ("The trace has ended.", "/clients"),
    "end_session": ("The session has ended.", "/sessions"),
    "delete_retained": ("The retained message is deleted.", "/retained"),
    "reset_group": ("The group's offsets are reset.", "/groups"),
    "reload_config": ("The configuration was reloaded.", "/config"),
    "set_config_key": ("The key is set.", "/config"),
    "unset_config_key": ("The key is unset.", "/config"),
    "resend_dead_letters": ("Dead letters were resent.", "/dead-letters"),
}


class Pages:
    """The routes of the pages whose endpoints ``api`` has; without ``tokens`` there is no login."""

    def __init__(self, api: Api, health: Health, status: Status, tokens: Tokens | None) -> None:
        self._api = api
        self._health = health
        self._status = status
        self._tokens = tokens
        self._keys = FormKeys()
        self._templates = _templates()
        self._pages = [one for one in PAGES if api.has(one.endpoint)]
        self._list = [("/", "Overview"), *((one.path, one.name) for one in self._pages if one.name)]

    def routes(self) -> list[Route]:
        return [
            Route("/", self._guarded(self._overview, "/")),
            *(Route(one.path, self._guarded(self._page(one), one.path)) for one in self._pages),
            Route("/do/{name}", self._guarded(self._change, "/"), methods=["POST"]),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._guarded(self._logout, "/"), methods=["POST"]),
            *(Route(f"/static/{name}", _static(name, kind)) for name, kind in _STATIC.items()),
        ]

    def _guarded(self, handler: _Handler, back: str) -> _Handler:
        """Send users who are not logged in to the login; show refusals as a page."""

        async def answer(request: Request) -> Response:
            if caller_of(request).role < Role.VIEW:
                return RedirectResponse("/login", 303)
            try:
                return await handler(request)
            except RefusedError as exc:
                titles = {403: "Not allowed", 404: "Not found"}
                title = titles.get(exc.status, "Not possible")
                _, then = CHANGED.get(request.path_params.get("name", ""), ("", back))
                return self._render(
                    request, "refused.html", exc.status, title=title, why=str(exc), back=then
                )

        return answer

    def _render(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> Response:
        caller = caller_of(request)
        is_known = caller.role >= Role.VIEW
        text = self._templates.get_template(template).render(
            **{"here": "", "is_live": False, "done": "", "why": "", **values},
            caller=caller,
            health={"faults": self._health.faults()} if is_known else None,
            pages=self._list,
            can_log_out=is_known and self._tokens is not None,
            form_key=self._keys.of(cookie_of(request)),
        )
        return HTMLResponse(text, status, {"Content-Security-Policy": _POLICY})

    async def _overview(self, request: Request) -> Response:
        return self._render(
            request,
            "overview.html",
            here="/",
            is_live=True,
            shown=self._status.read(),
            rates=self._status.rates(),
            names=_RATES,
            latencies=self._status.latencies(),
            latency_names=_LATENCIES,
        )

    def _page(self, page: Page) -> _Handler:
        async def show(request: Request) -> Response:
            # An empty field of a form counts as not given.
            values = {name: text for name, text in request.query_params.items() if text}
            done = CHANGED.get(values.pop("done", ""), ("", ""))[0]
            endpoint = self._api.endpoint(page.endpoint)
            query = query_of(endpoint, values)
            answer = await self._api.do(endpoint, caller_of(request), query)
            return self._render(
                request,
                page.template,
                here=page.below or page.path,
                is_live=True,
                answer=answer,
                query=msgspec.structs.asdict(query),
                done=done,
            )

        return show

    # --- changes -------------------------------------------------------------------------

    async def _change(self, request: Request) -> Response:
        values = await self._form(request)
        name = request.path_params["name"]
        if name not in CHANGED or not self._api.has(name):
            raise RefusedError("there is no such action", 404)
        text, then = CHANGED[name]
        endpoint = self._api.endpoint(name)
        answer = await self._api.do(endpoint, caller_of(request), query_of(endpoint, values))
        if isinstance(answer, Done):
            return RedirectResponse(f"{then}?{urlencode({'done': name})}", 303)
        if isinstance(answer, Trace):
            return RedirectResponse(f"{then}?{urlencode({'trace': answer.trace})}", 303)
        template = "changed.html"
        if isinstance(answer, ConfigChanges):
            template = "configuration_changed.html"
            if answer.faults:
                raise RefusedError("\n".join((NOTHING_CHANGED, *answer.faults)), 409)
        return self._render(request, template, done=text, answer=answer, back=then)

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form; RefusedError unless it has the key of one of our pages."""
        values = await _fields(request)
        if not self._keys.fits(values.pop("form_key", ""), cookie_of(request)):
            raise RefusedError("the page with this form is too old: reload it", 403)
        return values

    # --- logging in ----------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        if self._tokens is None:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return self._render(request, "login.html")
        try:
            token = (await _fields(request)).get("token", "")
        except RefusedError as exc:
            return self._render(request, "login.html", exc.status, why=str(exc))
        cookie = self._tokens.log_in(token.strip())
        if cookie is None:
            return self._render(request, "login.html", 401, why="This token is not valid.")
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=LOGIN_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def _logout(self, request: Request) -> Response:
        await self._form(request)
        if self._tokens is not None:
            self._tokens.log_out(cookie_of(request))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; RefusedError if it is too large or malformed."""
    body = b""
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise RefusedError("the form is too large", 413)
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        raise RefusedError("the request is not a form", 400) from None
    return {name: texts[-1] for name, texts in found.items()}


@cache
def _templates() -> jinja2.Environment:
    """Return the pages' templates, which are compiled once for a process."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= _FILTERS
    return found


def _static(name: str, kind: str) -> _Handler:
    content = (_HERE / "static" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return answer


# --- how values are written --------------------------------------------------------------


def _visible(text: str) -> str:
    """Return a name with invisible characters escaped, such as changes of text direction."""
    if not text:
        return "(empty)"
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def _clock_time(ms: int) -> str:
    """Return the time of day in UTC, with milliseconds."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S.%f}"[:-3]


def _time(ms: int | None) -> str:
    """Return a time in UTC, and how far it is from now."""
    if ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError):
        return str(ms)
    apart_s = (datetime.now(UTC) - at).total_seconds()
    distance = f"{span_text(apart_s)} ago" if apart_s >= 0 else f"in {span_text(-apart_s)}"
    return f"{at:%Y-%m-%d %H:%M:%S} ({distance})"


def _size(count: int) -> str:
    for unit, worth in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= worth:
            return f"{count / worth:.1f} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"


def _count(number: float) -> str:
    whole = isinstance(number, int) or number >= 10 or number == math.floor(number)
    return f"{number:,.0f}" if whole else f"{number:,.1f}"


def _latency(seconds: float | None) -> str:
    """Return a latency percentile, a bucket bound of a histogram, as text."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "1 ms"  # from a histogram in whole milliseconds
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _rate(number: float) -> str:
    return _count(number) if number >= 10 else f"{number:.3g}"


def _expiry(seconds: int) -> str:
    if seconds == _EXPIRY_NEVER:
        return "never"
    return f"{span_text(seconds)} after the connection ends" if seconds else "with the connection"


def _form(payload: bytes) -> str:
    """Return the form in which a payload is shown: JSON, text or hex."""
    return _read_payload(payload)[0]


def _shown(payload: bytes) -> str:
    """Return a payload in its most readable form, cut if it is long."""
    return _read_payload(payload)[1]


def _brief(payload: bytes) -> str:
    """Return the beginning of a payload as one line."""
    try:
        return _visible(payload.decode()[:_BRIEF_CHARACTERS])
    except UnicodeDecodeError as exc:
        if exc.start < _BRIEF_CHARACTERS:
            return payload[:20].hex(" ")
        return _visible(payload[: exc.start].decode()[:_BRIEF_CHARACTERS])


def _read_payload(payload: bytes) -> tuple[str, str]:
    cut = payload[:SHOWN_BYTES_MAX]
    more = "\n..." if len(payload) > len(cut) else ""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "hex", _hex(cut) + more
    if text[:1] in ("{", "[") and not more:
        try:
            return "JSON", _visible_json(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
        except (ValueError, RecursionError):
            pass
    if all(c.isprintable() or c in "\t\r\n" for c in text):
        return "text", text[:SHOWN_BYTES_MAX] + more
    return "hex", _hex(cut) + more


def _visible_json(text: str) -> str:
    """Return indented JSON with invisible characters as JSON escapes."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _as_value(value: Any) -> str:
    """Return a configuration value as JSON."""
    return msgspec.json.encode(value).decode()


def _as_json(answer: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def _hex(data: bytes) -> str:
    lines = []
    for begin in range(0, len(data), 16):
        row = data[begin : begin + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{begin:06x}  {row.hex(' '):47}  {text}")
    return "\n".join(lines)


def _without(query: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in query.items() if key != name}


def _urlencode(query: Mapping[str, Any]) -> str:
    return urlencode({key: value for key, value in query.items() if value not in ("", None)})


_FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "visible": _visible,
    "time": _time,
    "clock_time": _clock_time,
    "span": span_text,
    "size": _size,
    "count": _count,
    "rate": _rate,
    "latency": _latency,
    "expiry": _expiry,
    "form": _form,
    "shown": _shown,
    "brief": _brief,
    "as_json": _as_json,
    "as_value": _as_value,
    "without": _without,
    "urlencode": _urlencode,
}
