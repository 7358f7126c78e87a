"""Sends messages with a malformed body to a separate topic, with reason and origin.

Owns: its query, checking a body, the content of a dead letter. Must not touch: the internals of
source and sink; its command line (dead_letters_options).
A body must be a JSON object with the required fields. Dead letters, and the optional copies of good
messages, have the original bytes. One query sends both through the sink: every message exactly
once, across restarts too.

    topic       telemetry/dev42/temp -> queue topic telemetry_dead, tag dev42, no MQTT topic name
    properties  reason "field 'value' is text, not number", originTopic, originQueue
                "broker-a/3", originOffset, originTime, originMqttTopic
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from motelog.spark.jobs.dead_letters_options import parser
from motelog.spark.jobs.running import readings, run_query, started

NAME: Final = "dead-letters"
COLUMNS: Final = "topic,device,key,payload,store_time,broker,queue_id,queue_offset"
NO_BODY: Final = "the body is compressed and cannot be inflated"
_OUT: Final = pa.schema(
    [
        ("queue_topic", pa.string()),
        ("topic", pa.string()),
        ("device", pa.string()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
_OUT_DDL: Final = (
    "queue_topic string, topic string, device string, key string, payload binary,"
    " properties map<string,string>"
)
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "number": (int, float),
    "text": (str,),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
    "any": (object,),
}


def main(argv: Sequence[str], stop: threading.Event) -> int:
    """Run the job until it has read everything (--once), or soon after ``stop`` is set."""
    return run_query(NAME, parser().parse(argv), start, stop)


def start(session: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query that ``arguments`` describe."""
    rows = readings(session, arguments, COLUMNS, badPayload="null")
    sort = sorter(
        arguments.topic,
        dead=arguments.dead or f"{arguments.topic}_dead",
        good=arguments.good,
        required=arguments.require,
    )
    return started(rows.mapInArrow(sort, _OUT_DDL), NAME, arguments, "motelog")


def sorter(
    topic: str, *, dead: str, good: str | None, required: Mapping[str, str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function from the source's rows to the sink's, both as Arrow batches."""

    def sort(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                reason = NO_BODY if row["payload"] is None else fault(row["payload"], required)
                if reason is not None:
                    rows.append(_dead_letter(row, topic, dead, reason))
                elif good is not None:
                    kept = {name: row[name] for name in ("topic", "device", "key", "payload")}
                    rows.append(kept | {"queue_topic": good, "properties": {}})
            yield pa.RecordBatch.from_pylist(rows, schema=_OUT)

    return sort


def fault(body: bytes, required: Mapping[str, str]) -> str | None:
    """Return the fault of a body, or None."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return f"not JSON: {exc}"
    if not isinstance(found, dict):
        return f"{_kind(found)}, not an object"
    for name, kind in required.items():
        if name not in found:
            return f"field {name!r} is missing"
        value = found[name]
        # In Python a boolean is a number.
        if not isinstance(value, _KINDS[kind]) or (kind == "number" and isinstance(value, bool)):
            return f"field {name!r} is {_kind(value)}, not {kind}"
    return None


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(kind for kind, types in _KINDS.items() if isinstance(value, types))


def _dead_letter(row: Mapping[str, Any], topic: str, dead: str, reason: str) -> dict[str, Any]:
    store_time = row["store_time"]
    return {
        "queue_topic": dead,
        "topic": None,
        "device": row["device"],
        "key": row["key"],
        "payload": row["payload"] or b"",
        "properties": {
            "reason": reason,
            "originTopic": topic,
            "originQueue": f"{row['broker']}/{row['queue_id']}",
            "originOffset": str(row["queue_offset"]),
            "originTime": "" if store_time is None else store_time.isoformat(),
            "originMqttTopic": row["topic"] or "",
        },
    }
