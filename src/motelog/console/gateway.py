"""The console's routes for what a gateway has: retained messages, sessions.

Owns: their parameters and JSON. Must not touch: messages, sessions (``gateway.operator`` does).

    GET    /retained?filter=&after=&limit=    {"messages": [...], "after": name of the last or null}
    GET    /retained/message?topic=           one message with its payload in base64; 404
    DELETE /retained/message?topic=           {"deleted": true} when the log has it; 404
    GET    /sessions?prefix=&after=&limit=    {"sessions": [...], "after": name of the last or null}
    GET    /sessions/session?client_id=       one session with all there is to know; 404
    DELETE /sessions/session?client_id=       {"ended": true} when the log has it; 404

A fault is {"error": why}: 400 for a parameter, 503 while the gateway cannot answer.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import partial, wraps

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from motelog.core.errors import MotelogError
from motelog.gateway.errors import SessionInUseError, TopicFilterError
from motelog.gateway.operator import Operator
from motelog.gateway.state.view import ViewError

ANSWER_WITHIN_S = 10.0
LIMIT = 100

_Handler = Callable[[Request], Awaitable[Response]]


class GatewayRoutes:
    """``operator`` is None until the gateway of this process has started."""

    def __init__(self) -> None:
        self.operator: Operator | None = None

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
    def _gateway(self) -> Operator:
        if self.operator is None:
            raise ViewError("no gateway has started in this process")
        return self.operator

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        page = self._gateway.list_retained(
            query.get("filter", "#"), query.get("after", ""), _limit(request)
        )
        return JSONResponse(page._asdict())

    async def _get(self, request: Request) -> Response:
        found = self._gateway.get_retained(request.query_params.get("topic", ""))
        if found is None:
            return _error("there is no retained message of this topic name", 404)
        message, payload = found
        return JSONResponse({**message, "payload": base64.b64encode(payload).decode()})

    async def _delete(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        if not await _settled(partial(self._gateway.delete_retained, topic)):
            return _error("there is no retained message of this topic name", 404)
        return JSONResponse({"deleted": True})

    async def _list_sessions(self, request: Request) -> Response:
        query = request.query_params
        page = self._gateway.list_sessions(
            query.get("prefix", ""), query.get("after", ""), _limit(request)
        )
        return JSONResponse(page._asdict())

    async def _get_session(self, request: Request) -> Response:
        found = self._gateway.get_session(request.query_params.get("client_id", ""))
        if found is None:
            return _error("there is no session of this client identifier", 404)
        return JSONResponse(found)

    async def _end_session(self, request: Request) -> Response:
        client_id = request.query_params.get("client_id", "")
        if not await _settled(partial(self._gateway.end_session, client_id)):
            return _error("there is no session of this client identifier", 404)
        return JSONResponse({"ended": True})


class _ParameterError(MotelogError):
    """A parameter is not what the route takes."""


def _limit(request: Request) -> int:
    limit = request.query_params.get("limit", str(LIMIT))
    if not limit.isdecimal():
        raise _ParameterError(f"limit is no number: {limit!r}")
    return int(limit)


async def _settled(begin: Callable[[Callable[[MotelogError | None], None]], bool]) -> bool:
    """Wait until the log has what ``begin`` appends; False if there is nothing to do.

    _NotSettledError if the log has not taken it in time.
    """
    done = trio.Event()
    failed: list[MotelogError] = []

    def settled(error: MotelogError | None) -> None:
        if error is not None:
            failed.append(error)
        done.set()

    if not begin(settled):
        return False
    with trio.move_on_after(ANSWER_WITHIN_S):
        await done.wait()
    if not done.is_set() or failed:
        raise _NotSettledError(str(failed[0]) if failed else "the log does not answer")
    return True


class _NotSettledError(MotelogError):
    """The log has not taken a change, or not in time."""


def _answering(handler: _Handler) -> _Handler:
    """Turn the gateway's errors into answers."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (TopicFilterError, _ParameterError) as exc:
            return _error(str(exc), 400)
        except SessionInUseError as exc:
            return _error(str(exc), 409)
        except (ViewError, _NotSettledError) as exc:
            return _error(str(exc), 503)

    return answer


def _error(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status_code=status)
