"""Files and folders that only their owner may use, whatever the umask is.

Owns: their modes. Must not touch: what is in them; the store has its own door to the system
(``core.store.disk.files``), with the same modes.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folders(path: str | Path) -> None:
    """Make a folder and those above it that are missing; one that is there stays as it is.

    ``os.makedirs`` has its mode for the last one alone.
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
    """Be the ``opener`` of ``open``: a file that is made is the owner's alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
