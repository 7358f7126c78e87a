"""Request names that do not grow with the fleet: a topic is reported under its template.

Owns: TopicNames. Must not touch: locust, sockets.
A load of 10,000 devices publishes to 10,000 topics. Reported one by one, they would be 10,000 rows
with percentiles of a handful of requests each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OTHER: Final = "(other)"
# Topics that are cached; others are matched again each time.
_CACHED_MAX: Final = 100_000


class TopicNames:
    """Maps ``telemetry/dev42/temp`` to its template ``telemetry/{device}/temp``.

    A level in braces matches any text; a template may also be a topic filter with + and #.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        self._templates = [(template, template.split("/")) for template in templates]
        self._names = {template: template for template, _ in self._templates}

    def name(self, topic: str) -> str:
        """Return the first template that ``topic`` matches, or "(other)"."""
        name = self._names.get(topic)
        if name is None:
            levels = topic.split("/")
            fitting = (t for t, pattern in self._templates if _fits(pattern, levels))
            name = next(fitting, OTHER)
            if len(self._names) < _CACHED_MAX:
                self._names[topic] = name
        return name


def _fits(pattern: list[str], levels: list[str]) -> bool:
    for i, wanted in enumerate(pattern):
        if wanted == "#":
            return True  # matches the parent level too
        if i >= len(levels):
            return False
        stands_for_any = wanted == "+" or (wanted.startswith("{") and wanted.endswith("}"))
        if not stands_for_any and wanted != levels[i]:
            return False
    return len(pattern) == len(levels)
