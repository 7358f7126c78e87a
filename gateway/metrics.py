"""The gateway's counters: plain integers that the hot path adds to and a scrape reads.

Owns: their names and meanings. Must not touch: exposition (core.metrics does that).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

#: What is the same at all gateways of one log; the other gauges add up.
SHARED: Final = frozenset({"retained_messages_now", "retained_bytes_now"})


@dataclass(slots=True)
class GatewayMetrics:
    """Counters since the start; the ``*_now`` fields are gauges."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    sessions_now: int = 0
    sessions_taken_over: int = 0
    sessions_resumed: int = 0
    sessions_expired: int = 0
    wills_published: int = 0
    subscriptions_now: int = 0
    packets_malformed: int = 0
    publishes_received: int = 0
    publishes_refused: int = 0
    messages_appended: int = 0
    messages_delivered: int = 0
    messages_dropped_qos0: int = 0
    messages_dropped_too_large: int = 0
    messages_dropped_quota: int = 0
    messages_expired: int = 0
    messages_lost_to_retention: int = 0
    messages_undeliverable: int = 0
    receivers_lagging_now: int = 0
    retained_messages_now: int = 0
    retained_bytes_now: int = 0
    retained_refused: int = 0

    def sample(self) -> dict[str, int]:
        """Return every counter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
