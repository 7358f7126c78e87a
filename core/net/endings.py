"""When connections end because a token or a client's certificate has expired.

Owns: Endings. Must not touch: connections, clocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

#: Times of connections that have already ended are removed when there are more than this many:
#: certificates are valid for years, and devices connect again each day.
SPARE: Final = 1024


class Endings:
    """Times (seconds since 1970) by the number of a connection; numbers are reused."""

    def __init__(self) -> None:
        #: (time, number), the earliest first; some are of connections that have ended.
        self._ending: list[tuple[float, int]] = []
        #: When connections end, by number, for those that do.
        self.ends_s: dict[int, float] = {}

    def begin(self, number: int, *ends_s: float | None) -> None:
        """Note that a new connection ends at the earliest of these times; None means never."""
        times = [one for one in ends_s if one is not None]
        if times:
            self.ends_s[number] = min(times)
            heapq.heappush(self._ending, (min(times), number))
            if len(self._ending) > 2 * len(self.ends_s) + SPARE:
                self._ending = [(ends_s, number) for number, ends_s in self.ends_s.items()]
                heapq.heapify(self._ending)
        else:
            self.ends_s.pop(number, None)

    def due(self, now_s: float) -> Iterator[int]:
        """Yield connections that have expired, each once; they may have ended before."""
        while self._ending and self._ending[0][0] <= now_s:
            ends_s, number = heapq.heappop(self._ending)
            if self.ends_s.get(number) == ends_s:
                del self.ends_s[number]
                yield number
