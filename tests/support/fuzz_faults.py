"""What a fuzz program of whole servers calls a fault: its own findings, and errors in the log.

Owns: FoundError, the log lines that say that something was not foreseen. Must not touch: servers.
"""

from __future__ import annotations

import logging


class FoundError(Exception):
    """Something that a server may not do, whatever it is sent."""


class Errors(logging.Handler):
    """Keeps the log lines that say that something was not foreseen."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(self.format(record))

    def check(self) -> None:
        if self.texts:
            raise FoundError("in the log: " + "\n".join(self.texts[:3]))
