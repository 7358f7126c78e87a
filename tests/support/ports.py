"""Free ports for servers that must be told theirs before they start.

Owns: free_port, free_ports. Must not touch: the servers.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

#: Below the ports that outgoing connections and listeners at port 0 get, which could take one.
_FIRST, _LAST = 15_000, 32_000
#: A port has free ones below it: a broker listens on the second, its replication on the first.
_STEP = 4
#: Each port is a byte of this file, locked by the process to which it was given for as long as that
#: lives: a port may be bound long after it was found, and other tests look at the same time.
_GIVEN = os.open(Path(tempfile.gettempdir(), "motelog-test-ports"), os.O_RDWR | os.O_CREAT, 0o666)
#: Those given to this process, whose own locks do not keep it out.
_own: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that are free, as are the three below each."""
    size = count * _STEP
    while True:
        first = random.randrange(_FIRST, _LAST - size, _STEP)
        if not _own.isdisjoint(range(first, first + size)):
            continue
        with ExitStack() as held:
            try:
                fcntl.lockf(_GIVEN, fcntl.LOCK_EX | fcntl.LOCK_NB, size, first)
                for port in range(first, first + size):
                    holder = held.enter_context(socket.socket())
                    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    holder.bind(("", port))
            except OSError:
                continue
        _own.update(range(first, first + size))
        return list(range(first + _STEP - 1, first + size, _STEP))


def free_port() -> int:
    """Return a free port of this machine."""
    return free_ports(1)[0]
