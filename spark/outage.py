"""Waiting for a broker that is unreachable: which errors are temporary, retries, giving up.

Owns: Outage. Must not touch: pyspark, sockets; clock and sleep are arguments.
In local mode Spark does not retry a task, and on a cluster four quick retries do not last as long
as a broker's restart. So the reader itself waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from motelog.bridge.errors import (
    ClientClosedError,
    NoNameServerError,
    RouteError,
    SendFailedError,
)
from motelog.core.errors import BrokerError, RemotingError
from motelog.spark.errors import OutageError

T = TypeVar("T")

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 2.0

# Response codes SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, FLOW_CONTROL.
_PASSING_CODES: Final = frozenset({1, 2, 14, 215})


def passes(exc: Exception) -> bool:
    """Return whether a retry may help: a restarting broker is unreachable, then unrouted."""
    if isinstance(exc, BrokerError):
        return exc.code in _PASSING_CODES
    return isinstance(
        exc, RemotingError | NoNameServerError | RouteError | ClientClosedError | SendFailedError
    )


class Outage:
    """Time without progress. ``pause`` between attempts, ``over`` after each success."""

    def __init__(
        self, seconds_max: float, *, clock_s: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._seconds_max = seconds_max
        self._clock_s = clock_s
        self._sleep = sleep
        self._began_s: float | None = None
        self._pause_s = PAUSE_S_MIN

    def over(self) -> None:
        """End the outage: there was progress."""
        self._began_s = None
        self._pause_s = PAUSE_S_MIN

    def pause(self) -> bool:
        """Sleep before the next attempt; return False at once if the time is used up."""
        now_s = self._clock_s()
        if self._began_s is None:
            self._began_s = now_s
        left_s = self._began_s + self._seconds_max - now_s
        if left_s <= 0:
            return False
        self._sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return True

    def pause_after(self, exc: Exception, what: str) -> None:
        """Sleep before the next attempt; raise ``exc`` if a retry cannot help."""
        if not passes(exc):
            raise exc
        if not self.pause():
            message = f"{what}: no answer for {self._seconds_max:g} s, the last error was: {exc}"
            raise OutageError(message) from exc
