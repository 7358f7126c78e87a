"""Reads of what is not in memory: loaded in threads, a few at a time, then tried again.

Owns: the row of reads that wait for the disk, its limit, and the answer to a request that does.
Must not touch: what is read, who reads; whoever waits is called back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from motelog.core.errors import BrokerError
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, answer_with

_log = logging.getLogger(__name__)

LOADERS: Final = 4


class ColdReads:
    """First come, first served; ``run`` must be running for anything to be loaded."""

    def __init__(self, load: Callable[[Any], Awaitable[None]], *, waiting_max: int) -> None:
        self._load = load
        self._send, self._receive = trio.open_memory_channel[
            tuple[Sequence[Any], Callable[[], None]]
        ](waiting_max)
        self.loaded_count = 0
        self._faults = LimitedLog(_log)

    @property
    def waiting_count(self) -> int:
        return self._send.statistics().current_buffer_used

    def load(self, lacking: Sequence[Any], then: Callable[[], None]) -> bool:
        """Call ``then`` when ``lacking`` (of a read's result) is in memory; False if too many wait.

        ``then`` reads again. It may find COLD again, when something else needed the memory.
        """
        try:
            self._send.send_nowait((lacking, then))
        except trio.WouldBlock:
            return False
        return True

    def guard(
        self,
        process: Processor,
        lacking: Callable[[RemotingCommand], Sequence[Any]],
        *,
        loads_max: int = 1,
    ) -> Processor:
        """Return ``process``, put off until a thread has loaded what is on the disk only.

        ``lacking`` says what of a request is; it is asked again after each load but the last. The
        request is refused with BrokerError if too many wait.
        """

        def guarded(
            request: RemotingCommand, connection: Connection, loads_left: int = loads_max
        ) -> RemotingCommand | None:
            found = lacking(request) if loads_left else ()
            if not found:
                return process(request, connection)

            def again() -> None:
                if connection.is_open:
                    answer_with(partial(guarded, loads_left=loads_left - 1), request, connection)

            if not self.load(found, again):
                raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many requests wait for the disk")
            return None

        return guarded

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Load until cancelled; ``after`` is called behind each ``then``."""
        async with trio.open_nursery() as nursery:
            for _ in range(LOADERS):
                nursery.start_soon(self._load_each, after)
            task_status.started()

    async def _load_each(self, after: Callable[[], None]) -> None:
        async for lacking, then in self._receive:
            await self._load(lacking)
            self.loaded_count += 1
            with self._faults.boundary("going on after a load failed, a fault of this server"):
                then()
            after()
