"""Options of the sink, and the columns that its rows may have; checked once, when Spark plans.

Owns: SinkOptions, the allowed columns; every error names the fault. Must not touch: pyspark,
sockets, rows. Options that source and sink share are parsed by the source's parsers.

    topic            the MQTT topic name; its first level is the queue topic, its second the device
    queue_topic      the RocketMQ topic; option ``topic`` sets it for all rows
    device           the tag
    key              words with which the message can be found, separated by spaces
    payload          the body: binary, string, or a struct, which becomes JSON
    qos              0, 1 or 2; the maximum QoS of its delivery
    properties       map<string,string> for native consumers
    content_type, response_topic, expiry_s, user_properties    of MQTT 5
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from motelog.core.topic_names import is_device_topic, topic_name_fault
from motelog.spark.errors import ColumnError, OptionError
from motelog.spark.options import Endpoint, parse_options
from motelog.spark.topics import MQTT_DEFAULT

#: A topic name that no device may use, so that no MQTT filter matches its records.
LEDGER_TOPIC: Final = "%SPARK%LEDGER"
GROUP: Final = "motelog-spark-sink"
LEASE_S: Final = 10
WRITE_ID_MAX: Final = 100

_TEXT: Final = ("string",)
_MAP: Final = ("map<string,string>",)
_NUMBER: Final = ("int", "tinyint", "smallint", "bigint")
_JSON: Final = ("struct<", "map<", "array<")
#: Column -> its types in Spark's notation; None is the payload's, see ``check_columns``.
COLUMNS: Final[dict[str, tuple[str, ...] | None]] = {
    "topic": _TEXT,
    "queue_topic": _TEXT,
    "device": _TEXT,
    "key": _TEXT,
    "payload": None,
    "qos": _NUMBER,
    "properties": _MAP,
    "content_type": _TEXT,
    "response_topic": _TEXT,
    "expiry_s": _NUMBER,
    "user_properties": _MAP,
}
#: Other common names of a column -> its name here.
_OTHER_NAMES: Final = {
    "value": "payload",
    "body": "payload",
    "tag": "device",
    "tags": "device",
    "keys": "key",
    "mqtt_topic": "topic",
    "headers": "properties",
}
#: Columns of the source with a message's place; a broker assigns new ones.
_OF_READING: Final = frozenset({"store_time", "born_time", "broker", "queue_id", "queue_offset"})
#: Options with the same meaning for source and sink.
SHARED_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "topic",
        "namesrv",
        "group",
        "credentials",
        "tls",
        "outageSecondsMax",
        "failOnDataLoss",
    )
}
OWN_OPTIONS: Final = {name.lower(): name for name in ("defaultTopic", "ledgerTopic", "leaseSeconds",
               "writeId")}  # fmt: skip
#: Options that Spark adds.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The user's options. Spark has the same names in camelCase."""

    # The topic of rows without their own topic.
    topic: str | None = None
    # Name servers, producer group, account, TLS; as in the source.
    endpoint: Endpoint = ("127.0.0.1:9876", GROUP, None, None)
    # The gateways' default_topic, for MQTT topic names whose first level is not a queue topic.
    default_topic: str = MQTT_DEFAULT
    # The topic of the ledger, which records which rows are already in the log.
    ledger_topic: str = LEDGER_TOPIC
    # How long a killed attempt makes the next one wait.
    lease_s: int = LEASE_S
    # For batches: a name by which a second run is recognised as the same one and adds nothing.
    write_id: str | None = None
    # How long the broker may be unreachable before a task fails.
    outage_seconds_max: int = 30
    # Whether a batch fails if it began so long ago that retention has deleted the records that show
    # which rows are in the log; if not, those rows are written again.
    fail_on_data_loss: bool = True


