"""The rates at which a consumer reads and handles its topics, as mqadmin shows them.

Owns: Rates, counters by topic and their samples. Must not touch: trio, sockets. Times are seconds
of a monotonic clock. Spec: RocketMQ ConsumerStatsManager, ConsumeStatus.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

SAMPLE_S: Final = 10.0
_MINUTE: Final = 6
_HOUR: Final = 360


class Rates:
    """Counters since the start, with a sample every SAMPLE_S of the last hour."""

    def __init__(self) -> None:
        # Messages pulled, handled and failed, and the seconds that handling took.
        self._now: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        self._samples: deque[dict[str, list[float]]] = deque([{}], maxlen=_HOUR)

    def pulled(self, topic: str, count: int) -> None:
        self._now[topic][0] += count

    def consumed(self, topic: str, handled: int, refused: int, took_s: float) -> None:
        counts = self._now[topic]
        counts[1] += handled
        counts[2] += refused
        counts[3] += took_s

    def sample(self) -> None:
        """Sample the counters; called every SAMPLE_S."""
        self._samples.append({topic: list(counts) for topic, counts in self._now.items()})

    def status(self, topic: str) -> dict[str, float]:
        """Return RocketMQ's ConsumeStatus: rates of the last minute, times in milliseconds."""
        pulled, handled, refused, took_s = self._since(topic, _MINUTE)
        seconds = min(_MINUTE, len(self._samples)) * SAMPLE_S
        count = handled + refused
        return {
            "pullRT": 0.0,
            "pullTPS": pulled / seconds,
            "consumeRT": took_s * 1000 / count if count else 0.0,
            "consumeOKTPS": handled / seconds,
            "consumeFailedTPS": refused / seconds,
            "consumeFailedMsgs": int(self._since(topic, _HOUR)[2]),
        }

    def _since(self, topic: str, samples: int) -> list[float]:
        before = self._samples[max(0, len(self._samples) - samples)].get(topic, [0.0] * 4)
        return [now - then for now, then in zip(self._now[topic], before, strict=True)]
