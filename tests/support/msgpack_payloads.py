"""MessagePack for tests of the payload parser: values at limits and beyond, nearly right payloads.

Owns: the fields of such payloads, and payloads made of bytes, without an encoder.
"""

from __future__ import annotations

import random

from motelog.spark.payload_fields import Field, Kind, numbered
from tests.support.payloads import FIELDS

MSGPACK_FIELDS = (*FIELDS, Field("raw", Kind.BINARY))
MSGPACK_NODES = numbered(MSGPACK_FIELDS)


def text(value: str | bytes) -> bytes:
    """Return a str of up to 255 bytes."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([0xD9, len(data)]) + data if len(data) > 31 else bytes([0xA0 | len(data)]) + data


_TEXTS = (
    "", "a", "\u00e9\U0001f600", b"\xff", b"\xed\xa0\x80", "2026-11-21", "2023-02-29",
    "2026-11-21T03:00:00Z", "2026-11-21T03:00:00.5+01:30", "2026-11-21T03:00:00", "12.5", "-0.125",
    "1e8", "1e99", "1.", "NaN", "0", "x" * 40,
)  # fmt: skip
#: Values as a payload has them: every first byte, numbers at their limits, arrays and maps.
MSGPACK_VALUES = (
    *(bytes([first]) for first in range(256)),
    *(bytes([first]) + bytes(16) for first in range(0xC4, 0xE0)),
    *(text(value) for value in _TEXTS),
    b"\xcc\x7f", b"\xcc\x80", b"\xcc\xff", b"\xcd\x7f\xff", b"\xcd\x80\x00",
    b"\xce\x7f\xff\xff\xff",
    b"\xce\x80\x00\x00\x00", b"\xcf\x7f" + b"\xff" * 7, b"\xcf\x80" + bytes(7),
    b"\xcf" + b"\xff" * 8,
    b"\xd0\x80", b"\xd0\x7f", b"\xd1\xff\x7f", b"\xd1\x80\x00", b"\xd2\x80\x00\x00\x00",
    b"\xd2\xff\xff\x7f\xff", b"\xd3\x80" + bytes(7), b"\xd3\xff\xff\xff\xff\x7f\xff\xff\xff",
    b"\xcf\x00\x00\xe6\x77\xd2\x1f\xdb\xff", b"\xcf\x00\x00\xe6\x77\xd2\x1f\xdc\x00",
    b"\xd3\xff\xff\xc7\x7c\xed\xd3\x28\x00", b"\xd3\xff\xff\xc7\x7c\xed\xd3\x27\xff",
    b"\xca\x3f\x80\x00\x00", b"\xca\x7f\x80\x00\x00", b"\xca\x7f\xc0\x00\x00",
    b"\xca\x7f\x7f\xff\xff",
    b"\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a", b"\xcb\x7f\xf0" + bytes(6), b"\xcb\xff\xf0" + bytes(6),
    b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x47\xf0" + bytes(6), b"\xcb\x7f\xef" + b"\xff" * 6,
    b"\xc4\x03\x00\xff\x61", b"\xc4\x00", b"\xc5\x00\x01a", b"\xc6\x00\x00\x00\x01a", b"\xc4\x09a",
    b"\xda\x00\x01a", b"\xdb\x00\x00\x00\x01a", b"\xdb\xff\xff\xff\xffa",
    b"\xd6\xff\x65\x53\xf1\x00", b"\xd6\x01\x65\x53\xf1\x00", b"\xd6\xff\xff\xff\xff\xff",
    b"\xd7\xff\x00\x00\x0f\xa0\x65\x53\xf1\x00", b"\xd7\xff\xee\x6b\x28\x00\x65\x53\xf1\x00",
    b"\xd7\xff\xee\x6b\x27\xff\x65\x53\xf1\x00", b"\xd7\xff" + b"\xff" * 8,
    b"\xc7\x0c\xff\x00\x00\x03\xe7" + b"\xff" * 8, b"\xc7\x0c\xff\x3b\x9a\xca\x00" + bytes(8),
    b"\xc7\x0c\xff" + bytes(4) + b"\x00\x00\x00\x3a\xff\xf4\x41\x7f",
    b"\xc7\x0c\xff" + bytes(4) + b"\x00\x00\x00\x3a\xff\xf4\x41\x80",
    b"\xc7\x0c\xff" + bytes(4) + b"\xff\xff\xff\xf1\x88\x6e\x09\x00",
    b"\xc7\x0c\xff" + bytes(4) + b"\xff\xff\xff\xf1\x88\x6e\x08\xff",
    b"\xc7\x04\xff\x65\x53\xf1\x00", b"\xc8\x00\x04\xff\x65\x53\xf1\x00", b"\xc7\x00\xff",
    b"\x93\x01\xc0\x02", b"\xdc\x00\x01\x05", b"\xdd\x00\x00\x00\x01\x05",
    b"\xdd\xff\xff\xff\xff\x01",
    b"\x81\xa3lat\x01", b"\x82\xa3lat\x01\xa3lat\x02", b"\x82\xa3lat\xc0\xa2\xc3\xa9\xa1x",
    b"\xde\x00\x01\xa3lat\x01", b"\xdf\x00\x00\x00\x01\xa3lat\x01",
    b"\xdf\xff\xff\xff\xff\xa3lat\x01",
    b"\x83\x01\x02\xc0\x03\x91\x01\x81\xa1a\xc0", b"\x81\xc4\x03lat\x01", b"\x81\xa1\xff\x01",
    b"\x92\x82\xa1x\x92\xa1a\xc0\xa1y\x05\xc0", b"\x91\x81\xa1x\x91\x01", b"\x9f" + b"\x80" * 15,
    b"\x91" * 61 + b"\x90", b"\x91" * 62 + b"\x90", b"\x91" * 70, b"\x81\xc0" * 70,
)  # fmt: skip


def random_msgpack(chance: random.Random) -> bytes:
    """Return a map with fields of the tree, mostly right, sometimes damaged."""
    items = []
    for _ in range(chance.randrange(6)):
        name = chance.choice([*(field.name for field in MSGPACK_FIELDS), "other", "pos"])
        items.append(text(name) + chance.choice(MSGPACK_VALUES))
    return damaged(chance, bytes([0x80 | len(items)]) + b"".join(items))


def damaged(chance: random.Random, payload: bytes) -> bytes:
    """Return a payload as it is, more often than not, or with some bytes changed, lost or new."""
    data = bytearray(payload)
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + chance.randrange(1, 4)]
            case _:
                data[at:at] = chance.randbytes(chance.randrange(1, 4))
    return bytes(data)
