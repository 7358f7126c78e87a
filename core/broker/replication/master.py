"""A master's side of replication: sends the log to each slave, and knows what they have.

Owns: the connections of slaves and their progress. Must not touch: bytes on the wire
(core.replication), the log's files (LogPieces), which sends wait for a slave (acknowledge).
Spec: RocketMQ 4.9 DefaultHAService, HAConnection, GroupTransferService.

A slave costs one task for each direction and no memory but the socket's: frames are sent from the
maps of the log's files.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final

import trio

from motelog.core.acl.addresses import Addresses
from motelog.core.addresses import format_address
from motelog.core.broker.replication.rate_meter import RateMeter
from motelog.core.clock import Clock
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.replication.ha_frames import (
    BEHIND_BYTES_MAX,
    HEADER,
    HEARTBEAT_S,
    PIECE_BYTES_MAX,
    SILENCE_S,
    HaError,
    Reports,
    first_offset,
)
from motelog.core.store.log_pieces import LogPieces

logger = logging.getLogger(__name__)

#: Bytes that are sent with one call of the system.
_SEND_BYTES: Final = 8 * PIECE_BYTES_MAX
_RECEIVE_BYTES: Final = 4096
#: More connections than anyone has slaves: what connects beyond them is not one.
SLAVES_MAX: Final = 64
#: How long the system waits before a connection is accepted again for lack of descriptors.
_ACCEPT_PAUSE_S: Final = 1.0


class Slave:
    """One connected slave."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        #: The end of its log, as it last reported; None before its first report.
        self.confirmed_offset: int | None = None
        #: Where the frames end that it has been sent.
        self.sent_offset = 0
        self.sent = RateMeter(clock)
        self.may_go_on = Flag()

    def behind_bytes(self, end_offset: int) -> int:
        """Return how much it lacks of a log that ends there."""
        return max(end_offset - (self.confirmed_offset or 0), 0)


async def _no_fault(_host: str) -> str | None:
    return None


