"""Which queues the broker gives to the members of a group, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.processors.assignment import STRATEGIES, divide_for_pop
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stage import BrokerStage, Client, broker_stage

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
QUERY = RequestCode.QUERY_ASSIGNMENT
SET_MODE = RequestCode.SET_MESSAGE_REQUEST_MODE


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """Topic T of four queues, and two members of group G."""
    with broker_stage(tmp_path) as broker:
        broker.topic("T", 4)
        for name in ("one", "two"):
            assert broker.beat("G", client=Client(), client_id=name).code == OK
        yield broker


def query(stage: BrokerStage, client_id: str = "one", **fields: Any) -> Any:
    """Return (mode, queue ids) of a client; None if it is to keep what it has."""
    body = {
        "topic": "T",
        "consumerGroup": "G",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    answer = stage.ask(QUERY, body=body | fields)
    assert answer.code == OK, answer.remark
    assigned = json.loads(answer.body)["messageQueueAssignments"]
    if assigned is None:
        return None
    modes = {one["mode"] for one in assigned}
    assert {one["messageQueue"]["brokerName"] for one in assigned} == {"broker-a"}
    return modes, [one["messageQueue"]["queueId"] for one in assigned]


def mode(**fields: Any) -> dict[str, Any]:
    chosen = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    return chosen | fields


def test_queues_are_divided_among_the_members(stage: BrokerStage) -> None:
    assert query(stage) == ({"PULL"}, [0, 1])
    assert query(stage, "two") == ({"PULL"}, [2, 3])
    assert query(stage, strategyName="AVG_BY_CIRCLE") == ({"PULL"}, [0, 2])
    assert query(stage, messageModel="BROADCASTING") == ({"PULL"}, [0, 1, 2, 3])


def test_a_client_keeps_what_it_has_when_nothing_is_known(stage: BrokerStage) -> None:
    assert query(stage, topic="none") is None
    assert query(stage, consumerGroup="none") is None
    assert query(stage, strategyName="none") is None


def test_who_pops_has_all_queues(stage: BrokerStage) -> None:
    assert stage.code(SET_MODE, body=mode()) == OK
    assert query(stage) == query(stage, "two") == ({"POP"}, [-1])
    assert stage.code(SET_MODE, body=mode(mode="PULL")) == OK
    assert query(stage) == ({"PULL"}, [0, 1])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (mode(topic="%RETRY%G"), ResponseCode.NO_PERMISSION),
        (mode(topic="none"), ResponseCode.TOPIC_NOT_EXIST),
        (mode(consumerGroup="bad name"), REFUSED),
        (mode(mode="PUSH"), REFUSED),
        (mode(popShareQueueNum=1 << 31), REFUSED),
        (b"x", REFUSED),
        ({}, REFUSED),
    ],
)
def test_a_bad_mode_has_its_code(stage: BrokerStage, body: Any, code: ResponseCode) -> None:
    assert stage.code(SET_MODE, body=body) == code


def test_there_is_a_limit_for_modes(stage: BrokerStage) -> None:
    for i in range(10):
        stage.topic(f"T{i}", 1)
        assert stage.code(SET_MODE, body=mode(topic=f"T{i}")) == OK
    assert stage.code(SET_MODE, body=mode()) == REFUSED


def test_modes_outlive_the_process(stage: BrokerStage) -> None:
    assert stage.code(SET_MODE, body=mode(popShareQueueNum=2)) == OK
    modes = stage.tables.request_modes
    content = json.loads(json.dumps(modes.snapshot(), default=_members))
    modes.load({})
    assert modes.get("T", "G").mode == "PULL"
    modes.load(content)
    assert (modes.get("T", "G").mode, modes.get("T", "G").pop_share_queue_num) == ("POP", 2)


def _members(value: Any) -> Any:
    return {
        "topic": value.topic,
        "consumerGroup": value.consumer_group,
        "mode": value.mode,
        "popShareQueueNum": value.pop_share_queue_num,
    }


@given(
    queues=st.integers(1, 40),
    clients=st.integers(1, 40),
    name=st.sampled_from(sorted(STRATEGIES)),
    share=st.integers(-1, 5),
)
def test_every_queue_has_a_member(queues: int, clients: int, name: str, share: int) -> None:
    divide = STRATEGIES[name]
    all_queues = [MessageQueue("T", "b", i) for i in range(queues)]
    names = sorted(str(i) for i in range(clients))
    parts = [divide(one, all_queues, names) for one in names]
    assert sorted(queue.queue_id for part in parts for queue in part) == list(range(queues))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert divide("stranger", all_queues, names) == []

    popped = [divide_for_pop(divide, one, all_queues, names, share) for one in names]
    assert all(popped)
    ids = {queue.queue_id for part in popped for queue in part}
    assert ids in ({-1}, set(range(queues)))
