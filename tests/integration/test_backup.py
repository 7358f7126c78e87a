"""A store that is copied while it runs, put back, and started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.clock import SystemClock
from motelog.core.errors import StoreError, StoreHalfRestoredError
from motelog.core.message import Message
from motelog.core.store.message_store import MessageStore
from motelog.core.store.tools import backup as tool
from tests.support.broker_stack import started_stack
from tests.support.cli import motelog_here

#: Small, so that a copy has several files.
FILE_BYTES = 1 << 16


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = motelog_here("backup", *arguments, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def store_of(directory: Path) -> Any:
    from motelog.core.store.config import StoreConfig

    return StoreConfig(
        directory=str(directory),
        commitlog_file_bytes=FILE_BYTES,
        consume_queue_file_units=500,
        checkpoint_interval_ms=50,
    )


async def read_all(namesrv: str, topic: str) -> list[bytes]:
    async with PullConsumer(namesrv=namesrv) as consumer:
        found = []
        for queue in await consumer.queues(topic):
            (end,) = (await consumer.end_offsets([queue])).values()
            at = 0
            while at < end:
                pulled = await consumer.pull(queue, at)
                found += [message.body for message in pulled.messages()]
                at = pulled.next_offset
        return found


async def test_a_copy_of_a_running_store_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    is_over = False

    async def publish(producer: Producer) -> None:
        while not is_over:
            bodies = [b"%06d" % (len(acknowledged) + n) + bytes(500) for n in range(20)]
            for body in bodies:
                await producer.send(Message("T", body, keys=body[:6].decode()))
                acknowledged.append(body)

    async with started_stack(tmp_path, store=store_of(tmp_path / "store")) as stack:
        namesrv = stack.namesrv_address
        async with (
            Producer(namesrv=namesrv) as producer,
            PullConsumer(namesrv=namesrv, group="G") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(publish, producer)
            while len(acknowledged) < 400:  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.01)
            queue = (await consumer.queues("T"))[0]
            await consumer.commit({queue: 3})
            for _ in range(3):
                before = list(acknowledged)
                copy = tmp_path / f"copy-{len(before)}"
                made = await trio.to_thread.run_sync(
                    tool.create, str(tmp_path / "store"), str(copy)
                )
                assert made.end_offset > FILE_BYTES
                await trio.sleep(0.1)
            is_over = True
    assert lines("verify", str(copy))[0]["ok"]
    target = tmp_path / "restored"
    assert lines("restore", str(copy), str(target))[0]["end_offset"] == made.end_offset
    for log in (target / "commitlog").iterdir():
        assert log.stat().st_blocks * 512 >= FILE_BYTES, "no hole that a full disk could not fill"
    async with started_stack(tmp_path, store=store_of(target)) as stack:
        found = await read_all(stack.namesrv_address, "T")
        assert len(found) == len(set(found))
        assert set(before) <= set(found) <= set(acknowledged)
        async with Admin(namesrv=stack.namesrv_address) as admin:
            progress = await admin.progress("G", "T")
        assert all(one.committed_offset <= one.end_offset for one in progress)
        async with Producer(namesrv=stack.namesrv_address) as producer:
            await producer.send(Message("T", b"goes on"))
        assert b"goes on" in await read_all(stack.namesrv_address, "T")


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """A store with some messages that nothing has open."""
    store = tmp_path / "store"
    async with (
        started_stack(tmp_path, store=store_of(store)) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        for number in range(300):
            await producer.send(Message("T", b"%d" % number + bytes(500)))
    return store


async def test_what_is_wrong_with_a_backup_is_found(stopped: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert lines("create", str(stopped), str(copy))[0]["files"] > 3
    assert "is not empty" in motelog_here("backup", "create", str(stopped), str(copy)).stderr
    log = sorted((copy / "commitlog").iterdir())[1]
    whole = log.read_bytes()
    log.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    result = motelog_here("backup", "verify", str(copy))
    assert (result.returncode, f"{log} has changed since" in result.stdout) == (1, True)
    result = motelog_here("backup", "restore", str(copy), str(tmp_path / "restored"))
    assert (result.returncode, f"{log} has changed since" in result.stderr) == (1, True)
    with pytest.raises(StoreHalfRestoredError):
        MessageStore(
            store_of(tmp_path / "restored"), store_host=bytes(8), clock=SystemClock()
        ).open()
    log.unlink()
    assert "No such file" in motelog_here("backup", "verify", str(copy)).stdout
    log.write_bytes(whole)
    assert lines("verify", str(copy))[0]["ok"]
    listed = copy / tool.LIST
    listed.write_text(listed.read_text().replace('"checkpoint"', '"../checkpoint"'))
    with pytest.raises(StoreError, match="outside the backup"):
        tool.read_list(str(copy))
    listed.unlink()
    assert "not a finished backup" in motelog_here("backup", "verify", str(copy)).stderr
    for command in ("create", "verify", "restore"):
        folders = [str(tmp_path / "no"), *([str(tmp_path / "x")] * (command != "verify"))]
        gone = motelog_here("backup", command, *folders)
        assert (gone.returncode, f"there is no folder {folders[0]}" in gone.stderr) == (3, True)


async def test_files_that_are_removed_meanwhile_are_left_out(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(path.name for path in (stopped / "commitlog").iterdir())
    copy_file = tool._copy_file

    def removed(source: str, *arguments: Any) -> Any:
        if source.endswith(names[1]):
            raise FileNotFoundError(source)
        return copy_file(source, *arguments)

    monkeypatch.setattr(tool, "_copy_file", removed)
    copy = tmp_path / "copy"
    made = tool.create(str(stopped), str(copy))
    assert made.begin_offset == int(names[2])
    assert {path.name for path in (copy / "commitlog").iterdir()} == set(names[2:])
    monkeypatch.undo()
    assert tool.verify(str(copy)) == []
