"""Drives the file batch kernel and its reference alike, each in a folder of its own.

Owns: what the property test and the fuzz program both do with one input. Must not touch: pytest.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from motelog.core.store.disk import _file_batch, _file_batch_py
from tests.support.record_kernels import answer

FILE_BYTES = 100
# The last ones cannot be written: below a file, in a directory that is not there, a directory.
NAMES = ("T/0/a", "T/0/b", "T/1/a", "U/0/\u00e4", "V/0/a", "T/0/a/x", "w/x/y/z", "T/0")

Piece = tuple[str, int, bytes]


def run_both(before: dict[str, bytes], pieces: list[Piece]) -> tuple[Any, Any]:
    """Write pieces into a folder with some files in it; return all that shows, from both."""
    return _run(_file_batch, before, pieces), _run(_file_batch_py, before, pieces)


def _run(kernel: Any, before: dict[str, bytes], pieces: list[Piece]) -> Any:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        for name, content in before.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        paths = [(f"{folder}/{name}", at, data) for name, at, data in pieces]
        answers = [
            answer(kernel.write, paths, FILE_BYTES),
            answer(kernel.sync, [path for path, _, _ in paths]),
        ]
        found = sorted(Path(folder).rglob("*"))
        return answers, [
            (
                str(path.relative_to(folder)),
                path.stat().st_mode,
                path.is_file() and path.read_bytes(),
            )
            for path in found
        ]
