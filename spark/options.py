"""Options of the source, parsed and checked once; every error names its option.

Owns: SourceOptions, the meaning and default of each option. Must not touch: pyspark, sockets.
Spark passes options with lower-case names and values as text. An unknown name is an error, because
a limit with a mistyped name would have no effect. Names that Spark adds are ignored; for names of
Spark's Kafka source the error gives the name here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Final, Literal, TypeAlias, TypeVar

from motelog.core.addresses import parse_address
from motelog.core.errors import ConfigError
from motelog.core.past_times import before_now
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import group_name_fault, topic_name_fault
from motelog.spark.columns import BYTES_MAX, DEFAULT, Column, column_named
from motelog.spark.errors import OffsetFormatError, OptionError
from motelog.spark.offsets import EDGES, Edge, parse_offsets
from motelog.spark.payload_fields import FORMATS, PayloadFormat
from motelog.spark.topics import Topics
from motelog.spark.wanted import TAGS_ALL, Wanted, topic_pattern

T = TypeVar("T")
#: Name servers, group, account.
Endpoint: TypeAlias = tuple[str, str, Credentials | None, Tls | None]

#: Spark adds these to a table that is created with ``USING motelog``, and passes the table's
#: options under the prefix, or twice; the last name is that of ``load(PATH)``.
_OF_SPARK: Final = frozenset({"provider", "owner", "external", "is_managed_location", "comment"})
_OF_TABLE: Final = "option."
_PATH: Final = "path"
#: In pyspark 4.3, CREATE TABLE asks for the schema with all options, but a read passes none.
_NO_OPTIONS: Final = (
    "Spark does not pass a table's options to a Python source: use CREATE TEMPORARY VIEW ... USING"
    " motelog OPTIONS (...), or spark.read.option(...).table(NAME)"
)
#: Option of Spark's Kafka source -> its name here.
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "namesrv",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "startingtimestamp": "startingOffsets",
    "startingoffsetsbytimestamp": "startingOffsets",
    "endingtimestamp": "endingOffsets",
    "endingoffsetsbytimestamp": "endingOffsets",
    "includeheaders": "columns",
}
_NOT_HERE: Final = {
    "assign": "a query reads all queues of its topics",
    "paths": "give several topics as one text, such as load('alerts,telemetry')",
}
ALL_COLUMNS: Final = "all"
#: The default columns besides a payload's fields.
_BESIDE_FIELDS: Final = ",".join(column.label for column in DEFAULT if column is not Column.PAYLOAD)
#: A smaller number cannot be meant as a time in milliseconds: it would be in 1970.
_MS_MIN: Final = 100_000_000_000


@dataclass(frozen=True, slots=True)
class AtTime:
    """Offsets given as a time: the first message stored at ``timestamp_ms`` or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets given as JSON by queue (spark.offsets); ``text`` has already been checked."""

    text: str


#: The group's committed offsets.
Committed = Literal["committed"]
COMMITTED: Final[Committed] = "committed"
Position = Edge | Committed | AtTime | AtOffsets
_TOPIC_NAMES: Final = (
    "queue topics, separated by ',', each of 1 to 127 of the characters % | a-z A-Z 0-9 _ -"
)
#: The default group.
GROUP: Final = "motelog-spark"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The user's options. Spark has the same names in camelCase."""

    # Queue topics, several separated by ",", or a regular expression that must match whole names;
    # topics that are created later are read too. One of the two, or neither: then mqtt_filter
    # selects them.
    topic: tuple[str, ...] = ()
    topic_pattern: str | None = None
    # Name servers as HOST:PORT, several separated by ";".
    namesrv: str = "127.0.0.1:9876"
    # The consumer group at the brokers. If it is named, a stream commits its progress to it, so
    # that its lag can be observed; but only the checkpoint decides where the stream continues.
    group: str = GROUP
    # The account for servers with access control, given as a file like RocketMQ's tools.yml. It is
    # read when the query is planned, and its content is passed to tasks.
    credentials: Credentials | None = None
    # TLS, given as a file of authorities or one like RocketMQ's tls.properties. Its content is
    # passed to tasks; the PEM files that it names must exist where tasks run.
    tls: Tls | None = None
    # Columns in the given order; fewer are cheaper, since Spark does not prune columns here. The
    # map of properties costs more than all others together.
    columns: tuple[Column, ...] = DEFAULT
    # earliest, latest, JSON by queue, a time with offset (ISO 8601), a date, a time before now, or
    # epoch milliseconds; starting offsets may also be committed, those of the group. Ending offsets
    # are for batch queries.
    starting_offsets: Position = "earliest"
    ending_offsets: Position = "latest"
    # Which messages are selected: brokers filter by tags ("a || b") or by a SQL92 filter over
    # properties, not both; rows are filtered by an MQTT topic filter.
    tags: str = TAGS_ALL
    sql_filter: str | None = None
    mqtt_filter: str | None = None
    # Whether a batch turns comparisons of the column device into tags; Spark pushes filters only if
    # spark.sql.python.filterPushdown.enabled is true.
    push_filters: bool = False
    # At most one of the two. Rows are exact, bytes are estimated from a sample of each queue.
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    # The minimum number of Spark tasks of a batch, and the maximum number of rows of a task.
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    # Whether the query fails if messages were deleted before they were read, or continues.
    fail_on_data_loss: bool = True
    # Whether a missing topic is an error. If not, a stream waits for it and a batch has no rows.
    fail_on_missing_topic: bool = True
    # The format of payloads, and their fields as Spark's DDL or as JSON: then rows have typed
    # columns. Sparkplug B defines its own fields; a schema selects some of them.
    payload_format: PayloadFormat | None = None
    payload_schema: str | None = None
    # Whether a compressed payload that cannot be inflated is an error, or null. With a payload
    # format it is a malformed payload, unless this option is set.
    bad_payload: Literal["fail", "null"] = "fail"
    # RocketMQ clients refuse messages above 4 MiB before compression; this leaves room for raised
    # limits.
    payload_bytes_max: int = 16 * 1024 * 1024
    # How long the broker may be unreachable before a task or a plan fails.
    outage_seconds_max: int = 30
    # 10,000 rows a batch: 1,000 cost 50 % more, 50,000 gain nothing.
    batch_rows: int = 10_000
    # Upper limits: a broker may be configured to return less, and the source adapts. Large answers
    # cost less per message. More than 1 MiB gains nothing, and a task holds one answer in memory.
    pull_records: int = 16_384
    pull_bytes: int = 1024 * 1024
    # Pulls in flight while records are decoded; they wait in the broker and in socket buffers.
    prefetch: int = 2
    # Whether tasks read records from the files of a broker on their machine, if it allows that.
    mapped_log: bool = True

    @property
    def topics(self) -> Topics:
        if not self.topic and self.topic_pattern is None and self.mqtt_filter is not None:
            return Topics.of_filter(self.mqtt_filter)
        return Topics(self.topic, self.topic_pattern)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.tags, self.sql_filter, self.mqtt_filter)

    @property
    def endpoint(self) -> Endpoint:
        """Return the servers and the credentials of the source."""
        return self.namesrv, self.group, self.credentials, self.tls


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the checked options; OptionError names the first that cannot be used."""
    by_name = {_camel(field.name): field.name for field in fields(SourceOptions)}
    by_lower = {name.lower(): name for name in by_name}
    values: dict[str, object] = {}
    for key, text in given.items():
        lower = key.lower().removeprefix(_OF_TABLE)
        if lower in _OF_SPARK:
            continue
        name = "topic" if lower == _PATH else by_lower.get(lower)
        if name is None:
            raise OptionError(key, text, _why_not(lower, by_lower))
        known = values.setdefault(by_name[name], text)
        if known != text:
            raise OptionError(name, text, f"one value; {known!r} is also given")
    if not given:
        raise OptionError(
            "topic", "", f"the queue topic to read, such as 'telemetry'; {_NO_OPTIONS}"
        )
    if values.keys().isdisjoint(("topic", "topic_pattern", "mqtt_filter")):
        raise OptionError("topic", "", "the queue topic to read, such as 'telemetry'")
    if "payload_format" in values:
        values = {"columns": _BESIDE_FIELDS, "bad_payload": "null", **values}
    checked = {field: _PARSERS[field](_camel(field), str(text)) for field, text in values.items()}
    options = SourceOptions(**checked)  # type: ignore[arg-type]  # each parser gives its field's type
    _check_together(options)
    return options


def _check_together(options: SourceOptions) -> None:
    """Check the rules between options; OptionError."""
    if options.max_offsets_per_trigger is not None and options.max_bytes_per_trigger is not None:
        raise OptionError(
            "maxBytesPerTrigger",
            str(options.max_bytes_per_trigger),
            "only one limit, as Spark requires: maxOffsetsPerTrigger is set too",
        )
    if options.sql_filter is not None and options.tags != TAGS_ALL:
        raise OptionError(
            "sqlFilter",
            options.sql_filter,
            "no option 'tags' with it: write TAGS IN ('a', 'b') into the filter instead",
        )
    if options.topic and options.topic_pattern is not None:
        raise OptionError(
            "topicPattern", options.topic_pattern, "only one of this and option 'topic'"
        )
    if options.starting_offsets == COMMITTED and options.group == GROUP:
        raise OptionError(
            "startingOffsets", COMMITTED, "option 'group' with it: the group whose offsets are used"
        )
    if options.ending_offsets == COMMITTED:
        raise OptionError(
            "endingOffsets", COMMITTED, "'latest' or another end: 'committed' is only for starts"
        )
    if options.payload_schema is not None and options.payload_format is None:
        raise OptionError(
            "payloadSchema",
            options.payload_schema,
            "option 'payloadFormat' with it, such as 'json'",
        )
    for name, position in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
    ):
        if isinstance(position, AtOffsets):
            try:
                parse_offsets(options.topics, position.text)
            except OffsetFormatError as exc:
                raise OptionError(name, position.text, f"offsets by queue ({exc})") from None


def _why_not(key: str, by_lower: Mapping[str, str]) -> str:
    """Return the error text for a name that is not an option."""
    if key in _OF_KAFKA:
        return f"no option of Spark's Kafka source: use {_OF_KAFKA[key]!r} here"
    if key in _NOT_HERE:
        return f"no option of Spark's Kafka source: {_NOT_HERE[key]}"
    near = difflib.get_close_matches(key, by_lower, n=1)
    hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    return f"no such option of format 'motelog'{hint}"


def columns_named(names: list[str], *, option: str) -> tuple[Column, ...]:
    """Return the columns with these names, each at most once; OptionError names a wrong one."""
    columns = []
    known = ", ".join(column.label for column in Column)
    for name in names:
        column = column_named(name)
        if column is None:
            raise OptionError(option, name, f"columns among {known}")
        if column in columns:
            raise OptionError(option, name, "each column once")
        columns.append(column)
    if not columns:
        raise OptionError(option, "", f"at least one column of {known}")
    return tuple(columns)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _name(fault_of: Callable[[str], str | None], expected: str) -> Callable[[str, str], str]:
    def parse(option: str, text: str) -> str:
        if fault_of(text) is not None:
            raise OptionError(option, text, expected)
        return text

    return parse


def _parse_topics(option: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if topic_name_fault(name) is not None:
            raise OptionError(option, name or text, _TOPIC_NAMES)
    return names


def _parse_pattern(option: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        expected = f"a Python regular expression, such as 'site-.*' ({exc})"
        raise OptionError(option, text, expected) from None
    return text


def _parse_namesrv(option: str, text: str) -> str:
    addresses = [part.strip() for part in text.split(";") if part.strip()]
    expected = "HOST:PORT, several separated by ';'"
    try:
        for address in addresses:
            parse_address(address, port_min=1)
    except ValueError as exc:
        raise OptionError(option, text, expected) from exc
    if not addresses:
        raise OptionError(option, text, expected)
    return ";".join(addresses)


def _parse_credentials(option: str, text: str) -> Credentials:
    from motelog.core.acl.files import read_credentials

    try:
        return read_credentials(text)
    except ConfigError as exc:
        expected = f"a file with accessKey and secretKey, like RocketMQ's tools.yml ({exc})"
        raise OptionError(option, text, expected) from None


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(option: str, text: str) -> int:
        digits = text.strip()
        # More digits than an offset can have are wrong, and converting them could take long.
        if digits.isascii() and digits.isdecimal() and len(digits) <= 19:
            value = int(digits)
            if low <= value <= high:
                return value
        raise OptionError(option, text, f"a whole number from {low} to {high}")

    return parse


def _one_of(choices: Mapping[str, T]) -> Callable[[str, str], T]:
    def parse(option: str, text: str) -> T:
        try:
            return choices[text.strip().lower()]
        except KeyError:
            raise OptionError(option, text, " or ".join(map(repr, choices))) from None

    return parse


def _parse_columns(option: str, text: str) -> tuple[Column, ...]:
    if text.strip().lower() == ALL_COLUMNS:
        return tuple(Column)
    return columns_named([name.strip() for name in text.split(",") if name.strip()], option=option)


def _parse_schema(option: str, text: str) -> str:
    if not text.strip():
        raise OptionError(option, text, "fields, such as 'value double, ts timestamp'")
    return text.strip()


def _parse_tags(option: str, text: str) -> str:
    from motelog.bridge.selector import parse_tags

    try:
        parse_tags(text)
    except ValueError:
        raise OptionError(option, text, "tags such as 'dev1 || dev2', or '*' for all") from None
    return text.strip() or TAGS_ALL


def _parse_sql(option: str, text: str) -> str:
    from motelog.bridge.errors import FilterError
    from motelog.bridge.selector import select

    try:
        select(TAGS_ALL, text)
    except FilterError as exc:
        expected = f"a SQL92 filter such as \"TAGS = 'dev1' AND size > 3\" ({exc})"
        raise OptionError(option, text, expected) from None
    return text


def _parse_mqtt_filter(option: str, text: str) -> str:
    try:
        topic_pattern(text)
    except ValueError as exc:
        expected = f"an MQTT topic filter such as 'telemetry/+/temp' ({exc})"
        raise OptionError(option, text, expected) from None
    return text


def _parse_position(option: str, text: str) -> Position:
    text = text.strip()
    for word in (*EDGES, COMMITTED):
        if text.lower() == word:
            return word
    if text.startswith("{"):
        return AtOffsets(text)
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return AtTime(_milliseconds(option, int(text)))
    ago = before_now(text.removeprefix("-"))
    if ago is not None:
        return AtTime(ago)
    moment = _moment(text)
    if moment is None or moment.timestamp() < 0:
        raise OptionError(
            option,
            text,
            "'earliest', 'latest', 'committed', offsets by queue as JSON, milliseconds since 1970,"
            " a date (UTC), a time with its offset such as '2026-11-21T03:00:00Z', or a time before"
            " now such as '-1h'",
        )
    return AtTime(round(moment.timestamp() * 1000))


def _moment(text: str) -> datetime | None:
    """Return the time of an ISO 8601 text, None for other texts; a date begins in UTC."""
    try:
        return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # A time without an offset would mean something else on each machine.
    return None if moment.tzinfo is None else moment


def _parse_tls(option: str, text: str) -> Tls:
    from motelog.core.remoting.tls import read_tls

    try:
        return read_tls(text)
    except ConfigError as exc:
        expected = f"PEM certificates of authorities, or RocketMQ's tls.properties ({exc})"
        raise OptionError(option, text, expected) from None


def _milliseconds(option: str, value: int) -> int:
    if value >= _MS_MIN or not value:
        return value
    meant = f"; as seconds it would be '{value}000'" if value * 1000 >= _MS_MIN else ""
    raise OptionError(
        option, str(value), f"milliseconds since 1970{meant}; 'earliest' is the start"
    )


_offset = _whole(1, (1 << 63) - 1)
_boolean = _one_of({"true": True, "false": False})
_PARSERS: Final[dict[str, Callable[[str, str], object]]] = {
    "topic": _parse_topics,
    "topic_pattern": _parse_pattern,
    "namesrv": _parse_namesrv,
    "group": _name(group_name_fault, "a group: 1 to 248 of the characters % | a-z A-Z 0-9 _ -"),
    "credentials": _parse_credentials,
    "tls": _parse_tls,
    "columns": _parse_columns,
    "starting_offsets": _parse_position,
    "ending_offsets": _parse_position,
    "max_offsets_per_trigger": _offset,
    "max_bytes_per_trigger": _offset,
    "min_partitions": _whole(1, 100_000),
    "max_records_per_partition": _offset,
    "fail_on_data_loss": _boolean,
    "fail_on_missing_topic": _boolean,
    "tags": _parse_tags,
    "sql_filter": _parse_sql,
    "mqtt_filter": _parse_mqtt_filter,
    "push_filters": _boolean,
    "payload_format": _one_of({name: name for name in FORMATS}),
    "payload_schema": _parse_schema,
    "bad_payload": _one_of({"fail": "fail", "null": "null"}),
    "payload_bytes_max": _whole(1, BYTES_MAX),
    "outage_seconds_max": _whole(0, 3600),
    "batch_rows": _whole(1, 1_000_000),
    "pull_records": _whole(1, 100_000),
    "pull_bytes": _whole(1024, 64 * 1024 * 1024),
    "prefetch": _whole(1, 16),
    "mapped_log": _boolean,
}
