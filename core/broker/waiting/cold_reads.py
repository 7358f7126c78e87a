"""Reads of data that is not in memory: threads page it in, some at a time; the reads run again.

Owns: the queue of reads that wait for the disk, its limit, and the guard around processors that
read. Must not touch: what is read, and who reads; a waiting read is a callback.

    request -> read -> answer
                    -> NotInMemoryError -> queue -> paged in by a thread -> read again
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from motelog.core.errors import BrokerError
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, answer_with
from motelog.core.store.disk.page_cache import NotInMemoryError, Pageable, PageIns

logger = logging.getLogger(__name__)

# A processor that reads. The last argument says whether its reads may wait for the disk; if not, it
# raises NotInMemoryError before it has any effect, and later runs again from its beginning.
ReadingProcessor = Callable[[RemotingCommand, Connection, bool], RemotingCommand | None]


class ColdReads:
    """First come, first served; places are only paged in while ``run`` is running."""

    def __init__(
        self, page_in: Callable[[Sequence[Pageable]], Awaitable[None]], *, waiting_max: int
    ) -> None:
        self._page_in = page_in
        self._waiting_max = waiting_max
        self._send, self._receive = trio.open_memory_channel[
            tuple[Sequence[Pageable], Callable[[], None]]
        ](waiting_max)
        self.waiting_count = 0
        self.loaded_count = 0
        self._faults = LimitedLog(logger)

    def page_in(self, missing: Sequence[Pageable], then: Callable[[], None]) -> bool:
        """Call ``then`` when ``missing`` has been paged in; False if too many wait.

        ``then`` reads again. The same places may be missing again if others needed the memory.
        """
        if self.waiting_count == self._waiting_max:
            return False
        self.waiting_count += 1
        self._send.send_nowait((missing, then))
        return True

    def guard(self, process: ReadingProcessor) -> Processor:
        """Return ``process`` as a processor that may wait for the disk."""

        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            return self.attempt(partial(process, request, connection), request, connection)

        return guarded

    def attempt(
        self,
        read: Callable[[bool], RemotingCommand | None],
        request: RemotingCommand,
        connection: Connection,
        page_ins: PageIns | None = None,
    ) -> RemotingCommand | None:
        """Return the answer to ``request`` that ``read`` finds, or None if it comes later.

        ``read`` is called again whenever a thread has paged in missing places. BrokerError refuses
        the request if too many wait.
        """
        try:
            return read(page_ins is not None and page_ins.may_wait)
        except NotInMemoryError as cold:
            page_ins = page_ins or PageIns()
            page_ins.note(cold.missing)
            if self.page_in(
                cold.missing, partial(self._again, read, request, connection, page_ins)
            ):
                return None
        raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many requests wait for the disk")

    def _again(
        self,
        read: Callable[[bool], RemotingCommand | None],
        request: RemotingCommand,
        connection: Connection,
        page_ins: PageIns,
    ) -> None:
        if connection.is_congested:
            # The server keeps the requests of a congested client, and processes them later.
            connection.deferred.append(request)
        elif connection.is_open:
            answer_with(partial(self.attempt, read, page_ins=page_ins), request, connection)

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Page in until cancelled; ``after`` is called after each ``then``."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for missing, then in self._receive:
                # One task for each: a read that waits for a rebuild does not delay the others.
                nursery.start_soon(self._page_in_one, missing, then, after)

    async def _page_in_one(
        self, missing: Sequence[Pageable], then: Callable[[], None], after: Callable[[], None]
    ) -> None:
        await self._page_in(missing)
        self.waiting_count -= 1
        self.loaded_count += 1
        with self._faults.boundary("continuing after a page-in failed, a fault of this server"):
            then()
        after()
