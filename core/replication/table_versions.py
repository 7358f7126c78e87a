"""The tables of a master as its slaves follow them: one request that names what a slave has.

Owns: the bodies of FOLLOW_TABLES and of its answer. Must not touch: what is in a table, sockets.

A slave asks with the version of each table that is on its disk, so that its question acknowledges
them. Versions count from the start of the master's process: another ``epoch`` has others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

#: How long a master holds the request while nothing has changed. Then tables come that change all
#: the time: consume offsets, what is popped in order, and how far delayed messages are delivered.
HOLD_S: Final = 5.0


class Have(msgspec.Struct, frozen=True):
    """What a slave has."""

    epoch: str = ""
    versions: Mapping[str, int] = {}


class Versioned(msgspec.Struct, frozen=True):
    """One table."""

    version: int
    content: msgspec.Raw


class Newer(msgspec.Struct, frozen=True):
    """The tables that have other versions, of a log that ends at ``end_offset`` or behind it."""

    epoch: str
    end_offset: int
    tables: dict[str, Versioned]


encode: Final = msgspec.json.Encoder().encode
decode_have: Final = msgspec.json.Decoder(Have).decode
decode_newer: Final = msgspec.json.Decoder(Newer).decode
