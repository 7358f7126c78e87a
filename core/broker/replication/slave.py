"""A slave's side of replication: copies the log of the master of its name.

Owns: the connection to the master's HA port, where copying begins, the reports to the master.
Must not touch: bytes on the wire (core.replication), records (the store checks them), the master's
other port (master_link).
Spec: RocketMQ 4.9 HAService.HAClient, SlaveSynchronize.

    find the master at the name servers -> look at its log -> compare the last bytes -> copy

The protocol has no epoch, so a slave asks for some bytes that it has: if the master's differ, the
logs have forked, and nothing is copied until a person decides (``motelog store cut``).
A slave never appends anything else. Its reports are acknowledgements: with ``flush = "sync"`` they
name what is on its disk.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal

import trio

from motelog.core.addresses import parse_address
from motelog.core.broker.registration import Registrar
from motelog.core.broker.replication.master_link import MasterLink, MasterLog
from motelog.core.broker.replication.rate_meter import RateMeter
from motelog.core.clock import Clock
from motelog.core.errors import NextFileError, RemotingError, StoreError, leaves
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.replication.ha_frames import HEARTBEAT_S, REPORT, SILENCE_S, HaError, Pieces
from motelog.core.store.message_store import MessageStore
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

#: Bytes at the end of its log that a slave compares with its master's.
COMPARED_BYTES: Final = 65_536
RETRY_S: Final = 1.0
_FIND_TOPICS_S: Final = 0.5
_CONNECT_S: Final = 5.0
_RECEIVE_BYTES: Final = 1_048_576
_NEXT_FILE_S: Final = 0.005
_LINE_PERIOD_S: Final = 60.0


class Slave:
    """The copying of one broker; ``is_copying`` and ``reason`` say how it goes."""

    def __init__(
        self,
        store: MessageStore,
        registrars: Sequence[Registrar],
        link: MasterLink,
        restore: Callable[[Iterable[tuple[str, int]]], None],
        note_term: Callable[[int], None],
        *,
        term: int,
        clock: Clock,
        seed: Literal["all", "last"],
    ) -> None:
        self._clock = clock
        self._store = store
        self._registrars = registrars
        self._link = link
        # Creates topics for queues that came before their settings.
        self._restore = restore
        self._queues_known = set(store.queues())
        self._seed = seed
        self._is_durable = store.config.flush == "sync"
        self._may_report = Flag()
        self._lines = LimitedLog(logger, lines_max=1, period_s=_LINE_PERIOD_S)
        self._faults = LimitedLog(logger)
        #: The master's address and HA address, once a name server has named them.
        self.master_address = ""
        self.master_ha_address = ""
        self.master_term = term
        # Writes down the master's term; blocks.
        self._note_term = note_term
        # Where the master's log began to differ from logs that it did not copy; 0: not known.
        self._agreed_offset = 0
        #: Whether bytes arrive; else why not.
        self.is_copying = False
        self.reason = "it has not begun"
        #: The end of the master's log when it last said so, and when that was.
        self.master_end: int | None = None
        self.heard_at_ms: int | None = None
        # The same on the steady clock.
        self._heard_ms: int | None = None
        self.received = RateMeter(clock)
        store.on_durable.append(self._may_report.set)

    @property
    def end_offset(self) -> int:
        """The end of the copy."""
        return self._store.end_offset

    @property
    def behind_bytes(self) -> int:
        """How much it lacks of the master's log, as far as that is known."""
        return max((self.master_end or 0) - self.end_offset, 0)

    @property
    def silence_s(self) -> float:
        """The time since the master was heard; infinite if it has not been."""
        if self._heard_ms is None:
            return math.inf
        return (self._clock.monotonic_ms() - self._heard_ms) / 1000

    async def run(self) -> None:
        """Copy until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forever, self._copy, RETRY_S)
            nursery.start_soon(self._forever, self._find_topics, _FIND_TOPICS_S)

    async def _forever(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while True:
            with self._faults.boundary("copying from the master failed, a fault of this broker"):
                await work()
            await trio.sleep(pause_s)

    def _find_master(self) -> bool:
        for registrar in self._registrars:
            if registrar.master_address:
                self.master_address = registrar.master_address
            if registrar.master_ha_address:
                self.master_ha_address = registrar.master_ha_address
        return bool(self.master_address and self.master_ha_address)

    async def _follow_tables(self, taken: Callable[[int], None]) -> None:
        try:
            await self._link.follow(self.master_address, taken)
        except RemotingError as exc:
            text = "the master's tables are not taken"
            self._lines.warning(text + "; it is retried error=%s", exc)
            if not self.is_copying:
                self.reason = f"{text}: {exc}"

    async def _find_topics(self) -> None:
        """Let the topics of queues that were copied be read, even if the master has gone since."""
        queues = set(self._store.queues())
        new = queues - self._queues_known
        if new:
            self._link.hurry()  # else the topics would have other settings
            await trio.sleep(_FIND_TOPICS_S)
            self._restore(new)
            self._queues_known = queues

    async def _copy(self) -> None:
        if not self._find_master():
            self.reason = "no name server names a master that feeds slaves (replicate)"
            return
        try:
            master = await self._link.log_of(self.master_address)
            self.master_end = None  # another one may be the master now, with a shorter log
            self._hear(master.end_offset)
            if master.term > self.master_term:
                await run_in_thread(self._note_term, master.term)
                self.master_term = master.term
            self._agreed_offset = master.term_begin
            await self._follow(master)
            reason = "the master closed the connection, see its log"
        except* (OSError, RemotingError, HaError, StoreError, trio.TooSlowError) as group:
            exc = leaves(group)[0]
            is_silent = isinstance(exc, trio.TooSlowError)
            reason = f"the master was silent for {SILENCE_S:g} s" if is_silent else str(exc)
        finally:
            self.is_copying = False
        self.reason = reason
        self._lines.warning(
            "the log is not copied; it is retried master=%s end=%d reason=%s",
            self.master_ha_address,
            self._store.end_offset,
            reason,
        )

    async def _follow(self, master: MasterLog) -> None:
        """Copy tables and log: first the tables, which may have changed since it is the master."""
        tables_taken = trio.Event()

        def taken(end_offset: int) -> None:
            self._hear(end_offset)
            tables_taken.set()

        async with trio.open_nursery() as nursery:
            follow = partial(self._follow_tables, taken)
            nursery.start_soon(self._forever, follow, RETRY_S)
            nursery.start_soon(self._forever, self._link.use_progress, RETRY_S)
            await tables_taken.wait()
            await self._copy_from(master)
            nursery.cancel_scope.cancel()

    def _hear(self, end_offset: int) -> None:
        self.master_end = max(end_offset, self.master_end or 0)
        self.heard_at_ms = self._clock.now_ms()
        self._heard_ms = self._clock.monotonic_ms()

    def _begin(self, master: MasterLog) -> int:
        """Return the first byte to ask for; HaError if the master's log does not fit."""
        store = self._store
        if master.file_bytes != store.pieces.file_bytes:
            raise HaError(
                f"the master's log has files of {master.file_bytes} bytes, this one of"
                f" {store.pieces.file_bytes}: set commitlog_file_bytes to the master's, in an empty"
                " folder"
            )
        end = store.end_offset
        if end == store.begin_offset and end < max(master.begin_offset, 1):
            return master.begin_offset if self._seed == "all" else 0
        if end > master.end_offset:
            agreed = min(master.end_offset, master.term_begin or end)
            raise HaError(
                f"this log ends at {end}, the master's at {master.end_offset}: this one has"
                " messages that the master never had or has lost. Promote this broker, or cut its"
                f" log back (motelog store cut --at {agreed})"
            )
        if end < master.begin_offset:
            raise HaError(
                f"this log ends at {end}, and the master's begins at {master.begin_offset}: what"
                " lies between was removed there. Begin with an empty folder or a backup"
            )
        return max(end - COMPARED_BYTES, store.begin_offset, master.begin_offset)

    async def _copy_from(self, master: MasterLog) -> None:
        begin = self._begin(master)
        host, port = parse_address(self.master_ha_address)
        sock = trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        with sock:
            with trio.fail_after(_CONNECT_S):
                await sock.connect((host, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._store.drop_received()
            async with trio.open_nursery() as nursery:
                # A report of 0 asks for the last file, so all of a log is asked for from its second
                # byte on. The first one is always 0.
                asks_for_all = begin == 0 < master.end_offset and (
                    self._seed == "all" or self._store.end_offset > 0
                )
                await sock.send(REPORT.pack(1 if asks_for_all else begin))
                if asks_for_all and self._store.end_offset == 0:
                    self._store.append_raw(0, b"\0")
                nursery.start_soon(self._report, sock)
                await self._receive(sock)
                nursery.cancel_scope.cancel()

    async def _receive(self, sock: trio.socket.SocketType) -> None:
        pieces, buffer = Pieces(), bytearray(_RECEIVE_BYTES)
        view = memoryview(buffer)
        while True:
            with trio.fail_after(SILENCE_S):
                count = await sock.recv_into(buffer)
            if not count:
                return
            self.received.note(count)
            for offset, piece in pieces.feed(view[:count]):
                end = offset + len(piece)
                self._hear(end)
                await self._take(offset, piece)
                # What was not compared yet is not a copy.
                if end >= self._store.end_offset:
                    self.is_copying = True
                    self._may_report.set()
            # A master with much to send must not keep the other tasks from running.
            await trio.lowlevel.checkpoint()

    async def _take(self, offset: int, piece: memoryview) -> None:
        """Compare what the log has, and append the rest."""
        store = self._store
        known = store.end_offset - offset
        if known > 0 and len(piece):
            await self._compare(offset, piece[:known])
            offset, piece = offset + len(piece[:known]), piece[known:]
        while len(piece):
            try:
                store.append_raw(offset, piece, may_wait=False)
                return
            except NextFileError:
                taken = store.received_offset - offset
                offset, piece = offset + taken, piece[taken:]
                await trio.sleep(_NEXT_FILE_S)

    async def _compare(self, offset: int, theirs: memoryview) -> None:
        store = self._store
        while len(theirs):
            with await store.pieces.read(offset, len(theirs)) as ours:
                count = len(ours)
                if not count or ours != theirs[:count]:
                    raise HaError(
                        f"the logs have forked: this one, up to {store.end_offset}, differs from"
                        f" the master's in [{offset}, {offset + len(theirs)}). Cut it back to where"
                        f" both agree{self._cut_text()}, or begin with an empty folder"
                    )
            offset, theirs = offset + count, theirs[count:]

    def _cut_text(self) -> str:
        agreed = self._agreed_offset
        return f" (motelog store cut --at {agreed})" if agreed else ""

    async def _report(self, sock: trio.socket.SocketType) -> None:
        reported, sent_at = -1, trio.current_time()
        while True:
            await self._may_report.take(max(sent_at + HEARTBEAT_S - trio.current_time(), 0))
            end = self._store.end_offset
            if self._is_durable:
                self._store.want_durable(end)
                end = self._store.durable_offset
            is_due = trio.current_time() >= sent_at + HEARTBEAT_S
            if is_due or (self.is_copying and end > reported):
                sent_at = trio.current_time()
                if self.is_copying:  # else the first report stands
                    await sock.send(REPORT.pack(end))
                    reported = end
