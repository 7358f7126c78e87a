"""The client's end of one remoting connection: many requests in flight, each with its deadline.

Owns: one stream, the request numbers on it, matching answers to requests, queued output.
Must not touch: addresses beyond ``connect``, routes, retries; when to reconnect (the caller).
Invariants: a frame is queued completely or not at all, so a cancelled request never leaves a
partial frame on the wire; the receive buffer grows with the bytes received, never with a claimed
length; output above OUTPUT_BYTES_HIGH makes senders wait. State changes between two awaits, only on
trio's thread.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from motelog.core.addresses import parse_address
from motelog.core.errors import (
    ConfigError,
    RemotingConnectError,
    RemotingConnectionError,
    RemotingDecodeError,
    RemotingTimeoutError,
)
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.net.tls import tls_fault
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    RemotingCommand,
    ResponseCode,
    decode,
    encode,
)
from motelog.core.remoting.tls import Tls, handshake_fault

logger = logging.getLogger(__name__)

OUTPUT_BYTES_HIGH: Final = 1_048_576
CLOSE_GRACE_S: Final = 1.0
_FAILED: Final = "a connection to a server failed and is closed, a fault of this side peer=%s"
_RECEIVE_BYTES: Final = 262_144
_OPAQUE_MAX: Final = 2**31 - 1

# The most requests of a server that are being answered later; normally there are few.
LATER_ANSWERS_MAX: Final = 16

# An answer that takes time; it handles its own errors.
Later = Callable[[], Awaitable[RemotingCommand]]
# Answers a request of the server: returns the answer, None if it needs none, or an answer to await.
# It must not raise or wait itself.
RequestHandler = Callable[[RemotingCommand], RemotingCommand | Later | None]


class RemotingClient:
    """Send requests over ``stream`` while ``run`` is running; usable until the connection ends.

    Requests are signed with ``credentials``, if given; answers to the server's requests are not.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        peer: str,
        on_request: RequestHandler | None = None,
        credentials: Credentials | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.peer = peer
        self.late_answers_count = 0
        self.received_at = trio.current_time()  # when the peer last sent something
        self._has_received = False
        self._stream = stream
        self._on_request = on_request
        self._faults = LimitedLog(logger)
        self._credentials = credentials
        self._frame_bytes_max = frame_bytes_max
        self._opaque = 0
        self._waiting: dict[int, _Waiting] = {}
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._output_wanted = Flag()
        self._output_written = Flag()
        self._is_writing = False
        self._end_reason: str | None = None
        self._nursery: trio.Nursery | None = None
        self._later_count = 0

    @property
    def is_open(self) -> bool:
        return self._end_reason is None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read and write until the connection ends; started with ``nursery.start(client.run)``.

        Return when the peer closes or misbehaves, or after ``aclose``; a task that still waits for
        an answer gets RemotingConnectionError.
        """
        try:
            with self._faults.boundary(_FAILED, self.peer):
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    task_status.started()
                    await self._read()
                    nursery.cancel_scope.cancel()
            self._end("a fault of this side, see its log")
        finally:
            self._end("closed")
            # Closed by force: the protocol has no closing message, and this cannot block.
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    async def request(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Send ``command`` under a new number and return its answer, whatever its code.

        RemotingTimeoutError after ``timeout_s``, RemotingConnectionError if the connection ends
        first: in both cases the peer may have executed the request. ValueError if it cannot be
        encoded.
        """
        frame = self._request_frame(command)
        waiting = _Waiting()
        self._waiting[command.opaque] = waiting
        try:
            with trio.move_on_after(timeout_s):
                await self._queue(frame)
                await waiting.done.wait()
        finally:
            self._waiting.pop(command.opaque, None)
        if waiting.answer is not None:
            return waiting.answer
        if self._end_reason is not None:
            raise RemotingConnectionError(f"{self.peer}: {self._end_reason}")
        raise RemotingTimeoutError(
            f"{self.peer}: no answer to request code {int(command.code)} within {timeout_s:.3g} s"
        )

    async def send_oneway(self, command: RemotingCommand, *, timeout_s: float) -> None:
        """Queue ``command`` without an answer; errors are those of ``request``."""
        command.flag |= FLAG_ONEWAY
        frame = self._request_frame(command)
        with trio.move_on_after(timeout_s) as scope:
            await self._queue(frame)
        if scope.cancelled_caught:
            raise RemotingTimeoutError(f"{self.peer}: output was not sent within {timeout_s:.3g} s")

    async def aclose(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Write queued output for at most ``grace_s``, then close; safe to call twice."""
        with trio.move_on_after(grace_s, shield=True):
            while self.is_open and (self._output or self._is_writing):
                await self._output_written.wait()
        self._end("closed by this side")
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    def _request_frame(self, command: RemotingCommand) -> bytes:
        """Return the frame of a request with a new number, signed if there are credentials."""
        command.opaque = self._next_opaque()
        if self._credentials is not None:
            self._credentials.sign(command)
        return encode(command)

    def _next_opaque(self) -> int:
        while True:
            self._opaque = self._opaque % _OPAQUE_MAX + 1
            if self._opaque not in self._waiting:
                return self._opaque

    async def _queue(self, frame: bytes) -> None:
        while self.is_open and self._output_bytes > OUTPUT_BYTES_HIGH:
            await self._output_written.wait()
        if self._end_reason is not None:
            raise RemotingConnectionError(f"{self.peer}: {self._end_reason}")
        self._output.append(frame)
        self._output_bytes += len(frame)
        self._output_wanted.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._output_wanted.take()
                # All output queued since the last write is sent in one system call.
                data, self._output = b"".join(self._output), []
                self._is_writing = True
                await self._stream.send_all(data)
                self._is_writing = False
                self._output_bytes -= len(data)
                self._output_written.pulse()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._end(f"connection lost while writing ({_cause(exc)})")
            await trio.aclose_forcefully(self._stream)  # ends the reader too

    async def _read(self) -> None:
        try:
            await self._read_frames()
            is_plain = not isinstance(self._stream, trio.SSLStream)
            hint = " before it answered: it may require TLS" if is_plain else ""
            self._end(f"connection closed by the peer{'' if self._has_received else hint}")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._end(f"connection lost ({_cause(exc)})")
        except RemotingDecodeError as exc:
            if not self._waiting:  # otherwise the waiting requests report it
                logger.warning(
                    "a peer sent a malformed frame; its connection is closed peer=%s error=%s",
                    self.peer,
                    exc,
                )
            self._end(f"peer sent a malformed frame: {exc}")

    async def _read_frames(self) -> None:
        buffer = bytearray()
        wanted_bytes = FRAME_BYTES_MIN
        while data := await self._stream.receive_some(_RECEIVE_BYTES):
            self.received_at = trio.current_time()
            self._has_received = True
            buffer += data
            if len(buffer) < wanted_bytes:
                continue
            begin = 0
            with memoryview(buffer) as view:
                while len(buffer) - begin >= FRAME_BYTES_MIN:
                    wanted_bytes = 4 + int.from_bytes(view[begin : begin + 4], "big")
                    if not FRAME_BYTES_MIN <= wanted_bytes <= self._frame_bytes_max:
                        raise RemotingDecodeError(_size_fault(view[begin:], wanted_bytes))
                    if len(buffer) - begin < wanted_bytes:
                        break
                    await self._handle(decode(view[begin : begin + wanted_bytes]))
                    begin += wanted_bytes
                    wanted_bytes = FRAME_BYTES_MIN
            del buffer[:begin]

    async def _handle(self, command: RemotingCommand) -> None:
        if command.is_response:
            waiting = self._waiting.pop(command.opaque, None)
            if waiting is None:
                # The request missed its deadline; no task waits for this answer.
                self.late_answers_count += 1
                return
            waiting.answer = command
            waiting.done.set()
            return
        answer = self._on_request(command) if self._on_request is not None else None
        if callable(answer):
            if self._later_count < LATER_ANSWERS_MAX:
                assert self._nursery is not None
                self._later_count += 1
                self._nursery.start_soon(self._answer_later, command, answer)
                return
            answer = command.answer(
                ResponseCode.SYSTEM_BUSY, f"{LATER_ANSWERS_MAX} requests are being answered"
            )
        if answer is None:
            answer = command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {command.code} is not supported by this client",
            )
        await self._send_answer(command, answer)

    async def _answer_later(self, command: RemotingCommand, later: Later) -> None:
        try:
            answer = await later()
        finally:
            self._later_count -= 1
        await self._send_answer(command, answer)

    async def _send_answer(self, command: RemotingCommand, answer: RemotingCommand) -> None:
        if command.is_oneway:
            return
        try:
            await self._queue(encode(answer))
        except RemotingConnectionError:
            return  # the reader notices the end of the connection itself

    def _end(self, reason: str) -> None:
        """Record, the first time, why the connection ended, and wake all waiting tasks."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        for waiting in self._waiting.values():
            waiting.done.set()
        self._output_written.set()


async def connect(address: str, *, timeout_s: float, tls: Tls | None = None) -> trio.abc.Stream:
    """Return a stream to ``host:port`` (``[v6]:port``); RemotingConnectError if it fails.

    With ``tls`` the server's certificate has been checked.
    """
    host, port = parse_address(address, port_min=1)
    try:
        context = tls.context() if tls is not None else None
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
            return stream if context is None else await _secure(stream, context, host)
    except trio.TooSlowError:
        raise RemotingConnectError(f"{address}: no connection within {timeout_s:.3g} s") from None
    except trio.BrokenResourceError as exc:
        raise RemotingConnectError(f"{address}: {handshake_fault(exc)}") from exc
    except ConfigError as exc:
        raise RemotingConnectError(f"{address}: {exc}") from exc
    except OSError as exc:
        raise RemotingConnectError(f"{address}: {_cause(exc)}") from exc


async def _secure(
    stream: trio.SocketStream, context: ssl.SSLContext, host: str
) -> trio.SSLStream[trio.SocketStream]:
    secured = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


class _Waiting:
    """One request that waits for its answer."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: RemotingCommand | None = None


def _size_fault(data: memoryview, wanted_bytes: int) -> str:
    if bytes(data[:5]) == b"HTTP/":
        return "it speaks HTTP, not RocketMQ's protocol: check the port"
    return f"frame of {wanted_bytes} bytes"


def _cause(exc: BaseException) -> str:
    """Return the operating system's text for ``exc`` if there is one."""
    inner = exc.__cause__ if isinstance(exc.__cause__, BaseException) else exc
    if isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    if isinstance(inner, ssl.SSLError):
        return tls_fault(inner)
    if isinstance(inner, OSError) and inner.errno:
        # trio's own text for a failed connection repeats the address.
        return os.strerror(inner.errno) if inner.errno > 0 else inner.strerror or str(inner)
    return str(inner) or type(inner).__name__
