"""A name server in a process of its own, to be killed as a power cut would.

Owns: NamesrvProcess; run as a program it is the name server. Must not touch: other processes.
"""

from __future__ import annotations

import logging
import sys

import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from tests.support.server_process import ServerProcess


class NamesrvProcess(ServerProcess):
    """A name server whose address stays the same over restarts; ends with the ``with`` block."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        super().__init__()
        self.address = listen

    def start(self) -> None:
        """Start it and return when it serves."""
        self.address = self._run(__name__, self.address)
        assert self.address, "the name server did not start; its errors are above"


async def _main(listen: str) -> None:
    namesrv = NameServer(NamesrvConfig(listen=listen))
    async with trio.open_nursery() as nursery:
        await nursery.start(namesrv.run)
        host, port = namesrv.address
        sys.stdout.write(f"{host}:{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(_main, sys.argv[1])
