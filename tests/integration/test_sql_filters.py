"""SQL92 filters over real sockets: pulls, holds, heartbeats, code 46, the native client."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.errors import FilterError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer, PullStatus
from motelog.bridge.sync import SyncPullConsumer
from motelog.core.broker.processors import filtered_reads
from motelog.core.broker.waiting import filter_gate
from motelog.core.filter.sql_filter import SqlFilter, compile_sql
from motelog.core.message import Message
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from tests.support.broker_stack import (
    TIMEOUT_S,
    Peer,
    Stack,
    connected,
    eventually,
    json_body,
    pull_ext,
    routed,
    send_ext,
    started_stack,
)

WARM = "kind = 'room' AND degrees > 20"


@pytest.fixture(autouse=True)
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no read end because the machine was busy elsewhere."""
    monkeypatch.setattr(filtered_reads, "BUSY_MS", 60_000)


async def send(peer: Peer, *degrees: float, kind: str = "room") -> None:
    for value in degrees:
        ext = send_ext("T", properties=f"kind\x01{kind}\x02degrees\x01{value}\x02")
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"%g" % value)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def pull(peer: Peer, offset: int, sql: str = WARM, **fields: Any) -> RemotingCommand:
    ext = pull_ext("T", offset, subscription=sql, expressionType="SQL92", **fields)
    return await peer.ask(RequestCode.PULL_MESSAGE, ext)


def found(answer: RemotingCommand) -> tuple[int, list[float], int]:
    """Return code, what the messages say and the next offset."""
    bodies = [float(message.body) for message in decode_messages(answer.body)]
    return answer.code, bodies, int(answer.ext["nextBeginOffset"])


async def test_a_pull_gets_what_matches_and_goes_on_behind_the_rest(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, 19, 21, 20, 22.5)
        await send(peer, 30, 31, kind="oven")
        assert found(await pull(peer, 0)) == (0, [21, 22.5], 6)
        assert found(await pull(peer, 2)) == (0, [22.5], 6)
        assert found(await pull(peer, 4)) == (20, [], 6)
        assert found(await pull(peer, 6)) == (19, [], 6)
        assert found(await pull(peer, 7)) == (21, [], 6)
        assert found(await pull(peer, 0, maxMsgNums=1)) == (0, [21], 2)
        assert found(await pull(peer, 0, maxMsgNums=9, maxMsgBytes=1)) == (0, [21], 3)
        assert found(await pull(peer, 0, "absent IS NULL")) == (0, [19, 21, 20, 22.5, 30, 31], 6)


async def test_the_first_filter_holds_up_nobody_while_the_parser_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_loaded = threading.Event()

    def load(expression: str) -> SqlFilter:
        assert is_loaded.wait(TIMEOUT_S)
        return compile_sql(expression)

    monkeypatch.setattr(filter_gate, "compile_sql", load)
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        await send(peer, 19, 21)
        answers: list[RemotingCommand] = []

        async def first() -> None:
            answers.append(await pull(peer, 0))

        nursery.start_soon(first)
        nursery.start_soon(first)
        await send(peer, 23)
        plain = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0))
        assert len(decode_messages(plain.body)) == 3
        assert not answers
        is_loaded.set()
        await eventually(lambda: len(answers) == 2)
        assert [found(answer) for answer in answers] == [(0, [21, 23], 3)] * 2


async def test_a_long_way_to_a_match_takes_several_pulls(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, 1)
        api = stack.broker.api
        text = b"kind\x01room\x02degrees\x011\x02"
        tail = api.queue_tail("T", 0)
        api.line.append([(tail, b"1", text, 0, 0, api.store_host, 0, 0, 0, 0)] * 3000)
        await send(peer, 50)
        offset, pulls = 0, 0
        while True:
            code, bodies, offset = found(await pull(peer, offset))
            pulls += 1
            if code == 0:
                break
            assert code == 20
        assert (bodies, offset) == ([50], 3002)
        assert pulls >= 3002 // 800


