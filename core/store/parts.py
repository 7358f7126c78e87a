"""The shared parts of an open store, as one value, for code that syncs or removes its files.

Owns: only that. Must not touch: what the parts do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from motelog.core.clock import SteadyClock
from motelog.core.store.disk.files import Storage
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.log.flush import GroupFlusher


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The log, how it reaches the disk, and what happens if it does not.

    ``on_failure`` fences the store with a reason. ``files_lock`` is held while files are synced or
    removed by name.
    """

    storage: Storage
    clock: SteadyClock
    log: CommitLog
    flusher: GroupFlusher
    on_failure: Callable[[str], None]
    files_lock: trio.Lock = field(default_factory=trio.Lock)
