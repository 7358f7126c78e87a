"""Which topics a query reads: those that it names, or all whose names match.

Owns: Topics. Must not touch: pyspark, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by their names, or those whose whole name matches a regular expression."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __contains__(self, topic: str) -> bool:
        return topic in self.names or bool(self.among((topic,)))

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        names = ", ".join(map(repr, self.names))
        return f"topic {names}" if len(self.names) == 1 else f"topics {names}"

    def among(self, known: Iterable[str]) -> list[str]:
        """Return those of the topics there are that match the pattern."""
        if self.pattern is None:
            return []
        return [topic for topic in known if re.fullmatch(self.pattern, topic)]
