"""Requests that wait for the parser of filters: which, how many, what becomes of them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from motelog.core.broker.waiting import filter_gate
from motelog.core.broker.waiting.filter_gate import FilterGate
from motelog.core.errors import BrokerError
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, RemotingServer
from tests.support.broker_stage import Client


class Server:
    """Notes what it is given to process."""

    def __init__(self) -> None:
        self.processed: list[tuple[RemotingCommand, Any]] = []
        self.flushed = 0

    def process(self, request: RemotingCommand, connection: Any) -> None:
        self.processed.append((request, connection))

    def flush(self) -> None:
        self.flushed += 1


async def test_requests_wait_in_order_and_go_with_their_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filter_gate, "WAITING_MAX", 3)
    filters = SqlFilters(is_loaded=False)
    gate = FilterGate(filters)

    def check(request: RemotingCommand, _: Connection) -> RemotingCommand:
        filters.get(request.ext["type"], "a = 1")
        return request.answer()

    guarded = gate.guard(check)
    clients = [Client() for _ in range(3)]
    requests = [
        RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, ext={"type": "SQL92"}) for _ in clients
    ]
    for request, client in zip(requests, clients, strict=True):
        assert guarded(request, cast("Connection", client)) is None
    with pytest.raises(BrokerError) as caught:
        guarded(requests[0], cast("Connection", clients[0]))
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    # What needs no parser is answered meanwhile.
    other = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, ext={"type": "JS"})
    with pytest.raises(BrokerError, match="does not support"):
        guarded(other, cast("Connection", clients[0]))
    clients[1].is_open = False
    server = Server()
    with trio.fail_after(10):
        await gate.run(cast("RemotingServer", server))
    assert server.processed == [(requests[0], clients[0]), (requests[2], clients[2])]
    assert server.flushed == 1
    answer = guarded(requests[0], cast("Connection", clients[0]))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
