"""How many bytes went over a connection, in all and in the last whole second.

Owns: RateMeter. Must not touch: connections.
"""

from __future__ import annotations

from motelog.core.clock import Clock


class RateMeter:
    """Counts by seconds of a steady clock."""

    __slots__ = ("_before", "_clock", "_count", "_second", "total")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.total = 0
        self._second = 0
        self._count = 0
        self._before = 0

    def note(self, count: int) -> None:
        """Count bytes that have just been sent or received."""
        self._turn()
        self._count += count
        self.total += count

    @property
    def per_s(self) -> int:
        """The bytes of the last whole second."""
        self._turn()
        return self._before

    def _turn(self) -> None:
        second = self._clock.monotonic_ms() // 1000
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
