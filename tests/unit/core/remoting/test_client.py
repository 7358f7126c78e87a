"""One remoting connection against a scripted peer, on in-memory streams and a mock clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from motelog.core.errors import (
    RemotingConnectError,
    RemotingConnectionError,
    RemotingTimeoutError,
)
from motelog.core.remoting.client import (
    LATER_ANSWERS_MAX,
    OUTPUT_BYTES_HIGH,
    Later,
    RemotingClient,
    RequestHandler,
    connect,
)
from motelog.core.remoting.frames import (
    FLAG_RESPONSE,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode,
    encode,
)

Stream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


@asynccontextmanager
async def connected(
    on_request: RequestHandler | None = None,
) -> AsyncIterator[tuple[RemotingClient, Stream]]:
    """A running client and the peer's end of its stream."""
    ours, theirs = trio.testing.memory_stream_pair()
    client = RemotingClient(ours, peer="peer:1", on_request=on_request)
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        yield client, theirs
        nursery.cancel_scope.cancel()


class Peer:
    """Reads whole frames from the peer's end."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = b""

    async def next(self) -> RemotingCommand:
        while len(self._buffer) < 4 or len(self._buffer) < self._frame_bytes:
            data = await self._stream.receive_some()
            assert data, "the client closed the connection"
            self._buffer += data
        frame, self._buffer = (
            self._buffer[: self._frame_bytes],
            self._buffer[self._frame_bytes :],
        )
        return decode(frame)

    @property
    def _frame_bytes(self) -> int:
        return 4 + int.from_bytes(self._buffer[:4], "big")


async def test_answers_find_their_requests_in_any_order() -> None:
    async with connected() as (client, theirs):
        answers: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            answer = await client.request(RemotingCommand(number), timeout_s=5)
            answers[number] = answer.body

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
            peer = Peer(theirs)
            requests = [await peer.next() for _ in range(10)]
            for request in reversed(requests):
                await theirs.send_all(encode(request.answer(body=b"%d" % request.code)))
        assert answers == {number: b"%d" % number for number in range(10)}


async def test_frames_cut_anywhere_are_put_together() -> None:
    async with connected() as (client, theirs), trio.open_nursery() as nursery:

        async def answer_bytewise() -> None:
            request = await Peer(theirs).next()
            for byte in encode(request.answer(remark="é" * 10, body=bytes(300))):
                await theirs.send_all(bytes([byte]))

        nursery.start_soon(answer_bytewise)
        answer = await client.request(RemotingCommand(1), timeout_s=5)
        assert (answer.remark, answer.body) == ("é" * 10, bytes(300))


async def test_several_answers_in_one_segment_all_arrive() -> None:
    async with connected() as (client, theirs), trio.open_nursery() as nursery:

        async def answer_all() -> None:
            peer = Peer(theirs)
            frames = [encode((await peer.next()).answer()) for _ in range(3)]
            await theirs.send_all(b"".join(frames))

        nursery.start_soon(answer_all)
        async with trio.open_nursery() as asking:
            for code in range(3):
                asking.start_soon(lambda c: client.request(RemotingCommand(c), timeout_s=5), code)


async def test_silent_peer_costs_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as (client, theirs):
        with pytest.raises(RemotingTimeoutError, match="code 11 within 3 s"):
            await client.request(RemotingCommand(RequestCode.PULL_MESSAGE), timeout_s=3)
        assert trio.current_time() == pytest.approx(3)
        assert client.is_open
        # The late answer is dropped, and the next request is not confused by it.
        peer = Peer(theirs)
        late = await peer.next()
        await theirs.send_all(encode(late.answer(body=b"late")))
        async with trio.open_nursery() as nursery:

            async def answer_next() -> None:
                await theirs.send_all(encode((await peer.next()).answer(body=b"fresh")))

            nursery.start_soon(answer_next)
            answer = await client.request(RemotingCommand(1), timeout_s=3)
        assert answer.body == b"fresh"
        assert client.late_answers_count == 1


async def test_answer_with_a_wrong_number_is_ignored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (client, theirs):
        await theirs.send_all(encode(RemotingCommand(0, opaque=999, flag=FLAG_RESPONSE)))
        with pytest.raises(RemotingTimeoutError):
            await client.request(RemotingCommand(1), timeout_s=1)
        assert client.late_answers_count == 1


async def test_close_by_the_peer_ends_all_waiting_requests() -> None:
    async with connected() as (client, theirs):
        failures = []

        async def ask() -> None:
            with pytest.raises(RemotingConnectionError, match="closed by the peer") as caught:
                await client.request(RemotingCommand(1), timeout_s=60)
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await Peer(theirs).next()
            await theirs.send_all(b"\0\0\1")  # half a frame, then nothing more
            await theirs.aclose()
        assert len(failures) == 3
        assert not client.is_open
        with pytest.raises(RemotingConnectionError):
            await client.request(RemotingCommand(1), timeout_s=60)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x7f\xff\xff\xff", id="length_far_too_large"),
        pytest.param(b"\0\0\0\1\0", id="length_too_small"),
        pytest.param(b"\0\0\0\6\0\0\0\2{]", id="bad_header"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="other_protocol"),
    ],
)
async def test_malformed_frame_ends_the_connection(data: bytes) -> None:
    async with connected() as (client, theirs), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(RemotingConnectionError, match="malformed"):
                await client.request(RemotingCommand(1), timeout_s=60)

        nursery.start_soon(ask)
        await Peer(theirs).next()
        await theirs.send_all(data.ljust(8, b"\0"))
    assert not client.is_open


async def test_requests_of_the_server_reach_the_callback_and_are_answered() -> None:
    seen = []

    def on_request(command: RemotingCommand) -> RemotingCommand | None:
        seen.append(command.code)
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.answer(body=b"{}")
        return None

    async with connected(on_request) as (_, theirs):
        await theirs.send_all(
            encode(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=1, flag=2))
            + encode(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=2))
            + encode(RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, opaque=3))
        )
        peer = Peer(theirs)
        first, second = await peer.next(), await peer.next()
    assert seen == [40, 307, 220]
    assert (first.opaque, first.code, first.body) == (2, ResponseCode.SUCCESS, b"{}")
    assert (second.opaque, second.code) == (3, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def test_answers_that_take_time_come_later_and_are_bounded() -> None:
    done = trio.Event()

    def on_request(command: RemotingCommand) -> Later:
        async def answer() -> RemotingCommand:
            await done.wait()
            return command.answer(body=b"later")

        return answer

    async with connected(on_request) as (_, theirs):
        for opaque in range(LATER_ANSWERS_MAX + 1):
            await theirs.send_all(encode(RemotingCommand(309, opaque=opaque)))
        peer = Peer(theirs)
        refused = await peer.next()
        assert (refused.opaque, refused.code) == (LATER_ANSWERS_MAX, ResponseCode.SYSTEM_BUSY)
        done.set()
        answers = [await peer.next() for _ in range(LATER_ANSWERS_MAX)]
        assert {answer.opaque for answer in answers} == set(range(LATER_ANSWERS_MAX))
        assert {answer.body for answer in answers} == {b"later"}
        await theirs.send_all(encode(RemotingCommand(309, opaque=99)))
        assert (await peer.next()).opaque == 99


async def test_oneway_request_is_marked_and_written_before_close() -> None:
    async with connected() as (client, theirs):
        await client.send_oneway(RemotingCommand(15, ext={"a": "b"}), timeout_s=1)
        await client.aclose()
        command = await Peer(theirs).next()
        assert command.is_oneway
        assert command.ext == {"a": "b"}
        await client.aclose()  # a second time is harmless
        with pytest.raises(RemotingConnectionError, match="closed by this side"):
            await client.send_oneway(RemotingCommand(15), timeout_s=1)


async def test_peer_that_does_not_read_makes_senders_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as (client, theirs):
        # A memory stream takes everything at once; its hook is what moves the bytes on.
        sending = client._stream.send_stream  # type: ignore[attr-defined]
        move_on = sending.send_all_hook
        unstuck = trio.Event()

        async def move_on_later() -> None:
            await unstuck.wait()
            await move_on()

        sending.send_all_hook = move_on_later
        large = RemotingCommand(1, body=bytes(OUTPUT_BYTES_HIGH))
        await client.send_oneway(large, timeout_s=1)
        with pytest.raises(RemotingTimeoutError, match="output was not sent"):
            await client.send_oneway(RemotingCommand(1), timeout_s=1)
        with pytest.raises(RemotingTimeoutError):
            await client.request(RemotingCommand(1), timeout_s=1)
        unstuck.set()
        await client.send_oneway(RemotingCommand(2), timeout_s=1)
        peer = Peer(theirs)
        assert [(await peer.next()).code for _ in range(2)] == [1, 2]


async def test_cancelled_request_leaves_the_connection_usable() -> None:
    async with connected() as (client, theirs):
        with trio.move_on_after(0):
            await client.request(RemotingCommand(1), timeout_s=5)
        async with trio.open_nursery() as nursery:

            async def answer_everything() -> None:
                peer = Peer(theirs)
                while True:
                    await theirs.send_all(encode((await peer.next()).answer()))

            nursery.start_soon(answer_everything)
            assert (await client.request(RemotingCommand(2), timeout_s=5)).code == 0
            nursery.cancel_scope.cancel()


async def test_refused_connection_names_the_address() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RemotingConnectError, match=address):
            await connect(address, timeout_s=5)


async def test_a_request_of_the_server_that_cannot_be_answered_ends_that_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(command: RemotingCommand) -> None:
        raise ZeroDivisionError

    async with connected(fail) as (client, stream):
        await stream.send_all(encode(RemotingCommand(RequestCode.PULL_MESSAGE)))
        with pytest.raises(RemotingConnectionError, match="a fault of this side"):
            await client.request(RemotingCommand(RequestCode.PULL_MESSAGE), timeout_s=10)
        assert not client.is_open
    assert "a connection to a server failed and is closed" in caplog.text
