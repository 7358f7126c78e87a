"""How fast clients may publish and connect: reading from faster clients is paused.

Owns: a token bucket for each connection that publishes, one for new connections, which connections
are paused.
Must not touch: sockets (``output`` does), the content of packets: it counts them and their bytes.
Invariants: no packet is dropped and no client is disconnected, as what is not read waits in the
sockets. A bucket holds what arrives at the rate in BURST_MS, so that a pause that ends late costs
no throughput. Time is an argument, in milliseconds of a clock that does not go back.

A bucket is one number, the time at which it is full again (GCRA). A connection is paused while
this time is more than BURST_MS away.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Final

from motelog.gateway.sessions.output import Output

#: How much a client may send at once, and how many clients may connect at once, as time at the
#: configured rate.
BURST_MS: Final = 1000
_PUBLISH: Final = 0x30


class Rates:
    """The rate limits of one gateway's connections; 0 means no limit."""

    def __init__(
        self,
        output: Output,
        *,
        publishes_per_s: int,
        publish_bytes_per_s: int,
        connects_per_s: int,
    ) -> None:
        self._output = output
        #: Connection -> when its bucket is full again, for connections that have published.
        self._full_ms: dict[int, float] = {}
        self._connects_full_ms = 0.0
        #: Connection -> when it is read again; the same as a heap, with some outdated entries.
        self._paused: dict[int, float] = {}
        self._resumes: list[tuple[float, int]] = []
        self.limit(
            publishes_per_s=publishes_per_s,
            publish_bytes_per_s=publish_bytes_per_s,
            connects_per_s=connects_per_s,
        )

    def limit(self, *, publishes_per_s: int, publish_bytes_per_s: int, connects_per_s: int) -> None:
        """Apply these limits from now on; a paused connection stays paused until its time."""
        self._message_ms = 1000 / publishes_per_s if publishes_per_s else 0.0
        self._byte_ms = 1000 / publish_bytes_per_s if publish_bytes_per_s else 0.0
        self._connect_ms = 1000 / connects_per_s if connects_per_s else 0.0
        self.limits_publishes = bool(publishes_per_s or publish_bytes_per_s)
        #: Whether there is any limit. Only then are there pauses that ``resume_due`` must end.
        self.is_on = self.limits_publishes or bool(connects_per_s)

    def opened(self, connections: Iterable[int], now_ms: int) -> None:
        """Add new connections before they are read from; above the rate, CONNECT is read later."""
        for connection in connections:
            self._full_ms.pop(connection, None)
            self._paused.pop(connection, None)
            if self._connect_ms:
                full_ms = max(self._connects_full_ms, now_ms) + self._connect_ms
                self._connects_full_ms = full_ms
                self._pause_until(connection, full_ms - BURST_MS, now_ms)

    def received(self, data: Any, index: Any, now_ms: int) -> None:
        """Count the publishes of one turn; pause connections that have sent more than they may."""
        counts: dict[int, list[int]] = {}
        numbers = memoryview(index).cast("B").cast("I").tolist()
        for at in range(0, len(numbers), 4):
            connection, _, begin, end = numbers[at : at + 4]
            if data[begin] & 0xF0 == _PUBLISH:
                count = counts.get(connection)
                if count is None:
                    counts[connection] = [1, end - begin]
                else:
                    count[0] += 1
                    count[1] += end - begin
        for connection, (messages, size) in counts.items():
            cost_ms = max(messages * self._message_ms, size * self._byte_ms)
            full_ms = max(self._full_ms.get(connection, 0.0), now_ms) + cost_ms
            self._full_ms[connection] = full_ms
            self._pause_until(connection, full_ms - BURST_MS, now_ms)

    def _pause_until(self, connection: int, resume_ms: float, now_ms: int) -> None:
        if resume_ms > now_ms:
            self._output.pause(connection)
            self._paused[connection] = resume_ms
            heappush(self._resumes, (resume_ms, connection))

    def resume_due(self, now_ms: int) -> None:
        """Resume reading from connections whose pause is over."""
        resumes = self._resumes
        while resumes and resumes[0][0] <= now_ms:
            resume_ms, connection = heappop(resumes)
            if self._paused.get(connection) == resume_ms:
                del self._paused[connection]
                self._output.resume(connection)
