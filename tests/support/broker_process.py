"""A broker in a process of its own, to be killed as a power cut would.

Owns: BrokerProcess; run as a program it is the broker. Must not touch: other processes.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.store.config import StoreConfig
from tests.support.server_process import ServerProcess


class BrokerProcess(ServerProcess):
    """A broker on a free port that stays the same over restarts; ends with the ``with`` block."""

    def __init__(self, directory: Path, *, namesrv: str) -> None:
        super().__init__()
        self._directory = directory
        self._namesrv = namesrv
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Start it and return when it serves and is registered."""
        self.address = self._run(__name__, str(self._directory), self.address, self._namesrv)
        assert self.address, "the broker did not start; its errors are above"


async def _main(directory: str, listen: str, namesrv: str) -> None:
    store = StoreConfig(directory=directory, commitlog_file_bytes=1 << 24)
    broker = Broker(BrokerConfig(listen=listen, namesrv=(namesrv,), store=store))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        host, port = broker.address
        sys.stdout.write(f"{host}:{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(_main, sys.argv[1], sys.argv[2], sys.argv[3])
