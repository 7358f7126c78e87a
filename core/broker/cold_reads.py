"""Reads of what is not in memory: loaded in threads, a few at a time, then tried again.

Owns: the row of reads that wait for the disk, its limit, and the answer to a request that does.
Must not touch: what is read, who reads; whoever waits is called back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from core.errors import BrokerError
from core.remoting import RemotingCommand, ResponseCode
from core.remoting_server import Connection, answer_with

LOADERS: Final = 4


class ColdReads:
    """First come, first served; ``run`` must be running for anything to be loaded."""

    def __init__(self, load: Callable[[Any], Awaitable[None]], *, waiting_max: int) -> None:
        self._load = load
        self._send, self._receive = trio.open_memory_channel[
            tuple[Sequence[Any], Callable[[], None]]
        ](waiting_max)
        self.loaded_count = 0

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

    def answer(
        self,
        request: RemotingCommand,
        connection: Connection,
        lacking: Callable[[RemotingCommand], Sequence[Any]],
        answer: Callable[[RemotingCommand], RemotingCommand | None],
        *,
        loads_max: int = 1,
    ) -> RemotingCommand | None:
        """Answer at once, or, if something is on the disk only, when a thread has loaded it.

        ``lacking`` says what that is; it is asked again after each load but the last. BrokerError
        if too many wait.
        """
        found = lacking(request) if loads_max else ()
        if not found:
            return answer(request)

        def process(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            return self.answer(request, connection, lacking, answer, loads_max=loads_max - 1)

        def again() -> None:
            if connection.is_open:
                answer_with(process, request, connection)

        if not self.load(found, again):
            raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many requests wait for the disk")
        return None

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
            then()
            after()
