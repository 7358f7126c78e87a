"""Connections that do not come: nobody waits longer for one than it said."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from motelog.bridge.client import Client
from motelog.core.errors import RemotingConnectError
from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.frames import RemotingCommand

NOWHERE = "127.0.0.1:1"
TIMEOUT_S = 3.0


@pytest.fixture
def _nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, *, timeout_s: float, tls: Any = None) -> trio.abc.Stream:
        await trio.sleep(timeout_s)
        raise RemotingConnectError(f"{address}: no connection")

    monkeypatch.setattr("motelog.bridge.client.connect", connect)


@pytest.mark.usefixtures("_nobody_answers")
async def test_those_that_wait_for_one_connection_end_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = Client(namesrv=NOWHERE, groups=dict, unregister={})
    await client.enter()
    began = trio.current_time()
    ended: list[float] = []

    async def ask(timeout_s: float) -> None:
        with pytest.raises(RemotingConnectError, match="no connection"):
            await client.request(
                NOWHERE, RemotingCommand(RequestCode.HEART_BEAT), timeout_s=timeout_s
            )
        ended.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, TIMEOUT_S)
    assert ended == pytest.approx([TIMEOUT_S] * 5)
    # A caller's time may be over before it gets here.
    await ask(-0.1)
    await client.leave()
