"""The niceness of many busy processes that all wait for one.

Owns: the rule. Must not touch: processes.
"""

from __future__ import annotations

import math
import os
from typing import Final

#: This many busy processes keep the one busy.
ENOUGH: Final = 3
#: The highest niceness that the system has.
NICENESS_MAX: Final = 19


def niceness(processes: int) -> int:
    """Return the niceness of each of ``processes``, for ``os.nice`` or ``setpriority``.

    If there were many more processes than cores, and all busy, the one would get no more time than
    each of them. With this it gets a third of their total. Each step divides a process's weight by
    1.25.
    """
    enough = max(len(os.sched_getaffinity(0)), ENOUGH)
    return min(round(math.log(max(processes / enough, 1), 1.25)), NICENESS_MAX)
