"""A log's promise that a test keeps or breaks: core.broker.acknowledge.Acknowledge without a store.

Owns: how far it is, what was wanted, whom it tells. Must not touch: expectations.
"""

from __future__ import annotations

from collections.abc import Callable

from motelog.core.errors import FlushTimeoutError, StoredError, StoreError


class FakeAcknowledge:
    """Everything may be acknowledged, unless ``acknowledged_offset`` is set to less."""

    def __init__(self, acknowledged_offset: int = 1 << 62) -> None:
        self.timeout_ms = 5_000
        self.acknowledged_offset = acknowledged_offset
        self.wanted_offset = 0
        self.failure: StoreError | None = None
        self.failed_offset = 1 << 62
        self.listeners: list[Callable[[], None]] = []

    def lateness(self, end_offset: int) -> StoredError:
        return FlushTimeoutError(f"not on the disk within {self.timeout_ms} ms")

    def want(self, end_offset: int) -> None:
        self.wanted_offset = end_offset

    def grow_to(self, end_offset: int) -> None:
        """Allow everything below ``end_offset``, and say so."""
        self.acknowledged_offset = end_offset
        self.tell()

    def fail(self, error: StoreError) -> None:
        """Allow nothing more, and say so."""
        self.failure = error
        self.tell()

    def tell(self) -> None:
        for listener in list(self.listeners):
            listener()
