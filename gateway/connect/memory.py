"""The limit on the memory that all connections hold together.

Owns: which connections are closed when it is exceeded, or when the process runs out of memory.
Must not touch: how they end (``connections``), what holds the bytes (``output``).

Each connection has bounds of its own (``output_bytes_max``, ``packet_bytes_max``). But if a hundred
thousand stop reading, each stays within its bounds and together they still exhaust the memory.
"""

from __future__ import annotations

import logging
from typing import Final

from motelog.core import spare_memory
from motelog.gateway.connect.connections import Connections
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.output import Output

logger = logging.getLogger(__name__)

#: Closing a connection that holds less is not worth it.
HELD_BYTES_MIN: Final = 1024


class Memory:
    """Checks each second how many bytes the connections of ``output`` hold.

    ``bytes_max`` 0 means no limit.
    """

    def __init__(
        self, output: Output, connections: Connections, metrics: GatewayMetrics, *, bytes_max: int
    ) -> None:
        self._output = output
        self._connections = connections
        self._metrics = metrics
        self.bytes_max = bytes_max

    def tick(self) -> None:
        """Close the connections that hold the most until the rest is within the limit.

        Output that waits for several connections is freed with the last of them, so the next tick
        may have to close more.
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
