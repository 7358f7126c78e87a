"""Which messages a query wants: tags, SQL92 and MQTT filters, and what Spark pushes down."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs the [spark] extra")
pytest.importorskip("pyarrow", reason="needs the [spark] extra")

from pyspark.sql.datasource import EqualTo, GreaterThan, In

from motelog.bridge import selector
from motelog.core.message import string_hash
from motelog.gateway.mqtt.topics import matches
from motelog.spark.columns import Column
from motelog.spark.errors import DataLossError, OptionError
from motelog.spark.layout import Beside
from motelog.spark.offsets import OffsetRange
from motelog.spark.options import parse_options
from motelog.spark.payload_fields import Field, Kind
from motelog.spark.reading import read_range
from motelog.spark.source import MotelogFilteredReader
from motelog.spark.wanted import TAGS_ALL, topic_pattern
from tests.support.spark_broker import FakeConsumer
from tests.support.spark_records import Record, property_text, telemetry

LAYOUT = (Column.QUEUE_OFFSET, Field("value", Kind.DOUBLE), Beside.MALFORMED)


def devices(count: int, answer_rows: int = 4) -> FakeConsumer:
    """Return a broker with messages of dev0, dev1, dev2 in turn."""
    consumer = FakeConsumer(answer_rows=answer_rows)
    (queue,) = consumer.broker
    consumer.broker[queue].put(*(telemetry(n, f"dev{n % 3}", n) for n in range(count)))
    return consumer


def read(consumer: FakeConsumer, end: int, layout: Any = LAYOUT, **given: str) -> list[int]:
    (queue,) = consumer.broker
    options = parse_options({"topic": "telemetry", "payloadFormat": "json", **given})
    batches = read_range(consumer, OffsetRange(queue, 0, end), layout, options)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(row.get("value", row["queue_offset"]) == row["queue_offset"] for row in rows)
    return [row["queue_offset"] for row in rows]


@pytest.mark.parametrize("layout", [LAYOUT, (Column.QUEUE_OFFSET,)], ids=["typed", "plain"])
def test_an_mqtt_filter_chooses_rows_by_topic_name(layout: Any) -> None:
    ones = list(range(1, 40, 3))
    assert read(devices(40), 40, layout, mqttFilter="telemetry/dev1/+") == ones
    assert read(devices(40), 40, layout, mqttFilter="+/dev1/#", batchRows="3") == ones
    assert read(devices(40), 40, layout, mqttFilter="telemetry/dev1") == []


def test_the_broker_chooses_by_tag_and_nothing_counts_as_lost() -> None:
    consumer = devices(40)
    consumer.leaves_out = lambda record: b"dev1" not in record.properties
    assert read(consumer, 40, tags="dev1") == list(range(1, 40, 3))
    assert consumer.asked_for == ("dev1", None)
    by_sql = devices(40)
    by_sql.leaves_out = lambda record: True
    assert read(by_sql, 40, sqlFilter="value > 3") == []
    assert by_sql.asked_for == (TAGS_ALL, "value > 3")


def test_a_tag_of_the_same_hash_is_left_out_by_us() -> None:
    assert string_hash("Aa") == string_hash("BB")
    consumer = FakeConsumer()
    (queue,) = consumer.broker
    consumer.broker[queue].put(
        *(Record(body=b"{}", properties=property_text({"TAGS": tag})) for tag in ("Aa", "BB", "Aa"))
    )
    assert read(consumer, 3, (Column.QUEUE_OFFSET,), tags="Aa || other") == [0, 2]


def test_what_retention_took_is_lost_with_tags_too() -> None:
    consumer = devices(40)
    (queue,) = consumer.broker
    consumer.leaves_out = lambda record: b"dev1" not in record.properties
    consumer.broker[queue].expire(10)
    with pytest.raises(DataLossError, match=r"messages \[0, 10\) are lost"):
        read(consumer, 40, tags="dev1")
    assert read(consumer, 40, tags="dev1", failOnDataLoss="false") == list(range(10, 40, 3))


LEVELS = st.sampled_from(["a", "b.c", "", "$x", "+", "\u00e9", "a b", "(", "\n"])
NAMES = st.lists(LEVELS.filter(lambda level: level != "+"), min_size=1, max_size=4)
FILTERS = st.tuples(st.lists(LEVELS, min_size=1, max_size=4), st.booleans())


@given(name=NAMES.map("/".join).filter(bool), parts=FILTERS)
def test_a_topic_filter_matches_as_in_the_gateway(name: str, parts: tuple[list[str], bool]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    levels, is_open = parts
    topic_filter = "/".join([*levels, "#"] if is_open else levels) or "a"
    expected = matches(topic_filter, name)
    pattern = topic_pattern(topic_filter)
    assert (re.fullmatch(pattern, name) is not None) == expected
    found = pc.match_substring_regex(pa.array([name]), f"^(?:{pattern})$")
    assert found.to_pylist() == [expected]


def test_hash_alone_has_all_but_the_servers_own() -> None:
    names = ["a", "a/b", "/", "$SYS/x"]
    assert [bool(re.fullmatch(topic_pattern("#"), name)) for name in names] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mqttFilter": "a/#/b"}, "an MQTT topic filter such as"),
        ({"mqttFilter": "a+"}, "'\\+' stands for a whole level"),
        ({"mqttFilter": ""}, "1 to 65535 bytes"),
        ({"tags": "||"}, "tags such as 'dev1 || dev2'"),
        ({"sqlFilter": "a >"}, "a SQL92 filter such as"),
        ({"sqlFilter": "a > 1", "tags": "x"}, "write TAGS IN"),
    ],
)
def test_a_filter_that_cannot_be_used_is_said(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_options({"topic": "telemetry", **given})


@pytest.mark.parametrize(
    ("filters", "tags"),
    [
        ([EqualTo(("device",), "dev1")], "dev1"),
        ([GreaterThan(("queue_offset",), 3), In(("Device",), ("a", "b"))], "a || b"),
        ([EqualTo(("key",), "dev1")], TAGS_ALL),
        ([EqualTo(("device",), "a || b")], TAGS_ALL),
        ([In(("device",), ("a", None))], TAGS_ALL),
        ([EqualTo(("device", "x"), "dev1")], TAGS_ALL),
    ],
)
def test_a_comparison_of_the_device_becomes_tags(filters: list[Any], tags: str) -> None:
    reader = MotelogFilteredReader(parse_options({"topic": "telemetry"}), (Column.DEVICE,))
    assert list(reader.pushFilters(filters)) == filters  # Spark looks at the rows once more
    assert reader._options.tags == tags


def test_tags_of_the_user_stay_when_spark_pushes_a_filter_down() -> None:
    options = parse_options({"topic": "telemetry", "tags": "dev1 || dev2"})
    reader = MotelogFilteredReader(options, (Column.DEVICE,))
    list(reader.pushFilters([EqualTo(("device",), "dev1")]))
    assert reader._options.tags == "dev1 || dev2"


def test_the_word_for_all_tags_is_the_clients() -> None:
    assert TAGS_ALL == selector.TAGS_ALL
