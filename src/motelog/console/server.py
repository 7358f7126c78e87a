"""The console's HTTP server: starlette routes, served over h11.

Owns: the listening sockets and the routes. Must not touch: health (health.py), what is counted,
timeouts (``connections``).

    GET /               pages for a browser (``pages``)
    GET /status         what the first page shows, as JSON (``status``)
    GET /health/live    200 while the process answers
    GET /health/ready   200 when all roles are ready, else 503; {"ready": bool, "faults": {...}}
    GET /metrics        Prometheus text
    /api/v1             the admin API (``api``): of a gateway (``gateway``), of brokers (``queues``)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from motelog.config import AdminConfig
from motelog.console.api import Api
from motelog.console.apis import Apis
from motelog.console.audit import Audit
from motelog.console.connections import Connections
from motelog.console.gate import LIVE, NO_TOKEN, READY, Gate, Role, caller_of, error
from motelog.console.health import Health
from motelog.console.pages import Pages
from motelog.console.process import LoopLag, build_readings
from motelog.console.status import Status
from motelog.console.tokens import Tokens
from motelog.core.addresses import parse_address
from motelog.core.lasting import run_again
from motelog.core.metrics import CONTENT_TYPE, Registry
from motelog.core.net.config import ListenerConfig, first_listener
from motelog.core.net.listeners import (
    CertificateFile,
    OpenListener,
    open_listeners,
    reload_certificates,
)

_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Console:
    """The admin listener as a service; ``address`` is known once started."""

    def __init__(
        self,
        config: AdminConfig,
        health: Health,
        registry: Registry,
        apis: Apis,
        status: Status,
        *,
        listeners: Sequence[ListenerConfig] = (),
    ) -> None:
        """Listen on the address of ``config`` and on those of ``listeners``."""
        self._config = config
        self._listener_configs = listeners
        #: Addresses of the further listeners by name, once started.
        self.listeners: dict[str, str] = {}
        self._opened: list[OpenListener] = []
        self._health = health
        self._registry = registry
        self._loop_lag = LoopLag()
        registry.add_readings("motelog", build_readings)
        registry.add_readings("motelog", self._loop_lag.readings)
        self._tokens = Tokens(config.tokens_file) if config.tokens_file else None
        self._api = Api(apis.endpoints(), Audit(config.audit_file))
        self._pages = Pages(self._api, health, status, self._tokens)
        if self._tokens is not None:
            tokens = self._tokens
            health.checks["tokens"] = lambda: tokens.fault
        self._status = status
        self.address: tuple[str, int] = parse_address(config.listen)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        OSError if the address cannot be bound, ListenerError for that of a further listener;
        CertificateError if a TLS file cannot be used.
        """
        first = first_listener("admin", self._config.listen, self._config)
        opened = self._opened = open_listeners(first, self._listener_configs)
        self.address = opened[0].address
        self.listeners = {one.config.name: one.text for one in opened[1:]}
        connections = Connections(self.application(), connections_max=self._config.connections_max)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_again, self._loop_lag.run)
            nursery.start_soon(run_again, self._status.run)
            for one in opened:
                await nursery.start(connections.run, one)
            task_status.started()

    async def reload_certificates(self) -> list[CertificateFile]:
        """Reload the certificates of the listeners; return the result for each file."""
        return reload_certificates(self._opened)

    def application(self) -> ASGIApp:
        """Return the application; tests use it without a socket."""
        app = Starlette(
            routes=[
                *self._pages.routes(),
                Route("/status", _for_viewers(self._shown_status)),
                Route(LIVE, self._live),
                Route(READY, self._ready),
                Route("/metrics", _for_viewers(self._metrics)),
                *self._api.routes(),
            ]
        )
        return Gate(app, hosts=self._config.hosts, tokens=self._tokens)

    async def _shown_status(self, request: Request) -> Response:
        return JSONResponse(self._status.read())

    async def _live(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, request: Request) -> Response:
        faults = self._health.faults()
        # Health probes have no token, and do not need the reasons.
        shown = faults if caller_of(request).role >= Role.VIEW else {}
        return JSONResponse(
            {"ready": not faults, "faults": shown}, status_code=503 if faults else 200
        )

    async def _metrics(self, request: Request) -> Response:
        return Response(self._registry.exposition(), media_type=CONTENT_TYPE)


def _for_viewers(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if caller_of(request).role < Role.VIEW:
            return error(NO_TOKEN, 401)
        return await handler(request)

    return answer
