"""What a job's run leaves for ``motelog spark report``: Spark's progress events, one JSON a line.

Owns: the file, its bound. Must not touch: what the events say (report reads them).
A file that is full is kept as NAME.1, in place of the one before it, and a new one is begun.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from motelog.core.private_files import open_private

RECORD_NAME: Final = "progress.jsonl"
#: Some 10,000 batches.
RECORD_BYTES_MAX: Final = 32 * 1024 * 1024
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def record_path(checkpoint: str) -> Path | None:
    """Return the file in a checkpoint's folder, None where that is not on this machine."""
    local = checkpoint.removeprefix("file://")
    return None if _URL.match(local) else Path(local, RECORD_NAME)


def older(path: Path) -> Path:
    """Return where the file is kept when it is full."""
    return path.with_name(f"{path.name}.1")


class ProgressRecord:
    """Appends events to a file; a job goes on where that fails, which is told once."""

    def __init__(self, path: Path | None, *, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max

    def add(self, events: Iterable[str]) -> None:
        """Append events, each a JSON document on one line."""
        text = "".join(f"{event}\n" for event in events)
        if self._path is None or not text:
            return
        try:
            self._append(self._path, text.encode())
        except OSError as exc:
            sys.stderr.write(f"motelog: the run's progress is not recorded any more: {exc}\n")
            self._path = None

    def _append(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)  # Spark's, and so of its mode
        if path.exists() and path.stat().st_size + len(data) > self._bytes_max:
            path.replace(older(path))
        with open(path, "a+b", opener=open_private) as file:
            # The last line of a run that was killed may be half there.
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                data = b"\n" + data
            file.write(data)
