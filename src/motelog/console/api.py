"""The admin API below /api/v1: routes and OpenAPI document, made from a table of endpoints.

Owns: Endpoint, parsing queries, encoding answers as JSON. Must not touch: what an endpoint does,
authentication (``gate`` does it).

An answer is a struct as JSON. A fault is {"error": why}: 400 for a wrong parameter, 401 and 403 for
a caller without the right, 404 if the named object does not exist, 409 if it is in use, 503 while
no answer is available. Names are parameters, not parts of a path: a client identifier may be
"a/../b".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from motelog import __version__
from motelog.console.asking import RefusedError
from motelog.console.audit import Audit
from motelog.console.gate import (
    CHANGE_HEADER,
    NO_TOKEN,
    Caller,
    Role,
    caller_of,
    error,
    require_header,
)

PREFIX: Final = "/api/v1"
_SCHEMA_PLACE: Final = "#/components/schemas/{name}"


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of an endpoint without parameters."""


class Done(msgspec.Struct, frozen=True):
    """The change is made; one that belongs in the log is in the log."""

    done: bool = True


class Error(msgspec.Struct, frozen=True):
    """The reason why there is no answer."""

    error: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. ``handler`` receives the query's values and may raise RefusedError.

    Every method other than GET is a change and is written to the audit log.
    """

    path: str
    summary: str
    query: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    handler: Callable[[Any], Awaitable[msgspec.Struct]]
    method: Literal["GET", "POST", "DELETE"] = "GET"
    role: Role = Role.VIEW

    @property
    def name(self) -> str:
        """Its name in OpenAPI and the audit log, such as kick_client."""
        return self.handler.__name__


class Api:
    """The endpoints as routes and as an OpenAPI document."""

    def __init__(self, endpoints: Sequence[Endpoint], audit: Audit) -> None:
        self._endpoints = endpoints
        self._by_name = {one.name: one for one in endpoints}
        self._audit = audit

    def endpoint(self, name: str) -> Endpoint:
        """Return the endpoint of this name; KeyError."""
        return self._by_name[name]

    def has(self, name: str) -> bool:
        """Return whether there is an endpoint of this name."""
        return name in self._by_name

    def routes(self) -> list[Route]:
        routes = [
            Route(f"{PREFIX}{one.path}", self._route(one), methods=[one.method])
            for one in self._endpoints
        ]
        return [*routes, Route(f"{PREFIX}/openapi.json", self._openapi)]

    @cached_property
    def _document(self) -> bytes:
        """The OpenAPI document, made at the first request: making it takes as long as a start."""
        return msgspec.json.encode(openapi(self._endpoints))

    async def _openapi(self, request: Request) -> Response:
        if caller_of(request).role is Role.NOBODY:
            return error(NO_TOKEN, 401)
        return Response(self._document, media_type="application/json")

    def _route(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            caller = caller_of(request)
            try:
                caller.require(Role.VIEW)
                if endpoint.method != "GET":
                    require_header(request)
                query = query_of(endpoint, dict(request.query_params))
                return _json(await self.do(endpoint, caller, query))
            except RefusedError as exc:
                return error(str(exc), exc.status)

        return answer

    async def do(self, endpoint: Endpoint, caller: Caller, query: msgspec.Struct) -> msgspec.Struct:
        """Call the endpoint if the caller may; changes go to the audit log. RefusedError."""
        if endpoint.method == "GET":
            caller.require(endpoint.role)
            return await endpoint.handler(query)
        with self._audit.change(caller, endpoint.name, msgspec.structs.asdict(query)):
            caller.require(endpoint.role)
            return await endpoint.handler(query)


def query_of(endpoint: Endpoint, values: Mapping[str, str]) -> msgspec.Struct:
    """Return the parameters of an endpoint; RefusedError says which one is wrong."""
    try:
        return msgspec.convert(dict(values), endpoint.query, strict=False)
    except msgspec.ValidationError as exc:
        raise RefusedError(str(exc), 400) from exc


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


# --- the document ------------------------------------------------------------------------


def openapi(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints."""
    endpoints = list(endpoints)
    answers = {one.answer: None for one in endpoints} | {Error: None}
    _, schemas = msgspec.json.schema_components(answers, ref_template=_SCHEMA_PLACE)
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(f"{PREFIX}{one.path}", {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Motelog admin API",
            "version": __version__,
            "description": (
                "If the server has tokens, each request needs one: Authorization: Bearer TOKEN."
                f" A request that changes something needs that, or the header {CHANGE_HEADER}."
            ),
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "summary": endpoint.summary,
        "description": f"Requires the role {endpoint.role.name.lower()} or a higher one.",
        "operationId": endpoint.name,
        "parameters": list(_parameters(endpoint)),
        "responses": {
            "200": _response("The answer.", endpoint.answer),
            "default": _response("The reason why there is no answer.", Error),
        },
    }


def _response(text: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    schema = {"$ref": _SCHEMA_PLACE.format(name=kind.__name__)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    (_,), schemas = msgspec.json.schema_components([endpoint.query], ref_template=_SCHEMA_PLACE)
    shown = schemas[endpoint.query.__name__]
    required = set(shown.get("required", ()))
    for name, schema in shown["properties"].items():
        described = dict(schema)
        text = described.pop("description", "")
        yield {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": text,
            "schema": described,
        }
    if endpoint.method != "GET":
        yield {
            "name": CHANGE_HEADER,
            "in": "header",
            "required": False,
            "description": "Any value; required unless the request has a token.",
            "schema": {"type": "string"},
        }
