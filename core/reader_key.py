"""The key of a store's folder, by which a client shows the broker that it can read its files.

Owns: the file reader.key. Must not touch: the answers to a reader (broker), what it reads
(bridge.mapped_log).

    reader.key    which boot of which machine, line end, a secret of 32 hex digits, line end

The secret changes at each start of a broker, and only the broker's user may read the file, like
the log. A client that knows it can read the folder, and the folder is this broker's, not another
one of the same name. The boot shows that the folder is on this machine: over a network, pages of a
growing file may be stale.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "reader.key"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_BYTES_MAX: Final = 256


def write_key(directory: str) -> str:
    """Put a new key into a store's folder and return its secret; OSError if that fails.

    It is not synced: after a power cut there is another boot, and another key.
    """
    secret = secrets.token_hex(16)
    path = f"{directory}/{NAME}"
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.tmp")
    fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(f"{_BOOT.read_text().strip()}\n{secret}\n")
    os.replace(f"{path}.tmp", path)
    return secret


def read_key(directory: str) -> str | None:
    """Return the secret of a store's folder; None if this process or machine has no key to it."""
    try:
        with open(f"{directory}/{NAME}", "rb") as file:
            boot, _, secret = file.read(_BYTES_MAX).decode().partition("\n")
        return secret.strip() or None if boot == _BOOT.read_text().strip() else None
    except (OSError, ValueError):
        return None
