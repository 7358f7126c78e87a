"""HTTP clients of the console that are slow, silent or many."""

from __future__ import annotations

import contextlib
import socket

import pytest
import trio

from motelog.config import AdminConfig
from motelog.console import http
from motelog.console.server import Console
from tests.support.console import console_of

DEADLINE_S = 60
HEAD = b"Host: localhost\r\n"


async def started(nursery: trio.Nursery, connections_max: int = 256) -> Console:
    config = AdminConfig(listen="127.0.0.1:0", connections_max=connections_max)
    console = console_of(config)
    await nursery.start(console.run)
    return console


async def dial(console: Console) -> trio.SocketStream:
    return await trio.open_tcp_stream(*console.address)


async def ask(stream: trio.SocketStream) -> bytes:
    await stream.send_all(b"GET /health/live HTTP/1.1\r\n" + HEAD + b"\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        part = await stream.receive_some()
        assert part, "the server has closed the connection"
        answer += part
    return answer


async def wait_ended(stream: trio.SocketStream) -> None:
    """Return once the server has closed a connection."""
    with contextlib.suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass


async def test_a_thousand_silent_connections_give_way_to_those_who_ask(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_S", 10 * DEADLINE_S)  # none ends for another reason
    console = await started(nursery, connections_max=32)
    to_end, ended = 1000 - 32, trio.Event()

    async def watch(stream: trio.SocketStream) -> None:
        nonlocal to_end
        async with stream:
            await wait_ended(stream)
            to_end -= 1
            if not to_end:
                ended.set()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as watching, await dial(console) as used:
            await ask(used)
            for _ in range(1000):
                watching.start_soon(watch, await dial(console))
            async with await dial(console) as asking:
                assert b"200" in await ask(asking)
                assert b"200" in await ask(asking)  # it stays for the next request
            await ended.wait()
            await wait_ended(used)  # it waited for a request, as those that came after it
            watching.cancel_scope.cancel()
    nursery.cancel_scope.cancel()


async def test_half_requests_take_neither_a_task_nor_a_parser_from_health(
    nursery: trio.Nursery,
) -> None:
    console = await started(nursery)
    begun = []

    class Tasks(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            begun.append(task.name)

    with contextlib.ExitStack() as held, trio.fail_after(DEADLINE_S):
        # The console does not run meanwhile, so that the last one is behind all others.
        for _ in range(1000):
            one = held.enter_context(socket.create_connection(console.address))
            one.sendall(b"GET /health/live HTTP/1.1\r\n" + HEAD)
        last = held.enter_context(socket.create_connection(console.address))
        last.sendall(b"GET /health/live HTTP/1.1\r\n" + HEAD + b"\r\n")
        last.setblocking(False)
        tasks = Tasks()
        trio.lowlevel.add_instrument(tasks)
        await trio.lowlevel.wait_readable(last)
        trio.lowlevel.remove_instrument(tasks)
        assert last.recv(4096).endswith(b"ok\n")
    assert len(begun) == 1, begun
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("begin", "deadline"),
    [
        (b"GET /health/live HTTP/1.1\r\nA: ", "HEAD_S"),
        (
            b"POST /do/kick_client HTTP/1.1\r\n" + HEAD + b"Content-Length: 60000\r\n\r\n",
            "BODY_S",
        ),
    ],
    ids=["head", "body"],
)
async def test_single_bytes_renew_no_deadline(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, begin: bytes, deadline: str
) -> None:
    monkeypatch.setattr(http, deadline, 0.5)
    console = await started(nursery)

    async def drip(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(begin)
            while True:
                await stream.send_all(b"x")
                await trio.sleep(0.05)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as dripping, await dial(console) as stream:
            dripping.start_soon(drip, stream)
            await wait_ended(stream)
            dripping.cancel_scope.cancel()
        async with await dial(console) as other:
            await ask(other)
    nursery.cancel_scope.cancel()


async def test_who_does_not_read_answers_is_let_go(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SEND_S", 0.5)
    console = await started(nursery)
    requests = (b"GET /static/console.css HTTP/1.1\r\n" + HEAD + b"\r\n") * 100

    async def flood(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(requests)

    with trio.fail_after(DEADLINE_S):
        async with await dial(console) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await flood(stream)
    nursery.cancel_scope.cancel()


async def test_one_whose_request_is_answered_does_not_give_way(nursery: trio.Nursery) -> None:
    console = await started(nursery, connections_max=1)
    begin = b"POST /do/kick_client HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n"
    with trio.fail_after(DEADLINE_S):
        async with await dial(console) as busy:
            await busy.send_all(begin + HEAD + b"\r\n")
            assert b" 100 " in await busy.receive_some()
            async with await dial(console) as other:
                await wait_ended(other)
            await busy.send_all(b"a=b")
            assert (await busy.receive_some()).startswith(b"HTTP/1.1 403")
    nursery.cancel_scope.cancel()
