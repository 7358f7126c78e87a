"""Listening sockets: the one way in which a role opens one.

Owns: the socket's options and its backlog, an address that processes share, the log line when
accepting fails, which addresses are this machine's.
Must not touch: accepting (the reactor), which addresses are allowed (the configuration).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Final

from motelog.core.addresses import format_address, parse_address
from motelog.core.errors import NOT_USABLE

# Connections that the system completes before the reactor accepts them. After an outage all devices
# connect at once. The system's own limit (net.core.somaxconn) may be lower.
LISTEN_BACKLOG: Final = 4096
ACCEPTING_RESTS: Final = (
    "new connections have to wait, open ones are served; raise connections_max, the limit"
    " of open files (ulimit -n, LimitNOFILE) or the machine's memory error=%s"
)
ACCEPT_LINE_PERIOD_S: Final = 60.0


def is_this_machine(host: str) -> bool:
    """Return whether a numeric address is one of this machine's own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def open_listener(address: str, *, is_shared: bool = False) -> socket.socket:
    """Return a bound, listening, non-blocking socket; OSError names the address if it is taken.

    ``is_shared``: other processes of ours listen on it too, and the system gives each new
    connection to one of them (``hold_address``).
    """
    listener = _bound(address, is_shared=is_shared)
    try:
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise _refused(address, exc) from exc
    return listener


def open_unix_listener(path: str) -> socket.socket:
    """Return a listening Unix socket for this user and group; OSError names it if it is taken.

    The file of a socket that no longer has a listener is replaced.
    """
    name = f"unix:{path}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_socket(path)
        before = os.umask(0o117)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        raise _refused(name, exc) from exc
    return listener


def _remove_left_socket(path: str) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "a file of that name is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def hold_address(address: str) -> socket.socket:
    """Return a socket that keeps an address for shared listeners until it is closed.

    It does not listen. OSError names the address if it is taken, also by shared listeners: two
    servers must not share the connections of one address by mistake.
    """
    with _bound(address, is_shared=False) as alone:
        host, port = alone.getsockname()[:2]
        held = _bound(format_address(host, port), is_shared=True)
    # While no process listens, the address is still ours: SO_REUSEADDR would let others take it.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return held


def _bound(address: str, *, is_shared: bool) -> socket.socket:
    host, port = parse_address(address)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(target)
    except OSError as exc:
        bound.close()
        raise _refused(address, exc) from exc
    return bound


def is_refused_for_good(exc: OSError) -> bool:
    """Return whether the system refuses an address for a reason that only a person can fix.

    Other reasons pass: a process may free a port, and an address or a name may come up later.
    """
    return exc.errno in NOT_USABLE or exc.errno == errno.EAFNOSUPPORT


def _refused(address: str, exc: OSError) -> OSError:
    return OSError(exc.errno, f"cannot listen on {address}: {exc.strerror}")
