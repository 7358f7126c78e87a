"""An even rate: which publisher's message is due, and since when.

Owns: the times. Must not touch: clocks, packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

NS: Final = 1_000_000_000


class Pace:
    """Publishers send in turn, ``rate`` messages a second in total, from ``begun_ns`` on.

    A late message keeps its own due time, so that a stall of the server shows in the latency of
    each message that was due meanwhile.
    """

    def __init__(self, rate: int, publishers: int, begun_ns: int) -> None:
        self._rate = rate
        self._publishers = publishers
        self._begun_ns = begun_ns
        self._given = 0

    @property
    def next_ns(self) -> int:
        """When the next message is due."""
        return self._begun_ns + self._given * NS // self._rate

    def due(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Yield (number of the publisher, due time) of each due message, once."""
        while (due_ns := self.next_ns) <= now_ns:
            number = self._given % self._publishers
            self._given += 1
            yield number, due_ns
