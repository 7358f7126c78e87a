"""The text format of trace records, as RocketMQ's clients write and its tools read it.

Owns: TraceRecord and its text. Must not touch: clients, clocks, where records are stored.
Spec: RocketMQ TraceDataEncoder, TraceBean, TraceContext.

    record = kind \\x01 field \\x01 field ... \\x02        the fields of a kind: _FIELDS

A message carries any number of records, of any messages; its keys are their ids and keys, with
which records can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
# Java's text for a missing value.
_NONE: Final = "null"
#: The region of records and brokers that do not name one.
DEFAULT_REGION: Final = "DefaultRegion"


class TraceKind(StrEnum):
    """The event of a record: a send, the begin or end of handling a message, and so on."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(IntEnum):
    """How a message was sent (RocketMQ MessageType)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class ContextCode(IntEnum):
    """How the handling of a message ended (RocketMQ ConsumeReturnType)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One client's record about one message.

    ``kind`` says what happened, and which of the other values are set; the rest have their
    defaults. ``time_ms`` is when it began, in milliseconds since the epoch; ``cost_ms`` how long it
    took. The records before and after a message's handling have the same ``request_id``.
    ``client_host`` is the address of the client that wrote the record; set in records that were
    read.
    """

    kind: TraceKind
    message_id: str
    group: str = ""
    time_ms: int = 0
    cost_ms: int = 0
    is_ok: bool = True
    region: str = DEFAULT_REGION
    topic: str = ""
    tags: str | None = None
    keys: tuple[str, ...] = ()
    store_host: str = ""
    body_bytes: int = 0
    message_type: MessageType = MessageType.NORMAL
    offset_id: str = ""
    request_id: str = ""
    retry_times: int = 0
    context_code: ContextCode = ContextCode.SUCCESS
    transaction_id: str = ""
    transaction_state: str = ""
    is_asked: bool = False
    client_host: str = ""

    def encode(self) -> str:
        """Return the record as text; its values must not contain the characters \\x01 and \\x02."""
        texts = (_text(getattr(self, name)) for name in _FIELDS[self.kind])
        return _FIELD_END.join((self.kind, *texts)) + _RECORD_END


#: The fields of each kind, in their order on the wire.
_FIELDS: Final[Mapping[TraceKind, tuple[str, ...]]] = {
    TraceKind.PUB: (
        "time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host",
        "body_bytes", "cost_ms", "message_type", "offset_id", "is_ok",
    ),
    TraceKind.SUB_BEFORE: (
        "time_ms", "region", "group", "request_id", "message_id", "retry_times", "keys",
    ),
    TraceKind.SUB_AFTER: (
        "request_id", "message_id", "cost_ms", "is_ok", "keys", "context_code", "time_ms", "group",
    ),
    TraceKind.END_TRANSACTION: (
        "time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host",
        "message_type", "transaction_id", "transaction_state", "is_asked",
    ),
    TraceKind.RECALL: ("time_ms", "region", "group", "topic", "message_id", "is_ok"),
}  # fmt: skip

#: The minimum number of fields of a record. Old clients write fewer: no offset id, or no context
#: code, time and group; some later ones append the client's address.
_FIELDS_MIN: Final = {TraceKind.PUB: 12, TraceKind.SUB_AFTER: 5}

#: Fields that are not text.
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "time_ms": int,
    "cost_ms": int,
    "body_bytes": int,
    "retry_times": int,
    "is_ok": lambda text: text == "true",
    "is_asked": lambda text: text == "true",
    "tags": lambda text: None if text == _NONE else text,
    "keys": lambda text: () if text == _NONE else tuple(text.split()),
    "message_type": lambda text: MessageType(int(text)),
    "context_code": lambda text: ContextCode(int(text)),
}


def is_traced(fields: Mapping[str, str]) -> bool:
    """Return whether a broker wants traces, from its answer or a message's properties."""
    return fields.get("TRACE_ON") != "false"


def region_of(fields: Mapping[str, str]) -> str:
    """Return the broker's region, from its answer or a message's properties."""
    return fields.get("MSG_REGION") or DEFAULT_REGION


def decode_records(text: str, *, client_host: str = "") -> Iterator[TraceRecord]:
    """Yield the records in a message's body, without malformed ones and those of unknown kinds."""
    for record in text.split(_RECORD_END):
        kind, *values = record.split(_FIELD_END)
        try:
            found = _decode(TraceKind(kind), values, client_host)
        except ValueError:
            continue
        if found is not None:
            yield found


def _decode(kind: TraceKind, values: list[str], client_host: str) -> TraceRecord | None:
    names = _FIELDS[kind]
    if len(values) < _FIELDS_MIN.get(kind, len(names)):
        return None
    if kind is TraceKind.PUB and len(values) < len(names):
        names = tuple(name for name in names if name != "offset_id")
    known = {
        name: _PARSERS.get(name, str)(value) for name, value in zip(names, values, strict=False)
    }
    return TraceRecord(kind=kind, client_host=client_host, **known)


def _text(value: object) -> str:
    match value:
        case None | ():
            return _NONE
        case bool():
            return "true" if value else "false"
        case IntEnum():
            return str(int(value))
        case tuple():
            return " ".join(value)
        case _:
            return str(value)
