"""The limit on what all connections together hold.

Owns: who is closed when it is exceeded, or the process has no memory left. Must not touch: how they
end (``connect``), what holds the bytes (``output``).

Each connection has bounds of its own (``output_bytes_max``, ``packet_bytes_max``); a hundred
thousand that all stop reading are within theirs, and take the machine's memory all the same.
"""

from __future__ import annotations

import logging
from typing import Final

from motelog.core import spare_memory
from motelog.gateway.connect.connections import Connections
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.output import Output

logger = logging.getLogger(__name__)

#: Who holds less is not worth closing.
HELD_BYTES_MIN: Final = 1024


class Memory:
    """Looks each second at what the connections of ``output`` hold; 0 sets no limit."""

    def __init__(
        self, output: Output, connections: Connections, metrics: GatewayMetrics, *, bytes_max: int
    ) -> None:
        self._output = output
        self._connections = connections
        self._metrics = metrics
        self.bytes_max = bytes_max

    def tick(self) -> None:
        """Close those that hold the most until what is left is within the limit.

        What waits for many is freed with the last of them, so the next tick may find more to do.
        """
        held_bytes = self._output.held_bytes()
        self._metrics.connections_held_bytes_now = held_bytes
        excess_bytes = held_bytes - self.bytes_max if self.bytes_max else 0
        why = "connections hold more than gateway.memory_bytes_max"
        if excess_bytes <= 0 and not spare_memory.keep():
            excess_bytes, why = spare_memory.SPARE_BYTES, "the process has no memory left"
        if excess_bytes <= 0:
            return
        closed = 0
        for size_bytes, number in sorted(self._output.holding(HELD_BYTES_MIN), reverse=True):
            if excess_bytes <= 0:
                break
            self._connections.shed(number)
            excess_bytes -= size_bytes
            closed += 1
        logger.warning(
            "%s: those that hold the most are closed held_bytes=%d closed=%d",
            why,
            held_bytes,
            closed,
        )
