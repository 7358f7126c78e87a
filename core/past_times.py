"""Times in the past as options contain them: ``sub --since``, ``consume --from``, Spark's offsets.

Owns: that form. Must not touch: what begins there.

    90s 15m 1h 7d (before now; "ago" may follow)    2026-01-31T08:00:00Z    1769846400000 (ms)
"""

from __future__ import annotations

import re
import time
from typing import Final

_AGO: Final = re.compile(r"(\d{1,9})([smhd])( +ago)?", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def before_now(text: str) -> int | None:
    """Return the time that ``1h`` or ``1h ago`` names, in milliseconds; None for other texts."""
    found = _AGO.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1]) * _SECONDS[found[2]]
    return max(0, int((time.time() - seconds) * 1000))
