"""Many small files written or synced in one call, for ConsumeQueues.

Picks the compiled kernel (_file_batch.pyx) or, where the installation was built without kernels,
the reference (_file_batch_py.py); ``COMPILED`` says which.
Owns: the calls of the operating system for a batch. Must not touch: what is in the files. Only
core/store/disk/files.py calls it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

COMPILED: Final = os.environ.get("MOTELOG_PURE") != "1"

if TYPE_CHECKING or COMPILED:
    try:
        from motelog.core.store.disk import _file_batch as _kernel
    except ImportError as exc:
        raise ImportError(
            "the kernel motelog.core.store.disk._file_batch is not built: "
            "run `pip install -e .`, or set MOTELOG_PURE=1"
        ) from exc
else:
    from motelog.core.store.disk import _file_batch_py as _kernel

__all__ = ["COMPILED", "sync", "write"]

write = _kernel.write
sync = _kernel.sync
