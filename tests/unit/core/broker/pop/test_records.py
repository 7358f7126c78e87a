"""The records of the revive topic, as RocketMQ writes them, and retries as consumers see them."""

from __future__ import annotations

import json

from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.records import (
    AckRecord,
    decode_revive,
    encode_ack,
    encode_checkpoint,
    encode_retry,
    retry_pairs,
    with_topic,
)
from motelog.core.message import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import QueueTail
from motelog.core.records.decode import decode, decode_messages
from motelog.core.records.layout import Record, parse
from tests.support.stores import STORE_HOST, encoded, message

TAIL = QueueTail(b"R", 0, 0)


def checkpoint() -> Checkpoint:
    return Checkpoint(
        ("T", "G", 1), 10, (10, 12, 41), pop_time_ms=1_000, invisible_ms=60_000, revive_queue=3
    )


def test_a_checkpoint_is_what_rocketmq_writes() -> None:
    made = checkpoint()
    made.open.discard(12)
    _, body, properties, code, *_ = encode_checkpoint(TAIL, made, "b", STORE_HOST, 0)
    assert json.loads(body) == {
        "so": 10, "pt": 1_000, "it": 60_000, "bm": 2, "n": 3, "q": 1, "t": "T", "c": "G",
        "d": [0, 2, 31], "bn": "b",
    }  # fmt: skip
    assert code == tags_code("ck")
    assert decode_properties(properties) == {"TAGS": "ck", "TIMER_DELIVER_MS": "60000"}
    read = decode_revive("ck", body, 3)
    assert isinstance(read, Checkpoint)
    assert (read.key, read.offsets, read.open) == (made.key, made.offsets, made.open)


def test_the_last_bit_is_a_sign() -> None:
    made = Checkpoint(
        ("T", "G", 0), 0, tuple(range(32)), pop_time_ms=0, invisible_ms=0, revive_queue=0
    )
    made.open = {0}
    body = encode_checkpoint(TAIL, made, "b", STORE_HOST, 0)[1]
    assert json.loads(body)["bm"] == -2
    read = decode_revive("ck", body, 0)
    assert isinstance(read, Checkpoint)
    assert read.open == {0}


def test_acknowledgements_are_what_rocketmq_writes() -> None:
    one = encode_ack(TAIL, checkpoint(), [12], "b", STORE_HOST, 0)
    assert json.loads(one[1]) == {
        "so": 10, "c": "G", "t": "T", "q": 1, "pt": 1_000, "ao": 12, "bn": "b",
    }  # fmt: skip
    several = encode_ack(TAIL, checkpoint(), [10, 41], "b", STORE_HOST, 0)
    assert json.loads(several[1])["aol"] == [10, 41]
    for record, tag, offsets in ((one, "ack", (12,)), (several, "bAck", (10, 41))):
        read = decode_revive(tag, record[1], 3)
        assert read == AckRecord(checkpoint().key, offsets)


def test_checkpoints_of_old_releases_have_no_differences() -> None:
    body = b'{"so":5,"pt":1,"it":2,"bm":0,"n":2,"q":0,"t":"T","c":"G","ro":7}'
    read = decode_revive("ck", body, 0)
    assert isinstance(read, Checkpoint)
    assert read.offsets == (5, 6)


def test_what_is_no_record_of_ours_is_passed_over() -> None:
    for tag, body in (
        ("ck", b"{}"),
        ("ck", b"x"),
        ("ck", b'{"so":5,"pt":1,"it":2,"bm":0,"n":99,"q":0,"t":"T","c":"G"}'),
        ("ack", b"[]"),
        ("other", b"{}"),
        (None, b""),
    ):
        assert decode_revive(tag, body, 0) is None


def test_a_retry_is_shown_under_its_own_topic() -> None:
    pairs = encode_properties({"TAGS": "a", "k": "v"})
    stored = encoded(message(QueueTail(b"%RETRY%G_T", 0, 7), b"body", properties=pairs))
    record = parse(memoryview(stored), 0, len(stored))
    assert isinstance(record, Record)
    for topic in ("T", "T" * 200):
        (shown,) = decode_messages(with_topic(record, topic, "receipt"))
        (before,) = decode_messages(stored)
        assert shown.topic == topic
        assert shown.properties == {"POP_CK": "receipt", "TAGS": "a", "k": "v"}
        for name in ("body", "queue_offset", "born_timestamp_ms", "born_host", "physical_offset"):
            assert getattr(shown, name) == getattr(before, name)


def test_properties_that_are_full_give_way_to_the_receipt() -> None:
    pairs = encode_properties({"big": "x" * (PROPERTIES_BYTES_MAX - 20), "k": "v"})
    stored = encoded(message(QueueTail(b"%RETRY%G_T", 0, 0), b"", properties=pairs))
    record = parse(memoryview(stored), 0, len(stored))
    assert isinstance(record, Record)
    (shown,) = decode_messages(with_topic(record, "T", "receipt" * 10))
    assert shown.properties == {"POP_CK": "receipt" * 10, "k": "v"}


def test_a_retry_is_counted_and_keeps_its_first_time() -> None:
    pairs = encode_properties({"TAGS": "a"})
    stored = encoded(message(QueueTail(b"T", 0, 0), b"body", properties=pairs))
    (fields,) = decode(stored, verify=True)
    again = encode_retry(TAIL, fields, retry_pairs(fields[12], 99))
    assert decode_properties(again[2]) == {"1ST_POP_TIME": "99", "TAGS": "a"}
    assert (again[1], again[3], again[8]) == (b"body", tags_code("a"), 1)
    assert retry_pairs(again[2], 200)["1ST_POP_TIME"] == "99"
