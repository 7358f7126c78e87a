"""Roles and clients that are started in any order, with any pause: each goes on by itself.

After a power cut every machine starts when it is ready. Time is moved and not slept, but for the
processes that the command line starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.config import AdminConfig, MotelogConfig
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.errors import MotelogError
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.server import Gateway
from motelog.roles import run_roles
from tests.support.broker_stack import store_config
from tests.support.cli import motelog
from tests.support.java import VERSION_4, VERSION_5, ApacheServer
from tests.support.ports import free_port
from tests.support.role_process import RoleProcess

#: Each is a process of its own, and the workers are two.
ROLES = ("namesrv", "broker", "gateway", "workers", "console", "clients")
#: Of all orders 24 in which any four come in each of their own orders once, as numbers of roles.
ORDERS = [
    tuple(ROLES[int(number)] for number in numbers)
    for numbers in (
        *("012345", "021543", "035142", "053241", "104325", "135024", "140523", "153420"),
        *("204513", "235410", "240315", "253014", "304152", "312054", "321450", "340251"),
        *("412503", "421305", "435201", "453102", "504231", "512430", "521034", "540132"),
    )
]
#: What is to come about.
WANTED = {*ROLES} - {"clients"} | {"sent", "pushed", "pulled"}
#: How long each may take when those that it waits for are there.
READY_S = 60
#: Steps of the clock, and how many a pause has, if that makes them longer; real time in which the
#: sockets may answer at each, once no thread is at work.
STEP_S = 0.5
STEPS = 30
ANSWER_S = 0.005


threads_at_work = 0


@pytest.fixture(autouse=True)
def _count_threads_at_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However slow a disk is, no moved time passes while a thread waits for it."""
    run_sync = trio.to_thread.run_sync

    async def run_and_count(*args: Any, **options: Any) -> Any:
        global threads_at_work
        threads_at_work += 1
        try:
            return await run_sync(*args, **options)
        finally:
            threads_at_work -= 1

    monkeypatch.setattr(trio.to_thread, "run_sync", run_and_count)
    yield
    assert threads_at_work == 0


class Stage:
    """The roles of one test, of which none knows when the others start."""

    def __init__(
        self,
        folder: Path,
        nursery: trio.Nursery,
        clock: MockClock,
        *,
        namesrv: str = "",
        answer_s: float = ANSWER_S,
    ) -> None:
        self._folder = folder
        self._nursery = nursery
        self._clock = clock
        self._answer_s = answer_s
        self.namesrv = namesrv or f"127.0.0.1:{free_port()}"
        #: What has come about so far.
        self.done: set[str] = set()

    async def pause(self, seconds: float, *, steps: int = STEPS) -> None:
        step_s = max(STEP_S, seconds / steps)
        for _ in range(int(seconds / step_s)):
            await self._step(step_s)

    async def until(self, is_over: Callable[[], bool], *, within_s: float) -> None:
        for _ in range(int(within_s / STEP_S)):
            if is_over():
                return
            await self._step(STEP_S)

    async def _step(self, seconds: float) -> None:
        self._clock.jump(seconds)
        await wait_all_tasks_blocked(self._answer_s)
        while threads_at_work:
            await wait_all_tasks_blocked(self._answer_s)

    def start(self, role: str, *, number: str = "") -> None:
        """Start a role; gateways and clients with a number are further ones."""
        arguments = [number] if number else []
        self._nursery.start_soon(getattr(self, f"_run_{role}"), *arguments)

    async def _run_namesrv(self) -> None:
        await self._nursery.start(NameServer(NamesrvConfig(listen=self.namesrv)).run)
        self.done.add("namesrv")

    async def _run_broker(self) -> None:
        config = BrokerConfig(
            listen="127.0.0.1:0", namesrv=(self.namesrv,), store=store_config(self._folder)
        )
        await self._nursery.start(Broker(config).run)
        self.done.add("broker")

    async def _run_gateway(self, number: str = "") -> None:
        await self._start_gateway(f"gateway{number}")
        self.done.add(f"gateway{number}")

    async def _start_gateway(self, name: str) -> None:
        config = GatewayConfig(listen="127.0.0.1:0", namesrv=(self.namesrv,), name=name)
        await self._nursery.start(Gateway(config, RemoteLog.of(config)).run)

    async def _run_workers(self) -> None:
        async with trio.open_nursery() as starting:  # as their server does
            for number in (1, 2):
                starting.start_soon(self._start_gateway, f"worker-{number}")
        self.done.add("workers")

    async def _run_console(self) -> None:
        config = MotelogConfig(
            roles=("console",),
            admin=AdminConfig(listen="127.0.0.1:0"),
            gateway=GatewayConfig(namesrv=(self.namesrv,)),
        )
        roles = await self._nursery.start(run_roles, config)
        address = "{}:{}".format(*roles.addresses["console"])
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=READY_S) as client:
            while True:
                # It waits for nobody, and shows what there is.
                assert (await client.get("/health/ready")).status_code == httpx.codes.OK
                answer = await client.get("/api/v1/topics?prefix=T")
                if [topic["topic"] for topic in answer.json().get("topics", ())] == ["T"]:
                    break
                await trio.sleep(5)
        self.done.add("console")

    async def _run_clients(self, number: str = "") -> None:
        self._nursery.start_soon(self._produce, number)
        self._nursery.start_soon(self._pull, number)

        async def take(message: StoredMessage) -> None:
            self.done.add(f"pushed{number}")

        async with PushConsumer(namesrv=self.namesrv, group=f"G{number}", hold_s=2) as consumer:
            consumer.subscribe("T")
            await consumer.run(take)

    async def _produce(self, number: str) -> None:
        async with Producer(namesrv=self.namesrv) as producer:
            while True:
                try:
                    await producer.send(Message("T", b"body"))
                    self.done.add(f"sent{number}")
                except MotelogError:
                    pass  # as it says: there is nobody yet
                await trio.sleep(1)

    async def _pull(self, number: str) -> None:
        async with PullConsumer(namesrv=self.namesrv, group=f"P{number}", hold_s=2) as consumer:
            while True:
                try:
                    consumer.assign(await consumer.queues("T", wait_s=0))
                    break
                except MotelogError:
                    await trio.sleep(1)
            await consumer.poll()
            self.done.add(f"pulled{number}")


