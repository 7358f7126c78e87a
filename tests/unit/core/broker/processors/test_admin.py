"""What the tools are answered: which request gets which code, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import loads
from motelog.core.topic_names import GATEWAY_GROUP
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import PORT, BrokerStage, Client, broker_stage

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
KEYED = "KEYS\x01k\x02UNIQ_KEY\x01u\x02"
TIMES = {"beginTimestamp": 0, "endTimestamp": 1 << 60}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """Topic T with two queues and one message in the first; a member of group G listens to A."""
    with broker_stage(tmp_path, {"topics_max": 20, "namesrv": ("127.0.0.1:9876",)}) as broker:
        broker.topic("T", 2)
        ext = send_ext("T", properties=KEYED)
        assert broker.code(RequestCode.SEND_MESSAGE_V2, ext, b"hello") == OK
        broker.beat("G")
        yield broker


def topic_ext(name: str = "New", **fields: Any) -> dict[str, Any]:
    return {"topic": name, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6} | fields


def gateway_topic_ext(**fields: Any) -> dict[str, Any]:
    return topic_ext("MQTT_SESSION", producerGroup=GATEWAY_GROUP, **fields)


def key_ext(topic: str, key: str, **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "key": key, "maxNum": 32} | TIMES | fields


STATUS = [
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(), OK),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("bad name"), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("TBW102"), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("MQTT_SESSION"), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, gateway_topic_ext(), OK),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, gateway_topic_ext(writeQueueNums=1 << 20), REFUSED),
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic_ext("TBW102", producerGroup=GATEWAY_GROUP),
        REFUSED,
    ),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(readQueueNums=0), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(writeQueueNums=1 << 20), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(perm=8), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(perm="x"), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(topicFilterType="NONE"), REFUSED),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "New"}, REFUSED),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, OK),
    (RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}, OK),
    (RequestCode.GET_TOPIC_CONFIG, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
    (RequestCode.GET_TOPIC_CONFIG, {}, REFUSED),
    (RequestCode.GET_BROKER_CONFIG, {}, OK),
    (RequestCode.GET_BROKER_RUNTIME_INFO, {}, OK),
    (RequestCode.QUERY_MESSAGE, key_ext("T", "k"), OK),
    (RequestCode.QUERY_MESSAGE, key_ext("T", "u", _UNIQUE_KEY_QUERY="true"), OK),
    (RequestCode.QUERY_MESSAGE, key_ext("T", "other"), ResponseCode.QUERY_NOT_FOUND),
    (RequestCode.QUERY_MESSAGE, key_ext("A", "k"), ResponseCode.QUERY_NOT_FOUND),
    (RequestCode.QUERY_MESSAGE, key_ext("T", "k", maxNum="many"), REFUSED),
    (RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "k", "maxNum": 1}, REFUSED),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}, OK),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 4}, REFUSED),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": -1}, REFUSED),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1 << 40}, REFUSED),
    (RequestCode.VIEW_MESSAGE_BY_ID, {}, REFUSED),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, OK),
    (RequestCode.GET_ALL_DELAY_OFFSET, {}, OK),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, OK),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {}, REFUSED),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, OK),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"}, OK),
    (
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        {"group": "none"},
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}, OK),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}, OK),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "none"}, OK),
    (RequestCode.GET_CONSUME_STATS, {}, REFUSED),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}, OK),
    (
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        {"consumerGroup": "none"},
        ResponseCode.CONSUMER_NOT_ONLINE,
    ),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "G"}, OK),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"}, REFUSED),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "A"}, OK),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {}, REFUSED),
    (
        RequestCode.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "no"},
        REFUSED,
    ),
    (RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "NONE", "statsKey": "T"}, REFUSED),
]


@pytest.mark.parametrize(("request_code", "ext", "code"), STATUS)
def test_a_request_has_its_code(
    stage: BrokerStage, request_code: int, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(request_code, ext) == code


def test_every_request_of_the_tools_is_in_the_table(stage: BrokerStage) -> None:
    with_a_body = {RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP}
    asked = {request_code for request_code, _, _ in STATUS}
    assert stage.processors.admin.processors().keys() == asked | with_a_body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"groupName": "New", "retryQueueNums": 2}, OK),
        ({"groupName": "bad name"}, REFUSED),
        ({"groupName": "New", "retryQueueNums": 1 << 20}, REFUSED),
        ({"groupName": 7}, REFUSED),
        ({}, REFUSED),
        (b"no json", REFUSED),
        (b"", REFUSED),
    ],
)
def test_a_group_is_created_or_refused(stage: BrokerStage, body: Any, code: ResponseCode) -> None:
    before = len(stage.tables.groups)
    assert stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body) == code
    assert len(stage.tables.groups) == before + (code == OK)


def test_there_is_a_most_of_topics_and_groups(stage: BrokerStage) -> None:
    topics = [
        stage.code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(f"New{n}")) for n in range(20)
    ]
    assert (topics[0], topics[-1], len(stage.tables.topics)) == (OK, REFUSED, 20)
    groups = [
        stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": f"New{n}"})
        for n in range(10)
    ]
    assert (groups[0], groups[-1], len(stage.tables.groups)) == (OK, REFUSED, 10)
    # What there is already can be changed all the same.
    assert stage.code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("T", perm=4)) == OK


def test_a_deleted_group_keeps_its_offsets_unless_they_are_to_go(stage: BrokerStage) -> None:
    stage.tables.offsets.commit("G", "T", 0, 1)
    stage.code(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    assert (stage.tables.groups.get("G"), stage.tables.offsets.query("G", "T", 0)) == (None, 1)
    ext = {"groupName": "G", "cleanOffset": "true"}
    stage.code(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
    assert stage.tables.offsets.query("G", "T", 0) is None


def test_settings_are_shown_under_the_names_of_the_tools(stage: BrokerStage) -> None:
    body = stage.ask(RequestCode.GET_BROKER_CONFIG).body.decode()
    shown = dict(line.split("=") for line in body.splitlines())
    assert shown["listenPort"] == str(PORT)
    assert shown["namesrvAddr"] == "127.0.0.1:9876"
    assert (shown["flushDiskType"], shown["autoCreateTopicEnable"]) == ("ASYNC_FLUSH", "true")


def test_messages_in_and_out_are_shown(stage: BrokerStage) -> None:
    stage.pull(Client(), "T", 0)
    table = msgspec.json.decode(stage.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")


def test_the_ends_of_a_topics_queues_are_told(stage: BrokerStage) -> None:
    answer = stage.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    table: Any = loads(answer.body)
    ends = [
        (entry["minOffset"], entry["maxOffset"], entry["lastUpdateTimestamp"] > 0)
        for entry in table["offsetTable"].values()
    ]
    assert ends == [(0, 1, True), (0, 0, False)]


def test_what_a_group_has_still_to_consume_is_told(stage: BrokerStage) -> None:
    stage.tables.offsets.commit("G", "T", 0, 1)
    ext = {"consumerGroup": "G", "topic": "T"}
    table: Any = loads(stage.ask(RequestCode.GET_CONSUME_STATS, ext).body)
    seen = [(e["brokerOffset"], e["consumerOffset"]) for e in table["offsetTable"].values()]
    # Two queues of T and, as always, the group's retry topic.
    assert seen == [(0, 0), (1, 1), (0, 0)]


def test_who_is_connected_is_told(stage: BrokerStage) -> None:
    ext = {"consumerGroup": "G", "producerGroup": "G"}
    for code in (
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
    ):
        (one,) = msgspec.json.decode(stage.ask(code, ext).body)["connectionSet"]
        assert (one["clientId"], one["clientAddr"]) == ("client", "127.0.0.1:4711")
    found = stage.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "A"})
    assert msgspec.json.decode(found.body) == {"groupList": ["G"]}
