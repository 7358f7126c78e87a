"""Read: chooses units, and copies the records that they name out of mapped files.

Its kernel is _read.pyx; _read_py.py is the reference, which defines the behaviour.
Owns: which units one read takes and which bytes of the log they may name. Must not touch: files,
clocks, sockets; the layout (layout). Spec: RocketMQ ConsumeQueue, DefaultMessageStore.getMessage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.core.records import _read as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "copy_out",
    "gather",
    "select_units",
]

select_units = _kernel.select_units
gather = _kernel.gather
copy_out = _kernel.copy_out