class Master:
    """The slaves of one broker."""

    def __init__(self, log: LogPieces, peers: Addresses, clock: Clock) -> None:
        self._log = log
        self._peers = peers
        self._clock = clock
        self.slaves: list[Slave] = []
        #: The furthest end that a slave has reported since the start.
        self.confirmed_offset = 0
        #: Called when ``confirmed_offset`` has grown and when a slave has come or gone.
        self.listeners: list[Callable[[], None]] = []
        #: Returns why no slave at a host can copy this log; None if one can.
        self.fault_at: Callable[[str], Awaitable[str | None]] = _no_fault
        self._refusals = LimitedLog(logger, lines_max=3, period_s=60)
        self._faults = LimitedLog(logger)
        log.on_appended.append(self._wake)

    @property
    def near_count(self) -> int:
        """The number of slaves that lack less than BEHIND_BYTES_MAX."""
        end = self._log.end_offset
        return sum(slave.behind_bytes(end) < BEHIND_BYTES_MAX for slave in self.slaves)

    @property
    def is_followed(self) -> bool:
        """Whether a slave is near enough to wait for."""
        return self.near_count > 0

    def _wake(self) -> None:
        for slave in self.slaves:
            slave.may_go_on.set()

    async def run(self, listener: socket.socket) -> None:
        """Serve slaves until cancelled; the socket is then closed."""
        listening = trio.socket.from_stdlib_socket(listener)
        with listening:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        sock, (host, port, *_) = await listening.accept()
                    except OSError as exc:
                        self._refusals.warning("no slave can connect error=%s", exc)
                        await trio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    nursery.start_soon(self._serve, sock, host, port)

    async def _serve(self, sock: trio.socket.SocketType, host: str, port: int) -> None:
        with sock, self._faults.boundary("serving a slave failed, a fault of this broker"):
            if not self._peers.holds(host):
                self._refusals.warning(
                    "a slave may not copy the log: its address is not in ha_peers address=%s", host
                )
                return
            if len(self.slaves) >= SLAVES_MAX:
                self._refusals.warning("too many slaves: one was refused address=%s", host)
                return
            fault = await self.fault_at(host)
            if fault is not None:
                self._refusals.warning("no log for a slave address=%s reason=%s", host, fault)
                return
            await self._talk(Slave(format_address(host, port), self._clock), sock)

    async def _talk(self, slave: Slave, sock: trio.socket.SocketType) -> None:
        """Send and hear until either side ends; a peer's error ends its connection alone."""
        reason = "it closed the connection"
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.slaves.append(slave)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, slave, sock)
                await self._hear(slave, sock)
                nursery.cancel_scope.cancel()
        except* (OSError, HaError, trio.TooSlowError) as group:
            exc = group.exceptions[0]
            is_silent = isinstance(exc, trio.TooSlowError)
            reason = f"it was silent for {SILENCE_S:g} s" if is_silent else str(exc)
        finally:
            self.slaves.remove(slave)
            self._tell()
        if slave.confirmed_offset is None:
            self._refusals.warning("no log for a slave address=%s reason=%s", slave.address, reason)
        else:
            logger.warning(
                "a slave has gone address=%s its_end=%d behind_bytes=%d reason=%s",
                slave.address,
                slave.confirmed_offset,
                slave.behind_bytes(self._log.end_offset),
                reason,
            )

    async def _hear(self, slave: Slave, sock: trio.socket.SocketType) -> None:
        reports = Reports()
        while True:
            with trio.fail_after(SILENCE_S):
                data = await sock.recv(_RECEIVE_BYTES)
            if not data:
                return
            for offset in reports.feed(data):
                self._note(slave, offset)

    def _note(self, slave: Slave, offset: int) -> None:
        is_first = slave.confirmed_offset is None
        if is_first:
            slave.sent_offset = first_offset(
                offset,
                begin=self._log.begin_offset,
                end=self._log.end_offset,
                file_bytes=self._log.file_bytes,
            )
            logger.info(
                "a slave copies the log address=%s from=%d behind_bytes=%d",
                slave.address,
                slave.sent_offset,
                self._log.end_offset - slave.sent_offset,
            )
            slave.may_go_on.set()
        # It has what it asked for only if that is where the frames begin.
        slave.confirmed_offset = min(offset, slave.sent_offset)
        # The first report is a question. A slave may yet find that its log is not a copy of this.
        if not is_first:
            self.confirmed_offset = max(self.confirmed_offset, slave.confirmed_offset)
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    async def _send(self, slave: Slave, sock: trio.socket.SocketType) -> None:
        await slave.may_go_on.wait()
        while slave.confirmed_offset is None:
            await slave.may_go_on.take()
        while True:
            slave.may_go_on.clear()
            # Released at once: a file whose bytes are viewed cannot be closed.
            with await self._log.read(slave.sent_offset, _SEND_BYTES) as data:
                count = len(data)
                if count:
                    begin = slave.sent_offset
                    # Before it is sent: the report may be heard before the call returns.
                    slave.sent_offset += count
                    slave.sent.note(count)
                    await _send_frames(sock, begin, data)
            if count:
                continue
            if slave.sent_offset < self._log.end_offset:
                raise HaError(
                    f"what follows {slave.sent_offset} was removed here before it was sent"
                )
            if not await slave.may_go_on.take(HEARTBEAT_S):
                await sock.send(HEADER.pack(slave.sent_offset, 0))


async def _send_frames(sock: trio.socket.SocketType, offset: int, data: memoryview) -> None:
    """Send ``data``, the bytes of the log from ``offset`` on."""
    with ExitStack() as views:
        buffers: list[bytes | memoryview] = []
        for begin in range(0, len(data), PIECE_BYTES_MAX):
            piece = views.enter_context(data[begin : begin + PIECE_BYTES_MAX])
            buffers += (HEADER.pack(offset + begin, len(piece)), piece)
        while buffers:
            sent = await sock.sendmsg(buffers)
            while buffers and sent >= len(buffers[0]):
                sent -= len(buffers.pop(0))
            if sent:
                buffers[0] = buffers[0][sent:]
                if isinstance(buffers[0], memoryview):
                    views.enter_context(buffers[0])
