"""Log lines at a bounded rate, and the boundary at which a fault is logged instead of raised.

Owns: the rate, the one place that catches every Exception. Must not touch: the texts of the lines,
the meaning of a request or an event.

A peer must not fill the disk with lines, so their length is limited too. Nor must it end a process
that serves others: code that a peer can make fail runs inside ``boundary``. Cancellation passes
through it, as does everything that is not an Exception; of a group with both, only that part does.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from motelog.core import spare_memory

LINES_MAX: Final = 20
PERIOD_S: Final = 1.0
KEY_PERIOD_S: Final = 10.0
KEYS_MAX: Final = 1000
#: For one text in a line: a client identifier has up to 65,535 bytes.
VALUE_CHARACTERS_MAX: Final = 400


class LimitedLog:
    """Passes on at most ``lines_max`` lines in ``period_s`` and counts those that it held back."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        lines_max: int = LINES_MAX,
        period_s: float = PERIOD_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._lines_max = lines_max
        self._period_s = period_s
        self._monotonic_s = monotonic_s
        self._until_s = float("-inf")
        self._count = 0

    def info(self, message: str, *values: object) -> None:
        """Log something that a peer caused and that needs no action."""
        if self._may_log():
            self._log.info(message, *map(_bounded, values))

    def warning(self, message: str, *values: object) -> None:
        """Log that a human could act on something."""
        if self._may_log():
            self._log.warning(message, *map(_bounded, values))

    def fault(self, message: str, *values: object, exc: Exception | None = None) -> None:
        """Log ``exc``, or the exception being handled, with its traceback: the code has a fault."""
        # Every handler of a MemoryError calls this, and continues even if there is no line.
        if isinstance(exc or sys.exception(), spare_memory.NO_MEMORY):
            spare_memory.give_up()
        with suppress(*spare_memory.NO_MEMORY):
            if self._may_log():
                self._log.error(message, *map(_bounded, values), exc_info=exc or True)

    def boundary(self, message: str, *values: object) -> Boundary:
        """Log an error from inside with its traceback, instead of raising it."""
        return Boundary(self, message, values)

    def _may_log(self) -> bool:
        now_s = self._monotonic_s()
        if now_s >= self._until_s:
            held_back = self._count - self._lines_max
            if held_back > 0:
                self._log.warning("log lines of one kind held back count=%d", held_back)
            self._until_s = now_s + self._period_s
            self._count = 0
        self._count += 1
        return self._count <= self._lines_max


class Boundary:
    """The result of ``LimitedLog.boundary``. Hot paths keep one and enter it each time."""

    __slots__ = ("_log", "_message", "_values")

    def __init__(self, log: LimitedLog, message: str, values: tuple[object, ...]) -> None:
        self._log = log
        self._message = message
        self._values = values

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(value, Exception):
            self._log.fault(self._message, *self._values, exc=value)
            return True
        if isinstance(value, BaseExceptionGroup):
            faults, rest = value.split(Exception)
            if faults is not None and rest is not None:  # tasks failed as they were cancelled
                self._log.fault(self._message, *self._values, exc=faults)
                raise rest from None
        return False


class LimitedByKey:
    """Passes on one line per key in ``period_s``, with the number of its events.

    All keys together get no more lines than a LimitedLog passes on.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        period_s: float = KEY_PERIOD_S,
        keys_max: int = KEYS_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = LimitedLog(log, monotonic_s=monotonic_s)
        self._period_s = period_s
        self._keys_max = keys_max
        self._monotonic_s = monotonic_s
        #: Key -> when its next line is due, events since its last one.
        self._keys: dict[str, tuple[float, int]] = {}

    def warning(self, key: str, message: str, *values: object, count: int = 1) -> None:
        """Log ``message`` with ``values``, followed by how many events of ``key`` there were.

        That number is ``count`` plus the events since the last line.
        """
        now_s = self._monotonic_s()
        due_s, held_back = self._keys.get(key, (now_s, 0))
        count += held_back
        if now_s >= due_s:
            self._lines.warning(message, *values, count)
            due_s, count = now_s + self._period_s, 0
            if key not in self._keys and len(self._keys) >= self._keys_max:
                self._keys.clear()  # some keys then get a line early
        self._keys[key] = due_s, count


def _bounded(value: object) -> object:
    """Return a value of a line; a long text is cut."""
    text = str(value) if isinstance(value, Exception) else value
    if not isinstance(text, str) or len(text) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{text[:VALUE_CHARACTERS_MAX]}... ({len(text)} characters)"
