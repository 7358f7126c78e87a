"""Roles and clients that are started in any order, with any pause: each goes on by itself.

After a power cut every machine starts when it is ready. Time is moved and not slept.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.errors import MotelogError
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.remote_log import RemoteLog
from motelog.gateway.server import Gateway
from tests.support.broker_stack import store_config

ROLES = ("namesrv", "broker", "gateway", "clients")
#: How long each may take when those that it waits for are there.
READY_S = 60
#: Real time in which the sockets may answer, at each step of the clock.
ANSWER_S = 0.005


class Stage:
    """The roles of one test, of which none knows when the others start."""

    def __init__(self, folder: Path, nursery: trio.Nursery, clock: MockClock) -> None:
        self._folder = folder
        self._nursery = nursery
        self._clock = clock
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.namesrv = f"127.0.0.1:{probe.getsockname()[1]}"
        config = GatewayConfig(listen="127.0.0.1:0", namesrv=(self.namesrv,))
        self.log = RemoteLog.of(config)
        self._gateway = Gateway(config, self.log)
        #: What has come about so far.
        self.done: set[str] = set()

    async def pass_s(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        for _ in range(int(seconds * 2)):
            if is_over():
                return
            self._clock.jump(0.5)
            await wait_all_tasks_blocked(ANSWER_S)

    def start(self, role: str) -> None:
        self._nursery.start_soon(getattr(self, f"_run_{role}"))

    async def _run_namesrv(self) -> None:
        await self._nursery.start(NameServer(NamesrvConfig(listen=self.namesrv)).run)
        self.done.add("namesrv")

    async def _run_broker(self) -> None:
        config = BrokerConfig(
            listen="127.0.0.1:0", namesrv=(self.namesrv,), store=store_config(self._folder)
        )
        await self._nursery.start(Broker(config).run)
        self.done.add("broker")

    async def _run_gateway(self) -> None:
        await self._nursery.start(self._gateway.run)
        self.done.add("gateway")

    async def _run_clients(self) -> None:
        self._nursery.start_soon(self._produce)
        self._nursery.start_soon(self._pull)

        async def take(message: StoredMessage) -> None:
            self.done.add("pushed")

        async with PushConsumer(namesrv=self.namesrv, group="G", hold_s=2) as consumer:
            consumer.subscribe("T")
            await consumer.run(take)

    async def _produce(self) -> None:
        async with Producer(namesrv=self.namesrv) as producer:
            while True:
                try:
                    await producer.send(Message("T", b"body"))
                    self.done.add("sent")
                except MotelogError:
                    pass  # as it says: there is nobody yet
                await trio.sleep(1)

    async def _pull(self) -> None:
        async with PullConsumer(namesrv=self.namesrv, group="P", hold_s=2) as consumer:
            while True:
                try:
                    consumer.assign(await consumer.queues("T", wait_s=0))
                    break
                except MotelogError:
                    await trio.sleep(1)
            await consumer.poll()
            self.done.add("pulled")


@pytest.mark.parametrize("gap_s", [0, 15, 60])
@pytest.mark.parametrize("order", list(permutations(ROLES)), ids="-".join)
async def test_each_goes_on_by_itself_when_those_that_it_waits_for_are_there(
    tmp_path: Path, mock_clock: MockClock, order: tuple[str, ...], gap_s: int
) -> None:
    wanted = {"namesrv", "broker", "gateway", "sent", "pushed", "pulled"}
    async with trio.open_nursery() as nursery:
        stage = Stage(tmp_path, nursery, mock_clock)
        for role in order:
            stage.start(role)
            await stage.pass_s(gap_s)
        await stage.pass_s(READY_S, lambda: stage.done >= wanted)
        assert stage.done == wanted
        mock_clock.autojump_threshold = ANSWER_S  # goodbyes have deadlines
        nursery.cancel_scope.cancel()
