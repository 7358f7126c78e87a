"""The boundary of a server: what one request causes is that request's answer and a log line."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from motelog.core.errors import StoreFencedError
from motelog.core.net.listen import open_listener
from motelog.core.remoting.frames import FRAME_BYTES_MAX, RemotingCommand, ResponseCode
from motelog.core.remoting.server import (
    Connection,
    Processor,
    RemotingServer,
    answer_with,
)
from tests.support.broker_stack import Peer, connected, eventually

PING = 1
FAILS = 2
LARGE = 3
LATER = 4
FENCED = 5
HUGE_FIELD = 7


def ping(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return request.answer(remark="pong")


def fail(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return request.answer(body=b"x" * (1 // len(request.body)))


def answer_large(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return request.answer(body=bytes(FRAME_BYTES_MAX))


def answer_long_field(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return request.answer(ext={"value": "x" * FRAME_BYTES_MAX})


def refuse_fenced(_: RemotingCommand, __: Connection) -> RemotingCommand:
    raise StoreFencedError("the disk is gone")


PROCESSORS: Mapping[int, Processor] = {
    PING: ping,
    FAILS: fail,
    LARGE: answer_large,
    HUGE_FIELD: answer_long_field,
    FENCED: refuse_fenced,
}


@asynccontextmanager
async def served(
    processors: Mapping[int, Processor] = PROCESSORS, **options: Any
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(
        processors, connections_max=8, frame_bytes_max=1 << 16, idle_s_max=60, **options
    )
    listener = open_listener("127.0.0.1:0")
    server.listen(listener)
    host, port = listener.getsockname()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server, f"{host}:{port}"
        nursery.cancel_scope.cancel()


async def still_served(peer: Peer) -> bool:
    return (await peer.ask(PING)).remark == "pong"


async def test_a_request_that_fails_is_answered_logged_once_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as (_, address), connected(address) as peer:
        answer = await peer.ask(FAILS)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert await still_served(peer)
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"code={FAILS} peer=127.0.0.1:" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("code", [LARGE, HUGE_FIELD])
async def test_an_answer_that_does_not_fit_is_refused_with_a_code(code: int) -> None:
    async with served() as (_, address), connected(address) as peer:
        answer = await peer.ask(code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "at most 16777216" in answer.remark
        assert await still_served(peer)


async def test_an_answer_sent_later_is_bound_by_the_same_limits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held: list[tuple[RemotingCommand, Connection]] = []

    def hold(request: RemotingCommand, connection: Connection) -> None:
        held.append((request, connection))

    async with served({PING: ping, LATER: hold}) as (server, address), connected(address) as peer:
        async with trio.open_nursery() as nursery:
            answers: list[RemotingCommand] = []

            async def ask() -> None:
                answers.append(await peer.ask(LATER))

            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await eventually(lambda: len(held) == 2)
            (request, connection), (other, _) = held
            connection.reply(answer_large(request, connection))
            answer_with(fail, other, connection)
            server.flush()
        assert [a.code for a in answers] == [ResponseCode.SYSTEM_ERROR] * 2
        assert await still_served(peer)
    assert len([r for r in caplog.records if r.exc_info]) == 1


async def test_a_fenced_store_keeps_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, address), connected(address) as peer:
        answer = await peer.ask(FENCED)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the disk is gone")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_what_fails_at_the_end_of_a_turn_or_of_a_connection_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def end_turn() -> None:
        raise RuntimeError("end of a turn")

    def closed(_: Connection) -> None:
        raise RuntimeError("end of a connection")

    async with served(end_turn=end_turn, on_closed=closed) as (server, address):
        async with connected(address) as peer:
            assert await still_served(peer)
            server.flush()
        await eventually(lambda: server.connections_count == 0)
        async with connected(address) as peer:
            assert await still_served(peer)
    texts = {str(r.exc_info[1]) for r in caplog.records if r.exc_info}
    assert texts == {"end of a turn", "end of a connection"}


async def test_failures_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (_, address), connected(address) as peer:
        for _ in range(200):
            await peer.ask(FAILS)
    assert 1 <= len([r for r in caplog.records if r.exc_info]) <= 60
