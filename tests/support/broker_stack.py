"""A name server and a broker in the test's own process, and raw requests to them.

Owns: starting both on free ports, one remoting connection per ``Peer``. Must not touch: what the
answers mean; tests say that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.client import Later, RemotingClient, RequestHandler, connect
from motelog.core.remoting.frames import RemotingCommand, Serialize
from motelog.core.remoting.tls import Tls
from motelog.core.store.config import StoreConfig

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Both servers and their addresses as ``host:port``."""

    namesrv: NameServer
    broker: Broker
    namesrv_address: str
    broker_address: str


class Peer:
    """A client that speaks in request codes; ``pushed`` has what the server asked of it.

    ``answer`` is what it answers to that.
    """

    def __init__(self, serialize: Serialize) -> None:
        self._serialize = serialize
        self.pushed: list[RemotingCommand] = []
        self.answer: RequestHandler = lambda command: None
        self.client: RemotingClient

    async def ask(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **fields: Any
    ) -> RemotingCommand:
        """Send one request and return its answer."""
        texts = {name: str(value) for name, value in (ext or {}).items()}
        command = RemotingCommand(code, ext=texts, body=body, serialize=self._serialize, **fields)
        return await self.client.request(command, timeout_s=TIMEOUT_S)

    def _take(self, command: RemotingCommand) -> RemotingCommand | Later | None:
        self.pushed.append(command)
        return self.answer(command)


def store_config(directory: Path, **fields: Any) -> StoreConfig:
    """Return a store section with small files."""
    return StoreConfig(directory=str(directory), **{"commitlog_file_bytes": 1 << 24, **fields})


@asynccontextmanager
async def started_stack(
    directory: Path,
    *,
    flush: Literal["async", "sync"] = "async",
    namesrv_fields: Mapping[str, Any] | None = None,
    **broker: Any,
) -> AsyncIterator[Stack]:
    """Run a name server and a broker for the length of the block."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0", **(namesrv_fields or {})))
        await nursery.start(namesrv.run)
        namesrv_address = joined(namesrv.address)
        defaults = {
            "listen": "127.0.0.1:0",
            "store": store_config(directory, flush=flush),
            # The test's own work holds up the thread that both share.
            "send_wait_ms_max": 5_000,
        }
        config = BrokerConfig(namesrv=(namesrv_address,), **{**defaults, **broker})
        server = Broker(config)
        await nursery.start(server.run)
        yield Stack(namesrv, server, namesrv_address, joined(server.address))
        nursery.cancel_scope.cancel()


async def beside_namesrv(work: Callable[[Path, str], None], folder: Path) -> None:
    """Call ``work`` in a thread, with ``folder`` and the address of a name server that runs."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        await trio.to_thread.run_sync(work, folder, joined(namesrv.address))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    address: str, serialize: Serialize = Serialize.JSON, *, tls: Tls | None = None
) -> AsyncIterator[Peer]:
    """Keep one remoting connection open for the length of the block."""
    peer = Peer(serialize)
    stream = await connect(address, timeout_s=TIMEOUT_S, tls=tls)
    async with trio.open_nursery() as nursery:
        peer.client = RemotingClient(stream, peer=address, on_request=peer._take)
        await nursery.start(peer.client.run)
        yield peer
        nursery.cancel_scope.cancel()


async def routed(stack: Stack, topic: str) -> None:
    """Return when the name server knows ``topic``."""
    await eventually(lambda: stack.namesrv.routes.route(topic) is not None)


async def eventually(is_true: Callable[[], bool]) -> None:
    """Return when the servers, which say nothing to a test, have got there."""
    with trio.fail_after(TIMEOUT_S):
        while not is_true():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(0.005)


def joined(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def send_ext(
    topic: str, *, queue_id: int = 0, properties: str = "", **fields: Any
) -> dict[str, Any]:
    """Return the header of a send (code 310) with everything that is required."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": properties,
        **fields,
    }


def pull_ext(topic: str, queue_offset: int, *, queue_id: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the header of a pull (code 11) that takes all tags and does not wait."""
    return {
        "consumerGroup": "consumers",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
        **fields,
    }


def pop_ext(topic: str, group: str = "G", **fields: Any) -> dict[str, Any]:
    """Return the header of a pop (code 200050) of all queues that does not wait."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        **fields,
    }


def json_body(value: Any) -> bytes:
    return msgspec.json.encode(value)
