"""A LocalLog on a store that runs, without a broker's sockets.

Owns: ``local_log``, reading it back into a view. Must not touch: what is appended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import Clock
from motelog.core.store.message_store import MessageStore
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from tests.support.stores import STORE_HOST


@asynccontextmanager
async def local_log(store: MessageStore, clock: Clock) -> AsyncIterator[LocalLog]:
    """Open ``store`` and run what a log needs of a broker."""
    topics = TopicTable(
        broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=100
    )
    await trio.to_thread.run_sync(store.open)
    api = BrokerApi(store, topics, clock=clock, store_host=STORE_HOST, cold_reads_max=10)
    log = LocalLog(api)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await nursery.start(api.cold_reads.run, lambda: None)
        await nursery.start(api.line.run, lambda: None)
        nursery.start_soon(log.run)
        yield log
        nursery.cancel_scope.cancel()


async def read_back(*parts: SessionJournal | RetainedStore) -> None:
    """Bring parts of a view up to date, as a gateway's start does."""
    for part in parts:
        while part.refresh(100) or not part.is_current:
            await trio.lowlevel.checkpoint()
