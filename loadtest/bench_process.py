"""CPU time and memory of this process and of the server under test, from /proc.

Owns: reading these values. Must not touch: anything else of those processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Usage:
    """The usage in a period; the server's values are None without its process id."""

    client_cpu_s: float = 0.0
    server_cpu_s: float | None = None
    server_rss_bytes: int | None = None


class UsageMeter:
    """Measures from its creation to ``read()``."""

    def __init__(self, server_pid: int | None) -> None:
        self._server_pid = server_pid
        self._client_cpu_s = time.process_time()
        self._server_cpu_s = cpu_seconds(server_pid)

    def read(self) -> Usage:
        server_cpu_s = cpu_seconds(self._server_pid)
        return Usage(
            client_cpu_s=time.process_time() - self._client_cpu_s,
            server_cpu_s=(
                None
                if server_cpu_s is None or self._server_cpu_s is None
                else server_cpu_s - self._server_cpu_s
            ),
            server_rss_bytes=rss_bytes(self._server_pid),
        )


def cpu_seconds(pid: int | None) -> float | None:
    """Return the user and system time of a process; None if it does not exist."""
    if pid is None:
        return None
    try:
        # The name in parentheses may contain anything, so fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int | None) -> int | None:
    """Return a process's resident memory without file pages; None if it does not exist.

    The pages of a mapped log belong to the page cache, which can release them.
    """
    if pid is None:
        return None
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def user_bytes(pids: Iterable[int]) -> int:
    """Return the anonymous memory of processes in total; shared pages count once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(lines.partition("Pss_Anon:")[2].split()[0]) * 1024
        except (OSError, IndexError):  # it has ended, or the system has no such value
            total += anonymous_bytes(pid) or 0
    return total


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found


def rss_bytes(pid: int | None) -> int | None:
    """Return the resident memory of a process; None if it does not exist."""
    if pid is None:
        return None
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
