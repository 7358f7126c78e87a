"""Commits and rollbacks: what consumers see, what is refused, what is not done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from motelog.core.message import tags_code
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import FLAG_ONEWAY, RemotingCommand
from motelog.core.remoting.server import Connection, answer_with
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, Client, broker_stage
from tests.support.stores import read_queue
from tests.support.transactions import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    Sent,
    check,
    end,
    end_ext,
    half_ext,
    halves,
    ops,
    seen,
    send_half,
)

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
ILLEGAL = ResponseCode.ILLEGAL_OPERATION
END = RequestCode.END_TRANSACTION
RESUME = RequestCode.RESUME_CHECK_HALF_MESSAGE


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    with broker_stage(tmp_path) as broker:
        broker.topic("T", 2)
        yield broker


def test_a_half_message_is_not_seen_before_its_commit(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body", queue_id=1)
    assert seen(stage, queue_id=1) == []
    assert end(stage, sent, COMMIT) == OK
    assert seen(stage, queue_id=1) == [b"body"]
    assert seen(stage) == []


def test_a_rolled_back_message_is_never_seen(stage: BrokerStage) -> None:
    assert end(stage, send_half(stage, b"body"), ROLLBACK) == OK
    assert seen(stage) == []
    assert [op.body for op in ops(stage)] == [b"0"]


def test_records_are_as_rocketmq_writes_them(stage: BrokerStage) -> None:
    named = {"TAGS": "dev1", "KEYS": "k1 k2", "own": "value"}
    stage.clock.advance(1000)
    sent = send_half(stage, b"body", queue_id=1, **named)
    (half,) = halves(stage)
    expected = named | {
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "UNIQ_KEY": sent.unique_key,
        "__transactionId__": sent.unique_key,
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert half.properties == expected
    assert half.sys_flag & 0xC == 0
    assert (half.physical_offset, half.queue_offset) == (sent.physical_offset, sent.queue_offset)
    stage.clock.advance(1000)
    end(stage, sent, COMMIT)
    (real,) = read_queue(stage.store, "T", 1)
    assert real.properties == expected
    assert real.sys_flag & 0xC == COMMIT
    assert real.prepared_transaction_offset == sent.physical_offset
    assert real.born_timestamp_ms == half.born_timestamp_ms
    assert real.store_timestamp_ms == half.store_timestamp_ms + 1000
    (op,) = ops(stage)
    assert (op.body, op.properties) == (b"0", {"WAIT": "true", "TAGS": "d"})
    # Consumers filter by the tag of the real message.
    assert stage.store.reader.read("T", 1, 0, tag_codes={tags_code("dev1")}).count == 1
    assert stage.store.reader.read("T", 1, 0, tag_codes={tags_code("dev2")}).count == 0


def test_a_message_without_a_unique_id_gets_one(stage: BrokerStage) -> None:
    answer = stage.ask(RequestCode.SEND_MESSAGE_V2, half_ext(), b"body")
    (half,) = halves(stage)
    assert half.properties["UNIQ_KEY"] == answer.ext["transactionId"]
    assert half.properties["__transactionId__"] == answer.ext["transactionId"]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"producerGroup": "others"}, REFUSED, "producer group"),
        ({"tranStateTableOffset": 1}, REFUSED, "state table offset"),
        ({"commitLogOffset": 1}, REFUSED, "Find prepared"),
        ({"commitLogOffset": -1}, REFUSED, "Find prepared"),
        ({"commitLogOffset": 1 << 40}, REFUSED, "Find prepared"),
        ({"commitLogOffset": "x"}, REFUSED, "not a number"),
        ({"commitOrRollback": 4}, REFUSED, "commitOrRollback"),
        ({"commitOrRollback": ""}, REFUSED, "commitOrRollback"),
        ({"producerGroup": None}, REFUSED, "missing"),
        ({"tranStateTableOffset": None}, REFUSED, "missing"),
        ({"commitOrRollback": None}, REFUSED, "missing"),
    ],
)
def test_an_end_that_does_not_name_the_message_is_refused(
    stage: BrokerStage, fields: dict[str, Any], code: ResponseCode, remark: str
) -> None:
    sent = send_half(stage, b"body")
    end_at = stage.store.end_offset
    ext = {k: v for k, v in (end_ext(sent, COMMIT) | fields).items() if v is not None}
    answer = stage.ask(END, ext)
    assert (answer.code, remark in (answer.remark or "")) == (code, True)
    assert stage.store.end_offset == end_at
    assert end(stage, sent, COMMIT) == OK


def test_no_other_message_can_be_committed(stage: BrokerStage) -> None:
    """Its text may name any topic: only what the half topic holds is taken for a half message."""
    properties = f"PGROUP\x01{GROUP}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    answer = stage.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties=properties), b"x")
    sent = Sent(int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"]), "")
    assert end(stage, sent, COMMIT) == REFUSED
    assert seen(stage) == [b"x"]


@pytest.mark.parametrize("ext", [half_ext(REAL_TOPIC="A"), half_ext(TRANSACTION_CHECK_TIMES="99")])
def test_a_sender_does_not_set_the_brokers_properties(
    stage: BrokerStage, ext: dict[str, Any]
) -> None:
    ext = ext | {"g": stage.clock.now_ms()}
    answer = stage.ask(RequestCode.SEND_MESSAGE_V2, ext, b"body")
    assert answer.code == OK
    (half,) = halves(stage)
    sent = Sent(half.physical_offset, 0, half.properties["UNIQ_KEY"])
    check(stage)
    assert end(stage, sent, COMMIT) == OK
    assert seen(stage) == [b"body"]


def test_unknown_changes_nothing(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body")
    end_at = stage.store.end_offset
    assert end(stage, sent, UNKNOWN) == OK
    assert stage.store.end_offset == end_at


@pytest.mark.parametrize(("how", "expected"), [(COMMIT, [b"body"]), (ROLLBACK, [])])
def test_an_end_that_comes_again_changes_nothing(
    stage: BrokerStage, how: int, expected: list[bytes]
) -> None:
    sent = send_half(stage, b"body")
    send_half(stage, b"open")
    assert end(stage, sent, how) == OK
    end_at = stage.store.end_offset
    assert end(stage, sent, how) == OK
    assert end(stage, sent, COMMIT + ROLLBACK - how) == ILLEGAL
    check(stage)  # Its name is no longer in the ledger.
    assert end(stage, sent, how) == OK
    assert seen(stage) == expected
    assert stage.store.end_offset > end_at


def test_two_ends_in_one_turn_are_one(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body")
    client = Client()
    processor = stage.processors.transactions

    for _ in range(2):
        ext = {name: str(value) for name, value in end_ext(sent, COMMIT).items()}
        request = RemotingCommand(END, ext=ext)
        answer_with(processor.processors()[END], request, cast("Connection", client))
    stage.processors.end_turn()
    assert sorted(answer.code for answer in client.answers) == [OK, ResponseCode.SYSTEM_BUSY]
    assert seen(stage) == [b"body"]


def test_a_oneway_end_is_not_answered(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body")
    client = Client()
    ext = {name: str(value) for name, value in end_ext(sent, COMMIT).items()}
    stage.process(RemotingCommand(END, ext=ext, flag=FLAG_ONEWAY), client)
    assert client.answers == []
    assert seen(stage) == [b"body"]


def test_an_end_after_the_messages_immunity_has_to_be_an_answer(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    stage.clock.advance(10_001)
    assert end(stage, sent, COMMIT) == ILLEGAL
    assert seen(stage) == []
    assert end(stage, sent, COMMIT, fromTransactionCheck="true") == OK
    assert seen(stage) == [b"body"]


def test_a_broker_may_take_no_transactions(tmp_path: Path) -> None:
    with broker_stage(tmp_path, {"reject_transaction_message": True}) as stage:
        stage.topic("T", 1)
        answer = stage.ask(RequestCode.SEND_MESSAGE_V2, half_ext(), b"body")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert stage.store.end_offset == 0


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        (half_ext(DELAY="3"), ResponseCode.MESSAGE_ILLEGAL),
        (half_ext(TIMER_DELAY_SEC="3"), ResponseCode.MESSAGE_ILLEGAL),
        (half_ext() | {"a": "bad\0group"}, ResponseCode.MESSAGE_ILLEGAL),
        (half_ext() | {"m": "true"}, ResponseCode.SYSTEM_ERROR),
        # Clients before 4.6.1 leave the property in what they send back.
        (half_ext(DELAY="3") | {"j": 1, "f": 0}, OK),
    ],
)
def test_what_cannot_be_transactional_is_refused(
    stage: BrokerStage, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(RequestCode.SEND_MESSAGE_V2, ext, b"body") == code
    assert halves(stage) == []


def test_a_committed_message_waits_for_the_disk_as_a_send_does(tmp_path: Path) -> None:
    with broker_stage(tmp_path, flush="sync") as stage:
        stage.topic("T", 1)
        client = Client()
        store = stage.store
        ext = half_ext(key="K") | {"g": 1}
        texts = {name: str(value) for name, value in ext.items()}
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=texts, body=b"body")
        stage.process(request, client)
        texts = {k: str(v) for k, v in end_ext(Sent(0, 0, "K"), COMMIT).items()}
        stage.process(RemotingCommand(END, ext=texts), client)
        # One that repeats a commit must not hear of it earlier.
        stage.process(RemotingCommand(END, ext=texts), client)
        assert client.answers == []

        async def flush() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                stage.processors.after_turns()
                await store.wait_durable(store.end_offset)
                nursery.cancel_scope.cancel()

        trio.run(flush)
        assert [answer.code for answer in client.answers] == [OK, OK, OK]


def test_a_given_up_transaction_can_be_asked_about_again(stage: BrokerStage) -> None:
    sent = send_half(stage, b"body")
    for _ in range(16):
        check(stage)
    (given_up,) = read_queue(stage.store, "TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert end(stage, sent, COMMIT) == ILLEGAL
    assert stage.code(RESUME, {"msgId": given_up.offset_id}) == OK
    assert halves(stage)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert end(stage, sent, COMMIT) == OK
    assert seen(stage) == [b"body"]
    assert stage.code(RESUME, {"msgId": given_up.offset_id}) == ILLEGAL


def test_asking_again_about_an_open_transaction_counts_from_the_beginning(
    stage: BrokerStage,
) -> None:
    sent = send_half(stage, b"body")
    for _ in range(3):
        check(stage)
    assert stage.code(RESUME, {"msgId": halves(stage)[-1].offset_id}) == OK
    check(stage)
    assert halves(stage)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert len(halves(stage)) == 6
    assert end(stage, sent, COMMIT) == OK
    assert seen(stage) == [b"body"]


@pytest.mark.parametrize("message_id", ["", "xyz", "00" * 16, "7F00000100002A9F" + "F" * 16])
def test_there_is_nothing_to_ask_about_under_another_id(
    stage: BrokerStage, message_id: str
) -> None:
    assert stage.code(RESUME, {"msgId": message_id}) == REFUSED
