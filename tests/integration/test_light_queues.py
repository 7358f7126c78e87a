"""Light queues (%LMQ%...) with RocketMQ's Java client: what Apache's broker does, ours does; and
store folders with light queues that the other has written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stack import connected, routed, started_stack, store_config
from tests.support.java import DRIVER, OURS, VERSION_4, VERSION_5, ApacheServer

pytestmark = pytest.mark.java

A, B, C = "%LMQ%a", "%LMQ%b%c", "%LMQ%later"
#: As of RocketMQ's MQTT gateway, which has one for each client.
LIGHT_GROUP = "%LMQ%client"
NAME = "apache"
DEADLINE_S = 60
#: As Apache's broker calls it.
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}


@asynccontextmanager
async def cluster(server: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Run our servers, or Apache's of a version; yields the name server's and broker's address."""
    if server == OURS:
        store = store_config(folder, lmq=True)
        async with started_stack(folder, store=store, name=NAME) as stack:
            await routed(stack, "TBW102")
            yield stack.namesrv_address, stack.broker_address
    else:
        async with ApacheServer(server, folder, settings=SETTINGS) as apache:
            yield apache.namesrv_address, apache.broker_address
            await apache.stop()  # offsets of groups are saved at the end


async def order(namesrv: str, *words: str, version: str = VERSION_5) -> list[list[str]]:
    with trio.fail_after(DEADLINE_S):
        return await DRIVER.run(version, words[0], namesrv, *words[1:])


async def check_fresh(namesrv: str, version: str = VERSION_5) -> None:
    """Send to light queues and pull them; what is said is the same from Apache's broker."""
    run = partial(order, namesrv, version=version)
    assert await run("lmqsend", "T", "P", "4", f"{A},{B}") == [["sent", "SEND_OK"]] * 4
    assert await run("lmqsend", "T", "P", "2", B) == [["sent", "SEND_OK"]] * 2
    both = [["T", f"Tag{i % 2}", f"{i},{i}", f"light{i}"] for i in range(4)]
    alone = [["T", f"Tag{i % 2}", f"{4 + i}", f"light{i}"] for i in range(2)]
    for name, group, expected in ((A, LIGHT_GROUP, both), (B, "G", [*both, *alone])):
        end = str(len(expected))
        assert await run("lmqpull", "T", group, end, name, NAME) == [
            ["ends", "0", end],
            *(["pulled", str(i), *one] for i, one in enumerate(expected)),
            ["next", end],
        ]


async def check_further(namesrv: str, broker: str) -> None:
    """Another start has the messages, and goes on with the offsets, also those of groups."""
    async with connected(broker) as peer:
        for name, group, expected in ((A, LIGHT_GROUP, "4"), (B, "G", "6")):
            ext = {"consumerGroup": group, "topic": name, "queueId": 0}
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
            assert (answer.code, answer.ext.get("offset")) == (ResponseCode.SUCCESS, expected)
    run = partial(order, namesrv)
    assert await run("lmqsend", "T", "P", "1", f"{A},{C}") == [["sent", "SEND_OK"]]
    found = await run("lmqpull", "T", "H", "5", A, NAME)
    assert found[0] == ["ends", "0", "5"]
    assert [line[1] for line in found[1:-1]] == ["0", "1", "2", "3", "4"]
    assert found[-2] == ["pulled", "4", "T", "Tag0", "4,0", "light0"]


@pytest.mark.parametrize(
    ("server", "version"),
    [
        (OURS, VERSION_5),
        (OURS, VERSION_4),
        pytest.param(VERSION_5, VERSION_5, marks=pytest.mark.java_all),
    ],
)
async def test_java_sends_to_light_queues_and_pulls_them(
    tmp_path: Path, server: str, version: str
) -> None:
    async with cluster(server, tmp_path / "store") as (namesrv, _):
        await check_fresh(namesrv, version)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (OURS, OURS),
        pytest.param(OURS, VERSION_5, marks=pytest.mark.java_all),
        pytest.param(VERSION_5, OURS, marks=pytest.mark.java_all),
    ],
)
async def test_a_folder_with_light_queues_is_opened_by_the_other(
    tmp_path: Path, first: str, second: str
) -> None:
    async with cluster(first, tmp_path / "store") as (namesrv, _):
        await check_fresh(namesrv)
    async with cluster(second, tmp_path / "store") as (namesrv, broker):
        await check_further(namesrv, broker)
