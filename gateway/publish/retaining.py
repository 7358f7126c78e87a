"""Retained publishes: the copies that go into the log with them, and how many there may be.

Owns: the copies of one append, the limits on retained messages.
Must not touch: what is retained already (``state.retained`` has it), who gets it (``deliver``).
Invariant: a copy lies before its message in the same append. So whoever subscribes meanwhile gets
the message live, or retained, or both ways, and never neither.
Spec: MQTT 5.0 section 3.3.1.3.
"""

from __future__ import annotations

from typing import Any, Final

from motelog.core.message import MQTT_RETAIN, encode_properties
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.state.retained import RetainedStore, Written
from motelog.gateway.state.view import ViewError

#: The part of a property text that says that the publisher has set RETAIN.
RETAIN_TEXT: Final = encode_properties({MQTT_RETAIN: "1"})


class Retaining:
    """Collects the copies for one append: ``add`` each, ``take`` them all, tell their ticket."""

    def __init__(
        self, store: RetainedStore, *, count_max: int, client_count_max: int, bytes_max: int
    ) -> None:
        self._store = store
        #: What is to be appended with the next batch.
        self.added: list[Written] = []
        self.limit(count_max=count_max, client_count_max=client_count_max, bytes_max=bytes_max)

    def limit(self, *, count_max: int, client_count_max: int, bytes_max: int) -> None:
        """Have these limits from now on; what is retained stays."""
        self._count_max = count_max
        self._client_count_max = client_count_max
        self._bytes_max = bytes_max

    def has_room(self, client_id: str, name: bytes, message: tuple[Any, ...]) -> bool:
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

    def add(self, name: bytes, message: tuple[Any, ...]) -> None:
        """Have ``message`` retained, or with an empty payload the one before it removed."""
        self.added.append(self._store.write(name.decode(), message))

    def take(self) -> list[tuple[Any, ...]]:
        """Return the copies, to be appended before their messages."""
        return [written.record for written in self.added]

    def appended(self, ticket: Ticket) -> None:
        """Take the ticket of the append."""
        for written in self.added:
            written.ticket = ticket
        self.added.clear()
