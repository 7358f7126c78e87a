"""What is wrong with a body, and what a dead letter says of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="needs the [spark] extra")
pytest.importorskip("pyarrow", reason="needs the [spark] extra")

import pyarrow as pa

from motelog.spark.errors import JobUsageError
from motelog.spark.jobs.dead_letters import NO_BODY, fault, sorter
from motelog.spark.jobs.dead_letters_options import parser

VALUE = {"value": "number"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"value": 1}', None),
        (b'{"value": -1.5e3, "more": null}', None),
        (b'{"value": 1', "not JSON: Input data was truncated"),
        (b'{"value": 1} x', "not JSON: JSON is malformed"),
        (b'{"value": NaN}', "not JSON: JSON is malformed"),
        (b'{"value": "\xff"}', "not JSON: "),
        (b"", "not JSON: Input data was truncated"),
        (b"[" * 100_000, "not JSON: "),
        (b"21.5", "number, not an object"),
        (b"null", "null, not an object"),
        (b"{}", "field 'value' is missing"),
        (b'{"value": "1"}', "field 'value' is text, not number"),
        (b'{"value": true}', "field 'value' is boolean, not number"),
        (b'{"value": null}', "field 'value' is null, not number"),
    ],
)
def test_a_body_is_an_object_with_the_required_fields(body: bytes, reason: str | None) -> None:
    found = fault(body, VALUE)
    assert found == reason if reason is None else found is not None and found.startswith(reason)


def test_good_and_bad_have_the_bytes_that_came() -> None:
    when = datetime(2026, 11, 21, 3, tzinfo=UTC)
    origin = {"store_time": when, "broker": "a", "queue_id": 3, "device": "d", "key": "k"}
    bodies = [b'{"value": 1}', b"\x00\xff", None]
    batch = pa.RecordBatch.from_pylist(
        [
            origin | {"topic": "t/d/x", "payload": body, "queue_offset": n}
            for n, body in enumerate(bodies)
        ]
    )
    (sorted_batch,) = sorter("t", dead="t_dead", good="t_good", required=VALUE)(iter([batch]))
    good, bad, empty = sorted_batch.to_pylist(maps_as_pydicts="strict")
    assert (good["queue_topic"], good["topic"], good["payload"]) == ("t_good", "t/d/x", bodies[0])
    assert (bad["queue_topic"], bad["topic"], bad["payload"]) == ("t_dead", None, bodies[1])
    reason = bad["properties"].pop("reason")
    assert reason.startswith("not JSON")
    assert bad["properties"] == {
        "originTopic": "t",
        "originQueue": "a/3",
        "originOffset": "1",
        "originTime": "2026-11-21T03:00:00+00:00",
        "originMqttTopic": "t/d/x",
    }
    assert (empty["payload"], empty["properties"]["reason"]) == (b"", NO_BODY)
    (bad_only,) = sorter("t", dead="t_dead", good=None, required=VALUE)(iter([batch]))
    assert bad_only.num_rows == 2


def test_required_fields_are_read_from_the_command_line() -> None:
    arguments = parser().parse(["--checkpoint=c", "--require=value:number, at"])
    assert arguments.require == {"value": "number", "at": "any"}
    with pytest.raises(JobUsageError, match="'value:int' is not NAME:KIND"):
        parser().parse(["--checkpoint=c", "--require=value:int"])
