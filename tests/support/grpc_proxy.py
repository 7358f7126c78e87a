"""RocketMQ 5's gRPC proxy in cluster mode, and the Python client that speaks to it.

Owns: build/proxy, one process of the proxy, which ends with the block. Must not touch: other
processes, fixed ports. Skips the test visibly, with the reason, where something is not available.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.java import QUICK_START, ROOT
from tests.support.lock_file import file_lock
from tests.support.ports import free_ports

SOURCES: Final = ROOT / "tests" / "integration" / "proxy"
BUILD: Final = ROOT / "build" / "proxy"
PYTHON_CLIENT: Final = "rocketmq-python-client==5.1.2"
BUILT_WITHIN_S: Final = 240
READY_WITHIN_S: Final = 60


def proxy_libraries() -> Path:
    """Return the folder with the proxy's libraries, filled once."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a JDK and Maven are not installed")
    folder = BUILD / "lib"
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    _once(BUILD / "libraries", command, cwd=SOURCES)
    return folder


def python_client() -> str:
    """Return the interpreter of an environment that has the client, made once."""
    place = BUILD / "python"
    _once(BUILD / "environment", [sys.executable, "-m", "venv", str(place)], cwd=SOURCES)
    pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    # Their versions are the client's own matter.
    unconstrained = {k: v for k, v in os.environ.items() if not k.endswith("_CONSTRAINT")}
    _once(BUILD / "client", [*pip, PYTHON_CLIENT], cwd=SOURCES, env=unconstrained)
    return str(place / "bin" / "python")


def _once(
    stamp: Path, command: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None
) -> None:
    with file_lock(BUILD / "lock"):
        newest = max(Path(__file__).stat().st_mtime, (SOURCES / "pom.xml").stat().st_mtime)
        if stamp.exists() and stamp.stat().st_mtime >= newest:
            return
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=BUILT_WITHIN_S, env=env
        )
        if done.returncode:
            pytest.skip(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[-300:]}")
        stamp.touch()


@contextmanager
def started_proxy(namesrv: str, home: Path) -> Iterator[str]:
    """A proxy for the cluster at ``namesrv`` for the length of the block; its gRPC address."""
    libraries = proxy_libraries()
    grpc_port, remoting_port = free_ports(2)
    file = home / "rmq-proxy.json"
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": namesrv,
        "grpcServerPort": grpc_port,
        "remotingListenPort": remoting_port,
        # How soon a broker knows who to ask about a transaction; by default 20 seconds.
        "transactionHeartbeatPeriodSecond": 1,
    }
    file.write_text(json.dumps(settings), encoding="utf-8")
    command = ["java", "-Xmx192m", *QUICK_START, f"-Duser.home={home}", "-cp", f"{libraries}/*"]
    command += ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(file)]
    output = home / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RMQ_PROXY_HOME": str(home)},
        )
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while b"startup successfully" not in output.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the proxy did not start:\n{output.read_text()[-4000:]}")
            time.sleep(0.05)
        yield f"127.0.0.1:{grpc_port}"
    finally:
        process.kill()
        process.wait()
