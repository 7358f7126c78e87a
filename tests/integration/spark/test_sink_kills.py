"""kill -9 of a process that writes, twice, and of the broker: each row is once in the log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from motelog.bridge.errors import RouteError
from motelog.bridge.sync import SyncPullConsumer
from motelog.testing import MotelogProcess
from tests.support.java import VERSION_4, VERSION_5, ApacheServer

COUNT = 3000
TOPIC = "killed"
WAIT_S = 90


def start(namesrv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.sink_process", namesrv, TOPIC, str(COUNT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows_stored(consumer: SyncPullConsumer) -> int:
    try:
        return sum(consumer.end_offsets(consumer.queues(TOPIC)).values())
    except RouteError:
        return 0


def write_under_kills(
    namesrv: str, kill_broker: Callable[[], None], start_broker: Callable[[], None]
) -> None:
    """Kill two attempts and then the broker under the third; look at what the log has."""
    with SyncPullConsumer(namesrv=namesrv, group="look") as consumer:

        def wait_for(count: int, attempt: subprocess.Popen[str]) -> None:
            deadline = time.monotonic() + WAIT_S
            while rows_stored(consumer) < count and attempt.poll() is None:
                assert time.monotonic() < deadline, rows_stored(consumer)

        before = 0
        for _ in range(2):
            attempt = start(namesrv)
            wait_for(before + 400, attempt)
            attempt.kill()
            attempt.communicate()
            assert rows_stored(consumer) > before
            before = rows_stored(consumer)
        attempt = start(namesrv)
        wait_for(before + 500, attempt)
        kill_broker()
        start_broker()
        output, _ = attempt.communicate(timeout=WAIT_S)
        sent, found, strange = map(int, output.split())
        assert (sent + found, strange) == (COUNT, 0)
        assert found >= before

        consumer.assign(consumer.queues(TOPIC))
        bodies: Counter[bytes] = Counter()
        while sum(bodies.values()) < COUNT:
            messages = consumer.poll(timeout_s=30)
            assert messages
            bodies.update(message.body for message in messages)
        assert bodies == Counter(b"%d" % n for n in range(COUNT))
        assert rows_stored(consumer) == COUNT


def test_each_row_is_in_our_log_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = MotelogProcess(data=data)
    with ExitStack() as stack:
        stack.enter_context(first)
        options = [
            f"--{name}={'{}:{}'.format(*getattr(first, name))}" for name in ("namesrv", "broker")
        ]
        second = MotelogProcess(data=data, options=options)

        def start_broker() -> None:
            stack.enter_context(second)

        write_under_kills(options[0].partition("=")[2], first.kill, start_broker)


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_each_row_is_in_apache_s_log_once(tmp_path: Path, version: str) -> None:
    async with ApacheServer(version, tmp_path / "store", flush="sync") as apache:

        def start_broker() -> None:
            trio.from_thread.run(apache.start)

        await trio.to_thread.run_sync(
            write_under_kills, apache.namesrv_address, apache.kill, start_broker
        )
