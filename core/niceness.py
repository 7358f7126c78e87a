"""How far many busy processes stand back behind one that all of them wait for.

Owns: the rule. Must not touch: processes.
"""

from __future__ import annotations

import math
import os
from typing import Final

#: How many busy processes keep the one busy.
ENOUGH: Final = 3
#: The system knows no more.
NICENESS_MAX: Final = 19


def niceness(processes: int) -> int:
    """Return by how much each of ``processes`` stands back, for ``os.nice`` or ``setpriority``.

    Were there many more than cores, and all busy, the one would get no more than any of them. So it
    can have a third of what they have together. Each step makes a process weigh 1.25 times less.
    """
    enough = max(len(os.sched_getaffinity(0)), ENOUGH)
    return min(round(math.log(max(processes / enough, 1), 1.25)), NICENESS_MAX)
