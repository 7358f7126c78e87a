"""Blocking pulls on one socket, against servers that answer as they like."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from motelog.bridge.errors import RouteError, UnreadableLogError
from motelog.bridge.mapped_log import COUNT_MIN, FoundLogs
from motelog.bridge.pull_request import PULL_BYTES_MAX, PullStatus
from motelog.bridge.queue_puller import QueuePuller
from motelog.core.errors import (
    BrokerError,
    RemotingConnectionError,
    RemotingDecodeError,
    RemotingTimeoutError,
)
from motelog.core.message import MessageQueue
from motelog.core.reader_key import write_key
from motelog.core.remoting.codes import LOG_FOLDER, LOG_KEY, LOG_UNITS
from motelog.core.remoting.frames import RemotingCommand, ResponseCode, decode, encode

QUEUE = MessageQueue("T", "broker-a", 3)


class Peer:
    """A server's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        self.connection = connection

    def request(self) -> RemotingCommand:
        length = self._receive(4)
        return decode(length + self._receive(int.from_bytes(length, "big")))

    def answer(self, request: RemotingCommand, body: bytes = b"", code: int = 0) -> None:
        self.connection.sendall(encode(answer(request, body, code)))

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


def answer(request: RemotingCommand, body: bytes = b"", code: int = 0) -> RemotingCommand:
    offset = int(request.ext["queueOffset"])
    ext = {
        "nextBeginOffset": str(offset + int(request.ext["maxMsgNums"])),
        "minOffset": "0",
        "maxOffset": "1000",
        "suggestWhichBrokerId": "0",
    }
    return request.answer(code, "remark", ext, body or b"records from %d" % offset)