def test_any_four_roles_come_in_each_order() -> None:
    for roles in permutations(ROLES, 4):
        assert sum(tuple(filter(roles.__contains__, order)) == roles for order in ORDERS) == 1


@pytest.mark.parametrize("gap_s", [0, 15, 60])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_each_goes_on_by_itself_when_those_that_it_waits_for_are_there(
    tmp_path: Path, mock_clock: MockClock, order: tuple[str, ...], gap_s: int
) -> None:
    async with trio.open_nursery() as nursery:
        stage = Stage(tmp_path, nursery, mock_clock)
        try:
            for role in order:
                stage.start(role)
                await stage.pause(gap_s)
            await stage.until(lambda: stage.done >= WANTED, within_s=READY_S)
            assert stage.done == WANTED
        finally:
            mock_clock.autojump_threshold = ANSWER_S  # goodbyes have deadlines
        nursery.cancel_scope.cancel()


#: How long before the next of Apache's servers a gateway and clients start, the first earliest.
APACHE_GAPS_S = (60, 15, 0)
#: Its brokers register, and its programs answer, in real time: so the steps are fewer and longer.
APACHE_READY_S = 600
APACHE_ANSWER_S = 0.05
APACHE_STEPS = 10


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.timeout(400)
@pytest.mark.parametrize("order", [("namesrv", "broker"), ("broker", "namesrv")], ids="-".join)
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_gateways_and_clients_go_on_whenever_apaches_servers_come(
    tmp_path: Path, mock_clock: MockClock, version: str, order: tuple[str, ...]
) -> None:
    namesrv = ApacheServer(version, tmp_path / "namesrv", has_broker=False)
    broker = ApacheServer(
        version,
        tmp_path / "store",
        namesrv=namesrv.namesrv_address,
        settings={"registerNameServerPeriod": 10_000},  # the least
    )
    servers = {"namesrv": namesrv, "broker": broker}
    wanted = set()
    with ExitStack() as running:
        async with trio.open_nursery() as nursery:
            stage = Stage(
                tmp_path,
                nursery,
                mock_clock,
                namesrv=namesrv.namesrv_address,
                answer_s=APACHE_ANSWER_S,
            )
            try:
                for place in (*order, "last"):
                    for gap_s, next_gap_s in pairwise((*APACHE_GAPS_S, 0)):
                        number = f"-{place}-{gap_s}"
                        stage.start("gateway", number=number)
                        stage.start("clients", number=number)
                        wanted |= {
                            f"{what}{number}" for what in ("gateway", "sent", "pushed", "pulled")
                        }
                        await stage.pause(gap_s - next_gap_s, steps=APACHE_STEPS)
                    if place in servers:
                        await servers[place].launch()
                        running.callback(servers[place].kill)
                await stage.until(lambda: stage.done >= wanted, within_s=APACHE_READY_S)
                assert stage.done == wanted
            finally:
                mock_clock.autojump_threshold = APACHE_ANSWER_S
            nursery.cancel_scope.cancel()


#: Those who wait come first: the first for all, the second for the broker alone, with a name server
#: that knows none.
PROCESS_ORDERS = (
    ("console", "gateway", "broker", "namesrv"),
    ("gateway", "namesrv", "console", "broker"),
)
#: Longer than the workers' appends wait.
PROCESS_GAP_S = 4


def start_processes(folder: Path, order: tuple[str, ...]) -> None:
    """Start the roles with pauses; then a device publishes, and the console shows its topic."""
    folder = folder / "-".join(order)
    folder.mkdir()
    namesrv, any_port = f"127.0.0.1:{free_port()}", 'listen = "127.0.0.1:0"'
    names = f'namesrv = ["{namesrv}"]'
    sections = {
        "namesrv": f'[namesrv]\nlisten = "{namesrv}"',
        "broker": f'[broker]\n{any_port}\n{names}\n[broker.store]\ndirectory = "{folder}/store"\n'
        "commitlog_file_bytes = 4194304",
        "gateway": f"[gateway]\n{any_port}\n{names}\nworkers = 2\nappend_wait_s = 1",
        "console": f"[admin]\n{any_port}\n[gateway]\n{names}",
    }
    with ThreadPoolExecutor() as pool, ExitStack() as processes:
        started: list[Future[None]] = []
        roles = {role: RoleProcess(folder, role, text) for role, text in sections.items()}
        for role in order:
            processes.callback(roles[role].kill)
            started.append(pool.submit(roles[role].start))
            time.sleep(PROCESS_GAP_S)
        for one in started:
            one.result(READY_S)
        sent = motelog("pub", "--to", roles["gateway"].ready["gateway"], "-t", "first/a", "-m", "1")
        assert sent.returncode == 0, sent.stderr
        topics = httpx.get(f"http://{roles['console'].ready['console']}/api/v1/topics?prefix=first")
        assert [topic["topic"] for topic in topics.json()["topics"]] == ["first"]
        for role in reversed(order):
            assert roles[role].stop() == 0
            assert "Traceback" not in roles[role].errors()


def test_processes_go_on_by_themselves(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(start_processes, tmp_path), PROCESS_ORDERS))
