"""An even rate: whose message is due, and since when.

Owns: the times. Must not touch: clocks, packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

NS: Final = 1_000_000_000


class Pace:
    """Publishers send in turn, ``rate`` messages a second in all, from ``begun_ns`` on.

    A message that is late is due since its own time, so that a server that stands still shows in
    the latency of each message that came meanwhile.
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
        """Give (number of the publisher, since when) of each message that is due, once."""
        while (due_ns := self.next_ns) <= now_ns:
            number = self._given % self._publishers
            self._given += 1
            yield number, due_ns
