"""Apache RocketMQ's own Java client, 4.9 and 5.3, against our name server and broker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import trio

from core.record import decode_messages
from core.remoting import RequestCode, ResponseCode
from tests.support.broker_stack import (
    Stack,
    connected,
    eventually,
    pull_ext,
    send_ext,
    started_stack,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parent / "java"
BUILD = Path(__file__).resolve().parents[2] / "build" / "java"
VERSIONS = pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
COUNT = 5
BUILT_WITHIN_S = 240
DEADLINE_S = 90


@cache
def class_path(version: str) -> str:
    """Build the driver with a client version, once; skip with the reason where that cannot be."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a JDK and Maven are not installed")
    folder = BUILD / version
    source = PROJECT / "src/main/java/JavaClient.java"
    built = folder / "classes/JavaClient.class"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        command = ["mvn", "-q", "-B", f"-Drocketmq.version={version}", "compile"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=BUILT_WITHIN_S
        )
        if done.returncode:
            pytest.skip(f"{' '.join(command)} failed: {done.stdout.strip()[-300:]}")
    return f"{folder / 'classes'}:{folder / 'lib'}/*"


async def run_client(version: str, mode: str, stack: Stack, *arguments: str) -> list[list[str]]:
    """Run the driver; return the fields of the lines it printed."""
    path = await trio.to_thread.run_sync(class_path, version)
    home = BUILD / "home"
    home.mkdir(parents=True, exist_ok=True)
    # The client writes its logs below the home directory.
    command = ["java", "-Xmx128m", f"-Duser.home={home}", "-cp", path, "JavaClient", mode]
    command += [stack.namesrv_address, *arguments]
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, env=dict(os.environ)
        )
    assert done.returncode == 0, (done.stderr + done.stdout).decode()[-4000:]
    return [line.split("\t") for line in done.stdout.decode().splitlines() if "\t" in line]


@VERSIONS
async def test_java_producer_creates_its_topic_and_sends_in_every_way(
    tmp_path: Path, version: str
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        results = await run_client(version, "send", stack, "FromJava", "P", str(COUNT))
        kinds = Counter(kind for kind, *_ in results)
        assert kinds == {"single": COUNT, "batch": 1, "async": COUNT, "large": 1}
        assert {status for _, status, *_ in results} == {"SEND_OK"}
        assert stack.broker.api.topic_queue_count("FromJava") == 4
        api = stack.broker.api
        total = 4 * COUNT + 1
        await eventually(lambda: sum(api.max_offset("FromJava", i) for i in range(4)) == total)
        stored = {}
        for queue_id in range(4):
            ext = pull_ext("FromJava", 0, queue_id=queue_id)
            for message in decode_messages((await peer.ask(RequestCode.PULL_MESSAGE, ext)).body):
                stored[message.offset_id] = message
        bodies = {message.body.decode() for message in stored.values()}
        expected = {f"{k}{i}" for k in ("single", "batch", "async", "oneway") for i in range(COUNT)}
        assert bodies == expected | {"L" * 50_000}
        for kind, _, offset_ids, *queue_and_offset in results:
            first = stored[offset_ids.split(",")[0]]
            assert [first.queue_id, first.queue_offset] == list(map(int, queue_and_offset))
            assert first.body.decode().startswith("L" if kind == "large" else kind)


@VERSIONS
@pytest.mark.parametrize("mode", ["consume", "orderly"])
async def test_java_push_consumer_gets_its_tags_once_and_commits(
    tmp_path: Path, version: str, mode: str
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:

        async def produce(first: int) -> list[str]:
            for i in range(first, first + 24):
                properties = f"TAGS\x01Tag{'ABC'[i % 3]}\x02KEYS\x01k{i}\x02"
                ext = send_ext("ToJava", queue_id=i % 4, properties=properties)
                answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"message %d" % i)
                assert answer.code == ResponseCode.SUCCESS
            return [f"message {i}" for i in range(first, first + 24) if i % 3 < 2]

        for first in (0, 24):
            expected = await produce(first)
            received = await run_client(
                version, mode, stack, "ToJava", "G", str(len(expected)), "TagA || TagB"
            )
            assert sorted(body for *_, body in received) == sorted(expected)
            assert {tag for _, _, tag, _, _ in received} == {"TagA", "TagB"}
            for queue_id in range(4):
                offsets = [int(o) for q, o, *_ in received if int(q) == queue_id]
                assert mode == "consume" or offsets == sorted(offsets)
        assert stack.broker.consumers.get("G") is None
