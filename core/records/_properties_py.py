"""Values from the text of a message's properties, for the kernels' references.

Same results as _properties.pxd; core.message decodes a whole text.
"""

from __future__ import annotations

from typing import Final

NAMED_KEYS: Final = (b"UNIQ_KEY\x01", b"KEYS\x01")


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Return the last non-empty value of ``name``, as decode_properties does."""
    value = None
    for item in properties.split(b"\x02"):
        key, found, text = item.partition(b"\x01")
        if found and text and key == name:
            value = text
    return value


def has_keys(properties: bytes) -> bool:
    """Return whether a property text has a UNIQ_KEY or KEYS that is not empty."""
    return any(
        item.startswith(name) and len(item) > len(name)
        for item in properties.split(b"\x02")
        for name in NAMED_KEYS
    )
