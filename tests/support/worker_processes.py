"""The gateway processes of a server that has several, seen from outside.

Owns: finding them, and which of them has a connection. Must not touch: what they do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from http.client import OK, HTTPConnection

import psutil

from motelog.testing import MotelogProcess

_WITHIN_S = 15.0


def workers_of(server: int) -> dict[str, int]:
    """Return the pid of each gateway process of a server that runs at the moment, by name."""
    found = {}
    for child in psutil.Process(server).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            *_, module, name = child.cmdline() or ("", "")
            if module == "motelog.workers.worker":
                found[name] = child.pid
    return found


def is_ready(server: MotelogProcess) -> bool:
    """Return whether the server says that all its processes take work."""
    connection = HTTPConnection(*server.admin, timeout=_WITHIN_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == OK
    finally:
        connection.close()


def worker_at(server: int, client: tuple[str, int]) -> str | None:
    """Return the name of the process that has the connection of a client's address."""
    for name, pid in workers_of(server).items():
        if client in clients_of(pid):
            return name
    return None


def clients_of(worker: int) -> set[tuple[str, int]]:
    """Return the addresses of a process's clients, and of others that it has connections with."""
    connections = psutil.Process(worker).net_connections("tcp")
    return {(one.raddr.ip, one.raddr.port) for one in connections if one.raddr}


def wait_for_workers(server: int, count: int, *, not_pid: int = 0) -> None:
    """Wait until so many run, none of them ``not_pid``."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        pids = workers_of(server).values()
        if len(pids) == count and not_pid not in pids:
            return
        assert time.monotonic() < deadline, f"{count} are not there: {workers_of(server)}"
        time.sleep(0.02)
