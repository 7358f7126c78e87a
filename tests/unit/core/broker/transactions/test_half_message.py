"""When producers are asked about a half message, and what ops say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from motelog.core.broker.transactions.half_message import (
    HalfMessage,
    Verdict,
    decode_half,
    decode_ops,
    is_too_late,
    judge,
)
from motelog.core.errors import RecordError
from motelog.core.records.append import QueueTail
from tests.support.broker_stage import broker_stage
from tests.support.stores import encoded, message
from tests.support.transactions import halves, send_half

HOUR_MS = 3_600_000
HALF = HalfMessage(0, 0, 0, 0, 1_000, b"", 1_000, b"", 0, b"", b"", {})


def judged(now_ms: int, *, born_ms: int = 1_000, **pairs: str) -> Verdict:
    """Judge the half message at queue offset 5, where its queue begins."""
    half = replace(HALF, queue_offset=5, born_ms=born_ms, pairs=pairs)
    return judge(
        half, now_ms, timeout_ms=6_000, check_max=15, age_ms_max=72 * HOUR_MS, begin_offset=5
    )


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (judged(1_000), Verdict.WAIT),
        (judged(6_999), Verdict.WAIT),
        (judged(7_000), Verdict.ASK),
        # The sender's clock does not count for what is fresh.
        (judged(6_999, born_ms=-HOUR_MS), Verdict.WAIT),
        (judged(6_999, born_ms=HOUR_MS), Verdict.WAIT),
        (judged(7_000, born_ms=HOUR_MS), Verdict.ASK),
        (judged(7_000, TRANSACTION_CHECK_TIMES="14"), Verdict.ASK),
        (judged(7_000, TRANSACTION_CHECK_TIMES="15"), Verdict.GIVE_UP),
        (judged(7_000, TRANSACTION_CHECK_TIMES="many"), Verdict.ASK),
        # A clock that is days ahead makes no message old which the log still has.
        (judged(73 * HOUR_MS), Verdict.ASK),
        (judged(73 * HOUR_MS, TRAN_PREPARED_QUEUE_OFFSET="5"), Verdict.ASK),
        (judged(73 * HOUR_MS, TRAN_PREPARED_QUEUE_OFFSET="4"), Verdict.GIVE_UP),
        (judged(71 * HOUR_MS, TRAN_PREPARED_QUEUE_OFFSET="4"), Verdict.ASK),
        (judged(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="60"), Verdict.KEEP),
        (judged(60_999, CHECK_IMMUNITY_TIME_IN_SECONDS="60"), Verdict.KEEP),
        (judged(61_000, CHECK_IMMUNITY_TIME_IN_SECONDS="60"), Verdict.ASK),
        # No less than the broker's own time, and no number is none.
        (judged(6_999, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), Verdict.KEEP),
        (judged(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), Verdict.ASK),
        (judged(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="soon"), Verdict.ASK),
        (judged(7_000, CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 40), Verdict.ASK),
    ],
)
def test_a_half_message_is_judged_by_its_age(verdict: Verdict, expected: Verdict) -> None:
    assert verdict is expected


@pytest.mark.parametrize(
    ("now_ms", "pairs", "expected"),
    [
        (HOUR_MS, {}, False),
        (61_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, False),
        (61_001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, True),
    ],
)
def test_only_an_immunity_of_its_own_can_be_over(
    now_ms: int, pairs: dict[str, str], *, expected: bool
) -> None:
    assert is_too_late(replace(HALF, pairs=pairs), now_ms, 6_000) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"12", [12]),
        (b"12,", [12]),  # RocketMQ 5
        (b"12,13,14,", [12, 13, 14]),
        (b"", []),
        (b"x,7,-1,", [7]),
        (b"9" * 100, []),
    ],
)
def test_an_op_of_any_release_is_understood(body: bytes, expected: list[int]) -> None:
    tail = QueueTail(b"RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 5)
    properties = b"WAIT\x01true\x02TAGS\x01d\x02"
    record = encoded(message(tail, body, properties=properties))
    assert list(decode_ops(record)) == [(5, expected)]


def test_a_record_with_another_tag_ends_nothing() -> None:
    tail = QueueTail(b"RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 5)
    assert list(decode_ops(encoded(message(tail, b"12", properties=b"TAGS\x01x\x02")))) == [(5, [])]


@pytest.mark.parametrize(("topic", "queue_id"), [(b"T", 0), (b"RMQ_SYS_TRANS_HALF_TOPIC", 1)])
def test_a_record_of_another_queue_is_no_half_message(topic: bytes, queue_id: int) -> None:
    with pytest.raises(RecordError):
        decode_half(encoded(message(QueueTail(topic, queue_id, 0), b"body")))


def test_a_half_message_is_read_as_it_was_stored(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.topic("T", 3)
        sent = send_half(stage, b"body", queue_id=2)
        half = decode_half(stage.store.reader.record_at(sent.physical_offset))
        assert (half.real_topic, half.real_queue_id, half.body) == ("T", 2, b"body")
        assert not half.is_copy
        assert half.pairs == halves(stage)[0].properties
