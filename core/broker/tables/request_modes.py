"""How groups get the messages of a topic: by pulls, or by POP.

Owns: RequestModes, messageRequestMode.json. Must not touch: files, which member gets which queue.
Spec: RocketMQ MessageRequestModeManager, SetMessageRequestModeRequestBody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.fields import Int32


class RequestMode(msgspec.Struct, frozen=True, rename="camel"):
    """The chosen mode of one group in one topic."""

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = "PULL"
    # POP: how many of the next members share a member's queues; 0 or less: all.
    pop_share_queue_num: Int32 = 0


class RequestModes:
    """The chosen mode for each topic and group; others pull."""

    def __init__(self, *, entries_max: int) -> None:
        self._entries_max = entries_max
        self._table: dict[tuple[str, str], RequestMode] = {}
        self.version = 0
        self.is_dirty = False

    def get(self, topic: str, group: str) -> RequestMode:
        return self._table.get((topic, group)) or RequestMode(topic, group)

    def put(self, mode: RequestMode) -> None:
        """Set a mode; BrokerError if there are too many."""
        key = mode.topic, mode.consumer_group
        if key not in self._table and len(self._table) >= self._entries_max:
            text = f"the broker already keeps {self._entries_max} request modes"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        self._table[key] = mode
        self.version += 1
        self.is_dirty = True

    def snapshot(self) -> dict[str, Any]:
        """Return the content of messageRequestMode.json; a copy, which a thread may encode."""
        table: dict[str, dict[str, RequestMode]] = {}
        for (topic, group), mode in self._table.items():
            table.setdefault(topic, {})[group] = mode
        return {"messageRequestModeMap": table}

    def load(self, content: Mapping[str, Any]) -> None:
        """Load messageRequestMode.json; msgspec.ValidationError if it is invalid."""
        table = msgspec.convert(
            content.get("messageRequestModeMap", {}), dict[str, dict[str, RequestMode]]
        )
        self._table = {
            (topic, group): mode
            for topic, groups in table.items()
            for group, mode in groups.items()
        }
