"""Blocking pulls of one queue, several in flight on one socket, to read ranges at full speed.

Owns: QueuePuller, its socket and receive buffer. Must not touch: trio, routes (the caller provides
the broker's address), the use of the records. For one thread.
Invariants: an answer is received with few system calls into memory that the next answer reuses, so
that nothing is copied here. That memory never grows beyond one frame. After an error the connection
is closed and everything in flight on it has failed; the next pull opens a new one.

    ask 0..99   ask 100..199   ask 200..299      three requests are under way
    result of 0..99            ask 300..399      while its records are used, others are on the way
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from motelog.bridge.client import REQUEST_TIMEOUT_S, int_field
from motelog.bridge.mapped_log import BYTES_MAX, COUNT_MIN, FoundLogs, MappedLog
from motelog.bridge.pull_request import PULL_BYTES_MAX, PullResult, pull_command, pull_result
from motelog.bridge.selector import SELECT_ALL, Selector
from motelog.core.addresses import parse_address
from motelog.core.errors import (
    ConfigError,
    RemotingConnectionError,
    RemotingDecodeError,
    RemotingError,
    RemotingTimeoutError,
)
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import LOG_FOLDER, LOG_UNITS
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    RemotingCommand,
    decode_head,
    encode,
)
from motelog.core.remoting.tls import Tls, handshake_fault

_LENGTH_BYTES: Final = 4
_TIMEVAL: Final = struct.Struct("@ll")


class Pull:
    """One pull in flight."""

    __slots__ = ("_puller", "log_key", "opaque", "queue_offset")

    def __init__(
        self, puller: QueuePuller, opaque: int, queue_offset: int, log_key: str | None
    ) -> None:
        self._puller = puller
        self.opaque = opaque
        self.queue_offset = queue_offset
        self.log_key = log_key

    def result(self) -> PullResult:
        """Wait for the answer and return it, once; ``records`` are valid until the next ``result``.

        RemotingTimeoutError if the answer does not arrive in time, RemotingConnectionError if the
        connection ends, BrokerError if the broker refuses, RemotingDecodeError if fields of the
        answer are missing.
        """
        return self._puller.wait(self)

    def cancel(self) -> None:
        """Drop the answer when it arrives."""
        self._puller.forget(self.opaque)


class QueuePuller:
    """Pulls ``queue`` as a member of ``group``; close it, or use it in ``with``.

    ``address`` is called before each connect and returns the broker's address; its errors are
    raised to the caller.
    The broker is not asked to hold a pull, so it answers at once or not at all. With
    ``found_logs``, what this process knows of brokers' files, records are read there if possible.
    """

    def __init__(
        self,
        queue: MessageQueue,
        *,
        group: str,
        address: Callable[[], str],
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        bytes_max: int = PULL_BYTES_MAX,
        selector: Selector = SELECT_ALL,
        timeout_s: float = REQUEST_TIMEOUT_S,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        found_logs: FoundLogs | None = None,
    ) -> None:
        self.queue = queue
        self._log = None if found_logs is None else MappedLog(queue, found_logs)
        self._group = group
        self._address = address
        self._credentials = credentials
        self._tls = tls
        self._bytes_max = bytes_max
        self._selector = selector
        self._timeout_s = timeout_s
        self._frame_bytes_max = frame_bytes_max
        self._connection: _Connection | None = None
        self._opaque = 0
        # Requests in flight, each with a copy of its answer if that arrived out of order.
        self._waiting: dict[int, tuple[RemotingCommand, bytes] | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pulls in flight fail. Safe to call twice."""
        self._waiting.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._log is not None:
            self._log.close()

    def ask(self, queue_offset: int, count_max: int) -> Pull:
        """Start a pull; connect first if there is no connection. RemotingError if that fails."""
        is_large = count_max >= COUNT_MIN
        log_key = self._log.key if self._log is not None and is_large else None
        command = pull_command(
            self.queue,
            queue_offset,
            group=self._group,
            count_max=count_max,
            bytes_max=max(self._bytes_max, BYTES_MAX) if log_key else self._bytes_max,
            hold_s=0,
            selector=self._selector,
            log_key=log_key,
        )
        self._opaque += 1
        command.opaque = self._opaque
        if self._credentials is not None:
            self._credentials.sign(command)
        if self._connection is None:
            self._connection = _Connection(
                self._address(),
                tls=self._tls,
                timeout_s=self._timeout_s,
                frame_bytes_max=self._frame_bytes_max,
            )
        try:
            self._connection.send(encode(command))
        except RemotingError:
            self.close()
            raise
        self._waiting[self._opaque] = None
        return Pull(self, self._opaque, queue_offset, log_key)

    def wait(self, pull: Pull) -> PullResult:
        """Return the result of a pull; for ``Pull.result``."""
        answer, body = self._answer(pull.opaque)
        log, ext = self._log, answer.ext
        if log is not None and LOG_UNITS in ext:
            result = pull_result(answer, b"")
            verified_from = int_field(answer, LOG_UNITS)
            begin, end = pull.queue_offset, result.next_offset
            mapped = log.pieces(bytes(body), begin, end, verified_from=verified_from)
            return replace(result, mapped=mapped)
        if log is not None and LOG_FOLDER in ext:
            log.offered(ext[LOG_FOLDER], pull.log_key)
        return pull_result(answer, body)

    def _answer(self, opaque: int) -> tuple[RemotingCommand, bytes | memoryview]:
        if opaque not in self._waiting or self._connection is None:
            raise RemotingConnectionError("the connection that the pull was sent on has ended")
        arrived = self._waiting[opaque]
        if arrived is not None:
            del self._waiting[opaque]
            return arrived
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                command, body = self._connection.receive(deadline)
            except RemotingError:
                self.close()
                raise
            if not command.is_response or command.opaque not in self._waiting:
                continue  # the answer to a cancelled pull, or a notification that is ignored
            if command.opaque == opaque:
                del self._waiting[opaque]
                return command, body
            # Servers with several threads answer out of order.
            self._waiting[command.opaque] = command, bytes(body)

    def forget(self, opaque: int) -> None:
        self._waiting.pop(opaque, None)


