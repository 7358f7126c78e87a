"""What clients are answered besides sends and pulls: codes, limits, notices to their groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.core.broker.processors.consumer import (
    CLIENT_ID_CHARACTERS_MAX,
    GROUPS_PER_CLIENT_MAX,
    SUBSCRIPTIONS_PER_GROUP_MAX,
)
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.remoting.codes import ONLY_FORWARD, RequestCode, ResponseCode
from motelog.core.remoting.frames import loads
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import BrokerStage, Client, broker_stage, heartbeat
from tests.support.stores import message

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
QUEUE = {"topic": "T", "queueId": 0}
GROUP_QUEUE = {"consumerGroup": "G"} | QUEUE


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """Topic T with two queues and one message in the first."""
    with broker_stage(tmp_path) as broker:
        broker.topic("T", 2)
        broker.store.append([message(broker.tail("T", 0))])
        yield broker


STATUS = [
    (RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE, OK),
    (
        RequestCode.QUERY_CONSUMER_OFFSET,
        GROUP_QUEUE | {"setZeroIfNotFound": "false"},
        ResponseCode.QUERY_NOT_FOUND,
    ),
    (RequestCode.QUERY_CONSUMER_OFFSET, QUEUE, REFUSED),
    (RequestCode.UPDATE_CONSUMER_OFFSET, GROUP_QUEUE | {"commitOffset": 1}, OK),
    (RequestCode.UPDATE_CONSUMER_OFFSET, GROUP_QUEUE | {"commitOffset": -1}, REFUSED),
    (RequestCode.UPDATE_CONSUMER_OFFSET, GROUP_QUEUE | {"commitOffset": 1, "queueId": 2}, REFUSED),
    (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        GROUP_QUEUE | {"commitOffset": 1, "topic": "none"},
        ResponseCode.TOPIC_NOT_EXIST,
    ),
    (RequestCode.UPDATE_CONSUMER_OFFSET, GROUP_QUEUE, REFUSED),
    (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        GROUP_QUEUE | {"commitOffset": 1, "consumerGroup": "bad name"},
        REFUSED,
    ),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QUEUE | {"timestamp": 0}, OK),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QUEUE, REFUSED),
    (RequestCode.GET_MAX_OFFSET, QUEUE, OK),
    (RequestCode.GET_MAX_OFFSET, {"topic": "T"}, REFUSED),
    (RequestCode.GET_MIN_OFFSET, QUEUE, OK),
    (RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "x"}, REFUSED),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE, OK),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, {}, REFUSED),
    (RequestCode.UNREGISTER_CLIENT, {"clientID": "nobody", "consumerGroup": "G"}, OK),
    (RequestCode.UNREGISTER_CLIENT, {}, REFUSED),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"}, REFUSED),
]


def test_every_request_of_clients_is_asked(stage: BrokerStage) -> None:
    with_a_body = {
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
    asked = {request_code for request_code, _, _ in STATUS}
    assert stage.processors.consumer.processors().keys() == asked | with_a_body


@pytest.mark.parametrize(("request_code", "ext", "code"), STATUS)
def test_a_request_has_its_code(
    stage: BrokerStage, request_code: int, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(request_code, ext) == code


def test_a_commit_goes_back_unless_it_says_only_forward(stage: BrokerStage) -> None:
    for offset, how, kept in (
        (3, {}, 3),
        (2, {ONLY_FORWARD: "true"}, 3),
        (5, {ONLY_FORWARD: "true"}, 5),
        (4, {ONLY_FORWARD: "false"}, 4),
        (1, {}, 1),
    ):
        ext = GROUP_QUEUE | {"commitOffset": offset} | how
        assert stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, ext) == OK
        answer = stage.ask(RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE)
        assert answer.ext["offset"] == str(kept)


@pytest.mark.parametrize(
    ("request_code", "ext", "name", "value"),
    [
        (RequestCode.GET_MAX_OFFSET, QUEUE, "offset", "1"),
        (RequestCode.GET_MAX_OFFSET, QUEUE | {"queueId": 1}, "offset", "0"),
        (RequestCode.GET_MIN_OFFSET, QUEUE, "offset", "0"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, QUEUE | {"timestamp": 0}, "offset", "0"),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE | {"queueId": 1}, "timestamp", "-1"),
        # A new group on a young queue begins with its first message.
        (RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE, "offset", "0"),
    ],
)
def test_an_answer_says_where(
    stage: BrokerStage, request_code: int, ext: dict[str, Any], name: str, value: str
) -> None:
    assert stage.ask(request_code, ext).ext[name] == value


@pytest.mark.parametrize("is_enabled", [True, False])
def test_where_a_group_begins_is_not_the_group_s_setting(
    stage: BrokerStage, is_enabled: bool
) -> None:
    # No broker of RocketMQ reads it, and mqadmin says false unless it is told otherwise.
    settings = {"groupName": "M", "consumeFromMinEnable": is_enabled}
    assert stage.code(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings) == OK
    answer = stage.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "M"})
    assert loads(answer.body)["consumeFromMinEnable"] is is_enabled
    place = {"consumerGroup": "M", "topic": "A", "queueId": 0}
    assert stage.ask(RequestCode.QUERY_CONSUMER_OFFSET, place).ext == {"offset": "0"}
    answer = stage.ask(RequestCode.PULL_MESSAGE, pull_ext("A", 0, consumerGroup="M"))
    assert answer.code in (OK, ResponseCode.PULL_NOT_FOUND)


def test_a_queue_that_its_topic_has_no_more_is_committed(stage: BrokerStage) -> None:
    stage.store.append([message(stage.tail("T", 1))])
    stage.topic("T", 1)
    commit = GROUP_QUEUE | {"commitOffset": 1}
    codes = [
        stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"queueId": queue_id})
        for queue_id in (0, 1, 2)
    ]
    assert codes == [OK, OK, REFUSED]
    stage.topic("T", 2)
    answer = stage.ask(RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE | {"queueId": 1})
    assert answer.ext["offset"] == "1"


def test_what_was_committed_is_told_and_there_is_a_most_of_it(stage: BrokerStage) -> None:
    commit = GROUP_QUEUE | {"commitOffset": 1}
    assert stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit) == OK
    answer = stage.ask(RequestCode.QUERY_CONSUMER_OFFSET, GROUP_QUEUE)
    assert answer.ext["offset"] == "1"
    others = [{"topic": "A", "queueId": queue_id} for queue_id in range(10)]
    codes = [stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit | other) for other in others]
    assert codes == [OK] * 9 + [REFUSED]
    # What is kept already goes on.
    assert stage.code(RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": 2}) == OK


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        {},
        heartbeat("bad name"),
        heartbeat("G", ""),
        heartbeat("G", "x" * (CLIENT_ID_CHARACTERS_MAX + 1)),
        heartbeat("G", topics=tuple(f"T{n}" for n in range(SUBSCRIPTIONS_PER_GROUP_MAX + 1))),
        {
            "clientID": "client",
            "producerDataSet": [{"groupName": f"P{n}"} for n in range(GROUPS_PER_CLIENT_MAX + 1)],
        },
    ],
)
def test_a_heartbeat_out_of_bounds_leaves_nothing_behind(stage: BrokerStage, body: Any) -> None:
    assert stage.code(RequestCode.HEART_BEAT, body=body) == REFUSED
    assert stage.tables.producers.members_count == stage.tables.consumers.members_count == 0
    assert len(stage.tables.groups) == 0


def test_a_heartbeat_makes_a_member_and_the_groups_retry_topic(stage: BrokerStage) -> None:
    assert stage.beat("G").code == OK
    answer = stage.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert msgspec.json.decode(answer.body) == {"consumerIdList": ["client"]}
    retry = stage.tables.topics.get("%RETRY%G")
    assert retry is not None
    assert retry.write_queue_nums == 1


def test_a_heartbeat_with_a_fingerprint_hears_whether_the_next_may_be_brief(
    stage: BrokerStage,
) -> None:
    def told(**fields: Any) -> tuple[str, str] | None:
        body = msgspec.json.encode(heartbeat("G") | fields)
        answer = stage.ask(RequestCode.HEART_BEAT, body=body)
        assert answer.code == OK
        if "IS_SUB_CHANGE" not in answer.ext:
            return None
        return answer.ext["IS_SUPPORT_HEART_BEAT_V2"], answer.ext["IS_SUB_CHANGE"]

    assert told() is None
    assert told(heartbeatFingerprint=7, withoutSub=True, consumerDataSet=[]) == ("true", "false")
    brief = [{"groupName": "G"}]
    assert told(heartbeatFingerprint=7, withoutSub=True, consumerDataSet=brief) == ("true", "true")
    assert told(heartbeatFingerprint=7) == ("true", "false")
    assert told(heartbeatFingerprint=7, withoutSub=True, consumerDataSet=brief) == ("true", "false")
    group = stage.tables.consumers.get("G")
    assert group is not None
    assert list(group.subscriptions) == ["A"]
    assert told(heartbeatFingerprint=8) == ("true", "true")


def test_there_is_a_most_of_members(stage: BrokerStage) -> None:
    codes = [stage.beat("G", client_id=f"client-{n}").code for n in range(11)]
    assert codes == [OK] * 10 + [REFUSED]


def test_the_members_hear_when_their_group_changes(stage: BrokerStage) -> None:
    first, second = Client(), Client()

    def notices() -> list[int]:
        heard = [
            sum(a.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for a in client.answers)
            for client in (first, second)
        ]
        for client in (first, second):
            client.answers.clear()
        return heard

    stage.beat("G", client=first, client_id="first")
    assert notices() == [1, 0]
    stage.beat("G", client=second, client_id="second")
    assert notices() == [1, 1]
    # A heartbeat that says nothing new disturbs nobody.
    stage.beat("G", client=second, client_id="second")
    assert notices() == [0, 0]
    goodbye = {"clientID": "second", "consumerGroup": "G"}
    assert stage.ask(RequestCode.UNREGISTER_CLIENT, goodbye, client=first).code == OK
    assert notices() == [0, 0]
    stage.ask(RequestCode.UNREGISTER_CLIENT, goodbye, client=second)
    assert notices() == [1, 0]
    stage.tables.groups.put(
        SubscriptionGroup(group_name="G", notify_consumer_ids_changed_enable=False)
    )
    stage.beat("G", client=second, client_id="second")
    assert notices() == [0, 0]


def test_silent_clients_are_forgotten_and_the_others_hear_it(stage: BrokerStage) -> None:
    silent, other = Client(), Client()
    stage.beat("G", client=silent, client_id="silent")
    stage.clock.advance(100_000)
    stage.beat("G", client=other, client_id="other")
    other.answers.clear()
    stage.clock.advance(30_000)
    stage.processors.consumer.expire(120_000)
    group = stage.tables.consumers.get("G")
    assert group is not None
    assert list(group.members) == ["other"]
    assert [a.code for a in other.answers] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


def lock(stage: BrokerStage, client_id: str, *queue_ids: int, **fields: Any) -> set[int]:
    """Return the ids of the queues that a client holds after it has asked for these."""
    queues = [{"topic": "T", "brokerName": "b", "queueId": queue_id} for queue_id in queue_ids]
    body = {"consumerGroup": "G", "clientId": client_id, "mqSet": queues} | fields
    held: Any = loads(stage.ask(RequestCode.LOCK_BATCH_MQ, body=body).body)
    return {queue["queueId"] for queue in held["lockOKMQSet"]}


def test_a_queue_is_locked_for_one_client_of_a_group(stage: BrokerStage) -> None:
    assert lock(stage, "first", 0) == set()  # nobody knows the group
    stage.beat("G")
    assert lock(stage, "first", 0, 2, -1) == {0}  # the topic has two queues
    assert lock(stage, "second", 0, 1) == {1}
    queue = {"topic": "T", "brokerName": "b", "queueId": 0}
    body = {"consumerGroup": "G", "clientId": "first", "mqSet": [queue]}
    assert stage.code(RequestCode.UNLOCK_BATCH_MQ, body=body) == OK
    assert lock(stage, "second", 0) == {0}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("body", [b"", b"no json", {}, {"consumerGroup": "G", "clientId": 7}])
def test_a_lock_request_that_is_none_is_refused(
    stage: BrokerStage, code: RequestCode, body: Any
) -> None:
    assert stage.code(code, body=body) == REFUSED


@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        (None, OK),
        ({"topic": "T", "subString": "a||b", "expressionType": "TAG"}, OK),
        ({"topic": "T", "subString": "n > 1", "expressionType": "SQL92"}, OK),
        (
            {"topic": "T", "subString": "n >", "expressionType": "SQL92"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ),
        ({"topic": 7}, REFUSED),
    ],
)
def test_a_filter_is_checked_before_it_is_used(
    stage: BrokerStage, subscription: Any, code: ResponseCode
) -> None:
    body = {"subscriptionData": subscription}
    assert stage.code(RequestCode.CHECK_CLIENT_CONFIG, body=body) == code


@pytest.mark.parametrize(
    ("boundary", "offsets"),
    [
        ({}, [0, 0, 2, 2, 3]),
        ({"boundaryType": "LOWER"}, [0, 0, 2, 2, 3]),
        ({"boundaryType": "upper"}, [0, 1, 1, 2, 2]),
        ({"boundaryType": "UPPER"}, [0, 1, 1, 2, 2]),
    ],
)
def test_an_offset_by_time_is_the_first_or_the_last_one(
    tmp_path: Path, boundary: dict[str, str], offsets: list[int]
) -> None:
    with broker_stage(tmp_path) as stage:
        begin_ms = stage.store.now_ms()
        for pause_ms in (0, 10, 0):
            stage.ask(RequestCode.SEND_MESSAGE_V2, send_ext("A"))
            stage.clock.advance(pause_ms)
        found = []
        for timestamp in (begin_ms - 1, begin_ms, begin_ms + 1, begin_ms + 10, begin_ms + 11):
            ext = {"topic": "A", "queueId": 0, "timestamp": timestamp, **boundary}
            answer = stage.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
            found.append(int(answer.ext["offset"]))
        assert found == offsets
