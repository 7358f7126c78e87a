"""How trace records become messages, and that they never disturb."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from motelog.bridge.trace.recorder import (
    CLOSE_S,
    KEYS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    WAITING_MAX,
    TraceRecorder,
)
from motelog.bridge.trace.records import TraceKind, TraceRecord, decode_records
from motelog.core.errors import BrokerError
from motelog.core.message import Message


class FakeSender:
    """Keeps what is sent; fails while ``error`` is set, waits while ``is_stuck``."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.error: Exception | None = None
        self.is_stuck = False
        self.is_open = False

    async def __aenter__(self) -> None:
        self.is_open = True

    async def __aexit__(self, *_error: object) -> None:
        self.is_open = False

    async def send(self, message: Message) -> None:
        if self.is_stuck:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    def records(self) -> list[TraceRecord]:
        return [r for message in self.sent for r in decode_records(message.body.decode())]


def record(number: int, *keys: str) -> TraceRecord:
    return TraceRecord(kind=TraceKind.RECALL, message_id=f"id{number}", keys=keys)


async def test_records_are_sent_together_and_their_ids_and_keys_are_the_keys(
    autojump_clock: MockClock,
) -> None:
    sender = FakeSender()
    async with TraceRecorder(sender, topic="TR") as recorder, trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        recorder.note([record(1, "a", "b"), record(2, "b")])
        recorder.note([record(1)])
        assert not sender.sent
        await trio.sleep(1.5)
        (message,) = sender.sent
        assert (message.topic, message.keys) == ("TR", ("id1", "a", "b", "id2"))
        assert [one.message_id for one in sender.records()] == ["id1", "id2", "id1"]
        nursery.cancel_scope.cancel()
    assert len(sender.sent) == 1
    assert not sender.is_open


async def test_a_message_has_a_bounded_body_and_bounded_keys(autojump_clock: MockClock) -> None:
    sender = FakeSender()
    wide = [
        TraceRecord(kind=TraceKind.RECALL, message_id=f"id{i}", group="g" * 1000)
        for i in range(300)
    ]
    many = [record(i, "k" * 100) for i in range(1000)]
    async with TraceRecorder(sender, topic="TR") as recorder:
        recorder.note([*wide, *many])
    assert len(sender.records()) == 1300
    assert max(len(message.body) for message in sender.sent) <= MESSAGE_BYTES_MAX
    assert max(len(" ".join(message.keys)) for message in sender.sent) <= KEYS_BYTES_MAX
    assert len(sender.sent) < 20


async def test_too_many_and_too_large_records_are_dropped_with_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender()
    async with TraceRecorder(sender, topic="TR") as recorder:
        recorder.note([record(0, "k" * (KEYS_BYTES_MAX + 1))])
        for number in range(WAITING_MAX + 7):
            recorder.note([record(number)])
    assert len(sender.records()) == WAITING_MAX - 1
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "records=9" in line.getMessage()


async def test_a_broker_that_refuses_costs_a_line_and_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender()
    sender.error = BrokerError(17, "the topic does not exist")
    async with TraceRecorder(sender, topic="TR") as recorder, trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        for number in range(4):
            recorder.note([record(number)])
            await trio.sleep(1)
        await trio.sleep(0.5)
        sender.error = None
        recorder.note([record(4)])
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert [one.message_id for one in sender.records()] == ["id4"]
    assert len(caplog.records) == 1
    assert "the topic does not exist" in caplog.text


async def test_records_that_are_on_their_way_when_the_client_closes_are_sent(
    autojump_clock: MockClock,
) -> None:
    sender = FakeSender()
    sender.is_stuck = True
    async with TraceRecorder(sender, topic="TR") as recorder:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            recorder.note([record(1), record(2)])
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        sender.is_stuck = False
    assert [one.message_id for one in sender.records()] == ["id1", "id2"]


async def test_a_broker_that_does_not_answer_keeps_no_client_from_closing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender()
    sender.is_stuck = True
    begin = trio.current_time()
    async with TraceRecorder(sender, topic="TR") as recorder:
        recorder.note([record(1)])
    assert trio.current_time() - begin == pytest.approx(CLOSE_S)
    assert "records=1" in caplog.text
