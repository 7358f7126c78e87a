"""The handle with which a producer recalls a delayed message.

Owns: the handle's format. Must not touch: sockets, what a recall does
(core.broker.processors.recall).
Spec: RocketMQ RecallMessageHandle.

    base64url("v1 <topic> <broker name> <due time in ms> <unique key>")
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """The message to recall, and the broker that has it."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str | None:
        """Return the handle as text; None if a part contains a space, the separator."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key)
        if not all(parts) or any(" " in part for part in parts):
            return None
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Return the parsed handle; ValueError if it is malformed."""
    try:
        raw = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), b"-_", True)
        version, topic, broker_name, due, unique_key = raw.decode().split(" ")
    except (binascii.Error, ValueError) as exc:
        raise ValueError("the recall handle is invalid") from exc
    if version != _VERSION or not (due.isascii() and due.isdecimal() and len(due) <= 18):
        raise ValueError("the recall handle is invalid")
    return RecallHandle(topic, broker_name, int(due), unique_key)
