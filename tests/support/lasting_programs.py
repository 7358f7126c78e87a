"""Clients in other languages that send and consume while servers are killed, a process each.

Owns: LastingProgram and its process, which ends with the block; which programs there are. Must not
touch: what becomes of their lines (tests.fault.broker_kills). A test is skipped, with the reason,
where a program's language or package is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.support.cpp import cpp_packages
from tests.support.grpc_proxy import SOURCES, proxy_libraries, python_client, started_proxy
from tests.support.node import ALI_ONS, node_modules

CLIENTS = Path(__file__).resolve().parents[1] / "integration"
AT_WORK_WITHIN_S = 120
IDLE_WITHIN_S = 120

#: Takes the words of a line.
Take = Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: ``name`` is that of its reader, ``variables`` its environment's own.

    ``errors`` is the file for what it says of its errors. One of RocketMQ 5's speaks to a proxy,
    whose files are in the folder ``proxy``. ``goes_back`` says that its group may commit an offset
    below an earlier one.
    """

    name: str
    command: tuple[str, ...]
    variables: dict[str, str]
    errors: Path
    proxy: Path | None = None
    goes_back: bool = False


def lasting_programs(home: Path) -> list[Program]:
    """Return the programs that speak to name server and brokers; ``home`` is where they write."""
    home.mkdir(parents=True, exist_ok=True)
    node = ("node", str(CLIENTS / "node" / "lasting.js"))
    cpp = (sys.executable, str(CLIENTS / "clients" / "cpp" / "lasting.py"))
    modules = {"NODE_PATH": str(node_modules(ALI_ONS))}
    return [
        # Where a kill cuts off the answer to what its offset is, RemoteBrokerOffsetStore.readOffset
        # returns -1, as for a group that has none, and it begins at 0 and commits as it goes.
        Program("ali-ons", node, modules, home / "ali-ons", goes_back=True),
        Program("cpp", cpp, {"PYTHONPATH": str(cpp_packages()), "HOME": str(home)}, home / "cpp"),
    ]


def proxied_programs(home: Path) -> list[Program]:
    """Return those that speak to RocketMQ's proxy, which is another process."""
    home.mkdir(parents=True, exist_ok=True)
    proxy_libraries()
    grpc = (python_client(), str(SOURCES / "lasting.py"))
    return [Program("grpc", grpc, {"HOME": str(home)}, home / "grpc", home / "proxy")]


class LastingProgram:
    """A running program; use it with ``running_program``."""

    def __init__(self, name: str, process: trio.Process) -> None:
        self._name = name
        self._process = process
        self._is_at_work = trio.Event()
        self._is_idle = trio.Event()

    async def at_work(self) -> None:
        """Return when it has got a message."""
        with trio.fail_after(AT_WORK_WITHIN_S):
            await self._is_at_work.wait()

    async def stop_sends(self) -> None:
        """Return when it sends no more and no send is under way."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"stop\n")
        with trio.fail_after(IDLE_WITHIN_S):
            await self._is_idle.wait()

    async def _read(self, take: Take) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                words = line.decode().split("\t")
                if words == ["idle"]:
                    self._is_idle.set()
                else:
                    take(words)
                    if words[0] == "got":
                        self._is_at_work.set()
        raise AssertionError(f"{self._name} has ended")


@asynccontextmanager
async def running_program(
    program: Program, namesrv: str, topic: str, take: Take
) -> AsyncIterator[LastingProgram]:
    """Run a program for the length of the block; ``take`` is told its lines."""
    with ExitStack() as opened:
        address = namesrv
        if program.proxy is not None:
            proxy = started_proxy(namesrv, program.proxy)
            address = await trio.to_thread.run_sync(opened.enter_context, proxy)
        process = await trio.lowlevel.open_process(
            [*program.command, address, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=opened.enter_context(program.errors.open("ab")),
            env={**os.environ, **program.variables},
        )
        try:
            async with trio.open_nursery() as nursery:
                running = LastingProgram(program.name, process)
                nursery.start_soon(running._read, take)
                yield running
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
