"""The boundary of a server: what one request causes is that request's answer and a log line."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from motelog.core.errors import (
    RemotingConnectionError,
    RemotingError,
    RemotingTimeoutError,
    StoreFencedError,
)
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import open_listeners
from motelog.core.remoting.client import connect
from motelog.core.remoting.frames import (
    FRAME_BYTES_MAX,
    RemotingCommand,
    ResponseCode,
    decode,
    encode,
)
from motelog.core.remoting.server import (
    Connection,
    ConnectionLimits,
    Processor,
    RemotingServer,
    answer_with,
)
from motelog.core.spare_memory import NO_MEMORY
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
    limits = ConnectionLimits(connections_max=8, frame_bytes_max=1 << 16, idle_s_max=60)
    server = RemotingServer(processors, limits, **options)
    (listener,) = open_listeners(ListenerConfig(name="a", address="127.0.0.1:0"))
    server.listen(listener)
    host, port = listener.address
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


class PlainFails:
    """Takes every request to be plain, and fails at one code."""

    def __init__(self) -> None:
        self.takers: Mapping[int, Callable[[Any, Connection], bool]] = {
            PING: lambda item, connection: False,
            FAILS: self._fail,
        }

    def split(self, data: Any, index: Any, count: int) -> list[Any]:
        ends = [(index[i + 2], index[i + 3]) for i in range(0, 4 * count, 4)]
        return [(decode(data[begin:end]).code,) for begin, end in ends]

    def _fail(self, item: Any, connection: Connection) -> bool:
        raise ZeroDivisionError


async def test_a_plain_request_that_fails_is_answered_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(plain=PlainFails()) as (_, address), connected(address) as peer:
        answer = await peer.ask(FAILS)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert await still_served(peer)
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"code={FAILS} peer=127.0.0.1:" in record.getMessage()


class PlainLacksMemory(PlainFails):
    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def split(self, data: Any, index: Any, count: int) -> list[Any]:
        raise self.error


@pytest.mark.parametrize("error", NO_MEMORY)
async def test_a_turn_without_memory_closes_its_connections_and_no_others(
    caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    plain = PlainLacksMemory(error)
    async with (
        served(plain=plain) as (_, address),
        connected(address) as first,
        connected(address) as second,
    ):
        with pytest.raises(RemotingConnectionError):
            await first.ask(PING)
        plain.split = PlainFails().split  # type: ignore[method-assign]  # there is memory again
        assert await still_served(second)
    assert "there is no memory for a turn" in caplog.text


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


ASKED = 9


def deferring(outcomes: list[RemotingCommand | RemotingError], **how: float) -> Processor:
    """Return a processor that asks the client something, and answers what came of it."""

    def process(request: RemotingCommand, connection: Connection) -> None:
        def answered(outcome: RemotingCommand | RemotingError) -> None:
            outcomes.append(outcome)
            text = outcome.remark if isinstance(outcome, RemotingCommand) else str(outcome)
            connection.reply(request.answer(remark=text))

        connection.ask(RemotingCommand(ASKED), answered, timeout_s=how.get("timeout_s", 5.0))

    return process


async def test_a_client_is_asked_and_its_answer_is_told() -> None:
    outcomes: list[RemotingCommand | RemotingError] = []
    processors = {PING: ping, LATER: deferring(outcomes)}
    async with served(processors) as (_, address), connected(address) as peer:
        # A client that knows the request, and one that does not.
        peer.answer = lambda command: command.answer(remark="here")
        assert (await peer.ask(LATER)).remark == "here"
        peer.answer = lambda command: None
        assert "not supported by this client" in ((await peer.ask(LATER)).remark or "")
    assert [type(outcome) for outcome in outcomes] == [RemotingCommand] * 2


async def test_a_client_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    outcomes: list[RemotingCommand | RemotingError] = []
    process = deferring(outcomes, timeout_s=0.05)
    async with served({PING: ping, LATER: process}) as (_, address):
        async with silent(address) as stream:
            await stream.send_all(encode(RemotingCommand(LATER, opaque=7)))
            await read_frame(stream)
            answer = await read_frame(stream)
            assert (answer.opaque, answer.remark) == (
                7,
                "the client did not answer within 0.05 s",
            )
            # Too late.
            late = RemotingCommand(ASKED, opaque=1).answer()
            await stream.send_all(encode(late))
        async with connected(address) as peer:
            assert await still_served(peer)
    assert [type(outcome) for outcome in outcomes] == [RemotingTimeoutError]


async def test_the_end_of_a_connection_ends_what_was_asked_of_it() -> None:
    outcomes: list[RemotingCommand | RemotingError] = []
    async with served({LATER: deferring(outcomes)}) as (_, address):
        async with silent(address) as stream:
            await stream.send_all(b"".join(encode(RemotingCommand(LATER)) for _ in range(3)))
            await read_frame(stream)
        await eventually(lambda: len(outcomes) == 3)
    assert {type(outcome) for outcome in outcomes} == {RemotingConnectionError}


async def test_an_answer_counts_only_from_the_client_that_was_asked() -> None:
    outcomes: list[RemotingCommand | RemotingError] = []
    async with (
        served({PING: ping, LATER: deferring(outcomes)}) as (_, address),
        silent(address) as asked,
        silent(address) as other,
    ):
        await asked.send_all(encode(RemotingCommand(LATER)))
        question = await read_frame(asked)
        foreign = encode(question.answer(remark="not mine")) + encode(RemotingCommand(PING))
        await other.send_all(foreign)
        assert (await read_frame(other)).remark == "pong"
        assert outcomes == []
        await asked.send_all(encode(question.answer(remark="mine")))
        assert (await read_frame(asked)).remark == "mine"


async def test_there_is_a_most_of_what_one_client_may_owe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motelog.core.remoting.asked.WAITING_OF_ONE_MAX", 2)
    outcomes: list[RemotingCommand | RemotingError] = []
    async with served({LATER: deferring(outcomes)}) as (_, address), silent(address) as stream:
        await stream.send_all(b"".join(encode(RemotingCommand(LATER)) for _ in range(3)))
        frames = [await read_frame(stream) for _ in range(3)]
        (refused,) = [frame for frame in frames if frame.is_response]
        assert refused.remark == "too many requests to clients are already waiting for an answer"


async def test_what_fails_on_an_answer_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def process(_: RemotingCommand, connection: Connection) -> None:
        def answered(_: RemotingCommand | RemotingError) -> None:
            raise RuntimeError("no use for it")

        connection.ask(RemotingCommand(ASKED), answered, timeout_s=5.0)

    async with served({PING: ping, LATER: process}) as (_, address), connected(address) as peer:
        await peer.client.send_oneway(RemotingCommand(LATER), timeout_s=5.0)
        await eventually(lambda: any(r.exc_info for r in caplog.records))
        assert await still_served(peer)


@asynccontextmanager
async def silent(address: str) -> AsyncIterator[trio.abc.Stream]:
    """A connection whose client answers nothing by itself."""
    async with await connect(address, timeout_s=5.0) as stream:
        yield stream


async def read_frame(stream: trio.abc.Stream) -> RemotingCommand:
    """Return the next frame, read byte by byte so that nothing behind it is taken."""
    with trio.fail_after(5):
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += await stream.receive_some(1)
        return decode(data)
