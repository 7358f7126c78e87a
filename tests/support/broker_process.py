"""A broker in a process of its own, to be killed as a power cut would.

Owns: BrokerProcess; run as a program it is the broker. Must not touch: other processes.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.store.config import StoreConfig


class BrokerProcess:
    """A broker on a free port that stays the same over restarts; ends with the ``with`` block."""

    def __init__(self, directory: Path, *, namesrv: str) -> None:
        self._directory = directory
        self._namesrv = namesrv
        self.address = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and return when it serves and is registered."""
        arguments = [str(self._directory), self.address, self._namesrv]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the broker did not start; its errors are above"

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


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
