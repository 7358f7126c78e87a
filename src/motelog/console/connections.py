"""The console's connections: how many there are at a time, and which gives way to a new one.

Owns: the limits of connections, how one begins, what a balancer says of the client's address.
Must not touch: routes, answers, what an HTTP client is waited for (``http``), the listening
sockets' options.
Invariants: there are at most ``connections_max``, those that are being ended aside. One whose
request is being answered never gives way. No error of a connection leaves its task.

    accept -> PROXY header, TLS handshake -> requests and answers (``http``)
               BEGIN_S
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, Final

import trio
from starlette.types import ASGIApp

from motelog.console.http import HttpConnection
from motelog.core.limited_log import LimitedLog
from motelog.core.net.codec import Codec
from motelog.core.net.coded_stream import CodedStream
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import OpenListener

logger = logging.getLogger(__name__)

BEGIN_S: Final = 10.0  # until the first byte of a request has come
_FULL_LINE_PERIOD_S: Final = 60.0


class _Connection:
    __slots__ = ("listener", "peer", "scope")

    def __init__(self, listener: ListenerConfig) -> None:
        self.listener = listener
        self.peer: tuple[str, int] | None = None  # the client's, as a balancer says
        self.scope = trio.CancelScope()


class Connections:
    """Serves an application on listening sockets; all of it changes between two awaits.

    ``connections_max`` is for all of them together.
    """

    def __init__(self, app: ASGIApp, *, connections_max: int) -> None:
        self._app = app
        self._connections_max = connections_max
        self._open: set[_Connection] = set()
        # In the order in which they began to wait for a request; the first gives way.
        self._waiting: dict[_Connection, None] = {}
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
            with self._faults.boundary("a connection of the console failed"), connection.scope:
                async with stream:
                    if make_codec is None:
                        await self._talk(connection, stream, stream.socket)
                        return
                    async with CodedStream(stream, make_codec()) as coded:
                        if await self._begin(connection, coded):
                            await self._talk(connection, coded, stream.socket)
        finally:
            self._leave(connection)

    async def _begin(self, connection: _Connection, stream: CodedStream) -> bool:
        """Take what comes before the first request; return whether that does."""
        has_begun = False
        with trio.move_on_after(BEGIN_S), suppress(trio.BrokenResourceError):
            has_begun = await stream.begin()
        if has_begun:
            connection.peer = stream.peer
            if stream.identity is not None and stream.identity.expires_s is not None:
                left_s = stream.identity.expires_s - time()
                connection.scope.deadline = trio.current_time() + left_s
        elif stream.fault:
            self._faults.info("connection refused reason=%s", ascii(stream.fault))
        return has_begun

    async def _talk(
        self, connection: _Connection, stream: trio.abc.Stream, sock: trio.socket.SocketType
    ) -> None:
        try:
            client, server = _address(sock, sock.getpeername()), _address(sock, sock.getsockname())
        except OSError:
            return  # it has gone
        scope = {
            "scheme": "https" if connection.listener.tls_certificate else "http",
            "client": connection.peer or client,
            "server": server,
        }
        http = HttpConnection(stream, scope, self._faults)
        may_follow = True
        while may_follow and (request := await http.next_request()) is not None:
            self._waiting.pop(connection, None)
            try:
                may_follow = await http.answer(self._app, request)
            finally:
                if connection in self._open:
                    self._waiting[connection] = None

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


def _address(sock: trio.socket.SocketType, address: Any) -> tuple[str, int] | None:
    """Return the host and port of an address that has them."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        return address[0], address[1]
    return None
