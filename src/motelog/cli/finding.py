"""One line of what ``motelog doctor`` reports.

Owns: Finding. Must not touch: the checks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``level`` is "ok", "note" (something optional) or "fault"."""

    name: str
    level: str
    text: str
    remedy: str | None = None
