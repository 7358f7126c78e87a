"""TransactionProducer against our broker: commit, rollback, questions, restarts, both doors."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.asyncio import AsyncioTransactionProducer
from motelog.bridge.errors import MessageRefusedError
from motelog.bridge.pull import PullConsumer
from motelog.bridge.sync import SyncTransactionProducer
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.errors import BrokerError
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import ResponseCode
from tests.support.broker_stack import eventually, started_stack

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)
SOON: dict[str, Any] = {"transaction_timeout_s": 0.1, "transaction_check_interval_s": 0.1}
TIMEOUT_S = 20


async def never(_: StoredMessage) -> TransactionState:
    raise AssertionError("nobody should be asked")


def says_nothing(_: Message) -> None:
    """Say nothing, where a state is wanted."""


async def read(namesrv: str, topic: str, count: int) -> list[StoredMessage]:
    """Return all messages of a topic once there are ``count``."""
    async with PullConsumer(namesrv=namesrv, group="G", hold_s=0.2) as consumer:
        consumer.assign(await consumer.queues(topic))
        messages: list[StoredMessage] = []
        with trio.fail_after(TIMEOUT_S):
            while len(messages) < count:
                messages += await consumer.poll(timeout_s=1)
        return messages + await consumer.poll(timeout_s=0.2)


async def test_a_message_counts_when_the_local_transaction_does(tmp_path: Path) -> None:
    done: list[bytes] = []

    async def execute(message: Message) -> TransactionState:
        done.append(message.body)
        return COMMIT if int(message.body) % 2 else ROLLBACK

    async with started_stack(tmp_path) as stack:
        async with TransactionProducer(
            never, namesrv=stack.namesrv_address, group="Buyers"
        ) as producer:
            for index in range(6):
                message = Message("T", b"%d" % index, tags="dev1", keys="k")
                result = await producer.send_in_transaction(message, execute)
                assert result.state is (COMMIT if index % 2 else ROLLBACK)
            # What execute raises is the caller's; whether it took place is not known.
            with pytest.raises(ZeroDivisionError):
                await producer.send_in_transaction(Message("T", b"7"), fails)
        found = await read(stack.namesrv_address, "T", 3)
        assert sorted(message.body for message in found) == [b"1", b"3", b"5"]
        assert {(message.tags, message.keys) for message in found} == {("dev1", ("k",))}
        assert {message.properties["PGROUP"] for message in found} == {"Buyers"}
        assert done == [b"%d" % index for index in range(6)]


async def fails(_: Message) -> TransactionState:
    raise ZeroDivisionError


async def test_an_open_transaction_is_asked_about_until_it_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: Counter[bytes] = Counter()

    async def check(message: StoredMessage) -> TransactionState:
        asked[message.body] += 1
        if message.body == b"fault" and asked[message.body] == 1:
            raise ZeroDivisionError
        if asked[message.body] < 3:
            return UNKNOWN
        return ROLLBACK if message.body == b"no" else COMMIT

    async def not_yet(_: Message) -> TransactionState:
        return UNKNOWN

    async with started_stack(tmp_path, **SOON) as stack:
        async with TransactionProducer(check, namesrv=stack.namesrv_address) as producer:
            for body in (b"yes", b"no", b"fault"):
                result = await producer.send_in_transaction(Message("T", body), not_yet)
                assert result.state is UNKNOWN
            found = await read(stack.namesrv_address, "T", 2)
            await eventually(lambda: min(asked.values()) >= 3)
        assert sorted(message.body for message in found) == [b"fault", b"yes"]
    assert re.search(
        r"asks again .* error=ZeroDivisionError\(\) at=.*/test_\w+\.py:\d+$", caplog.text
    )


async def test_another_producer_of_the_group_is_asked(tmp_path: Path) -> None:
    """One that has sent nothing yet, as after a restart."""
    asked: list[bytes] = []

    async def check(message: StoredMessage) -> TransactionState:
        asked.append(message.body)
        return COMMIT

    async with started_stack(tmp_path, **SOON) as stack:
        namesrv = stack.namesrv_address
        async with TransactionProducer(never, namesrv=namesrv, group="Buyers") as first:
            half = await first.send_half(Message("T", b"left behind"))
        async with TransactionProducer(check, namesrv=namesrv, group="Buyers", topics=["T"]):
            (found,) = await read(namesrv, "T", 1)
        assert (found.body, set(asked)) == (b"left behind", {b"left behind"})
        assert found.message_id == half.sent.message_id


async def test_an_end_that_is_refused_says_why(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        async with TransactionProducer(never, namesrv=stack.namesrv_address) as producer:
            half = await producer.send_half(Message("T", b"x"))
            await producer.rollback(half)
            await producer.rollback(half)
            with pytest.raises(BrokerError, match="rolled back") as refusal:
                await producer.commit(half)
            assert refusal.value.code == ResponseCode.ILLEGAL_OPERATION
            with pytest.raises(MessageRefusedError, match="delayed"):
                await producer.send_half(Message("T", b"x", properties={"DELAY": "1"}))
            # It is an ordinary producer as well.
            await producer.send(Message("T", b"plain"))
        (found,) = await read(stack.namesrv_address, "T", 1)
        assert found.body == b"plain"


async def test_a_restart_of_the_broker_loses_no_transaction(tmp_path: Path) -> None:
    async def check(message: StoredMessage) -> TransactionState:
        return COMMIT if message.body.startswith(b"c") else ROLLBACK

    async with (
        started_stack(tmp_path) as stack,
        TransactionProducer(check, namesrv=stack.namesrv_address) as producer,
    ):
        for body in (b"c open", b"r open"):
            await producer.send_half(Message("T", body))
        for body, end in ((b"c ended", producer.commit), (b"r ended", producer.rollback)):
            await end(await producer.send_half(Message("T", body)))
    async with started_stack(tmp_path, **SOON) as stack:
        namesrv = stack.namesrv_address
        async with TransactionProducer(check, namesrv=namesrv, topics=["T"]):
            found = await read(namesrv, "T", 2)
        assert sorted(message.body for message in found) == [b"c ended", b"c open"]


async def test_plain_threads_have_transactions(tmp_path: Path) -> None:
    async with started_stack(tmp_path, **SOON) as stack:
        namesrv = stack.namesrv_address

        def work() -> None:
            with SyncTransactionProducer(lambda _: COMMIT, namesrv=namesrv) as producer:
                result = producer.send_in_transaction(Message("T", b"0"), lambda _: COMMIT)
                assert result.state is COMMIT
                producer.send_in_transaction(Message("T", b"1"), lambda _: UNKNOWN)
                producer.rollback(producer.send_half(Message("T", b"2")))
                producer.commit(producer.send_half(Message("T", b"3")))
                producer.send(Message("T", b"4"))
                mistakes: list[tuple[Any, str]] = [
                    (never, "coroutine"),
                    (str, "str"),
                    (says_nothing, "NoneType"),
                ]
                for execute, kind in mistakes:
                    with pytest.raises(TypeError, match=f"returned {kind}, not a TransactionState"):
                        producer.send_in_transaction(Message("U", b""), execute)
                while stack.broker.sample()["transactions_committed"] < 3:
                    time.sleep(0.01)

        await trio.to_thread.run_sync(work)
        found = await read(namesrv, "T", 4)
        assert sorted(message.body for message in found) == [b"0", b"1", b"3", b"4"]


async def test_asyncio_has_transactions(tmp_path: Path) -> None:
    async with started_stack(tmp_path, **SOON) as stack:
        namesrv = stack.namesrv_address

        async def on_asyncio() -> None:
            checked = asyncio.Event()

            async def check(_: StoredMessage) -> TransactionState:
                checked.set()
                return COMMIT

            async def unknown(_: Message) -> TransactionState:
                return UNKNOWN

            async with AsyncioTransactionProducer(check, namesrv=namesrv) as producer:
                await producer.send_in_transaction(Message("T", b"0"), unknown)
                await producer.rollback(await producer.send_half(Message("T", b"1")))
                await producer.commit(await producer.send_half(Message("T", b"2")))
                async with asyncio.timeout(TIMEOUT_S):
                    await checked.wait()
                    while stack.broker.sample()["transactions_committed"] < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)  # the broker's counter has no event

        await trio.to_thread.run_sync(asyncio.run, on_asyncio())
        found = await read(namesrv, "T", 2)
        assert sorted(message.body for message in found) == [b"0", b"2"]
