"""Requests from one broker to others: its master, a rival, a name server.

Owns: connections that last for some requests, and their errors. Must not touch: what answers mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.errors import RemotingError, leaves
from motelog.core.remoting.client import RemotingClient, connect
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.tls import Tls

#: For a connection, and for an answer.
TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Peers:
    """How a broker signs and secures its own requests."""

    credentials: Credentials | None = None
    tls: Tls | None = None

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[RemotingClient]:
        """Keep a connection for the length of the block; RemotingError if that fails."""
        stream = await connect(address, timeout_s=TIMEOUT_S, tls=self.tls)
        client = RemotingClient(stream, peer=address, credentials=self.credentials)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run)
                try:
                    yield client
                finally:
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # of the block's one error
            raise leaves(group)[0] from None


async def ask(client: RemotingClient, code: RequestCode) -> bytes:
    """Return the body of an answer; RemotingError if the peer refuses or is silent."""
    answer = await client.request(RemotingCommand(code), timeout_s=TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{client.peer} refuses {code.name}: {answer.remark}")
    return bytes(answer.body)


async def settings_of(client: RemotingClient) -> dict[str, str]:
    """Return a broker's settings by RocketMQ's names."""
    text = (await ask(client, RequestCode.GET_BROKER_CONFIG)).decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def number_of(settings: dict[str, str], name: str) -> int:
    """Return a setting that is a number; 0 if it is missing or not a number."""
    text = settings.get(name, "")
    return int(text) if text.isdecimal() else 0
