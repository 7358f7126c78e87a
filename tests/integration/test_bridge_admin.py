"""What an operator does with Admin, on our servers; test_apache_rocketmq has Apache's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from motelog.bridge.admin import Admin, ResetTo
from motelog.bridge.errors import ClientError, NoNameServerError
from motelog.bridge.producer import Producer
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from tests.support.admin_check import administer
from tests.support.broker_stack import joined, started_stack


async def test_an_operator_s_calls(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await administer(stack.namesrv_address)


async def test_times_are_seconds_or_dates(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, Admin(namesrv=stack.namesrv_address) as admin:
        async with Producer(namesrv=stack.namesrv_address) as producer:
            sent = await producer.send(Message("T", b""))
        await admin.put_group("G")
        (queue,) = [sent.queue]
        cases: list[tuple[ResetTo, int]] = [
            (0, 0), (datetime(2020, 1, 1, tzinfo=UTC), 0), ("first", 0), ("last", 1), (4e9, 1),
        ]  # fmt: skip
        for to, offset in cases:
            assert (await admin.reset_offsets("G", "T", to))[queue] == offset
        wrongs: list[ResetTo] = ["yesterday", -1, float("nan")]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="'first', 'last' or a time"):
                await admin.reset_offsets("G", "T", wrong)


async def test_a_name_server_that_is_away_is_named_and_the_others_are_told(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with started_stack(tmp_path) as stack:
        both = f"127.0.0.1:1;{stack.namesrv_address}"
        async with Admin(namesrv=both) as admin:
            with pytest.raises(NoNameServerError, match=r"not every name server .* 127.0.0.1:1"):
                await admin.put_value("n", "k", "v")
            assert await admin.value("n", "k") == "v"


async def test_without_a_broker_the_name_server_is_not_enough(nursery: trio.Nursery) -> None:

    server = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
    await nursery.start(server.run)
    async with Admin(namesrv=joined(server.address)) as admin:
        assert await admin.brokers() == []
        with pytest.raises(ClientError, match="is one running"):
            await admin.put_topic("T")
    nursery.cancel_scope.cancel()
