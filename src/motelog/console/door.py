"""A listener of the console: accepts connections, and holds those without a request yet.

Owns: accepting, and its log line; sockets until the complete head of a first request is there.
Must not touch: the number of connections, requests.
Invariants: a waiting connection costs its socket and the bytes received, no task and no parser, so
that any number of partial requests hardly slows a complete one (``/health/live``). Single bytes do
not extend a deadline. No error of a socket leaves the loop.
"""

from __future__ import annotations

import logging
import re
import select
import socket
from collections.abc import Callable
from typing import Final

import trio

from motelog.console import http
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.net.listen import ACCEPT_LINE_PERIOD_S, ACCEPTING_RESTS
from motelog.core.spare_memory import NO_MEMORY

logger = logging.getLogger(__name__)

#: Connections that are accepted, and read, before other tasks run.
ACCEPTED_MAX: Final = 64
READ_MAX: Final = 64
SWEEP_S: Final = 0.25
REST_S: Final = 0.1  # pause after a failed accept
_HEAD_END: Final = re.compile(rb"\n\r?\n")


class Waiting:
    """An accepted connection; ``head`` is the part of its first request received so far."""

    __slots__ = ("head", "sock", "until_s")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.head = bytearray()
        self.until_s = trio.current_time() + http.HEAD_S


class Door:
    """One listener. ``comes`` is called with each connection and returns whether it may stay.

    If it stays, ``asks`` is called once its head is complete and owns the socket from then on, or
    ``goes`` once it has been closed. With ``is_coded``, ``asks`` is called at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        is_coded: bool,
        comes: Callable[[Waiting], bool],
        asks: Callable[[Waiting], None],
        goes: Callable[[Waiting], None],
    ) -> None:
        self._listener = listener
        self._is_coded = is_coded
        self._comes = comes
        self._asks = asks
        self._goes = goes
        self._ready = select.epoll()
        #: By descriptor, in the order of arrival.
        self._waiting: dict[int, Waiting] = {}
        self._accepts = LimitedLog(logger, lines_max=1, period_s=ACCEPT_LINE_PERIOD_S)

    async def run(self) -> None:
        """Accept and read until cancelled; then close waiting connections and the listener."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_again, self._read_all)
                await run_again(self._accept_all)
        finally:
            for one in list(self._waiting.values()):
                self.end(one)
            self._ready.close()
            self._listener.close()

    def end(self, one: Waiting) -> None:
        """Close a connection if it is still waiting."""
        if self._leave(one):
            one.sock.close()
            self._goes(one)

    async def _accept_all(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            if not self._accept():
                await trio.sleep(REST_S)

    def _accept(self) -> bool:
        """Accept connections; return False if that failed."""
        for _ in range(ACCEPTED_MAX):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return True
            except ConnectionError:
                continue  # the client is gone
            except OSError as exc:
                self._accepts.warning(ACCEPTING_RESTS, exc.strerror)
                return False
            sock.setblocking(False)
            one = Waiting(sock)
            if not self._comes(one):
                sock.close()
            elif self._is_coded:
                self._asks(one)
            elif not self._have_wait(one):
                return False
        return True

    def _have_wait(self, one: Waiting) -> bool:
        try:
            self._ready.register(one.sock, select.EPOLLIN)
        except OSError as exc:  # the system's limits
            self._accepts.warning(ACCEPTING_RESTS, exc.strerror)
            one.sock.close()
            self._goes(one)
            return False
        self._waiting[one.sock.fileno()] = one
        self._read(one)
        return True

    async def _read_all(self) -> None:
        while True:
            with trio.move_on_after(SWEEP_S):
                while True:
                    await trio.lowlevel.wait_readable(self._ready.fileno())
                    for number, _ in self._ready.poll(0, READ_MAX):
                        self._read(self._waiting[number])
            now_s = trio.current_time()
            for one in list(self._waiting.values()):
                if one.until_s > now_s:
                    break
                self.end(one)

    def _read(self, one: Waiting) -> None:
        try:
            data = one.sock.recv(http.HEAD_BYTES_MAX)
            begin = max(0, len(one.head) - 2)
            one.head += data
        except BlockingIOError:
            return
        except (OSError, *NO_MEMORY):
            self.end(one)
            return
        if not one.head:
            self.end(one)
        elif not data or len(one.head) > http.HEAD_BYTES_MAX or _HEAD_END.search(one.head, begin):
            self._leave(one)
            self._asks(one)

    def _leave(self, one: Waiting) -> bool:
        number = one.sock.fileno()
        if self._waiting.get(number) is not one:
            return False
        del self._waiting[number]
        self._ready.unregister(number)
        return True
