"""The console's connections: how many there are at a time, and how long a slow one is waited for.

Owns: the limits of connections, which gives way to a new one, the deadlines of HTTP clients, what a
balancer says of the client's address.
Must not touch: routes, answers, the listening sockets' options.
Invariants: there are at most ``connections_max``, those that are being ended aside. One whose
request is being answered never gives way. Single bytes renew no deadline.

    accept -> PROXY header, TLS handshake -> head of a request -> its body -> answer -> head ...
               BEGIN_S                        HEAD_S              BODY_S      SEND_S
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from motelog.core.limited_log import LimitedLog
from motelog.core.net.codec import Codec
from motelog.core.net.coded_stream import CodedStream
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import OpenListener

logger = logging.getLogger(__name__)

BEGIN_S: Final = 10.0  # until the first byte of a request has come
HEAD_S: Final = 10.0  # also how long a connection stays after an answer; pages ask every two
BODY_S: Final = 10.0
SEND_S: Final = 30.0  # for one part of an answer
HEAD_BYTES_MAX: Final = 16_384
_FULL_LINE_PERIOD_S: Final = 60.0
_STATE: Final = "motelog.connection"


class _Connection:
    """One connection; ``requests`` are those that are being answered."""

    __slots__ = ("listener", "peer", "requests", "scope")

    def __init__(self, listener: ListenerConfig) -> None:
        self.listener = listener
        self.peer: tuple[str, int] | None = None  # the client's, as a balancer says
        self.requests = 0
        self.scope = trio.CancelScope()


class Connections:
    """Serves an application on listening sockets; all of it changes between two awaits.

    ``connections_max`` is for all of them together.
    """

    def __init__(self, app: ASGIApp, config: Config, *, connections_max: int) -> None:
        config.keep_alive_timeout = HEAD_S
        config.h11_max_incomplete_size = HEAD_BYTES_MAX
        self._inner = app
        # hypercorn has names of its own for what ASGI gives and takes.
        self._app = wrap_app(cast("Any", self._answer), config.wsgi_max_body_size, "asgi")
        self._config = config
        self._connections_max = connections_max
        self._open: set[_Connection] = set()
        # In the order in which they began to wait for a request; the first gives way.
        self._waiting: dict[_Connection, None] = {}
        self._context = WorkerContext(None)
        self._log = LimitedLog(logger, lines_max=1, period_s=_FULL_LINE_PERIOD_S)
        self._faults = LimitedLog(logger)

    async def run(
        self,
        listener: OpenListener,
        *,
        task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a listener until cancelled; started once clients may come by it."""
        sock = trio.SocketListener(trio.socket.from_stdlib_socket(listener.sock))
        serve = partial(self._serve, listener.config, listener.codec())
        await trio.serve_listeners(serve, [sock], task_status=task_status)

    async def _serve(
        self,
        config: ListenerConfig,
        make_codec: Callable[[], Codec] | None,
        stream: trio.SocketStream,
    ) -> None:
        if not self._make_room(config):
            return  # serve_listeners closes it
        connection = _Connection(config)
        self._open.add(connection)
        self._waiting[connection] = None
        try:
            with connection.scope:
                if make_codec is None:
                    await self._talk(connection, stream)
                else:
                    await self._begin(connection, CodedStream(stream, make_codec()))
        finally:
            self._leave(connection)

    async def _begin(self, connection: _Connection, stream: CodedStream) -> None:
        """Take what comes before the first request, and go on if it does."""
        has_begun = False
        with trio.move_on_after(BEGIN_S), suppress(trio.BrokenResourceError):
            has_begun = await stream.begin()
        if has_begun:
            connection.peer = stream.peer
            if stream.identity is not None and stream.identity.expires_s is not None:
                left_s = stream.identity.expires_s - time()
                connection.scope.deadline = trio.current_time() + left_s
            await self._talk(connection, stream)
            return
        if stream.fault:
            self._faults.info("connection refused reason=%s", ascii(stream.fault))
        await stream.aclose()

    async def _talk(self, connection: _Connection, stream: trio.abc.Stream) -> None:
        state = ConnectionState({_STATE: connection})
        await _Server(self._app, self._config, self._context, state, cast("Any", stream))

    def _make_room(self, config: ListenerConfig) -> bool:
        """End the connection that has waited longest for a request, if there is no place left."""
        if len(self._open) >= self._connections_max:
            whose, limit = None, self._connections_max
        elif 0 < config.connections_max <= self._count(config):
            whose, limit = config, config.connections_max
        else:
            return True
        self._log.warning(
            "all connections are taken; one without a request gives way to each new one"
            " connections_max=%d",
            limit,
        )
        first = next((one for one in self._waiting if whose in (None, one.listener)), None)
        if first is None:
            return False
        self._leave(first)
        first.scope.cancel()
        return True

    def _count(self, listener: ListenerConfig) -> int:
        return sum(one.listener is listener for one in self._open)

    def _leave(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection = scope["state"][_STATE]
        if connection.peer is not None:
            scope["client"] = connection.peer
        if connection.listener.tls_certificate:
            scope["scheme"] = "https"  # hypercorn knows streams of its own makers alone
        body_by_s = trio.current_time() + BODY_S
        is_whole = False

        async def receive_in_time() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()  # that the client has gone
            with trio.move_on_after(max(0.0, body_by_s - trio.current_time())):
                message = await receive()
                is_whole = not message.get("more_body", False)
                return message
            connection.scope.cancel()
            await trio.sleep_forever()
            raise AssertionError("the connection is cancelled")

        connection.requests += 1
        self._waiting.pop(connection, None)
        try:
            await self._inner(scope, receive_in_time, send)
        finally:
            connection.requests -= 1
            if not connection.requests and connection in self._open:
                self._waiting[connection] = None


class _Server(TCPServer):
    """hypercorn's connection; its client must take what is sent to it."""

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            # Shielded as hypercorn does: a part of an answer that is sent is sent whole.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_S):
                try:
                    await self.stream.send_all(event.data)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
        await trio.aclose_forcefully(self.stream)
        await self.protocol.handle(Closed())
