"""JSON files that carry a checksum of themselves and that RocketMQ reads as its own.

Owns: where the checksum is and what it covers. Must not touch: files, the content of the objects.

    {
     "crc32c": "0a1b2c3d",        CRC-32C of all bytes after this line
     "dataVersion": ...           the object; RocketMQ ignores keys that it does not know
    }

Text without that line was written by RocketMQ or by hand, and is not checked.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from crc32c import crc32c

KEY: Final = "crc32c"
_OPENING: Final = b"{\n"
_HEAD: Final = re.compile(rb'\{\n "crc32c": "([0-9a-f]{8})",\n')


def seal(text: bytes) -> bytes:
    """Return the JSON object in ``text``, which is not empty, with its checksum."""
    pretty = msgspec.json.format(text, indent=1)
    rest = pretty.removeprefix(_OPENING)
    assert len(rest) < len(pretty), "an object that is not empty"
    return b'%s "%s": "%08x",\n%s' % (_OPENING, KEY.encode(), crc32c(rest), rest)


def seal_fault(data: bytes) -> str | None:
    """Return the fault if the content contradicts its checksum; None if not, or without one."""
    head = _HEAD.match(data)
    if head is None:
        return None
    said, found = head[1].decode(), f"{crc32c(data[head.end() :]):08x}"
    if said == found:
        return None
    # Advice for a person who changed it by hand.
    return (
        f'the checksum of the content is {found}, not {said} as its line "{KEY}" says; '
        "without that line it is not compared"
    )
