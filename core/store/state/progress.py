"""The progress of a long start: its task, the bytes done and to do, the rate, the time left.

Owns: StartProgress and ProgressMeter. Must not touch: files, terminals; the caller that opens the
store decides where the texts are shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from motelog.core.clock import Clock

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The current task of a start; ``left_s`` assumes the speed so far."""

    doing: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    left_s: float

    def __str__(self) -> str:
        return (
            f"{self.doing}: {self.done_bytes / 1e9:.1f} of {self.total_bytes / 1e9:.1f} GB, "
            f"{self.bytes_per_s / 1e6:.0f} MB/s, {self.left_s:.0f} s left"
        )


OnProgress = Callable[[StartProgress], None]


def log_progress(progress: StartProgress) -> None:
    """Write one line of the log."""
    logger.info(
        "the store is starting doing=%r done=%d total=%d bytes_per_s=%.0f left_s=%.0f",
        progress.doing,
        progress.done_bytes,
        progress.total_bytes,
        progress.bytes_per_s,
        progress.left_s,
    )


class ProgressMeter:
    """Reports the progress every two seconds; a shorter start reports nothing."""

    def __init__(self, clock: Clock, tell: OnProgress) -> None:
        self._clock = clock
        self._tell = tell
        self._doing = ""
        self._total_bytes = 0
        self._begun_ms = self._told_ms = clock.monotonic_ms()

    def begin(self, doing: str, total_bytes: int) -> None:
        """Begin a task of ``total_bytes``."""
        self._doing = doing
        self._total_bytes = total_bytes
        self._begun_ms = self._clock.monotonic_ms()

    def advance(self, done_bytes: int) -> None:
        """Note how many of these bytes are done."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms < INTERVAL_MS:
            return
        self._told_ms = now_ms
        bytes_per_s = done_bytes * 1000 / max(now_ms - self._begun_ms, 1)
        left = max(self._total_bytes - done_bytes, 0)
        self._tell(
            StartProgress(
                self._doing,
                done_bytes,
                self._total_bytes,
                bytes_per_s,
                left / bytes_per_s if bytes_per_s else 0.0,
            )
        )
