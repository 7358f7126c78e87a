"""RocketMQ's C++ client, which the wheel of PyPI's ``rocketmq`` brings with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.remoting.codes import RequestCode
from tests.support.broker_stack import connected, json_body, routed, started_stack, store_config
from tests.support.broker_stage import heartbeat
from tests.support.cpp import cpp_packages

pytestmark = pytest.mark.cpp

DRIVER = Path(__file__).parent / "clients" / "cpp" / "driver.py"
DEADLINE_S = 120
COUNT = 8
WAYS = ("sync", "batch", "async", "oneway")


async def run_driver(namesrv: str, home: Path) -> list[dict[str, Any]]:
    """Run the program, which logs below its home; return the JSON lines it printed."""
    path = str(await trio.to_thread.run_sync(cpp_packages))
    with trio.fail_after(DEADLINE_S):
        done: subprocess.CompletedProcess[bytes] = await trio.run_process(
            [sys.executable, str(DRIVER), namesrv],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path, "HOME": str(home)},
        )
    assert done.returncode == 0, (done.stdout, done.stderr.decode()[-4000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_the_c_plus_plus_client_sends_pushes_and_pulls(tmp_path: Path) -> None:
    # So that what was refused comes again soon.
    store = store_config(tmp_path / "store", delay_levels="1s 1s 1s 1s")
    async with started_stack(tmp_path, store=store) as stack:
        for group in ("cpp-push", "cpp-order"):
            # The client makes the topic of its retries, but looks for it again in 30 seconds.
            async with connected(stack.broker_address) as peer:
                await peer.ask(RequestCode.HEART_BEAT, body=json_body(heartbeat(group)))
            await routed(stack, f"%RETRY%{group}")
        lines = await run_driver(stack.namesrv_address, tmp_path)
        query = stack.broker.tables.offsets.query
        pushed = [query("cpp-push", "Cpp", queue) or 0 for queue in range(4)]
        in_order = [query("cpp-order", "CppOrdered", queue) or 0 for queue in range(4)]
    sent = [line for line in lines if "sent" in line]
    assert {line["status"] for line in sent} == {"OK"}
    assert sorted(line["sent"] for line in sent) == sorted(
        ["sync", "async", "orderly"] * COUNT + ["large", "batch"]
    )
    bodies = [f"{way}{i}" for way in WAYS for i in range(COUNT)] + ["L" * 20_000]
    assert sorted(line["got"] for line in lines if line.get("by") == "cpp-pull") == sorted(bodies)
    by_tags = [line for line in lines if line.get("by") == "cpp-push"]
    check_pushed(by_tags, bodies)
    check_ordered([line for line in lines if line.get("by") == "cpp-order"])
    assert sum(in_order) == COUNT
    # At its end it may leave a queue's last messages uncommitted: they would come again.
    assert all(pushed[line["queue"]] for line in by_tags)


def check_pushed(lines: list[dict[str, Any]], bodies: list[str]) -> None:
    """All messages of the tags come; what was refused comes again."""
    numbers = {body: 0 if body.startswith("L") else int(body[-1]) for body in bodies}
    tagged = {body for body, number in numbers.items() if number % 3 < 2}
    (refused,) = [line for line in lines if line["refused"]]
    taken = [line["got"] for line in lines if not line["refused"]]
    assert refused["got"] in taken
    assert set(taken) == tagged
    for line in lines:
        number = numbers[line["got"]]
        expected = ("ABC"[number % 3], f"key{number}", str(number))
        assert (line["tag"], line["key"], line["number"]) == expected


def check_ordered(lines: list[dict[str, Any]]) -> None:
    """Two queues have been chosen, and each comes in its order."""
    by_queue: defaultdict[int, list[int]] = defaultdict(list)
    for line in lines:
        by_queue[line["queue"]].append(line["offset"])
    refused = next(line["queue"] for line in lines if line["refused"])
    # What was refused comes before those behind it.
    assert by_queue.pop(refused) == [0, 0, 1, 2, 3]
    assert list(by_queue.values()) == [[0, 1, 2, 3]]
