"""What the tools are answered: which request gets which code, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.core.errors import RemotingConnectionError, RemotingError, RemotingTimeoutError
from motelog.core.records.decode import decode
from motelog.core.remoting.asked import Answered
from motelog.core.remoting.codes import Language, RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand, loads
from motelog.core.topic_names import GATEWAY_GROUP
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import PORT, BrokerStage, Client, broker_stage, heartbeat

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
INVALID = ResponseCode.INVALID_PARAMETER
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
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("bad name"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("TBW102"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("MQTT_SESSION"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, gateway_topic_ext(), OK),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, gateway_topic_ext(writeQueueNums=1 << 20), REFUSED),
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic_ext("TBW102", producerGroup=GATEWAY_GROUP),
        INVALID,
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
    (RequestCode.GET_BROKER_HA_STATUS, {}, OK),
    (RequestCode.PROMOTE_BROKER, {}, REFUSED),
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
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "new"}, OK),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "bad name"}, REFUSED),
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
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="+message.type=FIFO"), OK),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="+message.type=NONE"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="message.type=FIFO"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="+reserve.time=1"), INVALID),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="-message.type"), INVALID),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, OK),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "none"}, OK),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}, INVALID),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "../T"}, INVALID),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, OK),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}, OK),
    (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "G"}, OK),
    (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "G", "topic": "A"}, OK),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "G", "topic": "T"}, OK),
    (
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        {"group": "G", "topic": "none"},
        ResponseCode.TOPIC_NOT_EXIST,
    ),
    (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", "compareGroup": "G"}, OK),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, OK),
    (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H"}, OK),
    (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G"}, REFUSED),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "G", "topic": "T", "timestamp": 0}, OK),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "none", "topic": "T", "timestamp": 0},
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "G", "topic": "T", "queueId": 0, "offset": 9},
        REFUSED,
    ),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "G", "topic": "T", "queueId": 9, "offset": 0},
        INVALID,
    ),
    (
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"group": "none", "topic": "T"},
        REFUSED,
    ),
    (
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "G", "clientId": "none"},
        REFUSED,
    ),
    (
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "G", "clientId": "client", "msgId": "x"},
        INVALID,
    ),
    (
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "G", "clientId": "client", "msgId": "7F00000100002A9F0000000000000004"},
        REFUSED,
    ),
    (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": 0, "index": 0, "count": 9}, OK),
    (
        RequestCode.QUERY_CONSUME_QUEUE,
        {"topic": "T", "queueId": 2, "index": 0, "count": 9},
        REFUSED,
    ),
    (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, {}, OK),
    (RequestCode.DELETE_EXPIRED_COMMITLOG, {}, OK),
    (RequestCode.CLEAN_UNUSED_TOPIC, {}, OK),
    (
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        {"group": "G", "topic": "bad name", "readable": "false"},
        INVALID,
    ),
    (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "G"}, REFUSED),
    # Without access control nobody may make users; with it: tests/integration/test_acl.py.
    *(
        (code, {"username": "alice", "subject": "User:alice"}, ResponseCode.NO_PERMISSION)
        for code in RequestCode
        if RequestCode.AUTH_CREATE_USER <= code <= RequestCode.AUTH_LIST_ACL
    ),
]


@pytest.mark.parametrize(("request_code", "ext", "code"), STATUS)
def test_a_request_has_its_code(
    stage: BrokerStage, request_code: int, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(request_code, ext) == code


def test_every_request_of_the_tools_is_in_the_table(stage: BrokerStage) -> None:
    with_a_body = {
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
    }
    asked = {request_code for request_code, _, _ in STATUS}
    assert stage.processors.admin.processors().keys() == asked | with_a_body


def test_a_topic_is_closed_to_one_group_alone(stage: BrokerStage) -> None:
    def readable(**fields: str) -> bool:
        ext = {"group": "G", "topic": "T"} | fields
        told = loads(stage.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext).body)
        assert told == ext | {"readable": told["readable"]}
        return bool(told["readable"])

    def codes() -> list[ResponseCode]:
        pop = {
            "topic": "T", "queueId": -1, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 0,
            "bornTime": 0, "initMode": 0,
        }  # fmt: skip
        return [
            code
            for group in ("G", "H")
            for code in (
                stage.code(RequestCode.PULL_MESSAGE, pull_ext("T", 0, consumerGroup=group)),
                stage.code(RequestCode.POP_MESSAGE, pop | {"consumerGroup": group}),
            )
        ]

    assert readable()
    assert not readable(readable="false")
    assert not readable()
    assert codes() == [ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION, OK, OK]
    assert readable(readable="true")
    assert codes()[0] == OK


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


def test_a_master_without_slaves_says_so(stage: BrokerStage) -> None:
    status = loads(stage.ask(RequestCode.GET_BROKER_HA_STATUS).body)
    assert status["master"] is True
    assert status["masterCommitLogMaxOffset"] == stage.store.end_offset > 0
    assert (status["inSyncSlaveNums"], status["haConnectionInfo"]) == (0, [])


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
    assert seen == [(1, 1), (0, 0)]
    # Without a topic: also that of its retries, and the one that it subscribes to.
    table = loads(stage.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}).body)
    names = [loads(key.encode())["topic"] for key in table["offsetTable"]]
    assert {name: names.count(name) for name in names} == {"A": 4096, "T": 2, "%RETRY%G": 1}


def test_since_when_messages_wait_is_told_of_a_group_that_has_consumed_none(
    stage: BrokerStage,
) -> None:
    stats: Any = loads(stage.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
    stored_ms = next(iter(stats["offsetTable"].values()))["lastUpdateTimestamp"]
    for committed, times in ((0, [(0, stored_ms), (0, 0)]), (1, [(stored_ms, 0), (0, 0)])):
        stage.tables.offsets.commit("G", "T", 0, committed)
        ext = {"consumerGroup": "G", "topic": "T"}
        table: Any = loads(stage.ask(RequestCode.GET_CONSUME_STATS, ext).body)
        rows = table["offsetTable"].values()
        assert [(row["lastTimestamp"], row["waitingTimestamp"]) for row in rows] == times


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


def test_what_release_5_keeps_of_topics_and_groups_is_kept(stage: BrokerStage) -> None:
    kept = topic_ext(attributes="+message.type=FIFO")
    stage.code(RequestCode.UPDATE_AND_CREATE_TOPIC, kept)
    # A change that names no attribute leaves them.
    stage.code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(perm=4))
    shown = msgspec.json.decode(stage.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "New"}).body)
    assert (shown["attributes"], shown["perm"]) == ({"message.type": "FIFO"}, 4)
    stage.code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(attributes="-message.type"))
    shown = msgspec.json.decode(stage.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "New"}).body)
    assert shown["attributes"] == {}
    group = {
        "groupName": "New",
        "consumeMessageOrderly": True,
        "consumeTimeoutMinute": 7,
        "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5}},
        "attributes": {"a": "b"},
    }
    assert stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group) == OK
    answer = stage.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "New"})
    assert group.items() <= msgspec.json.decode(answer.body).items()
    group["attributes"] = {"a": "b" * 20_000}
    assert stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group) == REFUSED


def test_a_list_is_taken_whole_or_not_at_all(stage: BrokerStage) -> None:
    topics = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in ("N", "O")]
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    assert stage.code(code, body={"topicConfigList": [*topics, topics[0] | {"perm": 8}]}) == REFUSED
    assert stage.tables.topics.get("N") is None
    assert stage.code(code, body={"topicConfigList": topics}) == OK
    assert stage.tables.topics.get("O") is not None
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    groups = [{"groupName": "N"}, {"groupName": "bad name"}]
    assert stage.code(code, body={"groupConfigList": groups}) == REFUSED
    assert stage.tables.groups.get("N") is None
    assert stage.code(code, body={"groupConfigList": groups[:1]}) == OK


def test_an_offline_group_is_reset_at_once_and_a_running_one_by_its_next_pull(
    stage: BrokerStage,
) -> None:
    offsets = stage.tables.offsets
    stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": "Off"})
    stage.ask(RequestCode.HEART_BEAT, body=heartbeat("G", topics=("T",)))
    for group in ("G", "Off"):
        offsets.commit(group, "T", 0, 1)
        ext = {"group": group, "topic": "T", "timestamp": 0, "isForce": "true"}
        table: Any = loads(stage.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).body)
        assert set(table["offsetTable"].values()) == {0}
        assert offsets.query(group, "T", 0) == 0
    # What the members commit before they have heard of it does not count.
    commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit) == OK
    assert offsets.query("G", "T", 0) == 0
    client = Client()
    for _ in range(2):
        ext = pull_ext("T", 1, consumerGroup="G", sysFlag=6, suspendTimeoutMillis=30_000)
        texts = {name: str(value) for name, value in ext.items()}
        stage.process(RemotingCommand(RequestCode.PULL_MESSAGE, ext=texts), client)
    (answer,) = client.answers  # the second pull is held
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext["nextBeginOffset"] == "0"
    stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert offsets.query("G", "T", 0) == 1
    assert stage.pulls.held.is_held((b"T", 0))


@pytest.mark.parametrize("language", [Language.JAVA, Language.CPP])
def test_a_reset_is_pushed_to_the_members_if_it_is_not_the_brokers_matter(
    tmp_path: Path, language: Language
) -> None:
    with broker_stage(tmp_path, {"server_side_reset": False}) as stage:
        stage.topic("T", 1)
        client = Client()
        stage.beat("G", client=client)
        stage.tables.offsets.commit("G", "T", 0, 0)
        stage.code(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"0")
        # Not by force: nobody skips messages that are not consumed.
        for is_forced, offset in ((False, 0), (True, 1)):
            ext = {"group": "G", "topic": "T", "timestamp": -1, "isForce": str(is_forced).lower()}
            stage.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, language=language)
            pushed = client.answers[-1]
            assert pushed.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            assert pushed.is_oneway
            table: Any = loads(pushed.body)
            if language == Language.JAVA:
                assert list(table["offsetTable"].values()) == [offset]
            else:
                (queue,) = table["offsetTable"]
                assert (queue["topic"], queue["queueId"], queue["offset"]) == ("T", 0, offset)
        assert stage.tables.offsets.query("G", "T", 0) == 0


def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(stage: BrokerStage) -> None:
    stage.tables.offsets.commit("G", "T", 0, 1)
    assert stage.code(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}) == OK
    assert stage.tables.topics.get("T") is None
    assert stage.tables.offsets.query("G", "T", 0) is None
    assert stage.code(RequestCode.QUERY_MESSAGE, key_ext("T", "k")) == ResponseCode.QUERY_NOT_FOUND
    stage.topic("T", 2)
    assert stage.code(RequestCode.QUERY_MESSAGE, key_ext("T", "k")) == ResponseCode.QUERY_NOT_FOUND
    client = Client()
    stage.pull(client, "T", 0, sysFlag=4)
    (answer,) = client.answers
    assert answer.ext["minOffset"] == answer.ext["nextBeginOffset"] == "1"
    assert answer.body == b""
    stage.code(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties=KEYED), b"new")
    (found,) = decode(stage.ask(RequestCode.QUERY_MESSAGE, key_ext("T", "k")).body)
    assert found[-1] == b"new"
    # Its queues go on behind what was deleted: nobody mistakes a new message for an old one.
    assert stage.store.reader.max_offset("T", 0) == 2


def test_offsets_are_cloned(stage: BrokerStage) -> None:
    stage.tables.offsets.commit("G", "A", 0, 3)
    stage.tables.offsets.commit("G", "T", 0, 1)
    stage.code(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", "topic": "T"})
    offsets = stage.tables.offsets
    # The source runs, and does not subscribe to T (any more).
    assert (offsets.query("H", "T", 0), offsets.query("H", "A", 0)) == (None, None)
    ext = {"srcGroup": "G", "destGroup": "H", "offline": "true"}
    stage.code(RequestCode.CLONE_GROUP_OFFSET, ext)
    assert (offsets.query("H", "T", 0), offsets.query("H", "A", 0)) == (1, 3)


def test_a_consumer_is_asked_and_its_answer_handed_on(stage: BrokerStage) -> None:
    member = AskedClient()
    stage.beat("G", client=member, client_id="c1")
    ext = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
    member.answer = RemotingCommand(OK, body=b"{}", ext={"x": "y"})
    answer = stage.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert (answer.code, answer.body, answer.ext) == (OK, b"{}", {"x": "y"})
    assert member.asked[-1].ext == ext
    offset_id = "7F00000100002A9F0000000000000000"
    stage.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext | {"msgId": offset_id})
    ((_, *_, body),) = decode(member.asked[-1].body)
    assert body == b"hello"
    member.answer = RemotingTimeoutError("late")
    answer = stage.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_members_are_asked_how_far_they_are(stage: BrokerStage) -> None:
    members = {name: AskedClient() for name in ("c1", "c2", "c3")}
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"A"}'
    for name, member in members.items():
        stage.beat("H", client=member, client_id=name)
    members["c1"].answer = RemotingCommand(
        OK, body=b'{"messageQueueTable":{%s:5}}' % queue.encode()
    )
    members["c2"].answer = RemotingConnectionError("gone")
    members["c3"].answer = RemotingCommand(OK, body=b'{"messageQueueTable":{"no queue":5}}')
    ext = {"group": "H", "topic": "A"}
    answer = stage.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    assert loads(answer.body) == {"consumerTable": {"c1": {queue: 5}}}


def test_only_switches_can_be_changed_from_afar(stage: BrokerStage) -> None:
    def update(text: str) -> ResponseCode:
        return stage.code(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    for bad in (
        "",
        "storePathRootDir=/tmp/x",
        "namesrvAddr=127.0.0.1:1",
        "autoCreateTopicEnable=maybe",
        "autoCreateTopicEnable",
        "autoCreateTopicEnable=false\nrocketmqHome=/x",
    ):
        assert update(bad) == INVALID
    new = send_ext("Fresh")
    assert update("autoCreateTopicEnable=false\n") == OK
    assert stage.code(RequestCode.SEND_MESSAGE_V2, new, b"x") == ResponseCode.TOPIC_NOT_EXIST
    body = stage.ask(RequestCode.GET_BROKER_CONFIG).body.decode()
    assert "autoCreateTopicEnable=false\n" in body
    assert update("#comment\nautoCreateTopicEnable=true\nstoreReplyMessageEnable=false") == OK
    assert stage.code(RequestCode.SEND_MESSAGE_V2, new, b"x") == OK


def test_how_long_messages_are_kept_can_be_changed_from_afar(stage: BrokerStage) -> None:
    def update(text: str) -> ResponseCode:
        return stage.code(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    cleaner, config = stage.store.cleaner, stage.store.config
    hours = config.retention_hours
    newest_ms = stage.store.now_ms() - 2 * 3_600_000
    for bad in ("0", "-1", "1.5", "", "87601", "1h"):
        assert update(f"fileReservedTime={bad}") == INVALID
    assert update("fileReservedTime=1\nrocketmqHome=/x") == INVALID
    assert not cleaner._retention.is_expired(newest_ms)
    assert update("fileReservedTime=1") == OK
    assert cleaner._retention.is_expired(newest_ms)
    body = stage.ask(RequestCode.GET_BROKER_CONFIG).body.decode()
    assert "fileReservedTime=1\n" in body
    # It stays when the configuration is read again, unless that has another retention now.
    cleaner.configure(msgspec.structs.replace(config, cleanup_files_max=7))
    assert cleaner._retention.is_expired(newest_ms)
    cleaner.configure(msgspec.structs.replace(config, retention_hours=hours + 1))
    assert not cleaner._retention.is_expired(newest_ms)


class AskedClient(Client):
    """A client that gives one answer to whatever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: RemotingCommand | RemotingError = RemotingCommand(OK)
        self.asked: list[RemotingCommand] = []

    # Two clients are two connections.
    __hash__ = object.__hash__

    def ask(self, command: RemotingCommand, answered: Answered, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.asked.append(command)
        answered(self.answer)
