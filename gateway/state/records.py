"""Records of ``MQTT_SESSION``: what each kind holds, and how it becomes a message for the log.

Owns: the kinds, their bytes, the properties by which consumers tell them apart.
Must not touch: what a record leads to (``progress``, ``session_rows``), the log.

    properties   TAGS = the kind; KEYS = the client identifier, where the record is about one
    body         msgpack [kind, gateway, run, number, ...], read by its first item

``run`` names one life of a gateway's process, ``number`` counts its records: by the two, a gateway
knows its own records when it reads them back.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from motelog.core.message import KEYS, TAGS, encode_host, encode_properties, tags_code
from motelog.gateway.log.log_port import QueueHandle
from motelog.gateway.state.stored import Mark, Progress, StoredSession

_HOST: Final = encode_host("127.0.0.1", 0)


class SessionRecord(msgspec.Struct, frozen=True, array_like=True, tag="session"):
    """The whole state of one session.

    ``repeats`` is the queue offset of the record that it stands for, if nothing has changed and
    that one is too old: it counts only where that one still did.
    """

    gateway: str
    run: int
    number: int
    session: StoredSession
    repeats: int | None = None


class EndRecord(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The session is no more."""

    gateway: str
    run: int
    number: int
    client_id: str


class MarksRecord(msgspec.Struct, frozen=True, array_like=True, tag="marks"):
    """Steps of QoS 2 exchanges, in their order."""

    gateway: str
    run: int
    number: int
    marks: tuple[Mark, ...]


class TickRecord(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """How far a gateway has delivered: live positions that have moved, sessions not at them."""

    gateway: str
    run: int
    number: int
    positions: dict[str, int]
    progress: tuple[Progress, ...]


class StartedRecord(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """A gateway has started: its earlier runs are over."""

    gateway: str
    run: int
    number: int


Record: TypeAlias = SessionRecord | EndRecord | MarksRecord | TickRecord | StartedRecord

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def decode_record(body: bytes) -> Record:
    """Return what a record's body holds; msgspec.DecodeError if it is none of ours."""
    record: Record = _decoder.decode(body)
    return record


def message_of(record: Record, queue: QueueHandle, now_ms: int) -> tuple[Any, ...]:
    """Return the message that LogPort appends for ``record``."""
    text, code = _KINDS[type(record)]
    match record:
        case SessionRecord():
            text += encode_properties({KEYS: record.session.client_id})
        case EndRecord():
            text += encode_properties({KEYS: record.client_id})
    return (queue, _encoder.encode(record), text, code, now_ms, _HOST, 0, 0, 0, 0)


def _kind(kind: str) -> tuple[bytes, int]:
    return encode_properties({TAGS: kind}), tags_code(kind)


_KINDS: Final = {
    SessionRecord: _kind("session"),
    EndRecord: _kind("end"),
    MarksRecord: _kind("marks"),
    TickRecord: _kind("tick"),
    StartedRecord: _kind("started"),
}
