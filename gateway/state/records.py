"""Records of ``MQTT_SESSION``: the content of each kind, and its encoding as a log message.

Owns: the kinds, their encoding, the properties by which consumers distinguish them.
Must not touch: the effects of a record (``progress``, ``session_rows``), the log.

    properties   TAGS = the kind; KEYS = the client identifier, if the record is about one
    body         msgpack [kind, gateway, run, number, ...], decoded by its first item

``run`` identifies one life of a gateway's process, ``number`` counts its records: with both, a
gateway recognises its own records when it reads them back.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from motelog.core.message import KEYS, TAGS, encode_host, encode_properties, tags_code
from motelog.gateway.log.log_port import QueueHandle
from motelog.gateway.state.stored import FiltersChange, Mark, Progress, StoredSession

_HOST: Final = encode_host("127.0.0.1", 0)


class SessionRecord(msgspec.Struct, frozen=True, array_like=True, tag="session"):
    """The whole state of one session.

    ``repeats`` is the queue offset of an old record that this one repeats unchanged. Then it has an
    effect only if the old record was still the current one. ``claim`` is the number of the
    gateway's claim that this record settles, 0 if none.
    """

    gateway: str
    run: int
    number: int
    session: StoredSession
    repeats: int | None = None
    claim: int = 0


class EndRecord(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The session has ended; ``claim`` as in SessionRecord.

    ``unless`` is the name of a group of which this was a part: the record has no effect if, at its
    place in the order, the group has a member that its writer did not know.
    """

    gateway: str
    run: int
    number: int
    client_id: str
    claim: int = 0
    unless: str = ""


class FiltersRecord(msgspec.Struct, frozen=True, array_like=True, tag="filters"):
    """Filters that a connected session has got or lost since its last whole record.

    So SUBSCRIBE costs the same however many filters the session has. It has an effect only if the
    run that wrote it has the session.
    """

    gateway: str
    run: int
    number: int
    change: FiltersChange


class MarksRecord(msgspec.Struct, frozen=True, array_like=True, tag="marks"):
    """Steps of QoS 2 exchanges, in order."""

    gateway: str
    run: int
    number: int
    marks: tuple[Mark, ...]


class TickRecord(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """A gateway's delivery progress: changed live positions, and sessions that are not at them.

    ``heard`` is the queue offset up to which it has read back the records of all gateways. ``left``
    are queues that it has stopped reading since the last tick: their positions no longer count.
    """

    gateway: str
    run: int
    number: int
    positions: dict[str, int]
    progress: tuple[Progress, ...]
    heard: int = 0
    left: tuple[str, ...] = ()


class StartedRecord(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """A gateway has started: its earlier runs are over."""

    gateway: str
    run: int
    number: int


class StoppedRecord(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """A gateway ends: this run is over."""

    gateway: str
    run: int
    number: int


class LostRecord(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """Another gateway's run is over, because it was silent.

    ``last_number`` is that of its last record: if it has written one since, this has no effect.
    """

    gateway: str
    run: int
    number: int
    lost_run: int
    last_number: int


class ClaimRecord(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """A gateway wants these client identifiers: to serve their clients, or change their sessions.

    ``lasting`` are those for which it will write a record that settles the claim. ``passing`` are
    those whose sessions end with their connections, so there may be no such record. ``away`` are
    like ``lasting``, but no gateway has to hand them over: their sessions are changed only while
    they are away. ``given_up`` settles earlier claims that have no such record: all claims of the
    client identifier up to that number. ``owners`` has the users who want client identifiers, if
    known: the session of another user is not handed over.
    """

    gateway: str
    run: int
    number: int
    lasting: tuple[str, ...]
    passing: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    given_up: tuple[tuple[str, int], ...] = ()
    owners: dict[str, str] = {}


Record: TypeAlias = (
    SessionRecord
    | EndRecord
    | FiltersRecord
    | MarksRecord
    | TickRecord
    | StartedRecord
    | StoppedRecord
    | LostRecord
    | ClaimRecord
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


def decode_record(body: bytes) -> Record:
    """Return the decoded body of a record; msgspec.DecodeError if it is not one of ours."""
    record: Record = _decoder.decode(body)
    return record


def message_of(record: Record, queue: QueueHandle, now_ms: int) -> tuple[Any, ...]:
    """Return the message that LogPort appends for ``record``."""
    text, code = _KINDS[type(record)]
    if isinstance(record, SessionRecord):
        text += encode_properties({KEYS: record.session.client_id})
    elif isinstance(record, EndRecord):
        text += encode_properties({KEYS: record.client_id})
    elif isinstance(record, FiltersRecord):
        text += encode_properties({KEYS: record.change.progress.client_id})
    return (queue, _encoder.encode(record), text, code, now_ms, _HOST, 0, 0, 0, 0)


def _kind(kind: str) -> tuple[bytes, int]:
    return encode_properties({TAGS: kind}), tags_code(kind)


_KINDS: Final = {
    SessionRecord: _kind("session"),
    EndRecord: _kind("end"),
    FiltersRecord: _kind("filters"),
    MarksRecord: _kind("marks"),
    TickRecord: _kind("tick"),
    StartedRecord: _kind("started"),
    StoppedRecord: _kind("stopped"),
    LostRecord: _kind("lost"),
    ClaimRecord: _kind("claim"),
}
