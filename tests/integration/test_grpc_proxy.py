"""The clients of RocketMQ 5, in Python and JavaScript, through its gRPC proxy in front of us."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_stack import Stack, connected, json_body, routed, started_stack
from tests.support.grpc_proxy import SOURCES, proxy_libraries, python_client, started_proxy
from tests.support.node import node_modules

pytestmark = [
    pytest.mark.java,
    pytest.mark.java_all,
    pytest.mark.node,
    pytest.mark.timeout(400),
]

NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
#: The kind of messages that each topic is for; the proxy refuses others.
TOPICS = {
    "py-normal": "NORMAL",
    "py-fifo": "FIFO",
    "py-delay": "DELAY",
    "py-bound": "TRANSACTION",
    "js-normal": "NORMAL",
    "js-bound": "TRANSACTION",
}
SOON: dict[str, Any] = {"transaction_timeout_s": 2.0, "transaction_check_interval_s": 0.5}
DEADLINE_S = 100


async def run_client(
    command: Sequence[str], results: list[Any], env: dict[str, str] | None = None
) -> None:
    """Run a program, and keep the JSON lines that it prints."""
    with trio.fail_after(DEADLINE_S):
        done: subprocess.CompletedProcess[bytes] = await trio.run_process(
            list(command), capture_stdout=True, capture_stderr=True, check=False, env=env
        )
    lines = done.stdout.splitlines()
    if done.returncode:  # pytest would shorten what an assert shows
        raise AssertionError(f"{lines}\n{done.stderr.decode()[-4000:]}")
    results += [json.loads(line) for line in lines]


async def prepare(stack: Stack) -> None:
    """Create the topics, and the group that consumes in order."""
    async with connected(stack.broker_address) as peer:
        for topic, kind in TOPICS.items():
            ext = {"topic": topic, "perm": 6, "attributes": f"+message.type={kind}"}
            ext |= {"readQueueNums": 4, "writeQueueNums": 4}
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await routed(stack, topic)
        body = json_body({"groupName": "py-fifo", "consumeMessageOrderly": True})
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await peer.ask(code, body=body)).code == ResponseCode.SUCCESS


async def test_clients_of_rocketmq_5_work_through_its_proxy(tmp_path: Path) -> None:
    await trio.to_thread.run_sync(proxy_libraries)
    python = await trio.to_thread.run_sync(python_client)
    modules = await trio.to_thread.run_sync(node_modules, NODE_CLIENT)
    of_python: list[Any] = []
    of_node: list[Any] = []
    with ExitStack() as proxies:
        async with started_stack(tmp_path / "store", **SOON) as stack:
            await prepare(stack)
            proxy = started_proxy(stack.namesrv_address, tmp_path / "proxy")
            address = await trio.to_thread.run_sync(partial(proxies.enter_context, proxy))
            env = {**os.environ, "NODE_PATH": str(modules)}
            node = ["node", str(SOURCES / "client.js"), address]
            async with trio.open_nursery() as nursery:
                client = [python, str(SOURCES / "client.py"), address]
                nursery.start_soon(run_client, client, of_python)
                nursery.start_soon(run_client, node, of_node, env)
            in_work = stack.broker.sample()["messages_in_work_now"]
    assert in_work == 0

    taken = [(one["got"], one["attempt"]) for one in of_python if one.get("by") == "simple"]
    # The first of them was put off once, and came again; what has another tag never came.
    assert Counter(taken) == Counter([("n1", 1), ("n1", 2), ("n3", 1), ("n5", 1), ("later", 1)])
    assert not any(one.get("early") for one in of_python)
    pushed = [one["got"] for one in of_python if one.get("by") == "push"]
    # Its group consumes in order: what is behind a message that failed waits for it.
    assert [one for one in pushed if one[0] == "a"] == ["a0", "a1", "a2", "a2", "a3"]
    assert [one for one in pushed if one[0] == "b"] == ["b0", "b1", "b2", "b3"]

    (refused,) = [one["refused"] for one in of_python if "refused" in one]
    assert "message type" in refused
    committed = [one["got"] for one in of_python if one.get("by") == "bound"]
    assert sorted(committed) == ["asked-commit", "now-commit"]
    asked = {one["asked"] for one in of_python if "asked" in one}
    assert asked == {"asked-commit", "asked-rollback"}

    assert [one["got"] for one in of_node if one.get("by") == "bound"] == ["commit"]
    for way in ("simple", "push"):
        got = [(one["got"], one["attempt"]) for one in of_node if one.get("by") == way]
        assert sorted(got) == [(f"n{i}", 1) for i in range(6)]
