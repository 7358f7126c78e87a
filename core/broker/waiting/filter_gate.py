"""Delays the first requests that need a SQL92 filter until its parser is loaded.

Owns: the requests that wait. Must not touch: what a request does, what a filter means.
Loading takes about 0.2 s, and no other request may wait for it. So it happens in a thread, once,
and not before a consumer filters. The waiting requests are then processed as if they had just come.
"""

from __future__ import annotations

from typing import Final

import trio

from motelog.core.errors import BrokerError
from motelog.core.filter.sql_filter import ParserNotLoadedError, SqlFilters, compile_sql
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer
from motelog.core.threads import run_in_thread

WAITING_MAX: Final = 10_000


class FilterGate:
    """Requests in the order they came; state changes only between two awaits of ``run``."""

    def __init__(self, filters: SqlFilters) -> None:
        self._filters = filters
        self._waiting: list[tuple[RemotingCommand, Connection]] = []
        self._wanted = trio.Event()

    def guard(self, process: Processor) -> Processor:
        """Return ``process``; requests that need the parser wait for it."""

        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            try:
                return process(request, connection)
            except ParserNotLoadedError:
                if len(self._waiting) >= WAITING_MAX:
                    text = "too many requests wait for the parser of filters"
                    raise BrokerError(ResponseCode.SYSTEM_BUSY, text) from None
                self._waiting.append((request, connection))
                self._wanted.set()
                return None

        return guarded

    async def run(self, server: RemotingServer) -> None:
        """Return when the parser has been needed and all requests waiting for it are processed."""
        await self._wanted.wait()
        await run_in_thread(compile_sql, "TRUE")
        self._filters.is_loaded = True
        waiting, self._waiting = self._waiting, []
        for request, connection in waiting:
            if connection.is_open:
                server.process(request, connection)
        server.flush()
