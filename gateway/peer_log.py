"""Log lines about peers, at a bounded rate: a hostile peer must not fill the disk with them.

Owns: the rate. Must not touch: what the lines say.
"""

from __future__ import annotations

import logging
import time
from typing import Final

LINES_PER_S: Final = 20


class PeerLog:
    """Passes on at most ``LINES_PER_S`` lines a second and says how many it held back."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._second = 0
        self._count = 0

    def warning(self, message: str, *values: object) -> None:
        second = int(time.monotonic())
        if second != self._second:
            held_back = self._count - LINES_PER_S
            if held_back > 0:
                self._log.warning("lines about peers held back count=%d", held_back)
            self._second = second
            self._count = 0
        self._count += 1
        if self._count <= LINES_PER_S:
            self._log.warning(message, *values)
