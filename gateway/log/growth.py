"""Growth as a port notes it that hears of each queue by itself.

Owns: NotedGrowth, a ``log_port.Growth``. Must not touch: queues, and who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from motelog.gateway.log.log_port import QueueHandle


class NotedGrowth:
    """The queues that have grown; ``wake`` is called when there are some where there were none."""

    __slots__ = ("queues", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.queues: dict[QueueHandle, None] = {}
        self.wake = wake

    def note(self, queues: Iterable[QueueHandle]) -> None:
        """Note queues that have more to read."""
        is_awake = bool(self.queues)
        self.queues.update(dict.fromkeys(queues))
        if self.queues and not is_awake:
            self.wake()

    def take(self) -> list[QueueHandle]:
        """Return the queues that have grown since the last call."""
        grown = list(self.queues)
        self.queues.clear()
        return grown
