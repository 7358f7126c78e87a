"""Sends that ask for light queues, and what can be done with these by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.core.message import TAGS
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.stores import read_queue
from tests.support.transactions import COMMIT, ROLLBACK, end, send_half

A, B = "%LMQ%a", "%LMQ%b"
QUEUES_MAX = 5
V2 = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    with broker_stage(tmp_path, lmq=True, lmq_queues_max=QUEUES_MAX) as broker:
        broker.topic("T", 2)
        yield broker


def prop(name: str, value: str) -> str:
    return f"{name}\x01{value}\x02"


def ask_for(*names: str, more: str = "") -> dict[str, object]:
    return send_ext("T", properties=prop("INNER_MULTI_DISPATCH", ",".join(names)) + more)


def in_light_queue(stage: BrokerStage, name: str) -> list[StoredMessage]:
    result = stage.store.reader.read(name, 0, 0, count_max=100)
    return decode_messages(result.records)


@pytest.mark.parametrize("key", ["", prop("UNIQ_KEY", "K")], ids=["decoded", "plain"])
def test_a_message_is_in_its_topic_and_in_light_queues(stage: BrokerStage, key: str) -> None:
    for _ in range(2):
        assert stage.code(V2, ask_for(A, B, more=key), b"body") == ResponseCode.SUCCESS
    assert [m.body for m in read_queue(stage.store, "T", 0)] == [b"body"] * 2
    for name in (A, B):
        assert [m.properties["INNER_MULTI_QUEUE_OFFSET"] for m in in_light_queue(stage, name)] == [
            "0,0",
            "1,1",
        ]


def test_a_light_queue_is_pulled_and_asked_about_by_name(stage: BrokerStage) -> None:
    stage.code(V2, ask_for(A, more=prop(TAGS, "X")), b"body")
    answer = stage.ask(RequestCode.PULL_MESSAGE, pull_ext(A, 0))
    assert (answer.code, answer.ext["maxOffset"]) == (ResponseCode.SUCCESS, "1")
    (found,) = decode_messages(answer.body)
    assert (found.body, found.topic) == (b"body", "T")
    for code, name, expected in (
        (RequestCode.GET_MAX_OFFSET, A, "1"),
        (RequestCode.GET_MIN_OFFSET, A, "0"),
        (RequestCode.GET_MAX_OFFSET, B, "0"),
    ):
        answer = stage.ask(code, {"topic": name, "queueId": 0})
        assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, expected)
    # One that nobody has named yet is empty, and waits for its first message.
    assert stage.ask(RequestCode.PULL_MESSAGE, pull_ext(B, 0)).code == ResponseCode.PULL_NOT_FOUND
    assert (
        stage.code(RequestCode.PULL_MESSAGE, pull_ext(A, 0, queue_id=1))
        == ResponseCode.INVALID_PARAMETER
    )


@pytest.mark.parametrize("names", [("T",), ("%LMQ%a/b",), (A, ""), (A, A), ("%LMQ%" + "x" * 300,)])
def test_a_list_that_is_none_is_refused(stage: BrokerStage, names: tuple[str, ...]) -> None:
    before = stage.store.end_offset
    assert stage.code(V2, ask_for(*names), b"body") == ResponseCode.MESSAGE_ILLEGAL
    assert stage.store.end_offset == before


def test_there_are_only_so_many(stage: BrokerStage) -> None:
    first = [f"%LMQ%{number}" for number in range(QUEUES_MAX - 1)]
    assert stage.code(V2, ask_for(*first), b"") == ResponseCode.SUCCESS
    assert stage.code(V2, ask_for(A, B), b"") == ResponseCode.SYSTEM_ERROR
    assert stage.code(V2, ask_for(A), b"") == ResponseCode.SUCCESS
    assert stage.code(V2, ask_for(B), b"") == ResponseCode.SYSTEM_ERROR
    assert stage.code(V2, ask_for(*first), b"") == ResponseCode.SUCCESS


def test_a_list_without_room_for_its_offsets_is_refused(tmp_path: Path) -> None:
    with broker_stage(tmp_path, lmq=True) as stage:
        stage.topic("T", 1)
        names = [f"%LMQ%{number:010}" for number in range(1500)]
        assert stage.code(V2, ask_for(*names), b"") == ResponseCode.MESSAGE_ILLEGAL
        assert stage.code(V2, ask_for(*names[:800]), b"") == ResponseCode.SUCCESS
        assert len(in_light_queue(stage, names[799])) == 1


def test_nobody_sends_to_a_light_queue_by_name(stage: BrokerStage) -> None:
    for name in (A, B):
        assert stage.code(V2, send_ext(name), b"") == ResponseCode.NO_PERMISSION
        key = prop("UNIQ_KEY", "K")
        assert stage.code(V2, send_ext(name, properties=key), b"") == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("has_lmq", [True, False])
def test_a_client_does_not_say_where_a_message_is(tmp_path: Path, has_lmq: bool) -> None:
    forged = prop("INNER_MULTI_QUEUE_OFFSET", "1000000")
    with broker_stage(tmp_path, lmq=has_lmq) as stage:
        stage.topic("T", 1)
        assert stage.code(V2, ask_for(A, more=forged), b"") == ResponseCode.SUCCESS
        (found,) = read_queue(stage.store, "T", 0)
        place = found.properties.get("INNER_MULTI_QUEUE_OFFSET")
        assert place == ("0" if has_lmq else None)
    with broker_stage(tmp_path, lmq=has_lmq) as stage:
        assert stage.store.reader.max_offset(A, 0) == int(has_lmq)


def test_a_half_message_is_in_light_queues_from_its_commit_on(stage: BrokerStage) -> None:
    for body, end_of in ((b"body", COMMIT), (b"other", ROLLBACK)):
        sent = send_half(stage, body, INNER_MULTI_DISPATCH=A)
        assert stage.store.reader.max_offset(A, 0) == int(end_of == ROLLBACK)
        assert end(stage, sent, end_of) == ResponseCode.SUCCESS
        # Told a second time, it is not stored a second time.
        assert end(stage, sent, end_of) == ResponseCode.SUCCESS
        assert stage.store.reader.max_offset(A, 0) == 1
    assert [m.body for m in in_light_queue(stage, A)] == [b"body"]


def test_without_the_setting_nothing_is_light(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.topic("T", 1)
        assert stage.code(V2, ask_for("anything"), b"") == ResponseCode.SUCCESS
        assert stage.code(V2, ask_for(A), b"") == ResponseCode.SUCCESS
        answer = stage.code(RequestCode.PULL_MESSAGE, pull_ext(A, 0))
        assert answer == ResponseCode.TOPIC_NOT_EXIST
