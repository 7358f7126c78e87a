"""Recalls: what gets a handle, what is refused, when it is too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motelog.core.broker.delay.delays import find_waiting_place
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand, Serialize
from motelog.core.remoting.recall_handle import RecallHandle, decode_handle
from motelog.core.store.due_time import DueTimes, timer_queue
from motelog.core.topic_names import TIMER_TOPIC
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.stores import read_queue

KEY = "AC1100021A6F18B4AAC2951F4A680000"
DELAY = f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_MS\x01300\x02"
RECALL = RequestCode.RECALL_MESSAGE


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    with broker_stage(tmp_path) as broker:
        broker.topic("T", 2)
        yield broker


def send(stage: BrokerStage, properties: str, topic: str = "T", **fields: Any) -> RemotingCommand:
    ext = send_ext(topic, properties=properties)
    answer = stage.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x", **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def recall(stage: BrokerStage, handle: str, topic: str = "T") -> RemotingCommand:
    return stage.ask(RECALL, {"producerGroup": "P", "topic": topic, "recallHandle": handle})


@pytest.mark.parametrize("serialize", list(Serialize))
def test_a_message_for_a_time_gets_a_handle_with_all_else(
    stage: BrokerStage, serialize: Serialize
) -> None:
    answer = send(stage, DELAY, serialize=serialize)
    due_ms = stage.api.now_ms() + 300
    handle = decode_handle(answer.ext.pop("recallHandle"))
    assert handle == RecallHandle("T", "broker-a", due_ms, KEY)
    plain = send(stage, f"UNIQ_KEY\x01{KEY}\x02", serialize=serialize)
    assert answer.ext.keys() == plain.ext.keys()
    assert answer.ext["transactionId"] == KEY


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        pytest.param("T", f"UNIQ_KEY\x01{KEY}\x02", id="plain"),
        pytest.param("T", f"UNIQ_KEY\x01{KEY}\x02DELAY\x011\x02", id="level"),
        pytest.param("T", f"UNIQ_KEY\x01{KEY}\x02TIMER_DELIVER_MS\x017\x02", id="passed"),
        pytest.param("T", "UNIQ_KEY\x01a b\x02TIMER_DELAY_MS\x01300\x02", id="space"),
        pytest.param("%RETRY%G", DELAY, id="retry"),
    ],
)
def test_others_get_none(stage: BrokerStage, topic: str, properties: str) -> None:
    stage.topic("%RETRY%G", 1)
    assert "recallHandle" not in send(stage, properties, topic).ext


def test_a_recall_is_stored_beside_its_message(stage: BrokerStage) -> None:
    handle = send(stage, DELAY).ext["recallHandle"]
    answer = recall(stage, handle)
    assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, KEY)
    due_ms = decode_handle(handle).due_ms
    waiting, record = read_queue(stage.store, TIMER_TOPIC, timer_queue(due_ms))
    assert waiting.properties["UNIQ_KEY"] == KEY
    assert record.properties["TIMER_DEL_UNIQKEY"] == KEY


def test_a_recall_is_too_late_when_the_time_has_come(stage: BrokerStage) -> None:
    handle = send(stage, DELAY).ext["recallHandle"]
    stage.clock.advance(299)
    assert recall(stage, handle).code == ResponseCode.SUCCESS
    stage.clock.advance(1)
    answer = recall(stage, handle)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "time has come" in (answer.remark or "")


def test_what_is_appended_in_time_counts_however_late_it_is_answered(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = stage.api.line.append

    def append_slowly(*arguments: Any) -> int | None:
        end_offset = append(*arguments)
        stage.clock.advance(300)
        return end_offset

    handle = send(stage, DELAY).ext["recallHandle"]
    monkeypatch.setattr(stage.api.line, "append", append_slowly)
    assert recall(stage, handle).code == ResponseCode.SUCCESS
    monkeypatch.undo()
    assert len(read_queue(stage.store, TIMER_TOPIC, timer_queue(decode_handle(handle).due_ms))) == 2


def test_what_is_told_to_be_too_late_is_not_in_the_log(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = stage.api.now_ms

    def passing_now_ms() -> int:
        stage.clock.advance(1)
        return now_ms()

    handle = send(stage, DELAY).ext["recallHandle"]
    stage.clock.advance(298)
    monkeypatch.setattr(stage.api, "now_ms", passing_now_ms)
    assert recall(stage, handle).code == ResponseCode.ILLEGAL_OPERATION
    assert len(read_queue(stage.store, TIMER_TOPIC, timer_queue(decode_handle(handle).due_ms))) == 1


def test_a_recall_does_not_wait_for_the_next_file(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = send(stage, DELAY).ext["recallHandle"]
    monkeypatch.setattr(stage.api.line, "append", lambda messages: None)
    answer = recall(stage, handle)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "the next CommitLog file is not ready yet",
    )
    assert not stage.api.line.is_waiting


def test_what_names_nothing_here_is_refused(stage: BrokerStage) -> None:
    handle = decode_handle(send(stage, DELAY).ext["recallHandle"])
    far_ms = handle.due_ms + 41 * 86_400_000
    for wrong in (
        handle._replace(topic="A"),
        handle._replace(broker_name="elsewhere"),
        handle._replace(due_ms=far_ms),
        handle._replace(unique_key="k" * 33_000),
    ):
        text = wrong.encode()
        assert text is not None
        assert recall(stage, text).code == ResponseCode.ILLEGAL_OPERATION
    assert recall(stage, "none").code == ResponseCode.ILLEGAL_OPERATION
    assert recall(stage, handle.encode() or "", "unknown").code == ResponseCode.TOPIC_NOT_EXIST


def test_recalls_are_switched_off_and_on(tmp_path: Path) -> None:
    with broker_stage(tmp_path, {"recall_messages": False}) as stage:
        stage.topic("T", 2)
        handle = send(stage, DELAY).ext["recallHandle"]
        assert recall(stage, handle).code == ResponseCode.NO_PERMISSION
        config = b"recallMessageEnable=true"
        assert stage.ask(RequestCode.UPDATE_BROKER_CONFIG, body=config).code == 0
        assert recall(stage, handle).code == ResponseCode.SUCCESS


def test_a_sender_cannot_make_its_own_message_a_recall() -> None:
    pairs = {"TIMER_DELAY_MS": "300", "TIMER_DEL_UNIQKEY": KEY}
    place = find_waiting_place(pairs, "T", 0, DueTimes(), 1_000)
    assert place is not None
    assert "TIMER_DEL_UNIQKEY" not in place.pairs
