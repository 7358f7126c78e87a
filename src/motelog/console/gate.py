"""The gate before everything that the console serves: for whom a request is, and who sends it.

Owns: the check of Host, of what changes something, headers that every answer has; Caller and Role.
Must not touch: what is asked for, tokens' file (``tokens``).

A page from elsewhere, in the browser of somebody who may reach this server, can

- have its own name lead here (DNS rebinding): Host must be an address, localhost, or a name that
  the configuration lists; an address cannot be made to lead elsewhere,
- have the browser send a request without reading the answer (CSRF): what changes something needs a
  header that browsers let no other page send unasked. What the browser says of where a request
  comes from (Origin, Sec-Fetch-Site) is looked at as well.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from motelog.console.asking import RefusedError

#: The header of a request that changes something, with any value.
CHANGE_HEADER: Final = "X-Motelog"
_HOST: Final = re.compile(r"(?:(?P<host>[^][:]+)|\[(?P<ipv6>[0-9a-f:.]+)\])(?::\d{1,5})?")
_READING: Final = frozenset({"GET", "HEAD"})

#: What an answer has that says nothing else.
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Role(IntEnum):
    """What somebody may do; each may do what those below it may."""

    NOBODY = 0
    VIEW = 1
    OPERATE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of its token, and the address that it comes from."""

    name: str
    role: Role
    host: str

    def require(self, role: Role) -> None:
        """Raise RefusedError unless the caller has the role."""
        if self.role is Role.NOBODY:
            raise RefusedError("a token is needed: Authorization: Bearer TOKEN", 401)
        if self.role < role:
            text = f"the token {self.name} may {self.role.name.lower()}, this needs"
            raise RefusedError(f"{text} {role.name.lower()}", 403)


class Gate:
    """The ASGI application before ``app``; ``hosts`` are further names of this server."""

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...] = ()) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_safe)
            return
        host = scope["client"][0] if scope.get("client") else ""
        scope["motelog.caller"] = Caller("everybody", Role.ADMIN, host)
        await self._app(scope, receive, send_safe)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not for us, or that a foreign page may send."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            text = (
                "the header Host names neither an address nor localhost; [admin] hosts in the"
                " configuration lists further names of this server"
            )
            return error(text, 421)
        if scope["method"] in _READING:
            return None
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            return error("a page from elsewhere may change nothing", 403)
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return error("a page from elsewhere may change nothing", 403)
        if CHANGE_HEADER not in headers and "authorization" not in headers:
            return error(f"a request that changes something needs the header {CHANGE_HEADER}", 403)
        return None

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


def caller_of(request: Request) -> Caller:
    """Return who sends a request that has come through the gate."""
    caller: Caller = request.scope["motelog.caller"]
    return caller


def error(why: str, status: int) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="motelog"'} if status == 401 else None
    return JSONResponse({"error": why}, status_code=status, headers=headers)
