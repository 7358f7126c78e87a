"""Files and folders that only their owner may use, whatever the umask is.

Owns: their modes. Must not touch: their content. The store calls the system through
``core.store.disk.files``, with the same modes.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folders(path: str | Path) -> None:
    """Make a folder and the missing ones above it; existing folders keep their modes.

    ``os.makedirs`` applies its mode only to the last one.
    """
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def open_private(path: str, flags: int) -> int:
    """Open a file as the ``opener`` of ``open``; a new file is for its owner only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
