"""A broker in a process of its own, to be killed as a power cut would.

Owns: BrokerProcess; run as a program it is the broker. Must not touch: other processes.
"""

from __future__ import annotations

import json
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

    def __init__(self, directory: Path, *, namesrv: str, **settings: float) -> None:
        super().__init__()
        self._settings = json.dumps(settings)
        self._directory = directory
        self._namesrv = namesrv
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Start it and return when it serves and is registered."""
        self.address = self._run(
            __name__, str(self._directory), self.address, self._namesrv, self._settings
        )
        assert self.address, "the broker did not start; its errors are above"


async def _main(*arguments: str) -> None:
    directory, listen, namesrv, settings = arguments
    store = StoreConfig(directory=directory, commitlog_file_bytes=1 << 24)
    config = BrokerConfig(listen=listen, namesrv=(namesrv,), store=store, **json.loads(settings))
    broker = Broker(config)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        host, port = broker.address
        sys.stdout.write(f"{host}:{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(_main, *sys.argv[1:])
