"""The broker's small state files: ``config/*.json`` under the store folder, in RocketMQ's shapes.

Owns: reading and replacing one such file so that a crash leaves the old or the new content.
Must not touch: what is in them, the operating system (core.store.files does).
Blocking: callers use a thread once the broker serves.

    NAME becomes NAME.bak  ->  write NAME.tmp, fsync, rename to NAME  ->  fsync the folder
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from core.errors import RemotingDecodeError, StoreDamagedError
from core.remoting import loads
from core.store.files import OsStorage, Storage

_log = logging.getLogger(__name__)


class StateFile:
    """One JSON file that is always replaced as a whole."""

    def __init__(self, store_directory: str, name: str, *, storage: Storage | None = None) -> None:
        self._storage = storage or OsStorage()
        self._directory = os.path.join(store_directory, "config")
        self.path = os.path.join(self._directory, name)
        self._backup = self.path + ".bak"
        self._is_damaged = False

    def load(self) -> dict[str, Any]:
        """Return the newest content that can be read, empty if the file never existed.

        StoreDamagedError if there is a file and neither it nor its backup can be read: going on
        would overwrite what may still be repaired by hand.
        """
        fault: RemotingDecodeError | None = None
        for path in (self.path, self._backup):
            data = self._storage.read_file(path)
            if data is None:
                continue
            try:
                value = loads(data)
                if isinstance(value, dict):
                    return value
                raise RemotingDecodeError("not a JSON object")
            except RemotingDecodeError as exc:
                _log.warning("state file unreadable path=%s error=%s", path, exc)
                self._is_damaged = True
                fault = fault or exc
        if fault is not None:
            raise StoreDamagedError(str(fault), path=self.path, offset_bytes=0)
        return {}

    def save(self, value: Any) -> None:
        """Replace the content; durable when this returns. OSError leaves the backup to load."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=1)
        self._storage.make_directory(self._directory)
        # A file that cannot be read must not replace a backup that can.
        if not self._is_damaged and self._storage.read_file(self.path) is not None:
            self._storage.rename(self.path, self._backup)
        self._storage.replace_file(self.path, text)
        self._is_damaged = False
