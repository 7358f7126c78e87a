"""The small state files of broker and name server, in RocketMQ's shapes.

Owns: reading and replacing one such file so that a crash leaves the old or the new content, and
damage leaves the previous one. Must not touch: their content, the operating system
(core.store.disk.files does). Blocking: callers use a thread once the server serves.

    save   NAME becomes NAME.bak  ->  write NAME.tmp, fsync, rename to NAME  ->  fsync the folder
    load   NAME, else NAME.bak: the first one that exists, is whole and has the right content

Each file has a checksum (core.sealed_json). A file without one was written by RocketMQ or by hand,
and is accepted as it is.
Invariant: after a save, the file and its predecessor exist, both written by a complete save.
A file of rights has no ``.bak``: an older one would give removed users their access back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from motelog.core.errors import RemotingDecodeError, StoreDamagedError
from motelog.core.remoting.frames import loads
from motelog.core.sealed_json import KEY, seal, seal_fault
from motelog.core.store.disk.files import OsStorage, Storage

logger = logging.getLogger(__name__)

Content = TypeVar("Content")


class StateFile:
    """One JSON file that is always replaced as a whole.

    ``holds`` is what the log says is lost with it. ``is_current`` says whether a good file has the
    content that was last loaded or saved, so that only a change needs a save. Without
    ``keeps_previous`` there is no copy of the previous content, and damage is always an error.
    """

    def __init__(
        self,
        path: str,
        *,
        holds: str,
        keeps_previous: bool = True,
        storage: Storage | None = None,
    ) -> None:
        self._storage = storage or OsStorage()
        self._directory = os.path.dirname(path)
        self.path = path
        self.holds = holds
        self.is_current = False
        self._keeps_previous = keeps_previous
        self._backup = self.path + ".bak"
        self._is_damaged = False
        self._has_directory = False

    def load(self, take: Callable[[dict[str, Any]], Content]) -> Content | None:
        """Return ``take`` of the newest good content, None if there are no files.

        ``take`` refuses content with msgspec.ValidationError or ValueError. StoreDamagedError if
        there is a file but neither it nor its copy is good: continuing would overwrite bytes that a
        person may still repair.
        """
        fault: str | None = None
        for path in (self.path, self._backup) if self._keeps_previous else (self.path,):
            data = self._storage.read_file(path)
            if data is None:
                continue
            try:
                content = take(_decode(data))
            except (RemotingDecodeError, msgspec.ValidationError, ValueError) as exc:
                self._is_damaged = True
                fault = fault or str(exc)
                continue
            if path == self._backup:
                self._say_older(fault or "it is missing, as after a crash while it was saved")
            self.is_current = path == self.path
            return content
        if fault is not None:
            raise StoreDamagedError(fault, path=self.path, offset_bytes=0)
        return None

    def say_missing(self) -> None:
        """Note in the log that the file and its copy should exist and are missing."""
        logger.warning(
            "a state file and its copy are missing, and their content is lost path=%s lost=all %s",
            self.path, self.holds,
        )  # fmt: skip

    def _say_older(self, reason: str) -> None:
        logger.warning(
            "a state file cannot be used; the one saved before is used path=%s reason=%s "
            "lost=newest %s",
            self.path, reason, self.holds,
        )  # fmt: skip

    def save(self, value: Any) -> None:
        """Replace the content; durable when this returns. OSError leaves a file that loads."""
        text = seal(msgspec.json.encode(value))
        if not self._has_directory:
            self._storage.make_directory(self._directory, durable=True)
            self._has_directory = True
        # A file that cannot be read must not replace a readable predecessor.
        if not self._keeps_previous:
            pass
        elif not self._is_damaged and self._storage.read_file(self.path) is not None:
            self._storage.rename(self.path, self._backup)
        elif self._storage.read_file(self._backup) is None:
            self._storage.replace_file(self._backup, text)
        self._storage.replace_file(self.path, text)
        self._is_damaged = False
        self.is_current = True


def _decode(data: bytes) -> dict[str, Any]:
    """Return the object in a file; RemotingDecodeError if it is damaged."""
    fault = seal_fault(data)
    if fault is not None:
        raise RemotingDecodeError(fault)
    value = loads(data)
    if not isinstance(value, dict):
        raise RemotingDecodeError("not a JSON object")
    value.pop(KEY, None)
    return value
