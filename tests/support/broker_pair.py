"""A name server, a master and its slaves in the test's own process; each may stop and come back.

Owns: their folders, ports and lives. Must not touch: what they have; tests say that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.core.store.message_store import MessageStore
from tests.support.broker_stack import connected, joined, store_config
from tests.support.ports import free_port

WITHIN_S = 30
#: Until slaves and name servers find each other.
_REGISTER_S = 0.2


async def until(is_true: Callable[[], object]) -> None:
    """Return when it is true; TooSlowError after WITHIN_S."""
    with trio.fail_after(WITHIN_S):
        while not is_true():  # noqa: ASYNC110  # no event
            await trio.sleep(0.02)


class Member:
    """One broker of the name; ``start`` and ``stop`` as often as wanted, at the same port."""

    def __init__(
        self, nursery: trio.Nursery, folder: Path, namesrv: str, fields: dict[str, Any]
    ) -> None:
        self._nursery = nursery
        self.folder = folder
        self.config = BrokerConfig(
            **{
                "listen": f"127.0.0.1:{free_port()}",
                "vip": False,
                "namesrv": (namesrv,),
                "store": store_config(folder, **fields.pop("store", {})),
                "register_interval_s": _REGISTER_S,
                "send_wait_ms_max": 5_000,
                **fields,
            }
        )
        self.broker = Broker(self.config)
        self._scope = trio.CancelScope()
        self._has_ended = trio.Event()

    @property
    def address(self) -> str:
        return self.config.listen

    @property
    def store(self) -> MessageStore:
        return self.broker.parts.store

    async def start(self) -> None:
        self.broker = Broker(self.config)
        self._scope, self._has_ended = trio.CancelScope(), trio.Event()
        await self._nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            await self.broker.run(task_status=task_status)
        self._has_ended.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self._has_ended.wait()


class Group:
    """All brokers of one name, and the name server."""

    def __init__(self, nursery: trio.Nursery, folder: Path, namesrv: str) -> None:
        self._nursery = nursery
        self._folder = folder
        self.namesrv = namesrv

    def member(self, broker_id: int, **fields: Any) -> Member:
        """Return a broker that has not started, in a folder of its own."""
        folder = self._folder / f"broker-{broker_id}"
        return Member(self._nursery, folder, self.namesrv, {"id": broker_id, **fields})


@asynccontextmanager
async def started_group(folder: Path) -> AsyncIterator[Group]:
    """Run a name server for the length of the block, and what is started in it."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        yield Group(nursery, folder, joined(namesrv.address))
        nursery.cancel_scope.cancel()


def is_copying(member: Member) -> bool:
    slave = member.broker.parts.slave
    return slave is not None and slave.is_copying


async def promote(member: Member, *, is_forced: bool = False) -> RemotingCommand:
    """Ask a slave to become the master; return its answer."""
    async with connected(member.address) as peer:
        return await peer.ask(RequestCode.PROMOTE_BROKER, {"force": str(is_forced).lower()})


def log_bytes(folder: Path, begin: int, end: int) -> bytes:
    """Return [begin, end) of the log in a folder."""
    found = b""
    for file in sorted((folder / "commitlog").iterdir()):
        at = int(file.name)
        found += file.read_bytes()[max(begin - at, 0) : max(end - at, 0)]
    return found
