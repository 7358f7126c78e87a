"""Open transactions: who is asked, when, how often, and what a crash leaves at each step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from motelog.core.broker.transactions.progress import save_progress
from motelog.core.clock import ManualClock
from motelog.core.limited_log import LINES_MAX
from motelog.core.message import PROPERTIES_BYTES_MAX, encode_properties
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import ResponseCode
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.stores import read_queue
from tests.support.transactions import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    AskedProducer,
    Sent,
    check,
    end,
    halves,
    ops,
    seen,
    send_half,
)

OK = ResponseCode.SUCCESS
FEW = {"transaction_check_max": 3}
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    with broker_stage(tmp_path, commitlog_file_bytes=1 << 20) as broker:
        broker.topic("T", 2)
        yield broker


def test_a_producer_is_asked_when_the_time_is_over(stage: BrokerStage) -> None:
    producer = AskedProducer(stage, lambda _: COMMIT)
    sent = send_half(stage, b"body", queue_id=1, TAGS="dev1")
    check(stage, after_ms=TIMEOUT_MS - 1)
    assert producer.answer() == []
    check(stage, after_ms=1)
    (asked,) = producer.answer()
    assert (asked.topic, asked.queue_id, asked.body) == ("T", 1, b"body")
    assert (asked.tags, asked.message_id) == ("dev1", sent.unique_key)
    assert asked.properties["PGROUP"] == GROUP
    (question,) = producer.questions
    copy = halves(stage)[1]
    assert question.ext == {
        "topic": "T",
        "commitLogOffset": str(copy.physical_offset),
        "tranStateTableOffset": "1",
        "offsetMsgId": copy.offset_id,
        "msgId": sent.unique_key,
        "transactionId": sent.unique_key,
        "bname": "broker-a",
    }
    assert (asked.physical_offset, asked.queue_offset) == (copy.physical_offset, 1)
    assert seen(stage, queue_id=1) == [b"body"]
    check(stage, after_ms=60_000)
    assert producer.answer() == []


def test_what_was_ended_is_not_asked_about(stage: BrokerStage) -> None:
    producer = AskedProducer(stage, lambda _: COMMIT)
    for index in range(10):
        end(stage, send_half(stage, b"%d" % index), COMMIT if index % 2 else ROLLBACK)
    check(stage)
    assert producer.answer() == []
    assert stage.ledger.progress == (10, 10)


def test_an_open_one_does_not_keep_those_behind_it_from_being_asked_about(
    stage: BrokerStage,
) -> None:
    producer = AskedProducer(stage, lambda _: UNKNOWN)
    for index in range(200):
        send_half(stage, b"%d" % index)
        if index == 100:
            stage.clock.advance(TIMEOUT_MS)
    check(stage, after_ms=0)
    assert [message.body for message in producer.answer()] == [b"%d" % n for n in range(101)]
    check(stage)
    bodies = [message.body for message in producer.answer()]
    assert bodies == [b"%d" % n for n in (*range(101, 200), *range(101))]


def test_the_producers_of_a_group_are_asked_in_turn(stage: BrokerStage) -> None:
    first = AskedProducer(stage, lambda _: UNKNOWN, "first")
    second = AskedProducer(stage, lambda _: UNKNOWN, "second")
    for index in range(4):
        send_half(stage, b"%d" % index)
    check(stage)
    assert (len(first.answer()), len(second.answer())) == (2, 2)
    first.client.is_open = False
    check(stage)
    assert (len(first.answer()), len(second.answer())) == (0, 4)


def test_a_producer_that_does_not_read_is_not_counted(stage: BrokerStage) -> None:
    producer = AskedProducer(stage, lambda _: COMMIT)
    producer.client.is_congested = True
    send_half(stage, b"body")
    for _ in range(20):
        check(stage)
    assert halves(stage)[-1].properties.get("TRANSACTION_CHECK_TIMES") == "0"
    producer.client.is_congested = False
    check(stage)
    assert len(producer.answer()) == 1


@pytest.mark.parametrize("is_connected", [True, False])
def test_after_the_last_question_a_transaction_is_rolled_back(
    stage: BrokerStage, *, is_connected: bool
) -> None:
    producer = AskedProducer(stage, lambda _: UNKNOWN) if is_connected else None
    sent = send_half(stage, b"body", TAGS="dev1")
    for times in range(1, 16):
        check(stage)
        assert halves(stage)[-1].properties["TRANSACTION_CHECK_TIMES"] == str(times)
    check(stage)
    (given_up,) = read_queue(stage.store, GIVEN_UP, 0)
    assert (given_up.body, given_up.properties["REAL_TOPIC"]) == (b"body", "T")
    assert stage.tables.topics.get(GIVEN_UP) is not None
    assert producer is None or len(producer.answer()) == 15
    assert (seen(stage), ops(stage)[-1].body) == ([], b"15")
    assert end(stage, sent, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    check(stage)
    assert len(halves(stage)) == 16
    assert stage.check_back.given_up_count == 1


def test_a_message_may_be_immune_for_longer(stage: BrokerStage) -> None:
    producer = AskedProducer(stage, lambda _: COMMIT)
    sent = send_half(stage, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    send_half(stage, b"other")
    asked = []
    for _ in range(3):
        check(stage, after_ms=30_000)
        asked += producer.answer()
    assert [message.body for message in asked] == [b"other"]
    # Its copies are not counted as questions.
    assert "TRANSACTION_CHECK_TIMES" not in halves(stage)[-1].properties
    assert halves(stage)[-1].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert end(stage, sent, COMMIT) == OK
    check(stage, after_ms=30_000)
    assert producer.answer() == []
    assert seen(stage) == [b"other", b"immune"]


def test_a_commit_that_crosses_the_question_counts_once(stage: BrokerStage) -> None:
    producer = AskedProducer(stage, lambda _: COMMIT)
    sent = send_half(stage, b"body")
    check(stage)
    assert end(stage, sent, COMMIT) == OK
    producer.answer()
    check(stage)
    assert producer.answer() == []
    assert seen(stage) == [b"body"]


def test_a_half_message_that_was_sent_again_counts_once(stage: BrokerStage) -> None:
    """As by a producer that did not get the first answer: same unique id, same time of birth."""
    producer = AskedProducer(stage, lambda _: COMMIT)
    send_half(stage, b"body")
    again = send_half(stage, b"body")
    assert end(stage, again, COMMIT) == OK
    for _ in range(3):
        check(stage)
        producer.answer()
    assert seen(stage) == [b"body"]
    assert len(producer.questions) == 1


def test_a_message_whose_properties_leave_no_room_is_given_up(stage: BrokerStage) -> None:
    send_half(stage, b"short", long="x")
    room = PROPERTIES_BYTES_MAX - len(encode_properties(halves(stage)[0].properties))
    send_half(stage, b"body", long="x" * (room - 10))
    check(stage)
    assert [message.body for message in read_queue(stage.store, GIVEN_UP, 0)] == [b"body"]


def test_a_producer_that_is_gone_fills_no_log(
    stage: BrokerStage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the machine takes, all of it is within one second of the log.
    monkeypatch.setattr(stage.check_back._given_up, "_monotonic_s", lambda: 0.0)
    count = 5 * LINES_MAX
    for index in range(count):
        send_half(stage, b"%d" % index)
    for _ in range(16):
        check(stage)
    assert stage.check_back.given_up_count == count
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert len(caplog.records) == LINES_MAX


# -- restarts -----------------------------------------------------------------------------


def test_progress_is_saved_when_it_is_on_the_disk(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.topic("T", 1)
        for index in range(3):
            sent = send_half(stage, b"%d" % index)
            if index:
                end(stage, sent, COMMIT)
        check(stage)

        async def save() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(stage.store.run)
                await save_progress(stage.ledger, stage.store, stage.tables.offsets)
                assert stage.store.durable_offset == stage.store.end_offset
                nursery.cancel_scope.cancel()

        trio.run(save)
        query = stage.tables.offsets.query
        assert query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 3
        assert query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 2


def test_a_crash_at_each_step_neither_loses_nor_repeats(tmp_path: Path) -> None:
    """The log is cut behind each record in turn; then producers do what they would do.

    So every step has its crash: a half message, a real message without its op, an op, a copy, a
    record of one that was given up without its op. Saved progress is that of the time, or older.
    """
    folder = tmp_path / "store"
    bodies = {b"commit": COMMIT, b"rollback": ROLLBACK, b"asked": COMMIT, b"silent": UNKNOWN}
    clock = ManualClock()
    progress: list[tuple[int, tuple[int, int]]] = []  # (end of the log, progress then)
    sent: dict[bytes, tuple[int, Sent]] = {}
    with broker_stage(folder, FEW, clock=clock, commitlog_file_bytes=1 << 17) as stage:
        stage.topic("T", 1)

        def note() -> None:
            progress.append((stage.store.end_offset, stage.ledger.progress))

        producer = AskedProducer(
            stage, lambda message: UNKNOWN if len(producer.questions) < 3 else bodies[message.body]
        )
        for body in bodies:
            half = send_half(stage, body)
            sent[body] = (stage.store.end_offset, half)
            note()
        for body in (b"commit", b"rollback"):
            assert end(stage, sent[body][1], bodies[body]) == OK
            note()
        for _ in range(5):
            check(stage)
            note()
            producer.answer()
            note()
        assert sorted(seen(stage)) == [b"asked", b"commit"]
        assert [m.body for m in read_queue(stage.store, GIVEN_UP, 0)] == [b"silent"]
        ends = record_ends(stage)
        shutil.copytree(folder, tmp_path / "open")
    for cut in ends:
        for begin in {(0, 0), max((p for end_, p in progress if end_ <= cut), default=(0, 0))}:
            restart_after(tmp_path / "open", tmp_path / "cut", cut, begin, clock, bodies, sent)


def restart_after(
    source: Path,
    folder: Path,
    cut: int,
    begin: tuple[int, int],
    clock: ManualClock,
    bodies: dict[bytes, int],
    sent: dict[bytes, tuple[int, Sent]],
) -> None:
    """Start a broker on the log up to ``cut``, and let producers end what they have sent."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    with open(folder / "commitlog" / f"{0:020d}", "r+b") as log:
        size = os.fstat(log.fileno()).st_size
        log.seek(cut)
        log.write(bytes(size - cut))
    shutil.rmtree(folder / "consumequeue")
    with broker_stage(folder, FEW, clock=clock, commitlog_file_bytes=1 << 17) as stage:
        assert stage.store.end_offset == cut
        offsets = stage.tables.offsets
        offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, begin[0])
        offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, begin[1])
        trio.run(stage.check_back.load)
        stored = {body for body, (end_, _) in sent.items() if end_ <= cut}

        def decide(message: StoredMessage) -> int:
            return bodies[message.body]

        producer = AskedProducer(stage, decide)
        if cut % 2:  # Some producers repeat what was not answered; others are asked.
            for body in stored:
                how = bodies[body]
                if how != UNKNOWN:
                    assert end(stage, sent[body][1], how) == OK, (cut, body)
        for _ in range(6):
            check(stage)
            producer.answer()
        assert sorted(seen(stage)) == sorted(b for b in stored if bodies[b] == COMMIT), cut
        given_up = {m.body for m in read_queue(stage.store, GIVEN_UP, 0)}
        assert given_up == {b"silent"} & stored, cut
        assert stage.ledger.begin == len(halves(stage))
        asked = len(producer.questions)
        check(stage)
        assert len(producer.client.answers) == 0
        assert asked == len(producer.questions)


def record_ends(stage: BrokerStage) -> list[int]:
    """Return where each record of the log ends."""
    return sorted(
        message.physical_offset + message.stored_bytes
        for queue in stage.store.queues()
        for message in read_queue(stage.store, *queue)
    )
