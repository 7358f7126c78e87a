"""Records as a pull returns them, built by hand for the Spark source's tests.

Owns: one record's bytes from its fields, Hypothesis strategies for rows and hostile variants.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from motelog.core.message import SYS_FLAG_BORN_IPV6, SYS_FLAG_COMPRESSED, SYS_FLAG_STORE_IPV6

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one record that the Spark source looks at."""

    queue_offset: int = 0
    body: bytes = b"{}"
    topic: bytes = b"telemetry"
    properties: bytes = b""
    queue_id: int = 0
    sys_flag: int = 0
    born_ms: int = 1_700_000_000_000
    store_ms: int = 1_700_000_000_500
    magic: int = MAGIC_V1

    def encode(self) -> bytes:
        born_host = bytes(20 if self.sys_flag & SYS_FLAG_BORN_IPV6 else 8)
        store_host = bytes(20 if self.sys_flag & SYS_FLAG_STORE_IPV6 else 8)
        crc = zlib.crc32(self.body) & 0x7FFFFFFF
        rest = b"".join(
            (
                struct.pack(">IIi", self.magic, crc, self.queue_id),
                struct.pack(">iqqI", 0, self.queue_offset, 0, self.sys_flag & 0xFFFFFFFF),
                struct.pack(">q", self.born_ms) + born_host,
                struct.pack(">q", self.store_ms) + store_host,
                struct.pack(">iqi", 0, 0, len(self.body)) + self.body,
                struct.pack(">H" if self.magic == MAGIC_V2 else ">B", len(self.topic)),
                self.topic,
                struct.pack(">h", len(self.properties)) + self.properties,
            )
        )
        return struct.pack(">I", len(rest) + 4) + rest


def property_text(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def telemetry(
    offset: int, device: str = "dev1", value: float = 1.5, *, store_ms: int = 1_700_000_000_000
) -> Record:
    """Return what the gateway stores for one JSON telemetry message."""
    return Record(
        queue_offset=offset,
        body=f'{{"value": {value}}}'.encode(),
        properties=property_text(
            {"TAGS": device, "KEYS": f"k{offset}", "mqttRealTopic": f"telemetry/{device}/temp"}
        ),
        born_ms=store_ms - 3,
        store_ms=store_ms,
    )


@dataclass(slots=True)
class Queue:
    """An in-memory queue that answers pulls as a broker does."""

    queue_id: int = 0
    records: list[Record] = field(default_factory=list)
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.records)

    def put(self, *records: Record) -> None:
        for record in records:
            placed = replace(record, queue_offset=self.max_offset, queue_id=self.queue_id)
            self.records.append(placed)

    def expire(self, count: int) -> None:
        del self.records[:count]
        self.min_offset += count


OF_MQTT = ("mqttRealTopic", "qosLevel", "mqttRetain", "clientId", "mqttProperties")
_names = st.sampled_from(
    ["TAGS", "KEYS", *OF_MQTT, "a", "b", "", "é", "\U0001f600"],
)
_texts = st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02"),
    max_size=12,
)
_property_texts = st.one_of(
    st.dictionaries(_names, _texts, max_size=5).map(property_text),
    st.lists(st.tuples(_names, _texts), max_size=40).map(
        lambda pairs: b"\x02".join(f"{name}\x01{value}".encode() for name, value in pairs)
    ),
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([b"TAGS", b"\x01", b"\x02", b"a", b"\xe2\x82", b"\xed\xa0\x80", b"\xff"]),
        max_size=20,
    ).map(b"".join),
)
_times = st.one_of(
    st.integers(0, 4_000_000_000_000), st.integers(-(1 << 63), (1 << 63) - 1), st.just(-1)
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Draw a record whose framing is right, with anything inside."""
    body = draw(st.binary(max_size=40))
    sys_flag = draw(st.sampled_from([0, 0, 0x10, 0x20, 0x30, 0x80, 0x8000_0000]))
    match draw(st.sampled_from(["plain", "plain", "zlib", "torn", "wrong kind"])):
        case "zlib":
            body, sys_flag = zlib.compress(body * 4), sys_flag | SYS_FLAG_COMPRESSED
        case "torn":
            body, sys_flag = zlib.compress(body)[:-2], sys_flag | SYS_FLAG_COMPRESSED | 0x300
        case "wrong kind":
            sys_flag |= SYS_FLAG_COMPRESSED | 0x200
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    return Record(
        queue_offset=draw(st.integers(-2, 30)),
        body=body,
        topic=draw(st.one_of(st.just(b"telemetry"), st.binary(max_size=20))),
        properties=draw(_property_texts),
        queue_id=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        sys_flag=sys_flag,
        born_ms=draw(_times),
        store_ms=draw(_times),
        magic=magic,
    )


@st.composite
def pull_bodies(draw: st.DrawFn) -> bytes:
    """Draw concatenated records, sometimes with bytes changed, cut or added."""
    data = bytearray(b"".join(record.encode() for record in draw(st.lists(records(), max_size=6))))
    damage = draw(st.sampled_from(["none", "none", "flip", "cut", "add"]))
    if damage == "flip" and data:
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    elif damage == "cut" and data:
        del data[draw(st.integers(0, len(data) - 1)) :]
    elif damage == "add":
        data += draw(st.binary(max_size=100))
    return bytes(data)
