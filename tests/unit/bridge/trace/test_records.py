"""The text of trace records, beside lines that RocketMQ's clients wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.bridge.trace.records import (
    ContextCode,
    MessageType,
    TraceKind,
    TraceRecord,
    decode_records,
)

SENT = TraceRecord(
    kind=TraceKind.PUB,
    time_ms=1700,
    region="DefaultRegion",
    group="P",
    topic="T",
    message_id="ID",
    keys=("k0", "k1"),
    store_host="127.0.0.1:10911",
    body_bytes=5,
    cost_ms=3,
    message_type=MessageType.HALF,
    offset_id="OFF",
    is_ok=True,
)
#: A record, and what TraceDataEncoder writes for it, with | for \x01 and ; for \x02.
WRITTEN = [
    (SENT, "Pub|1700|DefaultRegion|P|T|ID|null|k0 k1|127.0.0.1:10911|5|3|1|OFF|true;"),
    (
        TraceRecord(
            kind=TraceKind.SUB_BEFORE,
            time_ms=1701,
            group="C",
            request_id="REQ",
            message_id="ID",
            retry_times=2,
        ),
        "SubBefore|1701|DefaultRegion|C|REQ|ID|2|null;",
    ),
    (
        TraceRecord(
            kind=TraceKind.SUB_AFTER,
            time_ms=1705,
            group="C",
            request_id="REQ",
            message_id="ID",
            cost_ms=4,
            is_ok=False,
            context_code=ContextCode.EXCEPTION,
        ),
        "SubAfter|REQ|ID|4|false|null|2|1705|C;",
    ),
    (
        TraceRecord(
            kind=TraceKind.END_TRANSACTION,
            time_ms=1709,
            group="P",
            topic="T",
            message_id="ID",
            tags="Tag",
            store_host="127.0.0.1:10911",
            message_type=MessageType.COMMIT,
            transaction_id="ID",
            transaction_state="COMMIT_MESSAGE",
            is_asked=True,
        ),
        "EndTransaction|1709|DefaultRegion|P|T|ID|Tag|null|127.0.0.1:10911|2|ID|COMMIT_MESSAGE|true;",
    ),
    (
        TraceRecord(
            kind=TraceKind.RECALL, time_ms=1, group="P", topic="T", message_id="ID", is_ok=False
        ),
        "Recall|1|DefaultRegion|P|T|ID|false;",
    ),
]


def on_wire(text: str) -> str:
    return text.replace("|", "\x01").replace(";", "\x02")


@pytest.mark.parametrize(("record", "text"), WRITTEN, ids=[r.kind for r, _ in WRITTEN])
def test_a_record_is_written_as_rocketmq_writes_it_and_read_back(
    record: TraceRecord, text: str
) -> None:
    assert record.encode() == on_wire(text)
    assert list(decode_records(on_wire(text))) == [record]


def test_records_of_old_clients_are_read() -> None:
    old = "Pub|1|R|P|T|ID|null|null|h:1|5|3|0|true;SubAfter|REQ|ID|4|true|k;"
    sent, after = decode_records(on_wire(old), client_host="10.0.0.1:5")
    assert (sent.is_ok, sent.offset_id, sent.client_host) == (True, "", "10.0.0.1:5")
    assert (after.keys, after.context_code, after.group) == (("k",), ContextCode.SUCCESS, "")
    (later,) = decode_records(on_wire("Pub|1|R|P|T|ID|null|null|h:1|5|3|0|OFF|false|10.0.0.1;"))
    assert (later.is_ok, later.offset_id) == (False, "OFF")


def test_what_is_no_record_is_left_out() -> None:
    good = SENT.encode()
    for bad in ("Pub", "Pub|x|R|P|T|ID|n|n|h|5|3|0|O|true", "Pub|1|R|P|T|I|n|n|h|5|3|99|O|true",
                "Later|1|2", "SubAfter|1"):  # fmt: skip
        assert list(decode_records(on_wire(f"{bad};") + good)) == [SENT]


@given(st.text(alphabet="PubSAfterBo\x01\x02 0129-nul", max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    list(decode_records(text))
