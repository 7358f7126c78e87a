"""Listening sockets: the one way in which a role opens one.

Owns: the socket's options and its backlog, the log line when accepting fails.
Must not touch: accepting (the reactor), which addresses are allowed (the configuration).
"""

from __future__ import annotations

import socket
from typing import Final

from motelog.core.addresses import parse_address

# Connections that the system completes before the reactor accepts them. After an outage all devices
# come back at once. The system's own limit (net.core.somaxconn) may be lower.
LISTEN_BACKLOG: Final = 4096
ACCEPTING_RESTS: Final = (
    "new connections have to wait, those that are open are served; raise connections_max, the limit"
    " of open files (ulimit -n, LimitNOFILE) or the machine's memory error=%s"
)
ACCEPT_LINE_PERIOD_S: Final = 60.0


def open_listener(address: str) -> socket.socket:
    """Return a bound, listening, non-blocking socket; OSError names the address if it is taken."""
    host, port = parse_address(address)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"cannot listen on {address}: {exc.strerror}") from exc
    return listener
