"""Growth for a port that notes each grown queue itself.

Owns: NotedGrowth, a ``log_port.Growth``. Must not touch: queues and their readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from motelog.gateway.log.log_port import QueueHandle


class NotedGrowth:
    """The queues that have grown; ``wake`` is called each time that they stop being empty."""

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