class Holding:
    """A pull that the broker holds, and its answer once there is one."""

    def __init__(self) -> None:
        self.answers: list[RemotingCommand] = []

    async def ask(self, peer: Peer, offset: int, hold_ms: int) -> None:
        self.answers.append(await pull(peer, offset, sysFlag=6, suspendTimeoutMillis=hold_ms))

    async def answer(self) -> tuple[int, list[float], int]:
        await eventually(lambda: len(self.answers) == 1)
        return found(self.answers[0])


@asynccontextmanager
async def holding(
    folder: Path, *, hold_ms: int = 15_000
) -> AsyncIterator[tuple[Stack, Peer, Holding]]:
    """Run a broker with one message, which holds a pull of the next for ``hold_ms``."""
    async with (
        started_stack(folder) as stack,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        await send(peer, 1)
        held = Holding()
        nursery.start_soon(held.ask, peer, 1, hold_ms)
        await until_held(stack, 1)
        yield stack, peer, held


async def test_a_held_pull_sleeps_until_a_message_matches(tmp_path: Path) -> None:
    async with holding(tmp_path) as (stack, peer, held):
        await send(peer, 2, 3)
        await send(peer, 40, kind="oven")
        await until_held(stack, 1)
        assert not held.answers
        await send(peer, 21)
        assert await held.answer() == (0, [21], 5)
        assert len(stack.broker.parts.processors.pull.held) == 0


async def test_a_hold_ends_behind_what_did_not_match(tmp_path: Path) -> None:
    async with holding(tmp_path, hold_ms=600) as (_, peer, held):
        await send(peer, 2)
        assert await held.answer() == (20, [], 2)


async def test_more_than_one_look_takes_sends_a_held_pull_on(tmp_path: Path) -> None:
    async with holding(tmp_path) as (stack, _, held):
        api = stack.broker.api
        row = (api.queue_tail("T", 0), b"1", b"", 0, 0, api.store_host, 0, 0, 0, 0)
        api.line.append([row] * 2000)
        code, bodies, offset = await held.answer()
        assert (code, bodies) == (20, [])
        assert 1 < offset <= 801


async def until_held(stack: Stack, count: int) -> None:
    await eventually(lambda: len(stack.broker.parts.processors.pull.held) == count)


def heartbeat(sql: str, version: int = 7) -> bytes:
    subscription = {
        "topic": "T",
        "subString": sql,
        "expressionType": "SQL92",
        "subVersion": version,
        "tagsSet": [],
        "codeSet": [],
    }
    consumer = {"groupName": "consumers", "subscriptionDataSet": [subscription]}
    return json_body({"clientID": "c", "consumerDataSet": [consumer]})


async def test_pulls_without_a_text_use_the_heartbeat_s(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, 19, 21)
        for version, sql, expected in (
            (7, WARM, (0, [21], 2)),
            (8, "degrees < 20.5", (0, [19], 2)),
            (9, "degrees >", None),
        ):
            assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat(sql, version))).code == 0
            ext = pull_ext("T", 0, sysFlag=0, subVersion=version)
            answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
            if expected is None:
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                assert "column 10" in (answer.remark or "")
            else:
                assert found(answer) == expected


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_what_cannot_be_filtered_by_is_refused_by_checks_and_pulls(
    tmp_path: Path, is_enabled: bool
) -> None:
    async with (
        started_stack(tmp_path, enable_property_filter=is_enabled) as stack,
        connected(stack.broker_address) as peer,
    ):
        await send(peer, 1)
        for sql in (WARM, "degrees >", "(" * 4000, "x" * 100_000):
            if not is_enabled:
                expected, text = ResponseCode.SYSTEM_ERROR, "does not support consumer to filter"
            elif sql == WARM:
                expected, text = ResponseCode.SUCCESS, ""
            else:
                expected, text = ResponseCode.SUBSCRIPTION_PARSE_FAILED, "column"
            answer = await pull(peer, 0, sql)
            assert (answer.code in (expected, 20), text in (answer.remark or "")) == (True, True)
            if len(sql) > 65_536:
                continue  # no heartbeat may say that either
            body = {"clientId": "c", "group": "G", "subscriptionData": subscription_of(sql)}
            answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=json_body(body))
            assert (answer.code, text in (answer.remark or "")) == (expected, True)