@contextmanager
def puller(
    *scripts: Callable[[Peer], None], timeout_s: float = 5, found_logs: FoundLogs | None = None
) -> Iterator[QueuePuller]:
    """Pulls from a server whose first connection runs the first script, and so on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        host, port = listener.getsockname()

        def serve() -> None:
            for script in scripts:
                connection, _ = listener.accept()
                with connection:
                    script(Peer(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            address = f"{host}:{port}"
            with QueuePuller(
                QUEUE,
                group="G",
                address=lambda: address,
                timeout_s=timeout_s,
                found_logs=found_logs,
            ) as pulls:
                yield pulls
        finally:
            thread.join(10)
    assert not thread.is_alive()


def answer_all(peer: Peer) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            peer.answer(peer.request())


def test_requests_say_what_is_wanted() -> None:
    seen: list[dict[str, str]] = []

    def script(peer: Peer) -> None:
        request = peer.request()
        seen.append(request.ext)
        peer.answer(request)

    with puller(script) as pulls:
        result = pulls.ask(100, 50).result()
    assert result.status is PullStatus.FOUND
    assert (result.next_offset, result.min_offset, result.max_offset) == (150, 0, 1000)
    assert bytes(result.records) == b"records from 100"
    (ext,) = seen
    assert (ext["topic"], ext["queueId"], ext["bname"]) == ("T", "3", "broker-a")
    assert (ext["consumerGroup"], ext["sysFlag"]) == ("G", "4")
    assert (ext["queueOffset"], ext["maxMsgNums"], ext["maxMsgBytes"]) == ("100", "50", "262144")


def test_answers_may_come_in_any_order_and_are_large() -> None:
    bodies = {offset: bytes([offset]) * (300_000 * offset + 1) for offset in range(5)}

    def script(peer: Peer) -> None:
        requests = [peer.request() for _ in bodies]
        for request in (requests[i] for i in (3, 0, 4, 2, 1)):
            peer.answer(request, bodies[int(request.ext["queueOffset"])])

    with puller(script) as pulls:
        asked = [pulls.ask(offset, 1) for offset in bodies]
        for offset, pull in enumerate(asked):
            assert bytes(pull.result().records) == bodies[offset]


def test_an_answer_may_come_in_pieces() -> None:
    def script(peer: Peer) -> None:
        frame = encode(answer(peer.request(), b"x" * 100_000))
        for at in (*range(20), *range(20, len(frame), 9999)):
            end = at + 1 if at < 20 else at + 9999
            peer.connection.sendall(frame[at:end])

    with puller(script) as pulls:
        assert bytes(pulls.ask(0, 1).result().records) == b"x" * 100_000


def test_a_refusal_does_not_end_the_connection() -> None:
    def script(peer: Peer) -> None:
        peer.answer(peer.request(), code=ResponseCode.NO_PERMISSION)
        peer.answer(peer.request(), code=ResponseCode.PULL_NOT_FOUND)
        peer.answer(peer.request())

    with puller(script) as pulls:
        refused, empty, found = (pulls.ask(offset, 1) for offset in range(3))
        with pytest.raises(BrokerError, match="remark") as caught:
            refused.result()
        assert caught.value.code == ResponseCode.NO_PERMISSION
        result = empty.result()
        assert (result.status, result.records) == (PullStatus.NO_NEW_MESSAGE, b"")
        assert bytes(found.result().records) == b"records from 2"


def test_cancelled_pulls_and_notices_are_passed_over() -> None:
    def script(peer: Peer) -> None:
        first, second = peer.request(), peer.request()
        peer.answer(first)
        peer.connection.sendall(encode(RemotingCommand(40, second.opaque)))  # a request to us
        peer.answer(second)

    with puller(script) as pulls:
        first, second = pulls.ask(0, 1), pulls.ask(1, 1)
        first.cancel()
        assert bytes(second.result().records) == b"records from 1"
        with pytest.raises(RemotingConnectionError):
            first.result()


def test_no_answer_in_time_fails_everything_in_flight_and_the_next_pull_reconnects() -> None:
    def silent(peer: Peer) -> None:
        peer.request()
        peer.connection.sendall(b"\0\0")  # a part of an answer does not help
        with suppress(EOFError, ConnectionError):
            while True:
                peer.request()

    with puller(silent, answer_all, timeout_s=0.1) as pulls:
        first, second = pulls.ask(0, 1), pulls.ask(1, 1)
        with pytest.raises(RemotingTimeoutError, match=r"no answer within 0\.1 s"):
            first.result()
        with pytest.raises(RemotingConnectionError, match="has ended"):
            second.result()
        assert bytes(pulls.ask(2, 1).result().records) == b"records from 2"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "closed by the peer"),
        (b"\0\0\0\x20\0\0\0\x10{", "closed by the peer"),
        (b"\x7f\xff\xff\xff\0\0\0\x10", "malformed frame: frame of 2147483651 bytes"),
        (b"\0\0\0\0\0\0\0\0", "malformed frame: frame of 4 bytes"),
        (b"\0\0\0\x06\0\0\0\x02[]", "malformed frame: header is not"),
        (b"\0\0\0\x06\0\0\0\xff{}", "malformed frame: header ends at"),
    ],
)
def test_a_peer_that_breaks_off_or_talks_nonsense_is_left(data: bytes, why: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.connection.sendall(data)

    with puller(script, answer_all) as pulls:
        with pytest.raises(RemotingConnectionError, match=why):
            pulls.ask(0, 1).result()
        assert bytes(pulls.ask(1, 1).result().records) == b"records from 1"


def test_an_answer_without_its_fields_is_malformed() -> None:
    def script(peer: Peer) -> None:
        request = peer.request()
        peer.connection.sendall(encode(request.answer(0, ext={"nextBeginOffset": "1"})))

    with puller(script) as pulls, pytest.raises(RemotingDecodeError, match="minOffset"):
        pulls.ask(0, 1).result()


def test_nobody_there_is_a_connection_error_and_no_route_the_callers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    with (
        QueuePuller(QUEUE, group="G", address=lambda: address) as pulls,
        pytest.raises(RemotingConnectionError, match="refused"),
    ):
        pulls.ask(0, 1)

    def nowhere() -> str:
        raise RouteError("unknown", topic="T")

    with QueuePuller(QUEUE, group="G", address=nowhere) as pulls, pytest.raises(RouteError):
        pulls.ask(0, 1)


def test_a_broker_that_names_its_folder_is_sent_the_key_and_then_asked_for_records(
    tmp_path: Path,
) -> None:
    key = write_key(str(tmp_path))
    seen: list[tuple[str | None, str]] = []

    def script(peer: Peer) -> None:
        for told in ({LOG_FOLDER: str(tmp_path)}, {LOG_UNITS: "0"}, {}, {}):
            request = peer.request()
            seen.append((request.ext.get(LOG_KEY), request.ext["maxMsgBytes"]))
            found = answer(request, bytes(20))
            found.ext |= told
            peer.connection.sendall(encode(found))

    with puller(script, found_logs={}) as pulls:
        assert list(pulls.ask(0, COUNT_MIN).result().pieces()) == [bytes(20)]
        named = pulls.ask(0, COUNT_MIN).result()
        assert (named.records, named.next_offset) == (b"", COUNT_MIN)
        assert bytes(pulls.ask(0, COUNT_MIN - 1).result().records) == bytes(20)
        # There is no such file.
        with pytest.raises(UnreadableLogError):
            next(named.pieces())
        assert bytes(pulls.ask(0, COUNT_MIN).result().records) == bytes(20)
    usual = str(PULL_BYTES_MAX)
    assert seen == [("", usual), (key, "4194304"), (None, usual), (None, usual)]
