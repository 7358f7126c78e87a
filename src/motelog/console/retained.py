"""The console's routes for retained messages.

Owns: their parameters and JSON. Must not touch: the messages (``gateway.operator`` does).

    GET    /retained?filter=&after=&limit=    {"messages": [...], "after": name of the last or null}
    GET    /retained/message?topic=           one message with its payload in base64; 404
    DELETE /retained/message?topic=           {"deleted": true} when the log has it; 404

A fault is {"error": why}: 400 for a parameter, 503 while the gateway cannot answer.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import wraps

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from motelog.core.errors import MotelogError
from motelog.gateway.errors import TopicFilterError
from motelog.gateway.operator import Operator
from motelog.gateway.state.view import ViewError

DELETE_WITHIN_S = 10.0
LIMIT = 100

_Handler = Callable[[Request], Awaitable[Response]]


class RetainedRoutes:
    """``operator`` is None until the gateway of this process has started."""

    def __init__(self) -> None:
        self.operator: Operator | None = None

    def routes(self) -> list[Route]:
        message = "/retained/message"
        return [
            Route("/retained", _answering(self._list), methods=["GET"]),
            Route(message, _answering(self._get), methods=["GET"]),
            Route(message, _answering(self._delete), methods=["DELETE"]),
        ]

    @property
    def _gateway(self) -> Operator:
        if self.operator is None:
            raise ViewError("no gateway has started in this process")
        return self.operator

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", str(LIMIT))
        if not limit.isdecimal():
            return _error(f"limit is no number: {limit!r}", 400)
        page = self._gateway.list_retained(
            query.get("filter", "#"), query.get("after", ""), int(limit)
        )
        return JSONResponse(page._asdict())

    async def _get(self, request: Request) -> Response:
        found = self._gateway.get_retained(request.query_params.get("topic", ""))
        if found is None:
            return _error("there is no retained message of this topic name", 404)
        message, payload = found
        return JSONResponse({**message, "payload": base64.b64encode(payload).decode()})

    async def _delete(self, request: Request) -> Response:
        done = trio.Event()
        failed: list[MotelogError] = []

        def settled(error: MotelogError | None) -> None:
            if error is not None:
                failed.append(error)
            done.set()

        if not self._gateway.delete_retained(request.query_params.get("topic", ""), settled):
            return _error("there is no retained message of this topic name", 404)
        with trio.move_on_after(DELETE_WITHIN_S):
            await done.wait()
        if not done.is_set() or failed:
            return _error(str(failed[0]) if failed else "the log does not answer", 503)
        return JSONResponse({"deleted": True})


def _answering(handler: _Handler) -> _Handler:
    """Turn the gateway's errors into answers."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except TopicFilterError as exc:
            return _error(str(exc), 400)
        except ViewError as exc:
            return _error(str(exc), 503)

    return answer


def _error(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status_code=status)