def subscription_of(sql: str) -> dict[str, Any]:
    return {"topic": "T", "subString": sql, "expressionType": "SQL92"}


async def send_degrees(stack: Stack, count: int) -> None:
    async with Producer(namesrv=stack.namesrv_address) as producer:
        for number in range(count):
            properties = {"kind": "room", "degrees": str(number)}
            tag = "AB"[number % 2]
            await producer.send(Message("T", b"%d" % number, tag, properties=properties))


async def test_the_native_consumer_filters_by_sql(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await send_degrees(stack, 40)
        await routed(stack, "T")
        async with PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
            queues = await consumer.queues("T")
            consumer.assign(queues, sql=f"{WARM} AND TAGS = 'A'")
            bodies: list[int] = []
            with trio.fail_after(TIMEOUT_S):
                while len(bodies) < 9:
                    bodies += [int(message.body) for message in await consumer.poll()]
            assert sorted(bodies) == list(range(22, 40, 2))
            # Behind the last message that was looked at, so that nothing is filtered twice.
            await eventually(lambda: None not in map(consumer.position, queues))
            with trio.fail_after(TIMEOUT_S):
                while sum(consumer.position(queue) or 0 for queue in queues) < 40:
                    await consumer.poll(timeout_s=0.05)
            result = await consumer.pull(queues[0], 0, sql="degrees < 0")
            assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 10)
            # Another filter is another assignment.
            consumer.assign(queues, sql="degrees = 7")
            consumer.seek_to_begin()
            assert [message.body for message in await consumer.poll(timeout_s=5)] == [b"7"]
            await consumer.commit(await consumer.begin_offsets(queues))
        async with PullConsumer(namesrv=stack.namesrv_address, group="G") as member:
            member.subscribe("T", sql="degrees = 7")
            assert [message.body for message in await member.poll(timeout_s=5)] == [b"7"]
            group = stack.broker.tables.consumers.get("G")
            assert group is not None
            assert group.subscriptions["T"].expression_type == "SQL92"
        await trio.to_thread.run_sync(filter_from_a_thread, stack.namesrv_address)


def filter_from_a_thread(namesrv: str) -> None:
    with SyncPullConsumer(namesrv=namesrv, group="Thread") as consumer:
        queues = consumer.queues("T")
        consumer.assign(queues, sql="degrees >= 39")
        assert [message.body for message in consumer.poll(timeout_s=5)] == [b"39"]
        for queue in queues:
            with consumer.open_puller(queue, sql="degrees >= 39") as puller:
                messages = puller.ask(0, 100).result().messages()
            assert {message.body for message in messages} <= {b"39"}


async def test_the_native_consumer_says_why_a_filter_is_none(tmp_path: Path) -> None:
    async with started_stack(tmp_path, enable_property_filter=False) as stack:
        await send_degrees(stack, 1)
        await routed(stack, "T")
        async with PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
            queues = await consumer.queues("T")
            with pytest.raises(FilterError, match="at column 11: it ends too early"):
                consumer.assign(queues, sql="degrees > ")
            with pytest.raises(ValueError, match="not both"):
                consumer.assign(queues, sql=WARM, tags="A")
            assert consumer.assigned == ()
            consumer.assign(queues, sql=WARM)
            with pytest.raises(FilterError, match="does not support consumer to filter"):
                await consumer.poll(timeout_s=TIMEOUT_S)
