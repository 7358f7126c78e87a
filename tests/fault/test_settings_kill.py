"""Topics and groups that the broker has said yes to outlive a kill right behind the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode, loads
from motelog.core.state_file import StateFile
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import (
    Peer,
    connected,
    joined,
    json_body,
    pull_ext,
    send_ext,
    started_stack,
)

TIMEOUT_S = 60


async def put_group(peer: Peer, name: str, retry_max_times: int) -> int:
    body = json_body({"groupName": name, "retryMaxTimes": retry_max_times})
    return (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code


async def retry_max_times(peer: Peer, name: str) -> int | None:
    # Asked for alone, a group that is not there would be created.
    answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    group = loads(answer.body)["subscriptionGroupTable"].get(name)
    return None if group is None else group["retryMaxTimes"]


async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        broker = BrokerProcess(tmp_path, namesrv=joined(namesrv.address))
        with trio.fail_after(TIMEOUT_S):
            await trio.to_thread.run_sync(broker.start)
            for round_ in range(1, 4):
                try:
                    async with connected(broker.address) as peer:
                        ext = {"topic": f"T{round_}", "readQueueNums": 3, "writeQueueNums": 3}
                        answer = await peer.ask(
                            RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"perm": 6}
                        )
                        assert answer.code == ResponseCode.SUCCESS
                        assert await put_group(peer, f"gone{round_}", 1) == ResponseCode.SUCCESS
                        ext = {"groupName": f"gone{round_}"}
                        answer = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
                        assert answer.code == ResponseCode.SUCCESS
                        assert await put_group(peer, "G", round_) == ResponseCode.SUCCESS
                finally:
                    await trio.to_thread.run_sync(broker.kill)
                await trio.to_thread.run_sync(broker.start)
                async with connected(broker.address) as peer:
                    assert await retry_max_times(peer, "G") == round_
                    assert await retry_max_times(peer, f"gone{round_}") is None
                    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": f"T{round_}"})
                    assert answer.code == ResponseCode.SUCCESS
            await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()


async def test_a_change_that_cannot_be_saved_is_refused_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: StateFile, value: object) -> None:
        raise OSError(28, "No space left on device", self.path)

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        monkeypatch.setattr(StateFile, "save", fail)
        for times in (2, 3):
            assert await put_group(peer, "G", times) == ResponseCode.SYSTEM_ERROR
        monkeypatch.undo()
        assert await put_group(peer, "G", 4) == ResponseCode.SUCCESS
    lines = [text for text in caplog.messages if "config/subscriptionGroup.json" in text]
    assert len(lines) == 1


async def test_a_deleted_topic_stays_deleted_whatever_a_kill_kept_of_it(tmp_path: Path) -> None:
    """Also when the offsets of its groups are on the disk still, as the kill came in between."""
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        broker = BrokerProcess(tmp_path, namesrv=joined(namesrv.address))
        offsets = tmp_path / "config" / "consumerOffset.json"
        with trio.fail_after(TIMEOUT_S):
            await trio.to_thread.run_sync(broker.start)
            for _ in range(2):
                try:
                    async with connected(broker.address) as peer:
                        for _ in range(3):
                            answer = await peer.ask(
                                RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x"
                            )
                            assert answer.code == ResponseCode.SUCCESS
                        place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
                        commit = place | {"commitOffset": 1}
                        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
                        await trio.sleep(0.2)
                        kept = offsets.read_bytes()
                        assert b"T@G" in kept
                        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
                        assert answer.code == ResponseCode.SUCCESS
                finally:
                    await trio.to_thread.run_sync(broker.kill)
                offsets.write_bytes(kept)
                await trio.to_thread.run_sync(broker.start)
                async with connected(broker.address) as peer:
                    answer = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
                    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
                    ext = place | {"setZeroIfNotFound": "false"}
                    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
                    assert answer.code == ResponseCode.QUERY_NOT_FOUND
            await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()


async def test_a_deletion_beyond_the_end_of_a_log_hides_no_new_message(tmp_path: Path) -> None:
    """A power cut may take the end of the log, and new messages get the offsets of lost ones."""
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"lost")
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    file = StateFile(f"{tmp_path}/config/topics.json", holds="settings of topics")

    def take(content: dict[str, Any]) -> dict[str, Any]:
        return content

    content = file.load(take)
    assert content is not None
    assert content["deletedQueueTable"] == {"T": {"0": 1}}
    file.save(content | {"deletedQueueTable": {"T": {"0": 7}}})
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"new")
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 1))
        (message,) = decode_messages(answer.body)
        assert (message.body, message.queue_offset) == (b"new", 1)
