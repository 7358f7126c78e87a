"""The console's routes for what a gateway has: retained messages, sessions.

Owns: their parameters and status. Must not touch: messages, sessions (``asking`` leads there).

    GET    /retained?filter=&after=&limit=    {"messages": [...], "after": name of the last or null}
    GET    /retained/message?topic=           one message with its payload in base64; 404
    DELETE /retained/message?topic=           {"deleted": true} when the log has it; 404
    GET    /sessions?prefix=&after=&limit=    {"sessions": [...], "after": name of the last or null}
    GET    /sessions/session?client_id=       one session with all there is to know; 404
    DELETE /sessions/session?client_id=       {"ended": true} when the log has it; 404

A fault is {"error": why}: 400 for a parameter, 503 while the gateway cannot answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from motelog.console.asking import AskedGateway, RefusedError

LIMIT = 100

_Handler = Callable[[Request], Awaitable[Response]]


class GatewayRoutes:
    """``gateway`` is None until the gateway of this server has started."""

    def __init__(self) -> None:
        self.gateway: AskedGateway | None = None

    def routes(self) -> list[Route]:
        message, session = "/retained/message", "/sessions/session"
        return [
            Route("/retained", _answering(self._list), methods=["GET"]),
            Route(message, _answering(self._get), methods=["GET"]),
            Route(message, _answering(self._delete), methods=["DELETE"]),
            Route("/sessions", _answering(self._list_sessions), methods=["GET"]),
            Route(session, _answering(self._get_session), methods=["GET"]),
            Route(session, _answering(self._end_session), methods=["DELETE"]),
        ]

    @property
    def _asked(self) -> AskedGateway:
        if self.gateway is None:
            raise RefusedError("no gateway has started in this process")
        return self.gateway

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        return JSONResponse(
            await self._asked.list_retained(
                query.get("filter", "#"), query.get("after", ""), _limit(request)
            )
        )

    async def _get(self, request: Request) -> Response:
        found = await self._asked.get_retained(request.query_params.get("topic", ""))
        return _no_message() if found is None else JSONResponse(found)

    async def _delete(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        is_deleted = await self._asked.delete_retained(topic)
        return JSONResponse({"deleted": True}) if is_deleted else _no_message()

    async def _list_sessions(self, request: Request) -> Response:
        query = request.query_params
        return JSONResponse(
            await self._asked.list_sessions(
                query.get("prefix", ""), query.get("after", ""), _limit(request)
            )
        )

    async def _get_session(self, request: Request) -> Response:
        found = await self._asked.get_session(request.query_params.get("client_id", ""))
        return _no_session() if found is None else JSONResponse(found)

    async def _end_session(self, request: Request) -> Response:
        client_id = request.query_params.get("client_id", "")
        is_ended = await self._asked.end_session(client_id)
        return JSONResponse({"ended": True}) if is_ended else _no_session()


def _limit(request: Request) -> int:
    limit = request.query_params.get("limit", str(LIMIT))
    if not limit.isdecimal():
        raise RefusedError(f"limit is no number: {limit!r}", 400)
    return int(limit)


def _answering(handler: _Handler) -> _Handler:
    """Turn refusals into answers."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as exc:
            return _error(str(exc), exc.status)

    return answer


def _no_message() -> Response:
    return _error("there is no retained message of this topic name", 404)


def _no_session() -> Response:
    return _error("there is no session of this client identifier", 404)


def _error(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status_code=status)
