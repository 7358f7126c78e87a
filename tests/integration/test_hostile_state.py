"""State that ordinary requests build up and that a later answer chokes on: others are served on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.broker.delay import schedule
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.gateway.log.local_log import LocalLog
from tests.support.broker_stack import (
    Peer,
    connected,
    eventually,
    json_body,
    pull_ext,
    send_ext,
    started_stack,
)

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


async def refused_as_too_large(peer: Peer, code: int, ext: dict[str, Any] | None = None) -> None:
    answer = await peer.ask(code, ext)
    assert answer.code == REFUSED
    assert answer.remark is not None
    assert "at most 16777216" in answer.remark


def topic_ext(name: str, **fields: Any) -> dict[str, Any]:
    return {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, **fields}


async def put_group(peer: Peer, **fields: Any) -> RemotingCommand:
    body = json_body({"groupName": "G", **fields})
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def beat(peer: Peer, **fields: Any) -> RemotingCommand:
    consumer = {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}], **fields}
    body = json_body({"clientID": "c", "consumerDataSet": [consumer]})
    return await peer.ask(RequestCode.HEART_BEAT, body=body)


async def test_cluster_information_that_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.namesrv_address) as peer:
        for number in range(9000):
            ext = {
                "clusterName": "\x01" * 250 + f"{number:05}",
                "brokerName": "\x01" * 250 + f"{number:05}",
                "brokerAddr": f"{number:05}",
                "brokerId": 0,
            }
            assert (await peer.ask(RequestCode.REGISTER_BROKER, ext)).code == OK
        await refused_as_too_large(peer, RequestCode.GET_BROKER_CLUSTER_INFO)
        ext = {"namespace": "n", "key": "k", "value": "v"}
        assert (await peer.ask(RequestCode.PUT_KV_CONFIG, ext)).code == OK
    assert not errors(caplog)


async def test_members_of_a_group_that_do_not_fit(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        groups = [{"groupName": f"p{number}"} for number in range(999)]
        for number in range(12_000):
            body = {
                "clientID": "\x01" * 240 + f"{number:05}",
                "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}],
                "producerDataSet": groups if not number else [],
            }
            assert (await peer.ask(RequestCode.HEART_BEAT, body=json_body(body))).code == OK
            # What the group is told of each is not what this is about.
            peer.pushed.clear()
            if not number:
                await put_group(peer, notifyConsumerIdsChangedEnable=False)
        await refused_as_too_large(
            peer, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}
        )
        await refused_as_too_large(
            peer, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}
        )
        assert (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == OK


async def test_offsets_that_do_not_fit(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        stack.broker.tables.offsets.load(
            {"offsetTable": {f"T@{'g' * 240}{number}": {"0": 1} for number in range(70_000)}}
        )
        await refused_as_too_large(peer, RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert (await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)).code == OK


async def test_a_filter_type_is_one_that_rocketmq_knows(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for filter_type in ("x" * 4_000_000, "", "NONE"):
            ext = topic_ext("T", topicFilterType=filter_type)
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            assert answer.code == REFUSED
        ext = topic_ext("T", topicFilterType="MULTI_TAG")
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == OK


async def test_a_folder_with_odd_topics_and_groups_starts_and_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an older broker, or RocketMQ's, could have saved them."""
    config = tmp_path / "config"
    config.mkdir(parents=True)
    odd = {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG"}
    topics = {
        "Long": odd | {"topicName": "Long", "topicFilterType": "x" * 17_000_000},
        "Many": odd | {"topicName": "Many", "readQueueNums": 1 << 62, "writeQueueNums": 1 << 62},
        "%RETRY%G": odd | {"topicName": "%RETRY%G", "readQueueNums": 0, "writeQueueNums": 0},
        "Shrinks": odd | {"topicName": "Shrinks", "writeQueueNums": 0},
    }
    groups = {"G": {"groupName": "G", "retryQueueNums": 1 << 62, "brokerId": 1 << 80}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        assert stack.broker.is_registered
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ):
            assert (await peer.ask(code)).code == OK
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Shrinks", queue_id=-1))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("Shrinks", 0))).code == 19
        assert (await beat(peer)).code == OK
        assert (
            await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("%RETRY%G", queue_id=-1))
        ).code == OK
        await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Many"})
    assert not errors(caplog)


