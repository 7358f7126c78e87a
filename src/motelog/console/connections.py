"""The console's connections: their limit, and which one is closed for a new one.

Owns: the limits of connections, how a connection begins, the client address from a balancer.
Must not touch: routes, answers, HTTP timeouts (``http``), the listening sockets' options.
Invariants: there are at most ``connections_max``, not counting those that are being closed. A
connection whose request is being answered is never closed for another. No error of a connection
leaves its task.

    accept -> wait for the head (``door``) -> requests and answers (``http``)
           -> PROXY header, TLS handshake  ->
               BEGIN_S
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from time import time
from typing import Any, Final

import trio
from starlette.types import ASGIApp

from motelog.console.door import Door, Waiting
from motelog.console.http import HttpConnection
from motelog.core.limited_log import LimitedLog
from motelog.core.net.codec import Codec
from motelog.core.net.coded_stream import CodedStream
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import OpenListener

logger = logging.getLogger(__name__)

BEGIN_S: Final = 10.0  # until the first byte of a request
_FULL_LINE_PERIOD_S: Final = 60.0


class _Connection:
    __slots__ = ("end", "listener", "peer", "scope")

    def __init__(self, listener: ListenerConfig, end: Callable[[], None]) -> None:
        self.listener = listener
        self.end = end
        self.peer: tuple[str, int] | None = None  # the client's address, from a balancer
        self.scope = trio.CancelScope()


class Connections:
    """Serves an application on listening sockets; its state changes only between two awaits.

    ``connections_max`` is for all of them together.
    """

    def __init__(self, app: ASGIApp, *, connections_max: int) -> None:
        self._app = app
        self._connections_max = connections_max
        self._open: set[_Connection] = set()
        # In the order in which they began to wait for a request; the first is closed first.
        self._waiting: dict[_Connection, None] = {}
        self._log = LimitedLog(logger, lines_max=1, period_s=_FULL_LINE_PERIOD_S)
        self._faults = LimitedLog(logger)

    async def run(
        self,
        listener: OpenListener,
        *,
        task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a listener until cancelled; started once clients can connect to it."""
        make_codec = listener.codec()
        at_door: dict[Waiting, _Connection] = {}

        def comes(one: Waiting) -> bool:
            if not self._make_room(listener.config):
                return False
            connection = at_door[one] = _Connection(listener.config, lambda: door.end(one))
            self._open.add(connection)
            self._waiting[connection] = None
            return True

        def asks(one: Waiting) -> None:
            connection = at_door.pop(one)
            connection.end = connection.scope.cancel
            if make_codec is None:
                del self._waiting[connection]  # its request has arrived
            nursery.start_soon(self._serve, connection, make_codec, one)

        def goes(one: Waiting) -> None:
            self._leave(at_door.pop(one))

        door = Door(
            listener.sock, is_coded=make_codec is not None, comes=comes, asks=asks, goes=goes
        )
        async with trio.open_nursery() as nursery:
            task_status.started()
            await door.run()

    async def _serve(
        self, connection: _Connection, make_codec: Callable[[], Codec] | None, one: Waiting
    ) -> None:
        try:
            with self._faults.boundary("a connection of the console failed"), connection.scope:
                async with trio.SocketStream(trio.socket.from_stdlib_socket(one.sock)) as stream:
                    if make_codec is None:
                        await self._talk(connection, stream, stream.socket, bytes(one.head))
                        return
                    async with CodedStream(stream, make_codec()) as coded:
                        if await self._begin(connection, coded):
                            await self._talk(connection, coded, stream.socket)
        finally:
            self._leave(connection)

    async def _begin(self, connection: _Connection, stream: CodedStream) -> bool:
        """Read what precedes the first request; return whether a request follows."""
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
        self,
        connection: _Connection,
        stream: trio.abc.Stream,
        sock: trio.socket.SocketType,
        received: bytes = b"",
    ) -> None:
        try:
            client, server = _address(sock, sock.getpeername()), _address(sock, sock.getsockname())
        except OSError:
            return  # the client is gone
        scope = {
            "scheme": "https" if connection.listener.tls_certificate else "http",
            "client": connection.peer or client,
            "server": server,
        }
        http = HttpConnection(stream, scope, self._faults, received)
        may_follow = True
        while may_follow and (request := await http.next_request()) is not None:
            self._waiting.pop(connection, None)
            try:
                may_follow = await http.answer(self._app, request)
            finally:
                if connection in self._open:
                    self._waiting[connection] = None

    def _make_room(self, config: ListenerConfig) -> bool:
        """If the limit is reached, close the connection that has been idle longest."""
        if len(self._open) >= self._connections_max:
            whose, limit = None, self._connections_max
        elif 0 < config.connections_max <= self._count(config):
            whose, limit = config, config.connections_max
        else:
            return True
        self._log.warning(
            "all connections are in use; each new one closes an idle one connections_max=%d",
            limit,
        )
        first = next((one for one in self._waiting if whose in (None, one.listener)), None)
        if first is None:
            return False
        self._leave(first)
        first.end()
        return True

    def _count(self, listener: ListenerConfig) -> int:
        return sum(one.listener is listener for one in self._open)

    def _leave(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def _address(sock: trio.socket.SocketType, address: Any) -> tuple[str, int] | None:
    """Return host and port of an address, None if it has none."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        return address[0], address[1]
    return None
