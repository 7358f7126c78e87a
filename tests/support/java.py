"""Apache RocketMQ from Maven Central: built once per version, run as a JVM of its own.

Owns: the build folder build/java, one ApacheServer process (name server and broker) at a time per
object, the driver of Java clients, RocketMQ's tools. Must not touch: other processes, fixed ports.
The Java sources are in tests/integration/java. Versions before 5.0 cannot be told which address to
listen on and take all of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

import pytest
import trio

from motelog.core.remoting.frames import RequestCode
from motelog.core.remoting.tls import Tls
from tests.support.broker_stack import connected, started_stack
from tests.support.lock_file import file_lock
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests" / "integration" / "java"
BUILD = ROOT / "build" / "java"
# The newest releases of both lines whose servers are on Maven Central.
VERSION_4, VERSION_5 = "4.9.7", "5.3.3"
VERSIONS = (VERSION_4, VERSION_5)
#: In place of a version: our servers.
OURS = "ours"
COMMITLOG_FILE_BYTES = 1 << 24
BUILT_WITHIN_S = 240
READY_WITHIN_S = 60
STOPPED_WITHIN_S = 30
Flush: TypeAlias = Literal["async", "sync"]
#: Each thread of a broker that appends keeps 4 MiB. Without room, it leaves requests unanswered.
DIRECT_MEMORY = "1g"
#: An order of a test to a Java program.
DONE_WITHIN_S = 90

# RocketMQ unmaps its files through packages that Java 17 keeps closed.
_OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
_OPEN = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
# For programs that live a few seconds on few cores.
QUICK_START = ("-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@cache
def class_path(version: str) -> str:
    """Build the drivers with a RocketMQ version, once; skip with the reason where that fails."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a JDK and Maven are not installed")
    folder = BUILD / version
    with file_lock(BUILD / "lock"):
        _build(version, folder)
    return f"{folder / 'classes'}:{folder / 'lib'}/*"


def _build(version: str, folder: Path) -> None:
    inputs = [path for path in PROJECT.rglob("*") if path.is_file()]
    stamp = folder / "built"
    if not stamp.exists() or stamp.stat().st_mtime < max(p.stat().st_mtime for p in inputs):
        command = ["mvn", "-q", "-B", f"-Drocketmq.version={version}", "compile"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=BUILT_WITHIN_S
        )
        if done.returncode:
            pytest.skip(f"{' '.join(command)} failed: {done.stdout.strip()[-300:]}")
        stamp.touch()


def java_command(
    version: str, *arguments: str, heap: str = "128m", options: Sequence[str] = QUICK_START
) -> list[str]:
    """Return the command that runs a main class with its arguments; logs go below build/java."""
    path = class_path(version)
    home = BUILD / "home"
    home.mkdir(parents=True, exist_ok=True)
    command = ["java", f"-Xmx{heap}", *options, *_OPEN, f"-Duser.home={home}"]
    return [*command, "-cp", path, *arguments]


