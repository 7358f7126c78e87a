"""Lives of a broker that a kill ends: what it has kept is read in the next one.

Owns: the broker and its name server, a life of it, all messages of a queue. Must not touch: what
happens in a life (its test).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import Peer, connected, joined, pull_ext


@asynccontextmanager
async def mortal_broker(directory: Path, *, timeout_s: float) -> AsyncIterator[BrokerProcess]:
    """Yield a broker that is not started yet; its name server lives on through all its lives."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        with trio.fail_after(timeout_s):
            yield BrokerProcess(directory, namesrv=joined(namesrv.address))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def life_of(broker: BrokerProcess) -> AsyncIterator[Peer]:
    """Start a broker, yield a connection to it, and kill it."""
    await trio.to_thread.run_sync(broker.start)
    try:
        async with connected(broker.address) as peer:
            yield peer
    finally:
        # Not in a thread: a test whose time is over must not leave it running.
        broker.kill()


async def all_bodies(peer: Peer, topic: str, count: int) -> Counter[bytes]:
    """Pull queue 0 until at least ``count`` different messages have come and no more do."""
    found: Counter[bytes] = Counter()
    offset = 0
    while True:
        ext = pull_ext(topic, offset, sysFlag=6, suspendTimeoutMillis=3_000)
        answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
        offset = int(answer.ext["nextBeginOffset"])
        found.update(message.body for message in decode_messages(answer.body))
        if answer.code != ResponseCode.SUCCESS and len(found) >= count:
            return found