class _Connection:
    """A blocking socket with the kernel's timeouts, so that one call receives a whole frame.

    With TLS a call receives one TLS record, and the timeouts are Python's.
    """

    def __init__(
        self, address: str, *, tls: Tls | None, timeout_s: float, frame_bytes_max: int
    ) -> None:
        self._peer = address
        self._frame_bytes_max = frame_bytes_max
        self._timeout_s = timeout_s
        self._buffer = bytearray(65_536)
        self._flags = 0
        host, port = parse_address(address, port_min=1)
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as exc:
            raise RemotingConnectionError(f"{address}: {exc.strerror or exc}") from exc
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._secure(tls, host)
            return
        self._flags = socket.MSG_WAITALL
        # Python's own timeouts make the socket non-blocking, and then MSG_WAITALL has no effect.
        self._socket.settimeout(None)
        timeval = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _secure(self, tls: Tls, host: str) -> None:
        try:
            self._socket = tls.context().wrap_socket(self._socket, server_hostname=host)
        except (OSError, ConfigError) as exc:
            self._socket.close()
            why = str(exc) if isinstance(exc, ConfigError) else handshake_fault(exc)
            raise RemotingConnectionError(f"{self._peer}: {why}") from exc

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except (BlockingIOError, TimeoutError):
            raise RemotingTimeoutError(
                f"{self._peer}: output is stuck for {self._timeout_s:.3g} s"
            ) from None
        except OSError as exc:
            raise RemotingConnectionError(f"{self._peer}: {exc.strerror or exc}") from exc

    def receive(self, deadline: float) -> tuple[RemotingCommand, memoryview]:
        """Return the next frame's command and body, a view that the next call overwrites.

        A peer that trickles bytes is given up after the first wait that ends past ``deadline``, so
        within twice the timeout.
        """
        self._fill(0, _LENGTH_BYTES, deadline)
        frame_bytes = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if not FRAME_BYTES_MIN <= frame_bytes <= self._frame_bytes_max:
            raise self._malformed(f"frame of {frame_bytes} bytes")
        if frame_bytes > len(self._buffer):
            # A buffer is replaced, never resized, so views of the old one stay valid. A quarter of
            # extra space, because answers differ a little in size.
            length = self._buffer[:_LENGTH_BYTES]
            self._buffer = bytearray(min(frame_bytes * 5 // 4, self._frame_bytes_max))
            self._buffer[:_LENGTH_BYTES] = length
        self._fill(_LENGTH_BYTES, frame_bytes, deadline)
        view = memoryview(self._buffer)[:frame_bytes]
        try:
            command, body_begin = decode_head(view)
        except RemotingDecodeError as exc:
            raise self._malformed(str(exc)) from exc
        return command, view[body_begin:]

    def _fill(self, begin: int, end: int, deadline: float) -> None:
        """Receive bytes [begin, end) of the buffer."""
        with memoryview(self._buffer) as view:
            while begin < end:
                try:
                    count = self._socket.recv_into(view[begin:end], end - begin, self._flags)
                except (BlockingIOError, TimeoutError):
                    count = -1  # the timeout; handled below
                except OSError as exc:
                    reason = exc.strerror or exc
                    raise RemotingConnectionError(
                        f"{self._peer}: connection lost ({reason})"
                    ) from exc
                if count == 0:
                    raise RemotingConnectionError(f"{self._peer}: connection closed by the peer")
                begin += max(count, 0)
                if begin < end and time.monotonic() >= deadline:
                    raise RemotingTimeoutError(
                        f"{self._peer}: no answer within {self._timeout_s:.3g} s"
                    )

    def _malformed(self, why: str) -> RemotingConnectionError:
        return RemotingConnectionError(f"{self._peer}: peer sent a malformed frame: {why}")