class JavaDriver:
    """The program JavaClient, a process for each version, which is started for its first order."""

    def __init__(self, *, errors: int | None = None, options: Sequence[str] = ()) -> None:
        self._options = (*QUICK_START, *options)
        # Where standard error goes, as for Popen: clients write there when servers are away.
        self._errors = errors
        # A JVM takes longer to start than most orders.
        self._processes: dict[str, subprocess.Popen[str]] = {}

    async def run(self, version: str, *order: str) -> list[list[str]]:
        """Have the driver do something; return the fields of the lines it printed."""
        return [line.split("\t") for line in await self.lines(version, *order) if "\t" in line]

    async def lines(self, version: str, *order: str) -> list[str]:
        """Have the driver do something; return the lines it printed."""
        return await trio.to_thread.run_sync(self._ask, version, "\t".join(order))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        self._processes.clear()

    def _ask(self, version: str, order: str) -> list[str]:
        process = self._processes.get(version)
        if process is None or process.poll() is not None:
            process = self._processes[version] = subprocess.Popen(
                java_command(version, "JavaClient", options=self._options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        # What hangs is ended, which ends its output.
        watch = threading.Timer(DONE_WITHIN_S, process.kill)
        watch.start()
        try:
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
            lines: list[str] = []
            for line in process.stdout:
                if line == "done\n":
                    return lines
                lines.append(line.rstrip("\n"))
                if line == "failed\n":
                    break
        finally:
            watch.cancel()
        # It may have left a client behind, which must not disturb the next test.
        del self._processes[version]
        process.kill()
        process.communicate()
        raise AssertionError("\n".join([f"{order!r} failed:", *lines])[-4000:])


#: For all tests of a process: a JVM takes longer to start than most tests take with one.
DRIVER: Final = JavaDriver()


async def run_tool(version: str, home: Path, *words: str, options: Sequence[str] = ()) -> str:
    """Run one of RocketMQ's command line tools, or list them; return what it printed."""
    configuration = home / "conf" / "logback_tools.xml"  # the tools of 4.9 fail without it
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text("<configuration/>")
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    all_options = (*QUICK_START, f"-Drocketmq.home.dir={home}", *options)
    java = partial(java_command, version, main, options=all_options)
    with trio.fail_after(DONE_WITHIN_S):
        done = await trio.run_process(
            [*await trio.to_thread.run_sync(java), *words],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    return (done.stdout + done.stderr).decode()


class ApacheServer:
    """A name server and a broker over the store folder ``directory``; ends with the block.

    May be started again after ``stop`` or ``kill``; the ports stay the same. With ``namesrv`` it is
    a broker alone, which registers there; with ``slave_of`` that one's slave. Without
    ``has_broker`` it is a name server alone.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        *,
        commitlog_file_bytes: int = COMMITLOG_FILE_BYTES,
        heap: str = "256m",
        options: Sequence[str] = QUICK_START,
        flush: Flush = "async",
        settings: Mapping[str, object] | None = None,
        has_timer: bool = False,
        tls: Tls | None = None,
        namesrv: str | None = None,
        has_broker: bool = True,
        slave_of: ApacheServer | None = None,
    ) -> None:
        self._tls = tls  # by which it is asked whether it is ready
        self._version = version
        self._directory = directory
        self._home = directory.with_name(f"{directory.name}-home")
        self._commitlog_file_bytes = commitlog_file_bytes
        self._heap = heap
        self._options = options
        self.flush = flush
        self._settings = settings or {}
        self._has_timer = has_timer
        self._slave_of = slave_of
        self._has_namesrv = namesrv is None
        self._has_broker = has_broker
        namesrv_port, broker_port = free_ports(2)
        self._ha_port = broker_port - 1
        self.namesrv_address = namesrv or f"127.0.0.1:{namesrv_port}"
        self.broker_address = f"127.0.0.1:{broker_port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start both; return when they serve and the broker's topics have routes."""
        await self.launch()
        async with connected(self.namesrv_address, tls=self._tls) as peer:
            with trio.fail_after(READY_WITHIN_S):
                while (await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, _TEMPLATE)).code:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.05)

    async def launch(self) -> None:
        """Start what there is, and return when it serves, whoever knows of it."""
        await trio.to_thread.run_sync(self._start)

    async def stop(self) -> None:
        """SIGTERM: the broker writes everything and takes its ``abort`` file away."""
        await trio.to_thread.run_sync(self._end, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        self._end(signal.SIGKILL)

    def _start(self) -> None:
        files = self._write_files()
        options = [*self._options, f"-XX:MaxDirectMemorySize={DIRECT_MEMORY}"]
        command = java_command(
            self._version, "ApacheServer", *files, heap=self._heap, options=options
        )
        output = self._home / "output"
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(os.environ) | {"ROCKETMQ_HOME": str(self._home)},
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while b"\nready\n" not in output.read_bytes():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"did not start, status {code}:\n{output.read_text()[-4000:]}")
            time.sleep(0.05)

    async def __aenter__(self) -> ApacheServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, signal_number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal_number)
        try:
            process.wait(STOPPED_WITHIN_S)
        finally:
            process.kill()
            process.wait()

    def _write_files(self) -> list[str]:
        """Write the configuration; return the two files that the servers are given."""
        configuration = self._home / "conf"
        configuration.mkdir(parents=True, exist_ok=True)
        for name in ("broker", "namesrv"):  # RocketMQ 4 does not start without them
            (configuration / f"logback_{name}.xml").write_text(_LOGBACK)
        namesrv = {
            "listenPort": self.namesrv_address.rpartition(":")[2],
            "bindAddress": "127.0.0.1",
            "kvConfigPath": self._home / "kv.json",
            "configStorePath": self._home / "namesrv.properties",
        }
        broker = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "apache",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": self.namesrv_address,
            "listenPort": self.broker_address.rpartition(":")[2],
            "haListenPort": self._ha_port,
            "storePathRootDir": self._directory,
            "storePathCommitLog": self._directory / "commitlog",
            "mappedFileSizeCommitLog": self._commitlog_file_bytes,
            "flushDiskType": f"{self.flush.upper()}_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
            "enablePropertyFilter": "true",
            # Of little use here, and each costs disk or time at the start. POP needs the timer.
            "timerWheelEnable": str(self._has_timer).lower(),
            "enableCompaction": "false",
            **self._settings,
        }
        if self._slave_of is not None:
            # It learns its master's addresses from the name server.
            broker |= {"brokerId": 1, "brokerRole": "SLAVE"}
        files = []
        servers = {"namesrv": namesrv} if self._has_namesrv else {}
        if self._has_broker:
            servers["broker"] = broker
        for name, fields in servers.items():
            file = self._home / f"{name}.conf"
            file.write_text("".join(f"{key}={value}\n" for key, value in fields.items()))
            files.append(str(file))
        return files


@asynccontextmanager
async def cluster(server: str, folder: Path) -> AsyncIterator[str]:
    """Run our servers (OURS), or Apache's of a version; yields the name server's address."""
    if server == OURS:
        async with started_stack(folder) as stack:
            yield stack.namesrv_address
    else:
        async with ApacheServer(server, folder) as apache:
            yield apache.namesrv_address


_TEMPLATE = {"topic": "TBW102"}  # whose route producers of a new topic ask for

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %c{0} %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