def parse_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the checked options; OptionError names the first that cannot be used."""
    shared: dict[str, str] = {"group": GROUP}
    own: dict[str, str] = {}
    for key, text in given.items():
        lower = key.lower()
        if lower == "path":
            lower = "topic"
        if lower in SHARED_OPTIONS:
            shared[SHARED_OPTIONS[lower]] = text
        elif lower in OWN_OPTIONS:
            own[OWN_OPTIONS[lower]] = text
        elif lower not in _OF_SPARK:
            known = SHARED_OPTIONS | OWN_OPTIONS
            near = difflib.get_close_matches(lower, known, n=1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else ""
            raise OptionError(key, text, f"no such option for writing{hint}")
    topic = shared.get("topic")
    if topic is not None and topic_name_fault(topic) is not None:
        expected = "a queue topic: 1 to 127 of the characters % | a-z A-Z 0-9 _ -"
        raise OptionError("topic", topic, expected)
    # The source's parser requires a topic, but the sink's rows may have their own.
    common = parse_options(shared | {"topic": LEDGER_TOPIC})
    write_id = own.get("writeId")
    if write_id is not None:
        if is_stream:
            expected = "nothing: a stream is identified by its checkpoint; writeId is for batches"
            raise OptionError("writeId", write_id, expected)
        if not 1 <= len(write_id) <= WRITE_ID_MAX or not write_id.isprintable():
            raise OptionError("writeId", write_id, f"1 to {WRITE_ID_MAX} printable characters")
    return SinkOptions(
        topic=topic,
        endpoint=common.endpoint,
        default_topic=_topic("defaultTopic", own.get("defaultTopic", MQTT_DEFAULT)),
        ledger_topic=_ledger("ledgerTopic", own.get("ledgerTopic", LEDGER_TOPIC)),
        lease_s=_seconds("leaseSeconds", own.get("leaseSeconds", str(LEASE_S))),
        write_id=write_id,
        outage_seconds_max=common.outage_seconds_max,
        fail_on_data_loss=common.fail_on_data_loss,
    )


def check_columns(columns: Iterable[tuple[str, str]], options: SinkOptions) -> None:
    """Check names and types (in Spark's notation) of columns; ColumnError names the fault."""
    types = {}
    for name, kind in columns:
        if name in types:
            raise ColumnError(f"there are two columns {name!r}")
        types[name] = kind
        if name not in COLUMNS:
            raise ColumnError(_why_no_column(name))
        allowed = COLUMNS[name]
        if allowed is None:
            if kind not in ("binary", "string") and not kind.startswith(_JSON):
                raise ColumnError(
                    f"column 'payload' is {kind}, expected binary, string, or a struct that"
                    " becomes JSON: select struct(...) AS payload"
                )
        elif kind not in allowed:
            raise ColumnError(f"column {name!r} is {kind}, expected {allowed[0]}")
    if "payload" not in types:
        raise ColumnError(
            "there is no column 'payload' for the body of each message: name one, or make JSON from"
            " several with struct(...) AS payload"
        )
    if options.topic is None and "topic" not in types and "queue_topic" not in types:
        raise ColumnError(
            "the rows have no topic: add a column 'topic' with MQTT topic names, a column"
            " 'queue_topic', or option 'topic' for all rows"
        )


def _why_no_column(name: str) -> str:
    if name == "retain":
        return "column 'retain': the sink cannot retain messages, only an MQTT publish can"
    if name in _OTHER_NAMES:
        return f"there is no column {name!r} for writing: use {_OTHER_NAMES[name]!r}"
    if name in _OF_READING:
        return f"column {name!r} says where a message was read and cannot be written: drop it"
    near = difflib.get_close_matches(name, COLUMNS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(COLUMNS)}"
    return f"there is no column {name!r} for writing; {hint}"


def _topic(option: str, text: str) -> str:
    if not is_device_topic(text):
        raise OptionError(option, text, "letters, digits, '_' and '-', at most 127")
    return text


def _ledger(option: str, text: str) -> str:
    if topic_name_fault(text) is not None:
        raise OptionError(option, text, "1 to 127 of the characters % | a-z A-Z 0-9 _ -")
    return text


def _seconds(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 3 <= int(text[:6]) <= 600):
        raise OptionError(option, text, "a whole number of seconds from 3 to 600")
    return int(text)
