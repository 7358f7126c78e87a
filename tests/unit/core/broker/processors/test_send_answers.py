"""Answers to sends: the template against the codec, and who waits for the disk."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.processors.send_answers import SendAnswers, StagedSend, make_rules
from motelog.core.clock import ManualClock
from motelog.core.errors import (
    NextFileError,
    RecordTooLargeError,
    StoreError,
    StoreFencedError,
    StoreFullError,
)
from motelog.core.remoting.frames import (
    RemotingCommand,
    ResponseCode,
    Serialize,
    decode,
)
from motelog.core.remoting.server import Connection
from tests.support.fake_acknowledge import FakeAcknowledge

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class FakeApi:
    """A log whose disk the test moves."""

    def __init__(self, *, acknowledged_offset: int = 0) -> None:
        self.store_host = HOST
        self.acknowledge = FakeAcknowledge(acknowledged_offset)


class FakeConnection:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def reply(self, command: RemotingCommand) -> None:
        from motelog.core.remoting.frames import encode

        self.frames.append(encode(command))

    @property
    def answers(self) -> list[tuple[int, int]]:
        """(opaque, code) of what was sent."""
        commands = map(decode, self.frames)
        return [(command.opaque, command.code) for command in commands]


def make(
    api: FakeApi, *, region: str = "DefaultRegion", clock: ManualClock | None = None
) -> SendAnswers:
    rules = make_rules(HOST, region, b"", ())
    return SendAnswers(
        cast("BrokerApi", api), clock=clock or ManualClock(), region=region, rules=rules
    )


def staged(
    connection: FakeConnection,
    opaque: int,
    *,
    serialize: Serialize = Serialize.JSON,
    queue_id: int = 0,
    unique_key: str | None = None,
    is_oneway: bool = False,
    waits_for_disk: bool = True,
) -> StagedSend:
    key = None if unique_key is None else unique_key.encode()
    peer = cast("Connection", connection)
    return peer, opaque, int(serialize), is_oneway, queue_id, 1, key, waits_for_disk


@given(
    opaque=st.integers(-(2**31), 2**31 - 1),
    physical=st.integers(0, 2**63 - 1),
    queue_id=st.integers(0, 65535),
    queue_offset=st.integers(0, 2**63 - 1),
    key=st.none() | st.text(max_size=40) | st.from_regex(r"[0-9A-F]{32}", fullmatch=True),
    serialize=st.sampled_from(Serialize),
    region=st.sampled_from(["DefaultRegion", 'a"b', "r-1", "Ü"]),
)
def test_every_answer_reads_back_as_what_it_says(
    opaque: int,
    physical: int,
    queue_id: int,
    queue_offset: int,
    key: str | None,
    serialize: Serialize,
    region: str,
) -> None:
    connection = FakeConnection()
    send = staged(connection, opaque, queue_id=queue_id, unique_key=key, serialize=serialize)
    make(FakeApi(), region=region).succeed([send], [(physical, queue_offset)], 0)
    ext = {
        "MSG_REGION": region,
        "TRACE_ON": "true",
        "msgId": (HOST + physical.to_bytes(8, "big")).hex().upper(),
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
    }
    if key is not None:
        ext["transactionId"] = key
    request = RemotingCommand(310, opaque, serialize=serialize)
    assert [decode(frame) for frame in connection.frames] == [request.answer(ext=ext)]


def test_answers_wait_for_the_disk_in_order_and_without_the_wish_do_not() -> None:
    api, connection = FakeApi(), FakeConnection()
    answers = make(api)
    answers.succeed([staged(connection, 1)], [(0, 0)], 100)
    answers.succeed(
        [staged(connection, 2), staged(connection, 3, waits_for_disk=False)],
        [(100, 1), (200, 2)],
        300,
    )
    assert connection.answers == [(3, 0)]
    assert answers.waiting_count == 2
    assert api.acknowledge.wanted_offset == 0
    answers.queue.want()
    assert api.acknowledge.wanted_offset == 300
    api.acknowledge.grow_to(100)
    assert connection.answers == [(3, 0), (1, 0)]
    api.acknowledge.grow_to(300)
    assert connection.answers == [(3, 0), (1, 0), (2, 0)]
    assert answers.waiting_count == 0


def test_a_failed_flush_refuses_all_who_wait() -> None:
    api, connection = FakeApi(), FakeConnection()
    answers = make(api)
    answers.succeed([staged(connection, 1)], [(0, 0)], 100)
    answers.succeed([staged(connection, 2)], [(100, 0)], 200)
    api.acknowledge.fail(StoreFencedError("fdatasync failed"))
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert connection.answers == [(1, code), (2, code)]
    assert answers.waiting_count == 0
    assert answers.refused_count == 2


async def test_who_waits_too_long_is_told_where_the_message_is_and_why_it_is_not_safe(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    class FakeServer:
        sent = 0

        def send_queued(self) -> None:
            self.sent += 1

    class TrioClock(ManualClock):
        def monotonic_ms(self) -> int:
            return round(trio.current_time() * 1000)

    api, connection, server = FakeApi(), FakeConnection(), FakeServer()
    answers = make(api, region="R", clock=TrioClock())
    await nursery.start(answers.queue.run, server.send_queued)
    for opaque, serialize in enumerate(Serialize, 1):
        send = staged(connection, opaque, serialize=serialize, unique_key="K")
        answers.succeed([send], [(16 * opaque, opaque)], 100 * opaque)
    await trio.sleep(4.99)
    assert connection.answers == []
    await trio.sleep(0.02)
    for opaque, frame in enumerate(connection.frames, 1):
        answer = decode(frame)
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.opaque == opaque
        assert "5000 ms" in (answer.remark or "")
        assert answer.ext["msgId"] == (HOST + (16 * opaque).to_bytes(8, "big")).hex().upper()
        assert answer.ext["queueOffset"] == str(opaque)
        assert answer.ext["transactionId"] == "K"
    assert len(connection.frames) == len(Serialize)
    assert server.sent > 0
    # The message is stored, so it is not counted as refused; and it is answered once.
    assert (answers.timed_out_count, answers.refused_count) == (len(Serialize), 0)
    assert answers.waiting_count == 0
    api.acknowledge.grow_to(1_000)
    assert len(connection.frames) == len(Serialize)


def test_what_may_be_acknowledged_does_not_wait_and_oneway_is_not_answered() -> None:
    connection = FakeConnection()
    answers = make(FakeApi(acknowledged_offset=3))
    sends = [staged(connection, 1), staged(connection, 2, is_oneway=True), staged(connection, 3)]
    answers.succeed(sends, [(0, 0), (1, 1), (2, 2)], 3)
    answers.refuse(sends[1], StoreFullError("full"))
    assert connection.answers == [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFullError("full"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (StoreFencedError("fenced"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (NextFileError("no next file yet"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (RecordTooLargeError("large"), ResponseCode.MESSAGE_ILLEGAL),
        (StoreError("else"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_store_errors_have_their_code(error: StoreError, code: ResponseCode) -> None:
    connection = FakeConnection()
    make(FakeApi()).refuse(staged(connection, 1), error)
    assert connection.answers == [(1, code)]
