"""Many small files written or synced in one call, for ConsumeQueues.

Its kernel is _file_batch.pyx; _file_batch_py.py is the reference, which defines the behaviour.
Owns: the calls of the operating system for a batch. Must not touch: what is in the files. Only
core/store/disk/files.py calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.core.store.disk import _file_batch as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = ["sync", "write"]

write = _kernel.write
sync = _kernel.sync
