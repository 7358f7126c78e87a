"""A real client in JavaScript, npm's ali-ons, against our name server and broker."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_stack import Stack, connected, pull_ext, routed, send_ext, started_stack
from tests.support.node import ALI_ONS, node_modules

pytestmark = pytest.mark.node

SCRIPT = Path(__file__).parent / "node" / "ali_ons.js"
DEADLINE_S = 60


async def run_client(stack: Stack, mode: str, topic: str, group: str, value: Any) -> list[Any]:
    """Run the script; return the JSON lines it printed."""
    modules = await trio.to_thread.run_sync(node_modules, ALI_ONS)
    command = ["node", str(SCRIPT), mode, stack.namesrv_address, topic, group, json.dumps(value)]
    run = partial(
        trio.run_process,
        command,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    with trio.fail_after(DEADLINE_S):
        done: subprocess.CompletedProcess[bytes] = await run()
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_ali_ons_sends_text_keys_and_compressed_bodies(tmp_path: Path) -> None:
    sent = [["TagA", f"key{i}", f"消息 {i} " + "x" * (5000 if i == 2 else 0)] for i in range(5)]
    async with started_stack(tmp_path) as stack:
        # This client takes "no such topic" for an error, so it cannot create one by a message.
        stack.broker.api.create_topic("FromNode", 4)
        await routed(stack, "FromNode")
        results = await run_client(stack, "send", "FromNode", "P1", sent)
        assert [r["status"] for r in results] == ["SEND_OK"] * 5
        stored = {}
        async with connected(stack.broker_address) as peer:
            for queue_id in range(4):
                ext = pull_ext("FromNode", 0, queue_id=queue_id)
                answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
                for message in decode_messages(answer.body):
                    stored[message.queue_id, message.queue_offset] = message
    assert [stored[r["queue"], r["offset"]].body.decode() for r in results] == [m[2] for m in sent]
    assert [stored[r["queue"], r["offset"]].keys for r in results] == [(m[1],) for m in sent]
    assert {message.tags for message in stored.values()} == {"TagA"}


async def test_ali_ons_consumes_its_tags_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:

        async def produce(first: int) -> list[str]:
            for i in range(first, first + 12):
                tag = "ABC"[i % 3]
                ext = send_ext("ToNode", queue_id=i % 4, properties=f"TAGS\x01{tag}\x02")
                answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"message %d" % i)
                assert answer.code == ResponseCode.SUCCESS
            return [f"message {i}" for i in range(first, first + 12) if i % 3 < 2]

        for first in (0, 12):
            expected = await produce(first)
            await routed(stack, "ToNode")
            wanted = {"tags": "A || B", "count": len(expected)}
            received = await run_client(stack, "consume", "ToNode", "G1", wanted)
            assert sorted(r["body"] for r in received) == sorted(expected)
            assert {r["tag"] for r in received} == {"A", "B"}
        group = stack.broker.tables.offsets
        assert sum(group.query("G1", "ToNode", queue_id) or 0 for queue_id in range(4)) > 0
        # It has said goodbye.
        answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G1"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
