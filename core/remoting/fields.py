"""Reading the fields of requests; an error names the field that is missing or invalid.

Owns: reading one field of a header, the ranges of numbers. Must not touch: sockets, the meaning of
fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode

INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)

# For members of JSON bodies: a larger number could be read, but not written.
Int32 = Annotated[int, msgspec.Meta(ge=INT32.start, le=INT32.stop - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)]


def text_field(ext: Mapping[str, str], name: str) -> str:
    """Return a required header field; BrokerError(SYSTEM_ERROR) if it is missing."""
    value = ext.get(name)
    if value is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the field {name} is missing")
    return value


def int_field(
    ext: Mapping[str, str], name: str, default: int | None = None, *, values: range = INT64
) -> int:
    """Return a number from the header; BrokerError(SYSTEM_ERROR) if missing or invalid."""
    text = ext.get(name)
    if text is None:
        if default is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the field {name} is missing")
        return default
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or value not in values:
        shown = ascii(text[:32])
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the field {name} is {shown}, not a number")
    return value


def int32_field(ext: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a 32-bit number from the header; errors are those of ``int_field``."""
    return int_field(ext, name, default, values=INT32)


def bool_field(ext: Mapping[str, str], name: str) -> bool:
    """Return whether the field is ``true``, or ``1`` as C++ clients write; False if missing."""
    return ext.get(name) in ("true", "True", "1")
