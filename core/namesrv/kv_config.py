"""The key-value table of the name server: order topics, and entries that tools store.

Owns: the entries, their limits, their JSON shape. Must not touch: sockets, files.
Spec: RocketMQ KVConfigManager, KVConfigSerializeWrapper.

    kvConfig.json   {"configTable": {"ORDER_TOPIC_CONFIG": {"TOPIC": "broker-a:4"}}}

Invariant: a namespace without entries does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Entries by namespace and key."""

    def __init__(self, *, entries_max: int, entry_characters_max: int, characters_max: int) -> None:
        self._entries_max = entries_max
        self._entry_characters_max = entry_characters_max
        self._characters_max = characters_max
        self._entries_count = 0
        self._characters_count = 0
        self._table: dict[str, dict[str, str]] = {}
        self.is_dirty = False

    def __len__(self) -> int:
        return self._entries_count

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return a view of the entries of a namespace, None if it does not exist."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Add or replace an entry; BrokerError if the entry or the table would be too large."""
        characters = len(namespace) + len(key) + len(value)
        if characters > self._entry_characters_max:
            text = f"the key-value entry has {characters} characters"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        known = self.get(namespace, key)
        if known is None and self._entries_count >= self._entries_max:
            text = f"more than {self._entries_max} key-value entries"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        added = characters if known is None else len(value) - len(known)
        if added > 0 and self._characters_count + added > self._characters_max:
            text = f"the key-value entries have more than {self._characters_max} characters"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        self._table.setdefault(namespace, {})[key] = value
        self._entries_count += known is None
        self._characters_count += added
        self.is_dirty = True

    def delete(self, namespace: str, key: str) -> None:
        """Remove an entry; no effect if there is none."""
        table = self._table.get(namespace, {})
        value = table.pop(key, None)
        if value is None:
            return
        self._entries_count -= 1
        self._characters_count -= len(namespace) + len(key) + len(value)
        if not table:
            del self._table[namespace]
        self.is_dirty = True

    def snapshot(self) -> dict[str, Any]:
        """Return the content of kvConfig.json; a copy that can be encoded in a thread."""
        return {"configTable": {name: dict(table) for name, table in self._table.items()}}

    def load(self, content: Mapping[str, Any]) -> None:
        """Load the content of kvConfig.json; msgspec.ValidationError if it is malformed.

        Entries above the limits are kept, because they were accepted before.
        """
        table = msgspec.convert(content.get("configTable", {}), dict[str, dict[str, str]])
        self._table = {name: entries for name, entries in table.items() if entries}
        self._recount()

    def _recount(self) -> None:
        self._entries_count = sum(map(len, self._table.values()))
        self._characters_count = sum(
            len(name) + len(key) + len(value)
            for name, entries in self._table.items()
            for key, value in entries.items()
        )

    def _check(self) -> None:
        """Assert that the running counts agree with the entries."""
        counts = (self._entries_count, self._characters_count)
        self._recount()
        assert counts == (self._entries_count, self._characters_count)
        assert all(self._table.values())
