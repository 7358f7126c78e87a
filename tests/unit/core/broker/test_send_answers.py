"""Answers to sends: the template against the codec, and who waits for the disk."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.processors.send_answers import SendAnswers, StagedSend
from motelog.core.errors import RecordTooLargeError, StoreError, StoreFencedError, StoreFullError
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    RemotingCommand,
    ResponseCode,
    Serialize,
    decode,
)
from motelog.core.remoting.server import Connection, RemotingServer

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class FakeApi:
    """A log whose disk the test moves."""

    def __init__(self, *, flush_is_sync: bool = True) -> None:
        self.store_host = HOST
        self.flush_is_sync = flush_is_sync
        self.durable_offset = 0
        self.is_fenced = False
        self.moved = trio.Event()

    async def wait_durable(self, physical_offset: int) -> None:
        while self.durable_offset < physical_offset:
            if self.is_fenced:
                raise StoreFencedError("fdatasync failed")
            await self.moved.wait()

    def move(self, durable_offset: int) -> None:
        self.durable_offset = durable_offset
        self.moved.set()
        self.moved = trio.Event()

    def fence(self) -> None:
        self.is_fenced = True
        self.moved.set()


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


class FakeServer:
    def flush(self) -> None:
        pass


def make(api: FakeApi, *, region: str = "DefaultRegion") -> SendAnswers:
    return SendAnswers(cast("BrokerApi", api), region=region)


def staged(connection: FakeConnection | None, opaque: int, **fields: Any) -> StagedSend:
    request = RemotingCommand(310, opaque, serialize=fields.pop("serialize", Serialize.JSON))
    request.flag = fields.pop("flag", 0)
    values = {"queue_id": 0, "count": 1, "unique_key": None, "waits_for_disk": True, **fields}
    return StagedSend(request, cast("Connection", connection), **values)


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
    send = staged(None, opaque, queue_id=queue_id, unique_key=key, serialize=serialize)
    frame = make(FakeApi(), region=region).encode(send, [(physical, queue_offset)])
    ext = {
        "MSG_REGION": region,
        "TRACE_ON": "true",
        "msgId": (HOST + physical.to_bytes(8, "big")).hex().upper(),
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
    }
    if key is not None:
        ext["transactionId"] = key
    assert decode(frame) == send.request.answer(ext=ext)


async def test_answers_wait_for_the_disk_in_order_and_without_the_wish_do_not(
    nursery: trio.Nursery,
) -> None:
    api, connection = FakeApi(), FakeConnection()
    answers = make(api)
    await nursery.start(answers.run, cast("RemotingServer", FakeServer()))
    answers.succeed([staged(connection, 1)], [(0, 0)], 100)
    answers.succeed(
        [staged(connection, 2), staged(connection, 3, waits_for_disk=False)],
        [(100, 1), (200, 2)],
        300,
    )
    await trio.testing.wait_all_tasks_blocked()
    assert connection.answers == [(3, 0)]
    assert answers.waiting_count == 2
    api.move(100)
    await trio.testing.wait_all_tasks_blocked()
    assert connection.answers == [(3, 0), (1, 0)]
    api.move(300)
    await trio.testing.wait_all_tasks_blocked()
    assert connection.answers == [(3, 0), (1, 0), (2, 0)]
    assert answers.waiting_count == 0


async def test_a_failed_flush_refuses_all_who_wait(nursery: trio.Nursery) -> None:
    api, connection = FakeApi(), FakeConnection()
    answers = make(api)
    await nursery.start(answers.run, cast("RemotingServer", FakeServer()))
    answers.succeed([staged(connection, 1)], [(0, 0)], 100)
    answers.succeed([staged(connection, 2)], [(100, 0)], 200)
    api.fence()
    await trio.testing.wait_all_tasks_blocked()
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    assert connection.answers == [(1, code), (2, code)]
    assert answers.waiting_count == 0
    # And those who come later.
    answers.succeed([staged(connection, 3)], [(200, 0)], 300)
    await trio.testing.wait_all_tasks_blocked()
    assert connection.answers[2:] == [(3, code)]


def test_without_sync_flush_nobody_waits_and_oneway_is_not_answered() -> None:
    connection = FakeConnection()
    answers = make(FakeApi(flush_is_sync=False))
    sends = [staged(connection, 1), staged(connection, 2, flag=FLAG_ONEWAY), staged(connection, 3)]
    answers.succeed(sends, [(0, 0), (1, 1), (2, 2)], 3)
    answers.refuse(sends[1], StoreFullError("full"))
    assert connection.answers == [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFullError("full"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (StoreFencedError("fenced"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (RecordTooLargeError("large"), ResponseCode.MESSAGE_ILLEGAL),
        (StoreError("else"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_store_errors_have_their_code(error: StoreError, code: ResponseCode) -> None:
    connection = FakeConnection()
    make(FakeApi()).refuse(staged(connection, 1), error)
    assert connection.answers == [(1, code)]
