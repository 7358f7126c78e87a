"""Free ports for servers that must be told theirs before they start.

Owns: free_port, free_ports. Must not touch: the servers.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

#: Below the ports that outgoing connections and listeners at port 0 get, which could take one.
_FIRST, _LAST = 15_000, 32_000
#: A port has free ones below it: a broker listens on the second, its replication on the first.
_STEP = 4


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that are free, as are the three below each."""
    size = count * _STEP
    while True:
        first = random.randrange(_FIRST, _LAST - size, _STEP)
        with ExitStack() as held:
            try:
                for port in range(first, first + size):
                    holder = held.enter_context(socket.socket())
                    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    holder.bind(("", port))
            except OSError:
                continue
        return list(range(first + _STEP - 1, first + size, _STEP))


def free_port() -> int:
    """Return a free port of this machine."""
    return free_ports(1)[0]
