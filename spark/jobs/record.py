"""The record of a job's run for ``motelog spark report``: Spark's progress events as JSON lines.

Owns: the file and its size limit. Must not touch: the content of events (report reads them).
A full file is renamed to NAME.1, replacing the previous one, and a new file is begun.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from motelog.core.private_files import open_private

RECORD_NAME: Final = "progress.jsonl"
#: About 10,000 batches.
RECORD_BYTES_MAX: Final = 32 * 1024 * 1024
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def record_path(checkpoint: str) -> Path | None:
    """Return the file in a checkpoint's folder, None if that is not on this machine."""
    local = checkpoint.removeprefix("file://")
    return None if _URL.match(local) else Path(local, RECORD_NAME)


def older(path: Path) -> Path:
    """Return the name under which a full file is kept."""
    return path.with_name(f"{path.name}.1")


class ProgressRecord:
    """Appends events to a file; if that fails, it prints this once and the job continues."""

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
            sys.stderr.write(f"motelog: the run's progress is no longer recorded: {exc}\n")
            self._path = None

    def _append(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)  # it is Spark's folder, with Spark's mode
        if path.exists() and path.stat().st_size + len(data) > self._bytes_max:
            path.replace(older(path))
        with open(path, "a+b", opener=open_private) as file:
            # The last line of a killed run may be incomplete.
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                data = b"\n" + data
            file.write(data)
