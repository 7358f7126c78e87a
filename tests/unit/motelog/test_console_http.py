"""HTTP/1.1 of the console, over streams in memory."""

from __future__ import annotations

import logging

import pytest
import trio
from starlette.types import ASGIApp, Receive, Scope, Send
from trio.testing import MockClock, memory_stream_pair

from motelog.console import http
from motelog.console.http import HttpConnection
from motelog.core.limited_log import LimitedLog

GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the method, the path and the body of a request, each part as it comes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    text = f"{scope['method']} {scope['path']} "
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    more = True
    while more:
        message = await receive()
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


async def whole_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path and the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await answer(send, b"%s %d" % (scope["path"].encode(), size))


async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without a look at the body."""
    await answer(send, scope["path"].encode())


async def answer(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(app: ASGIApp, stream: trio.abc.Stream) -> None:
    connection = HttpConnection(stream, {}, LimitedLog(logging.getLogger("test")))
    async with stream:
        while (request := await connection.next_request()) is not None:
            if not await connection.answer(app, request):
                break


async def exchange(app: ASGIApp, *parts: bytes, is_ended: bool = True) -> bytes:
    """Return all that the server answers to ``parts``, until it ends the connection."""
    ours, theirs = memory_stream_pair()
    answers = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, app, theirs)
        for part in parts:
            await ours.send_all(part)
            await trio.testing.wait_all_tasks_blocked()
        if is_ended:
            await ours.send_eof()
        while data := await ours.receive_some():
            answers += data
    return answers


def bodies(answers: bytes) -> list[bytes]:
    """Return the bodies of answers that all have a length."""
    found = []
    while answers:
        head, _, rest = answers.partition(b"\r\n\r\n")
        [size] = [
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line[:15] == b"content-length:"
        ]
        found.append(rest[:size])
        answers = rest[size:]
    return found


async def test_requests_in_a_row_are_answered_in_order_whatever_the_cuts() -> None:
    requests = b"".join(GET % number for number in range(5)) + POST % 3 + b"abc" + GET % 9
    whole = await exchange(whole_body, requests)
    assert bodies(whole) == [b"/0 0", b"/1 0", b"/2 0", b"/3 0", b"/4 0", b"/ 3", b"/9 0"]
    for cut in range(len(requests)):
        got = await exchange(whole_body, requests[:cut], requests[cut:])
        assert bodies(got) == bodies(whole), cut


async def test_a_body_is_given_on_as_it_comes_and_an_answer_too() -> None:
    got = await exchange(echo, POST % 6, b"ab", b"cd", b"ef")
    assert b"transfer-encoding: chunked" in got.lower()
    assert got.endswith(b"\r\n\r\n7\r\nPOST / \r\n2\r\nab\r\n2\r\ncd\r\n2\r\nef\r\n0\r\n\r\n")


async def test_an_answer_to_head_has_no_body() -> None:
    got = await exchange(deaf, b"HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n", GET % 1)
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"content-length: 4" in head
    assert bodies(rest) == [b"/1"]


async def test_a_body_is_invited_only_when_it_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    expecting = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    asked = await exchange(whole_body, expecting, b"abc")
    assert asked.startswith(b"HTTP/1.1 100 ")
    assert asked.endswith(b"\r\n\r\n/ 3")
    unasked = await exchange(deaf, expecting, is_ended=False)
    assert unasked.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in unasked.lower()


@pytest.mark.parametrize(("app", "status"), [(deaf, b"200"), (whole_body, b"400"), (echo, b"200")])
@pytest.mark.parametrize("sent", [b"", b"abc"])
async def test_a_body_that_is_cut_off_ends_its_connection_alone(
    app: ASGIApp, status: bytes, sent: bytes
) -> None:
    got = await exchange(app, POST % 2147483647, sent)
    assert got.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in got.lower()
    assert not got.endswith(b"0\r\n\r\n")  # an echo is not ended as if it were whole


async def test_a_body_that_does_not_come_is_waited_for_so_long_and_a_head_too(
    autojump_clock: MockClock,
) -> None:
    began_s = trio.current_time()
    got = await exchange(whole_body, POST % 3, b"ab", is_ended=False)
    assert got.startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() - began_s == pytest.approx(http.BODY_S + http.LINGER_S, abs=0.01)
    began_s = trio.current_time()
    assert await exchange(deaf, (GET % 1)[:-1], is_ended=False) == b""
    assert trio.current_time() - began_s == pytest.approx(http.HEAD_S, abs=0.01)


async def test_the_end_is_told_to_an_application_that_asks_and_may_answer_still() -> None:
    told = []

    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"]
        told.append((await receive())["type"])
        await answer(send, b"done")

    assert bodies(await exchange(asking, GET % 1)) == [b"done"]
    # What follows waits: it is no body, and no end.
    assert bodies(await exchange(asking, GET % 1, GET % 2)) == [b"done", b"done"]
    assert told == ["http.disconnect"] * 3


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_application_that_fails_ends_its_connection_alone(
    has_begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise ZeroDivisionError

    got = await exchange(failing, GET % 1, is_ended=False)
    assert got.startswith(b"HTTP/1.1 200 " if has_begun else b"HTTP/1.1 500 ")
    assert not got.endswith(b"0\r\n\r\n") or not has_begun
    assert "a request to the console failed path='/1'" in caplog.text


async def test_what_is_no_request_is_refused(autojump_clock: MockClock) -> None:
    for sent, status in (
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # without Host
        (b"GET /%s HTTP/1.1\r\n" % (b"x" * (http.HEAD_BYTES_MAX + 1)), b"431"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ):
        got = await exchange(deaf, sent, is_ended=False)
        assert got.startswith(b"HTTP/1.1 " + status), sent[:40]
        assert b"content-length: 0\r\nconnection: close" in got.lower()
        assert b"\r\ndate: " in got.lower()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    ],
    ids=["websocket", "h2c"],
)
async def test_another_protocol_is_not_changed_to(head: bytes) -> None:
    assert bodies(await exchange(deaf, head, GET % 2)) == [b"/1", b"/2"]


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end() -> None:
    got = await exchange(deaf, b"GET /1 HTTP/1.0\r\n\r\n", is_ended=False)
    assert b"connection: close" in got.lower()
    assert bodies(got) == [b"/1"]
