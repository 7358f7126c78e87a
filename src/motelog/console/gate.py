"""The gate in front of everything that the console serves: checks host, origin and token.

Owns: the checks of Host and of requests that change something, headers of every answer; Caller and
Role. Must not touch: what is requested, the tokens file (``tokens``).

A foreign web page, in the browser of a user who can reach this server, can
- resolve its own name to this server (DNS rebinding): so Host must be an address, localhost, or a
  name that the configuration lists; an address cannot be rebound. Health is reported under any
  name, without the reasons, since the probes of balancers send no Host or another one.
- make the browser send a request without reading the answer (CSRF): so a request that changes
  something needs a header that browsers do not let foreign pages send without permission. Origin
  and Sec-Fetch-Site are checked as well.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from motelog.console.asking import RefusedError
from motelog.core.limited_log import LimitedLog

logger = logging.getLogger(__name__)

#: The header of a request that changes something, with any value.
CHANGE_HEADER: Final = "X-Motelog"
COOKIE: Final = "motelog"
#: The name of the caller if there are no tokens.
EVERYBODY: Final = "everybody"
NO_TOKEN: Final = "this request needs a token: Authorization: Bearer TOKEN"
NOT_OURS: Final = (
    "the Host header is neither an address nor localhost; list further names of this server in"
    " [admin] hosts in the configuration"
)
FOREIGN: Final = "a page of another site may not change anything"
_HOST: Final = re.compile(r"(?:(?P<host>[^][:]+)|\[(?P<ipv6>[0-9a-f:.]+)\])(?::\d{1,5})?")
_READING: Final = frozenset({"GET", "HEAD"})
LIVE: Final = "/health/live"
READY: Final = "/health/ready"

#: The headers of an answer unless it sets others.
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers send "Origin: null" for our own forms too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Role(IntEnum):
    """What a caller may do; each role includes the lower ones."""

    NOBODY = 0
    VIEW = 1
    OPERATE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: the name of its token, and its address."""

    name: str
    role: Role
    host: str

    def require(self, role: Role) -> None:
        """Raise RefusedError unless the caller has the role."""
        if self.role is Role.NOBODY:
            raise RefusedError(NO_TOKEN, 401)
        if self.role < role:
            text = f"the token {self.name} has the role {self.role.name.lower()}, this needs"
            raise RefusedError(f"{text} {role.name.lower()}", 403)


class Named(Protocol):
    """A token."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...


class Names(Protocol):
    """Looks tokens up; ``tokens.Tokens`` implements it."""

    def find(self, text: str) -> Named | None: ...

    def find_login(self, cookie: str) -> Named | None: ...


class Gate:
    """The ASGI application in front of ``app``; ``hosts`` are further names of this server.

    Without ``tokens``, every caller may do everything.
    """

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...], tokens: Names | None) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._tokens = tokens
        self._log = LimitedLog(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        refused = self._refusal(request)
        if refused is not None:
            await refused(scope, receive, send_safe)
            return
        known = self._names_us(request)
        scope["motelog.caller"] = self._caller(request) if known else _anonymous(request)
        await self._app(scope, receive, send_safe)

    def _caller(self, request: Request) -> Caller:
        host = _peer(request)
        if self._tokens is None:
            return Caller(EVERYBODY, Role.ADMIN, host)
        shown = _bearer(request)
        if shown is not None:
            token = self._tokens.find(shown)
            if token is None:
                self._log.warning(
                    "a request with an unknown token is refused from=%s path=%r",
                    host,
                    request.url.path,
                )
        else:
            token = self._tokens.find_login(cookie_of(request))
        if token is None:
            return _anonymous(request)
        return Caller(token.name, token.role, host)

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request with a wrong Host or from a foreign page, else None."""
        headers = request.headers
        if request.method in _READING and request.url.path in (LIVE, READY):
            return None
        if not self._names_us(request):
            return error(NOT_OURS, 421)
        if request.method in _READING:
            return None
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers["host"]:
            return error(FOREIGN, 403)
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return error(FOREIGN, 403)
        return None

    def _names_us(self, request: Request) -> bool:
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and self._is_ours(hosts[0])

    def _is_ours(self, text: str) -> bool:
        found = _HOST.fullmatch(text.lower())
        if found is None:
            return False
        host = found["host"] or found["ipv6"]
        if host == "localhost" or host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _anonymous(request: Request) -> Caller:
    return Caller("", Role.NOBODY, _peer(request))


def require_header(request: Request) -> None:
    """Raise RefusedError if a foreign page could have sent this request for a change."""
    if CHANGE_HEADER not in request.headers and _bearer(request) is None:
        text = f"a request that changes something needs the header {CHANGE_HEADER}, or a token"
        raise RefusedError(text, 403)


def cookie_of(request: Request) -> str:
    """Return the login cookie of a browser, "" if there is none."""
    return request.cookies.get(COOKIE, "")


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that has passed the gate."""
    caller: Caller = request.scope["motelog.caller"]
    return caller


def error(why: str, status: int) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="motelog"'} if status == 401 else None
    return JSONResponse({"error": why}, status_code=status, headers=headers)
