"""The real file system, whose CommitLog is as slow as a test wants: syncs and new files wait.

Owns: SlowDisk. Must not touch: expectations.
"""

from __future__ import annotations

import threading

from motelog.core.store.disk.files import OsStorage, Region

WAIT_S_MAX = 60


class SlowDisk(OsStorage):
    """A sync of the log waits until ``may_sync`` is set, a new file of it until ``may_make`` is."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_make = threading.Event()
        self.may_sync.set()
        self.may_make.set()
        self.syncs = 0
        self.making: list[str] = []

    def map_file(self, path: str, size: int, *, is_read_only: bool = False) -> Region:
        region = super().map_file(path, size, is_read_only=is_read_only)
        if "/commitlog/" in path:
            sync = region.sync

            def slow() -> None:
                self.syncs += 1
                assert self.may_sync.wait(WAIT_S_MAX)
                sync()

            region.sync = slow  # type: ignore[method-assign]  # the disk, not the region, is slow
        return region

    def create_file(self, path: str, size: int, *, sparse: bool) -> None:
        if "/commitlog/" in path:
            self.making.append(path)
            assert self.may_make.wait(WAIT_S_MAX)
        super().create_file(path, size, sparse=sparse)
