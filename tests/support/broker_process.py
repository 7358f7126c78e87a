"""A broker in a process of its own, to be killed as a power cut would, or stopped.

Owns: BrokerProcess; run as a program it is the broker. Must not touch: other processes.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from tests.support.server_process import ServerProcess


class BrokerProcess(ServerProcess):
    """A broker on a free port that stays the same over restarts; ends with the ``with`` block."""

    def __init__(
        self,
        directory: Path,
        *,
        namesrv: str,
        listen: str = "127.0.0.1:0",
        store: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        #: Settings of the store and of the broker, for the next start.
        self.store = {"directory": str(directory), "commitlog_file_bytes": 1 << 24} | (store or {})
        self._settings = settings
        self._namesrv = namesrv
        self.address = listen

    def start(self) -> None:
        """Start it and return when it serves and is registered."""
        broker = {"listen": self.address, "namesrv": [self._namesrv], **self._settings}
        self.address = self._run(__name__, json.dumps(broker | {"store": self.store}))
        assert self.address, "the broker did not start; its errors are above"


async def _main(settings: str) -> None:
    broker = Broker(msgspec.json.decode(settings, type=BrokerConfig))
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            await nursery.start(broker.run)
            host, port = broker.address
            sys.stdout.write(f"{host}:{port}\n")
            sys.stdout.flush()
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(_main, sys.argv[1])
