"""Which process listens on a TCP port of this machine, as far as /proc shows it.

Owns: reading /proc/net/tcp and the processes' descriptors. Must not touch: those processes.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class PortOwner:
    """The process that listens, and its user; ``process_id`` is None if we may not see it."""

    process_id: int | None
    command: tuple[str, ...]
    user: str | None

    @property
    def motelog_command(self) -> str | None:
        """The subcommand, "dev" or "up", if this is a stack of ours."""
        for word, after in zip(self.command, self.command[1:], strict=False):
            is_ours = word in ("motelog", "motelog.__main__") or word.endswith("/motelog")
            if is_ours and after in ("dev", "up"):
                return after
        return None

    def __str__(self) -> str:
        if self.process_id is not None:
            ours = self.motelog_command
            name = os.path.basename(self.command[0]) if self.command else "a process"
            return f"{f'motelog {ours}' if ours else name} (process {self.process_id})"
        if self.user is not None:
            return f"a process of the user {self.user}, which you are not permitted to see"
        return "a process that cannot be seen from here"


def port_owner(port: int, *, proc: Path = PROC) -> PortOwner:
    """Return the process that listens on the port, as far as we may see it."""
    inodes, user = set(), None
    for inode, user_id in _listeners(port, proc):
        inodes.add(inode)
        user = _user_name(user_id)
    process_id = _holder(inodes, proc) if inodes else None
    if process_id is None:
        return PortOwner(None, (), user)
    try:
        text = (proc / str(process_id) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        text = ""  # it ended meanwhile
    return PortOwner(process_id, tuple(text.removesuffix("\0").split("\0")) if text else (), user)


def _listeners(port: int, proc: Path) -> Iterator[tuple[str, int]]:
    """Yield (inode, user id) of each listening socket on the port, whatever its address."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # no such system, or no IPv6
        for line in lines:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9], int(fields[7])


def _holder(inodes: set[str], proc: Path) -> int | None:
    """Return the id of the process that has one of these sockets open, the oldest if several do."""
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process_id in sorted(int(one.name) for one in proc.iterdir() if one.name.isdecimal()):
        try:
            with os.scandir(proc / str(process_id) / "fd") as descriptors:
                if any(_target(one.path) in sockets for one in descriptors):
                    return process_id
        except OSError:
            continue  # another user's, or ended
    return None


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
