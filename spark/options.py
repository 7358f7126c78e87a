"""Options of the source: parsed and checked once; every error names its option.

Owns: SourceOptions, what each option means and its default. Must not touch: pyspark, sockets.
Spark hands options over with names in lower case and values as text. An unknown name is an error,
because a limit with a typing mistake in its name would not limit anything.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, Literal, TypeVar

from motelog.core.addresses import parse_address
from motelog.core.topic_names import group_name_fault, topic_name_fault
from motelog.spark.columns import BYTES_MAX, Column, column_named
from motelog.spark.errors import OffsetFormatError, OptionError
from motelog.spark.offsets import EDGES, Edge, parse_offsets

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AtTime:
    """Offsets given as a time: the first message stored at ``timestamp_ms`` or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets given as JSON by queue (spark.offsets); ``text`` has been parsed once already."""

    text: str


Position = Edge | AtTime | AtOffsets


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The user's options. Spark has the same names in camelCase."""

    topic: str
    # Name servers as HOST:PORT, several separated by ";".
    namesrv: str = "127.0.0.1:9876"
    # The consumer group that brokers see; offsets are not committed to it.
    group: str = "motelog-spark"
    # Columns in the order they are named; fewer are cheaper, since Spark never prunes here.
    columns: tuple[Column, ...] = tuple(Column)
    # earliest, latest, JSON by queue, a time with offset (ISO 8601), or epoch milliseconds. The
    # ending is for batch queries.
    starting_offsets: Position = "earliest"
    ending_offsets: Position = "latest"
    # At most one of the two. Rows are exact, bytes are estimated from a sample of each queue.
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    # At least how many Spark tasks a batch has, and at most how many rows a task has.
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    # Whether the query fails when messages were deleted before they were read, or goes on.
    fail_on_data_loss: bool = True
    # Whether a topic that does not exist is an error. If not, a stream waits for it and a batch has
    # no rows.
    fail_on_missing_topic: bool = True
    # A compressed payload that cannot be inflated: an error, or null.
    bad_payload: Literal["fail", "null"] = "fail"
    # RocketMQ clients refuse messages above 4 MiB before they compress; room for raised limits.
    payload_bytes_max: int = 16 * 1024 * 1024
    # How long the broker may be away before a task or a plan fails.
    outage_seconds_max: int = 30
    # 10,000 rows a batch: 1,000 cost half as much again, 50,000 gain nothing.
    batch_rows: int = 10_000
    # Upper limits: a broker may be configured to give less, and the source adapts. Large answers
    # cost less per message. More than 1 MiB gains nothing, and a task holds one answer.
    pull_records: int = 16_384
    pull_bytes: int = 1024 * 1024
    # Pulls under way while records are decoded; they wait in the broker and in socket buffers.
    prefetch: int = 2


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options checked; OptionError names the first that cannot be used."""
    by_name = {_camel(field.name): field.name for field in fields(SourceOptions)}
    by_lower = {name.lower(): name for name in by_name}
    values: dict[str, object] = {}
    topic = ""
    for key, text in given.items():
        name = by_lower.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), by_lower, n=1)
            hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
            raise OptionError(key, text, f"no such option of format 'motelog'{hint}")
        values[by_name[name]] = text
        if name == "topic":
            topic = text
    if "topic" not in values:
        raise OptionError("topic", "", "the queue topic to read, such as 'telemetry'")
    checked = {field: _PARSERS[field](_camel(field), str(text)) for field, text in values.items()}
    options = SourceOptions(**checked)  # type: ignore[arg-type]  # each parser gives its field's type
    if options.max_offsets_per_trigger is not None and options.max_bytes_per_trigger is not None:
        raise OptionError(
            "maxBytesPerTrigger",
            str(options.max_bytes_per_trigger),
            "to be alone: Spark takes one limit per source, and maxOffsetsPerTrigger is set too",
        )
    for name, position in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
    ):
        if isinstance(position, AtOffsets):
            try:
                parse_offsets(topic, position.text)
            except OffsetFormatError as exc:
                raise OptionError(name, position.text, f"offsets by queue ({exc})") from None
    return options


def columns_named(names: list[str], *, option: str) -> tuple[Column, ...]:
    """Return the columns of these names, each at most once; OptionError names the wrong one."""
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


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(option: str, text: str) -> int:
        digits = text.strip()
        # More digits than an offset has cannot be right, and converting them could take long.
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
    return columns_named([name.strip() for name in text.split(",") if name.strip()], option=option)


def _parse_position(option: str, text: str) -> Position:
    text = text.strip()
    for edge in EDGES:
        if text.lower() == edge:
            return edge
    if text.startswith("{"):
        return AtOffsets(text)
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return AtTime(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    # A time without an offset means something else on each machine.
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise OptionError(
            option,
            text,
            "'earliest', 'latest', offsets by queue as JSON, milliseconds since 1970, or a time"
            " with its offset such as '2026-11-21T03:00:00Z'",
        )
    return AtTime(round(moment.timestamp() * 1000))


_offset = _whole(1, (1 << 63) - 1)
_boolean = _one_of({"true": True, "false": False})
_PARSERS: Final[dict[str, Callable[[str, str], object]]] = {
    "topic": _name(
        topic_name_fault, "a queue topic: 1 to 127 of the characters % | a-z A-Z 0-9 _ -"
    ),
    "namesrv": _parse_namesrv,
    "group": _name(group_name_fault, "a group: 1 to 248 of the characters % | a-z A-Z 0-9 _ -"),
    "columns": _parse_columns,
    "starting_offsets": _parse_position,
    "ending_offsets": _parse_position,
    "max_offsets_per_trigger": _offset,
    "max_bytes_per_trigger": _offset,
    "min_partitions": _whole(1, 100_000),
    "max_records_per_partition": _offset,
    "fail_on_data_loss": _boolean,
    "fail_on_missing_topic": _boolean,
    "bad_payload": _one_of({"fail": "fail", "null": "null"}),
    "payload_bytes_max": _whole(1, BYTES_MAX),
    "outage_seconds_max": _whole(0, 3600),
    "batch_rows": _whole(1, 1_000_000),
    "pull_records": _whole(1, 100_000),
    "pull_bytes": _whole(1024, 64 * 1024 * 1024),
    "prefetch": _whole(1, 16),
}