@pytest.mark.parametrize(
    "fields",
    [
        {"retryQueueNums": -1},
        {"retryQueueNums": 4097},
        {"retryQueueNums": 1 << 70},
        {"retryMaxTimes": 1 << 31},
        {"brokerId": 1 << 63},
        {"whichBrokerWhenConsumeSlowly": -(1 << 63) - 1},
        {"retryQueueNums": "many"},
    ],
)
async def test_numbers_of_a_group_are_checked_where_they_enter(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        assert (await put_group(peer, **fields)).code == REFUSED
        assert stack.broker.tables.groups.get("G") is None


async def test_a_group_without_retry_queues_drops_what_is_sent_back_and_gets_them_later(
    tmp_path: Path,
) -> None:
    """RocketMQ answers SUCCESS and stores nothing."""
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        sent = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"work")
        back = {"offset": int(sent.ext["msgId"][-16:], 16), "group": "G", "delayLevel": 0}
        assert (await put_group(peer, retryQueueNums=0)).code == OK
        assert (await beat(peer)).code == OK
        end = stack.broker.sample()["store_wrote_offset_now"]
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == OK
        assert stack.broker.sample()["store_wrote_offset_now"] == end
        for queue_id in (-1, 0):
            answer = await peer.ask(
                RequestCode.SEND_MESSAGE_V2, send_ext("%RETRY%G", queue_id=queue_id)
            )
            assert answer.code == OK
        assert (await put_group(peer, retryQueueNums=2)).code == OK
        end = stack.broker.sample()["store_wrote_offset_now"]
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == OK
        assert stack.broker.sample()["store_wrote_offset_now"] > end


async def test_numbers_that_no_answer_could_hold_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as broker,
        connected(stack.namesrv_address) as namesrv,
    ):
        subscription = {"topic": "T", "subVersion": 1 << 64}
        assert (await beat(broker, subscriptionDataSet=[subscription])).code == REFUSED
        ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "a", "brokerId": 1}
        wrapper: dict[str, Any] = {"dataVersion": {"counter": 1 << 64}, "topicConfigTable": {}}
        body = json_body({"topicConfigSerializeWrapper": wrapper})
        answer = await namesrv.ask(RequestCode.REGISTER_BROKER, ext, body)
        assert answer.code == REFUSED
        config = {"topicName": "T", "readQueueNums": 1 << 65, "writeQueueNums": 1}
        text = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"T": config}}})
        answer = await namesrv.ask(RequestCode.REGISTER_BROKER, ext, text.encode())
        assert answer.code == REFUSED
    assert not errors(caplog)


async def test_a_registration_that_does_not_fit_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        started_stack(tmp_path, topics_max=200_000, register_interval_s=0.05) as stack,
        connected(stack.broker_address) as peer,
    ):
        table = {
            name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1}
            for name in (f"{'t' * 120}{number}" for number in range(66_000))
        }
        stack.broker.tables.topics.load({"topicConfigTable": table})
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("T"))).code == OK
        await eventually(lambda: not stack.broker.is_registered)
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"))).code == OK
    assert any("registration cannot be sent" in text for text in caplog.messages)


async def test_an_append_that_fails_unexpectedly_refuses_the_turn_s_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise KeyError("a fault of ours")

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        monkeypatch.setattr(stack.broker.api.line, "append", fail)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"))
        assert answer.code == REFUSED
        monkeypatch.undo()
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"))).code == OK
    assert len(errors(caplog)) == 1


async def test_a_reader_that_cannot_be_woken_keeps_nobody_from_appending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("a fault of ours")

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        log = LocalLog(stack.broker.api)
        log.create_topic("T", 4)
        log.follow(fail)
        assert [log.tail(queue) for queue in log.queues("T")] == [0] * 4
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"))).code == OK
        assert (await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0))).code == OK
    assert len(errors(caplog)) == 1


async def test_delivery_of_delayed_messages_goes_on_after_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        failed = trio.Event()

        def fail(*_: object) -> None:
            failed.set()
            raise KeyError("a fault of ours")

        monkeypatch.setattr(schedule, "restored", fail)
        ext = send_ext("T", properties="DELAY\x011\x02")
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, ext)).code == OK
        with trio.fail_after(10):
            await failed.wait()
        monkeypatch.undo()
        await eventually(lambda: stack.broker.sample()["delayed_messages_delivered"] == 1)
    assert len(errors(caplog)) == 1
