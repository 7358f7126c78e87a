"""Retained publishes: how many there may be, and the copy that goes into the log with each.

Owns: the limits on retained messages.
Must not touch: what is already retained (``state.retained``), which clients get it (``deliver``),
the append (``commit``).
Spec: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from typing import Final

from motelog.core.message import MQTT_RETAIN, encode_properties
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_unread import Written
from motelog.gateway.state.view import ViewError
from motelog.gateway.turn import Message

#: The part of a property text that says that the publisher has set RETAIN.
RETAIN_TEXT: Final = encode_properties({MQTT_RETAIN: "1"})


class Retaining:
    """Decides what may be retained at one gateway."""

    def __init__(
        self, store: RetainedStore, *, count_max: int, client_count_max: int, bytes_max: int
    ) -> None:
        self._store = store
        self.limit(count_max=count_max, client_count_max=client_count_max, bytes_max=bytes_max)

    def limit(self, *, count_max: int, client_count_max: int, bytes_max: int) -> None:
        """Apply these limits from now on; what is retained already stays."""
        self._count_max = count_max
        self._client_count_max = client_count_max
        self._bytes_max = bytes_max

    def has_room(self, client_id: str, name: bytes, message: Message) -> bool:
        """Return whether the limits allow ``message`` to be retained."""
        _, payload, properties, *_ = message
        if not payload:
            return True
        size_bytes = len(name) + len(payload) + len(properties)
        try:
            of_client = self._store.count_of(client_id)
            if self._fits(1, of_client + 1, size_bytes):
                return True
            replaced = self._store.get(name.decode())
        except ViewError:
            return False
        if replaced is None:
            return False
        is_own = replaced.client_id == client_id
        return self._fits(0, of_client + (not is_own), size_bytes - replaced.size_bytes)

    def _fits(self, count: int, of_client: int, size_bytes: int) -> bool:
        store = self._store
        return (
            store.count + count <= self._count_max
            and of_client <= self._client_count_max
            and store.size_bytes + size_bytes <= self._bytes_max
        )

    def write(self, name: bytes, message: Message) -> Written:
        """Return the copy of ``message``, or the removal of the old one if the payload is empty.

        The caller appends its record before the message in the same append, and sets its ticket.
        """
        return self._store.write(name.decode(), message)
