"""The beginnings of packets, for people who trace a client's traffic.

Owns: splitting a stream into packets by their heads, the fields of a head.
Must not touch: payloads, user properties, logins; none of them is returned.
Invariants: the heads do not depend on how the stream is divided. At most HEAD_BYTES_MAX of a packet
are stored. Nothing here raises for a peer's bytes: what cannot be parsed is omitted.
Spec: MQTT 5.0 sections 2.1 and 3; 3.1.1 likewise.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.fields import FieldReader
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.mqtt.properties import read_properties

#: The bytes stored of each packet: enough for its names, and never a whole large payload.
HEAD_BYTES_MAX: Final = 1024
#: The shown length of a topic name, and the shown filters of one packet.
NAME_CHARACTERS_MAX: Final = 256
NAMES_MAX: Final = 16
CODES_MAX: Final = 64
_HEADER_BYTES_MAX: Final = 5
_ACKS: Final = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)


@dataclass(slots=True)
class PacketHead:
    """One packet: its type, its size with header, and the other fields of its head."""

    type: str
    packet_bytes: int
    topic: str | None = None
    topic_alias: int | None = None
    qos: int | None = None
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    filters: list[str] = field(default_factory=list)
    reason_codes: list[int] = field(default_factory=list)


class PacketHeads:
    """One direction of a connection; ``version`` is 3, 4 or 5."""

    def __init__(self, version: int, *, from_server: bool) -> None:
        self._version = version
        self._from_server = from_server
        self._head = bytearray()
        self._size = 0
        self._left = 0  # of the body, still to come
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Skip this many bytes, which end with a packet."""
        self._skipped = count

    def feed(self, data: bytes) -> list[PacketHead]:
        """Return the packets that ``data`` completes."""
        found = []
        at = min(self._skipped, len(data))
        self._skipped -= at
        head = self._head
        while at < len(data):
            if self._left:
                part = min(self._left, len(data) - at)
                head += data[at : at + min(part, HEAD_BYTES_MAX - len(head))]
                self._left -= part
                at += part
            else:
                head.append(data[at])
                at += 1
                is_whole = len(head) > 1 and head[-1] < 128
                if not is_whole and len(head) < _HEADER_BYTES_MAX:
                    continue
                groups = [byte & 127 for byte in head[1:]]
                self._left = sum(group << 7 * i for i, group in enumerate(groups))
                self._size = len(head) + self._left
            if not self._left:
                found.append(
                    read_head(bytes(head), self._size, self._version, from_server=self._from_server)
                )
                head.clear()
        return found


def read_head(head: bytes, size: int, version: int, *, from_server: bool) -> PacketHead:
    """Return the fields in the first bytes of a packet; ``size`` is that of the whole packet."""
    kind = head[0] >> 4
    body_at = next((i + 1 for i in range(1, len(head)) if head[i] < 128), len(head))
    try:
        one = PacketHead(PacketType(kind).name, size)
    except ValueError:
        return PacketHead("reserved", size)
    reader = FieldReader(head[body_at:])
    # What cannot be parsed is after the head or malformed: the gateway's codec reports it.
    with suppress(GatewayError):
        _read_body(one, PacketType(kind), head[0], reader, version, from_server=from_server)
    return one


def _read_body(
    one: PacketHead,
    kind: PacketType,
    first_byte: int,
    reader: FieldReader,
    version: int,
    *,
    from_server: bool,
) -> None:
    if kind == PacketType.PUBLISH:
        one.qos = first_byte >> 1 & 3
        one.retain, one.dup = bool(first_byte & 1), bool(first_byte & 8)
        one.topic = _name(reader)
        if one.qos:
            one.packet_id = reader.u16()
        if version == 5:
            one.topic_alias = read_properties(reader, kind, from_server=from_server).topic_alias
    elif kind in _ACKS:
        one.packet_id = reader.u16()
        if version == 5:
            one.reason_codes = [reader.u8() if len(reader) else 0]
    elif kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
        one.packet_id = reader.u16()
        if version == 5:
            reader.part(reader.varint())
        while len(reader) and len(one.filters) < NAMES_MAX:
            one.filters.append(_name(reader))
            if kind == PacketType.SUBSCRIBE:
                reader.u8()
    elif kind in (PacketType.SUBACK, PacketType.UNSUBACK):
        one.packet_id = reader.u16()
        if version == 5:
            reader.part(reader.varint())
        one.reason_codes = list(reader.rest()[:CODES_MAX])
    elif kind == PacketType.CONNACK:
        reader.u8()
        one.reason_codes = [reader.u8()]
    elif kind in (PacketType.DISCONNECT, PacketType.AUTH) and version == 5:
        one.reason_codes = [reader.u8() if len(reader) else 0]


def _name(reader: FieldReader) -> str:
    """Return a name, as far as the head contains it and it is shown."""
    length = reader.u16()
    cut = reader.bytes_of(min(length, len(reader)))
    text = cut.decode(errors="replace")
    is_cut = len(cut) < length or len(text) > NAME_CHARACTERS_MAX
    return text[:NAME_CHARACTERS_MAX] + ("..." if is_cut else "")
