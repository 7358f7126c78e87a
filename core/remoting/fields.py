"""The fields of requests as values: numbers of the sizes that the protocol has.

Owns: those sizes. Must not touch: sockets, what a field means.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)

# Members of JSON bodies; a number that is larger could be read and not be written again.
Int32 = Annotated[int, msgspec.Meta(ge=INT32.start, le=INT32.stop - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)]
