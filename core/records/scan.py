"""Scan: walks and checks the records of a log file, finds them, and makes their units.

Its kernel is _scan.pyx; _scan_py.py is the reference, which defines the behaviour.
Owns: which bytes of a log are trusted. Must not touch: files, clocks, sockets; the layout (layout).
Spec: RocketMQ CommitLog (checkMessageAndReturnSize), ReputMessageService.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels
from motelog.core.records._scan_py import UnitRun

if TYPE_CHECKING:
    from motelog.core.records import _scan as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "UnitRun",
    "collect",
    "find_record",
    "scan",
    "zeros_from",
]

scan = _kernel.scan
collect = _kernel.collect
find_record = _kernel.find_record
zeros_from = _kernel.zeros_from
