"""Metrics of the process itself: its build, and the lag of its event loop.

Owns: LoopLag and the two readings. Must not touch: what roles count.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import trio

from motelog.core.metrics import Histogram, Reading, gauge, histogram

#: How often the lag is measured. A turn that takes longer than this shows as its excess.
_EVERY_S: Final = 0.1
_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


class LoopLag:
    """How late the event loop runs a task; every task is delayed by this."""

    def __init__(self) -> None:
        self._late_ms = Histogram(_BOUNDS_MS)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = trio.current_time() + _EVERY_S
            await trio.sleep_until(due)
            self._late_ms.observe((trio.current_time() - due) * 1000)

    def readings(self) -> Iterator[Reading]:
        text = "How late the event loop ran a task, measured ten times a second."
        shown = histogram("event_loop_lag_seconds", text, _BOUNDS_MS, unit=1e-3)
        yield Reading(shown, self._late_ms.sample())


def build_readings() -> Iterator[Reading]:
    """Yield the version of Motelog and of Python."""
    labels = {
        "version": version("motelog"),
        "python": platform.python_version(),
    }
    yield Reading(gauge("build_info", "The running version; always 1.", **labels), 1)
