"""Brokers that a producer avoids for a while because they were slow or did not answer.

Owns: RocketMQ's table of times, until when each broker is avoided. Must not touch: clocks (the time
is an argument, in seconds), sockets, which queue is chosen.
Spec: RocketMQ MQFaultStrategy, LatencyFaultToleranceImpl ("latencyFaultTolerance").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: (minimum seconds of an answer, seconds to avoid the broker), slowest first.
TABLE: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 3.0))
#: The time that counts for a missing answer. Java uses 30 s, which means ten minutes.
FAILED_S: Final = 1.0


class SlowBrokers:
    """Brokers by name."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, broker_name: str, took_s: float, now_s: float) -> None:
        """Record how long a broker took; after a fast answer it is no longer avoided."""
        for slow_s, pause_s in TABLE:
            if took_s >= slow_s:
                self._until[broker_name] = now_s + pause_s
                return
        self._until.pop(broker_name, None)

    def note_failed(self, broker_name: str, now_s: float) -> None:
        """Record that a broker did not answer, or could not be reached."""
        self.note(broker_name, FAILED_S, now_s)

    def to_avoid(self, broker_names: Iterable[str], now_s: float) -> set[str]:
        """Return which of these to avoid; if that were all, all but the first to come back."""
        names = set(broker_names)
        slow = {name for name in names if self._until.get(name, 0.0) > now_s}
        if slow == names and slow:
            slow.remove(min(sorted(slow), key=self._until.__getitem__))
        return slow
