"""Arrow batches -> messages, and the queue of each.

Owns: mapping a row's columns to a message (docs/mqtt-mapping.md), JSON of a struct. Must not touch:
pyspark, sockets. Columns were checked when Spark planned (sink.options); values are checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from motelog.core.message import (
    KEYS,
    MQTT_PACKET_ID,
    MQTT_PROPERTIES,
    MQTT_QOS,
    MQTT_RETAIN,
    MQTT_TOPIC,
    TAGS,
    UNIQ_KEY,
)
from motelog.core.topic_names import TOPICS_KEPT, is_device_topic, topic_name_fault
from motelog.spark.errors import RowError
from motelog.spark.sink.options import SinkOptions

_NOT_IN_NAME: Final = re.compile("[+#\0]")
_NAME_BYTES_MAX: Final = 65_535
_EXPIRY_S_MAX: Final = (1 << 32) - 1
# The source's rows have all properties. Columns and sink set these, so they are not copied.
_SAID_ELSEWHERE: Final = frozenset(
    {KEYS, MQTT_PACKET_ID, MQTT_QOS, MQTT_RETAIN, MQTT_TOPIC, TAGS, UNIQ_KEY}
)
# Numbers stay numbers, as in Spark's to_json.
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


# Cached: the rows of a batch go to few topics.
_topic_name_fault: Final = lru_cache(TOPICS_KEPT)(topic_name_fault)


class OutgoingRow(NamedTuple):
    """A message without its id, and the text whose hash chooses its queue, as in the gateway."""

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    selector: str


class _Values(NamedTuple):
    """One row; a missing column is None."""

    topic: str | None = None
    queue_topic: str | None = None
    device: str | None = None
    key: str | None = None
    payload: Any = None
    qos: int | None = None
    properties: Mapping[str, str] | None = None
    content_type: str | None = None
    response_topic: str | None = None
    expiry_s: int | None = None
    user_properties: Mapping[str, str] | None = None


def outgoing_rows(batch: Any, options: SinkOptions, *, begin: int = 0) -> Iterator[OutgoingRow]:
    """Yield the rows of a RecordBatch as messages; RowError names the fault of one.

    ``begin`` is the number of its first row within the partition.
    """
    columns = {
        name: batch.column(index).to_pylist(maps_as_pydicts="lossy")
        for index, name in enumerate(batch.schema.names)
    }
    absent = [None] * batch.num_rows
    rows = zip(*(columns.get(name, absent) for name in _Values._fields), strict=True)
    for number, values in enumerate(rows, begin):
        try:
            yield _outgoing(_Values._make(values), options)
        except (RowError, ValueError) as exc:
            raise RowError(f"row {number} of the partition: {exc}") from None


def _outgoing(row: _Values, options: SinkOptions) -> OutgoingRow:
    properties = _own_properties(row.properties) if row.properties else {}
    tag = row.device
    if row.topic is not None:
        levels = _checked(row.topic).split("/")
        queue_topic = levels[0] if is_device_topic(levels[0]) else options.default_topic
        properties[MQTT_TOPIC] = row.topic
        if tag is None and len(levels) > 1:
            tag = levels[1]
    else:
        queue_topic = ""
    queue_topic = row.queue_topic or options.topic or queue_topic
    if not queue_topic:
        raise RowError("topic and queue_topic are null, and option 'topic' is not set")
    fault = _topic_name_fault(queue_topic)
    if fault is not None:
        raise RowError(fault)
    if row.qos is not None:
        if row.qos not in (0, 1, 2):
            raise RowError(f"qos is {row.qos}, expected 0, 1 or 2")
        properties[MQTT_QOS] = str(row.qos)
    mqtt = _mqtt_properties(row)
    if mqtt:
        properties[MQTT_PROPERTIES] = mqtt
    return OutgoingRow(
        queue_topic,
        _body(row.payload),
        tag or None,
        tuple(row.key.split()) if row.key else (),
        properties,
        tag or row.topic or "",
    )


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name not in _SAID_ELSEWHERE and value is not None
    }


def _checked(name: str) -> str:
    if not name or name.startswith("$") or _NOT_IN_NAME.search(name):
        raise RowError(f"topic is {name[:64]!r}, expected an MQTT topic name without + # and $")
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise RowError(f"topic has more than {_NAME_BYTES_MAX} bytes")
    return name


def _body(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if payload is None:
        raise RowError("payload is null; use X'' for an empty one")
    return _encoder.encode(_plain(payload))


def _plain(value: Any) -> Any:
    """Return a value for JSON: null fields are omitted, as in to_json."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _mqtt_properties(row: _Values) -> str:
    """Return the JSON from which gateways make MQTT 5 properties, "" if there are none."""
    pairs: dict[str, Any] = {}
    if row.expiry_s is not None:
        if not 0 <= row.expiry_s <= _EXPIRY_S_MAX:
            raise RowError(f"expiry_s is {row.expiry_s}, expected 0 to {_EXPIRY_S_MAX}")
        pairs["expiryS"] = row.expiry_s
    if row.content_type is not None:
        pairs["contentType"] = row.content_type
    if row.response_topic is not None:
        pairs["responseTopic"] = _checked(row.response_topic)
    if row.user_properties:
        pairs["user"] = list(row.user_properties.items())
    return _encoder.encode(pairs).decode() if pairs else ""
