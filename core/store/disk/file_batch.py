"""Many small files written or synced in one call, for ConsumeQueues.

Picks the compiled kernel (_file_batch.pyx) or, where the installation was built without kernels,
the reference (_file_batch_py.py); ``COMPILED`` says which.
Owns: the calls of the operating system for a batch. Must not touch: what is in the files. Only
core/store/disk/files.py calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from motelog.core import kernels

COMPILED: Final = kernels.COMPILED

if TYPE_CHECKING:
    from motelog.core.store.disk import _file_batch as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = ["COMPILED", "sync", "write"]

write = _kernel.write
sync = _kernel.sync
