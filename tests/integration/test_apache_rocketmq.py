"""Apache RocketMQ's own name server and broker: our clients against them, and one store folder
that they and our broker write in turn, after clean stops and after SIGKILL.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
import trio

from motelog.bridge.producer import Producer, SendStatus
from motelog.bridge.pull import PullConsumer, PullStatus
from motelog.bridge.sync import SyncPullConsumer
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RequestCode, ResponseCode, loads
from tests.support.admin_check import administer
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import connected, joined, json_body, started_stack
from tests.support.java import COMMITLOG_FILE_BYTES, VERSION_4, VERSION_5, ApacheServer
from tests.support.stores import opened, read_queue

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

COUNT = 40
TOTAL = 2 * COUNT + 2
# RocketMQ writes its ops some time after the end, and asks about what has none: it would commit
# twice if it asked earlier.
APACHE_SOON = {
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    "transactionOpBatchInterval": 100,
}
NEW_TOPIC_WAIT_S = 20
LARGE = random.Random(1).randbytes(300_000)

# What identifies a message and where it is: topic, queue id, queue offset, unique id, tag, keys,
# body.
Line = tuple[str, int, int, str, str | None, tuple[str, ...], bytes]


def lines(messages: Iterable[StoredMessage]) -> list[Line]:
    return sorted(
        (m.topic, m.queue_id, m.queue_offset, m.message_id, m.tags, m.keys, m.body)
        for m in messages
    )


async def send_some(namesrv: str, topic: str, count: int) -> None:
    """Send ``count`` single messages, as many in one batch, one compressed and one large one."""
    async with Producer(namesrv=namesrv, group="P", timeout_s=10) as producer:
        for i in range(count):
            result = await producer.send(Message(topic, b"single %d" % i, "AB"[i % 2], (f"k{i}",)))
            assert result.status is SendStatus.OK
        batch = [Message(topic, b"batch %d" % i, "C") for i in range(count)]
        result = await producer.send_batch(batch)
        assert len(result.offset_id.split(",")) == count
        for body in (b"z" * 100_000, LARGE):
            await producer.send(Message(topic, body))


async def read_topic(
    namesrv: str, topic: str, count: int, *, group: str, tags: str = "*"
) -> list[StoredMessage]:
    """Read on from the group's offsets until ``count`` messages came; commit."""
    async with PullConsumer(namesrv=namesrv, group=group, hold_s=2) as consumer:
        consumer.assign(await consumer.queues(topic, wait_s=NEW_TOPIC_WAIT_S), tags=tags)
        messages: list[StoredMessage] = []
        with trio.fail_after(30):
            while len(messages) < count:
                messages += await consumer.poll(timeout_s=5)
        await consumer.commit()
    return messages


async def read_whole(namesrv: str, topic: str) -> list[Line]:
    """Return everything the broker has of ``topic``, by its own bounds."""
    async with PullConsumer(namesrv=namesrv, group="Whole", hold_s=0) as consumer:
        queues = await consumer.queues(topic, wait_s=NEW_TOPIC_WAIT_S)
        begin, end = await consumer.begin_offsets(queues), await consumer.end_offsets(queues)
        messages: list[StoredMessage] = []
        for queue in queues:
            offset = begin[queue]
            while offset < end[queue]:
                result = await consumer.pull(queue, offset)
                assert result.status is PullStatus.FOUND
                offset = result.next_offset
                messages += result.messages()
    return lines(messages)


async def check_keys(namesrv: str, topic: str, whole: list[Line]) -> None:
    """Ask for each key that messages of ``whole`` have, and find just these."""
    expected: dict[str, list[Line]] = {}
    for line in whole:
        for key in line[5]:
            expected.setdefault(key, []).append(line)
    assert len(expected) >= COUNT
    async with PullConsumer(namesrv=namesrv, group="Keys") as consumer:
        await consumer.queues(topic, wait_s=NEW_TOPIC_WAIT_S)
        found = {key: lines(await consumer.query_by_key(topic, key)) for key in expected}
    assert found == expected


async def committed_offsets(namesrv: str, topic: str, *, group: str) -> list[int]:
    async with PullConsumer(namesrv=namesrv, group=group) as consumer:
        queues = await consumer.queues(topic, wait_s=NEW_TOPIC_WAIT_S)
        return [await consumer.committed(queue) or 0 for queue in queues]


def read_folder(folder: Path, topic: str) -> list[Line]:
    """Return everything our store finds of ``topic`` in a copy of ``folder``."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    found: list[StoredMessage] = []
    with opened(copy, consume_queue_file_units=300_000) as store:
        for key in store.queues():
            messages = read_queue(store, *key)
            assert [(m.topic, m.queue_id) for m in messages] == [key] * len(messages)
            assert [m.queue_offset for m in messages] == list(range(len(messages)))
            found += messages
    shutil.rmtree(copy)
    return lines(message for message in found if message.topic == topic)


@pytest.mark.parametrize(
    ("version", "stops_first"),
    [
        (VERSION_5, False),
        # 4.9 has no setting for the address it listens on, and takes all of them.
        pytest.param(VERSION_4, True, marks=pytest.mark.java_all),
        # Its clean stop takes ten seconds.
        pytest.param(VERSION_5, True, marks=pytest.mark.java_all),
    ],
)
async def test_our_clients_work_with_apache_and_our_store_opens_its_folder(
    tmp_path: Path, version: str, stops_first: bool
) -> None:
    folder = tmp_path / "store"
    async with ApacheServer(version, folder) as apache:
        namesrv = apache.namesrv_address
        await send_some(namesrv, "T", COUNT)
        messages = await read_topic(namesrv, "T", TOTAL, group="G")
        bodies = [message.body for message in messages]
        numbered = [b"%s %d" % (kind, i) for kind in (b"single", b"batch") for i in range(COUNT)]
        assert sorted(bodies) == sorted([*numbered, b"z" * 100_000, LARGE])
        assert len({message.message_id for message in messages}) == TOTAL
        single = [message for message in messages if message.body.startswith(b"single")]
        assert {message.keys for message in single} == {(f"k{i}",) for i in range(COUNT)}
        tagged = await read_topic(namesrv, "T", COUNT // 2 + COUNT, group="Tags", tags="A || C")
        assert {message.tags for message in tagged} == {"A", "C"}
        await check_first_commits(namesrv)
        async with PullConsumer(namesrv=namesrv, group="G") as consumer:
            assert await consumer.topics() == ["T"]
        await check_times_and_holds(namesrv)
        await check_request_and_reply(namesrv)
        await administer(namesrv, deletes=False, resets_offline=version != VERSION_4)
        await trio.to_thread.run_sync(check_blocking_facade, namesrv)
        await check_runtime_info(apache.broker_address, tmp_path / "ours")
        if stops_first:
            committed = await committed_offsets(namesrv, "T", group="G")
            assert sum(committed) == TOTAL
            await apache.stop()
            assert not (folder / "abort").exists()
            assert read_folder(folder, "T") == lines(messages)
            await apache.start()
            assert await committed_offsets(namesrv, "T", group="G") == committed
        await send_some(namesrv, "T", 5)
        # Not one of those that the group had committed before comes again.
        added = await read_topic(namesrv, "T", 12, group="G")
        assert len(added) == 12
        whole = await read_whole(namesrv, "T")
        assert whole == lines([*messages, *added])
        apache.kill()
        assert (folder / "abort").exists()
        assert read_folder(folder, "T") == whole
    async with started_stack(folder) as stack:
        assert await read_whole(stack.namesrv_address, "T") == whole
        await check_keys(stack.namesrv_address, "T", whole)
        # Killed, Apache's broker may not have saved offsets yet.
        kept = sum(await committed_offsets(stack.namesrv_address, "T", group="G"))
        assert kept >= (TOTAL if stops_first else 0)


async def check_first_commits(namesrv: str) -> None:
    """Commit several queues for groups that the broker has not heard of."""
    for number in range(20):
        async with PullConsumer(namesrv=namesrv, group=f"Fresh{number}") as consumer:
            offsets = dict.fromkeys(await consumer.queues("T"), 1)
            await consumer.commit(offsets)
            assert {queue: await consumer.committed(queue) for queue in offsets} == offsets


async def check_runtime_info(apache: str, folder: Path) -> None:
    """Find every key of Apache's runtime information in ours."""
    async with started_stack(folder) as stack:
        shown = []
        for address in (apache, stack.broker_address):
            async with connected(address) as peer:
                answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
                shown.append(set(loads(answer.body)["table"]))
    theirs, ours = shown
    assert {name for name in theirs - ours if not name.startswith("commitLogDiskRatio_")} == set()


async def check_request_and_reply(namesrv: str) -> None:
    async with (
        Producer(namesrv=namesrv) as producer,
        PullConsumer(namesrv=namesrv, group="Answering") as consumer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(Message("Questions", b"no question"))
        consumer.assign(await consumer.queues("Questions", wait_s=NEW_TOPIC_WAIT_S))

        async def answer() -> None:
            while True:
                for message in await consumer.poll(timeout_s=10):
                    if message.body == b"who":
                        await producer.reply_to(message, b"re who")

        nursery.start_soon(answer)
        reply = await producer.request(Message("Questions", b"who"), timeout_s=10)
        assert reply.body == b"re who"
        nursery.cancel_scope.cancel()


async def check_times_and_holds(namesrv: str) -> None:
    async with (
        Producer(namesrv=namesrv) as producer,
        PullConsumer(namesrv=namesrv, group="Times") as consumer,
    ):
        queue = (await producer.send(Message("Times", b"0"))).queue
        await consumer.queues("Times", wait_s=NEW_TOPIC_WAIT_S)
        await trio.sleep(0.02)
        later_ms = time.time_ns() // 1_000_000
        await producer.send(Message("Times", b"1"), queue=queue)
        with trio.fail_after(10):
            while (await consumer.end_offsets([queue]))[queue] < 2:  # noqa: ASYNC110  # no event
                await trio.sleep(0.05)
        assert await consumer.begin_offsets([queue]) == {queue: 0}
        assert await consumer.offsets_for_time([queue], later_ms) == {queue: 1}
        assert await consumer.offsets_for_time([queue], 0) == {queue: 0}
        assert (await consumer.pull(queue, 2)).status is PullStatus.NO_NEW_MESSAGE
        beyond = await consumer.pull(queue, 99)
        assert (beyond.status, beyond.max_offset) == (PullStatus.OFFSET_ILLEGAL, 2)
        async with trio.open_nursery() as nursery:

            async def send_later() -> None:
                await trio.sleep(0.3)
                await producer.send(Message("Times", b"2"), queue=queue)

            nursery.start_soon(send_later)
            held = await consumer.pull(queue, 2, hold_s=10)
        assert [m.body for m in held.messages()] == [b"2"]


# What the brokers are asked for, over messages with the properties of PROPERTIES.
FILTERS = (
    "a = 'x'", "a <> 'x'", "a = 5", "5 = a", "a > 5", "a <= 5.5", "a BETWEEN 4 AND 6",
    "a NOT BETWEEN 4 AND 6", "a IN ('x', '5')", "a NOT IN ('x', '5')", "a IS NULL",
    "a IS NOT NULL", "NOT (a = 'x')", "a", "NOT a", "TRUE", "NULL", "FALSE OR a = 'x'",
    "a = b", "a <> b", "b = a", "a > b", "b IS NULL AND a IS NOT NULL", "a = TRUE", "b = FALSE",
    "a > 5 OR b = 'y'", "b = 'y' OR a > 5", "NOT (a > 5)", "a = 'it''s'", "a = -5", "- -5 = 5",
    "(a = 'x') = TRUE", "a = 'x' IS NULL", "5 > 3 AND '5' = 5 AND 5 = 5.0", "c = .5 AND a = 5E0",
    "TAGS = 'T' AND a is not null", "a /* x */ = -- y\n 'x'", "A = 'x'", "-a IS NULL",
    "a = 'x' OR a = 'y' AND b = 'y'", "a BETWEEN 5 AND b", "d = 3 OR e = 'z'",
    "c BETWEEN 0.1 AND 1.", "c < 0.5 OR c > 0.5", "c = '0.5'", "c <> '.5'",
)  # fmt: skip
# RocketMQ compares a whole number with whole numbers alone; these filters match in our broker only.
WIDER = ("c > 0", "c < 5", "NOT (c = 5)", "a IS NULL AND c >= 0 AND b = 'x'", "3000000000 > c")
FILTERS_OF_5_3 = ("a CONTAINS 't'", "a NOT CONTAINS 't'", "NOT (a CONTAINS 't')", "a CONTAINS ''")
REFUSED = (
    "a >", "a > 'x'", "a = NULL", "a BETWEEN 10 AND 0", "a IN (5)", "'x' IN ('x')", "5", "a ! b",
    "in = 1", "a > 9223372036854775808", "a > 1E999", "TRUE = 'x'", "a BETWEEN 'a' AND 'b'",
    "NOT a > 1",
)  # fmt: skip
VALUES = (None, "x", "y", "5", "4", "7", "-5", "it's", "true", "false")
PROPERTIES = [
    {name: value for name, value in (("a", a), ("b", b), ("c", "0.5")) if value is not None}
    for a in VALUES
    for b in VALUES
]


async def filtered(namesrv: str, filters: Iterable[str]) -> dict[str, list[int]]:
    """Return per filter which of the messages match it, by numbers."""
    found: dict[str, list[int]] = {}
    async with PullConsumer(namesrv=namesrv, group="Sql") as consumer:
        queues = await consumer.queues("Sql", wait_s=NEW_TOPIC_WAIT_S)
        ends = await consumer.end_offsets(queues)
        for sql in filters:
            bodies: list[int] = []
            for queue in queues:
                offset = 0
                while offset < ends[queue]:
                    result = await consumer.pull(queue, offset, sql=sql)
                    assert result.next_offset > offset, sql
                    offset = result.next_offset
                    bodies += [int(message.body) for message in result.messages()]
            found[sql] = sorted(bodies)
    return found


async def send_with_properties(namesrv: str) -> None:
    async with Producer(namesrv=namesrv, group="P", timeout_s=10) as producer:
        for number, properties in enumerate(PROPERTIES):
            await producer.send(Message("Sql", b"%d" % number, "T", properties=properties))


async def refused(address: str, sql: str) -> bool:
    """Say whether a broker refuses a text as no filter (code 46)."""
    subscription = {"topic": "Sql", "subString": sql, "expressionType": "SQL92"}
    body = {"clientId": "c", "group": "Sql", "subscriptionData": subscription}
    async with connected(address) as peer:
        answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=json_body(body))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    return answer.code != ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_filters_match_what_they_match_at_apache(tmp_path: Path, version: str) -> None:
    filters = FILTERS if version == VERSION_4 else FILTERS + FILTERS_OF_5_3
    async with (
        ApacheServer(version, tmp_path / "theirs") as apache,
        started_stack(tmp_path / "ours") as stack,
    ):
        for namesrv in (apache.namesrv_address, stack.namesrv_address):
            await send_with_properties(namesrv)
        theirs = await filtered(apache.namesrv_address, filters)
        assert await filtered(stack.namesrv_address, filters) == theirs
        assert theirs["a = 'x'"] == [n for n, p in enumerate(PROPERTIES) if p.get("a") == "x"]
        assert not any((await filtered(apache.namesrv_address, WIDER)).values())
        assert all((await filtered(stack.namesrv_address, WIDER)).values())
        for sql in REFUSED:
            for address in (apache.broker_address, stack.broker_address):
                assert await refused(address, sql), sql


def check_blocking_facade(namesrv: str) -> None:
    with SyncPullConsumer(namesrv=namesrv, group="Blocking") as consumer:
        queues = consumer.queues("T")
        consumer.assign(queues)
        seen = 0
        deadline = time.monotonic() + 30
        while seen < TOTAL and time.monotonic() < deadline:
            seen += len(consumer.poll(timeout_s=2))
        consumer.commit()
        assert seen == TOTAL
        ends = consumer.end_offsets(queues)
        assert {queue: consumer.committed(queue) or 0 for queue in queues} == ends


async def write_and_stop(folder: Path) -> list[Line]:
    async with started_stack(folder) as stack:
        return await write_ours(stack.namesrv_address)


async def write_and_kill(folder: Path) -> list[Line]:
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = joined(namesrv.address)
        broker = BrokerProcess(folder, namesrv=address)
        await trio.to_thread.run_sync(broker.start)
        try:
            written = await write_ours(address)
        finally:
            await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    return written


async def write_ours(namesrv: str) -> list[Line]:
    """Fill more than one CommitLog file; leave group G in the middle of it."""
    await send_some(namesrv, "T", COUNT)
    await read_topic(namesrv, "T", TOTAL, group="G")
    async with Producer(namesrv=namesrv, timeout_s=10) as producer:
        for i in range(COMMITLOG_FILE_BYTES * 5 // 4 // len(LARGE)):
            await producer.send(Message("T", LARGE, "L", (f"large{i}",)))
    return await read_whole(namesrv, "T")


@pytest.mark.parametrize(
    ("version", "write"),
    [
        (VERSION_5, write_and_kill),
        pytest.param(VERSION_4, write_and_stop, marks=pytest.mark.java_all),
        pytest.param(VERSION_5, write_and_stop, marks=pytest.mark.java_all),
        pytest.param(VERSION_4, write_and_kill, marks=pytest.mark.java_all),
    ],
)
async def test_apache_serves_the_folder_of_our_broker_and_we_serve_it_after(
    tmp_path: Path, version: str, write: Callable[[Path], Awaitable[list[Line]]]
) -> None:
    folder = tmp_path / "store"
    written = await write(folder)
    async with ApacheServer(version, folder) as apache:
        namesrv = apache.namesrv_address
        assert await read_whole(namesrv, "T") == written
        await check_keys(namesrv, "T", written)
        # The group's offsets came along in the folder: what it has read does not come again.
        if write is write_and_stop:
            assert sum(await committed_offsets(namesrv, "T", group="G")) == TOTAL
        rest = await read_topic(namesrv, "T", len(written) - TOTAL, group="G")
        assert {message.tags for message in rest} == {"L"}
        await send_some(namesrv, "T", 10)
        whole = await read_whole(namesrv, "T")
        assert set(written) < set(whole)
        assert len(whole) == len(written) + 22
        if version == VERSION_4:
            await apache.stop()
        else:
            apache.kill()
    assert read_folder(folder, "T") == whole
    async with started_stack(folder) as stack:
        await check_keys(stack.namesrv_address, "T", whole)
        await send_some(stack.namesrv_address, "T", 3)
        assert len(await read_whole(stack.namesrv_address, "T")) == len(whole) + 8


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_our_transactions_on_apache_rocketmq(tmp_path: Path, version: str) -> None:
    asked: set[bytes] = set()

    async def check(message: StoredMessage) -> TransactionState:
        asked.add(message.body)
        return state_of(message)

    async def execute(message: Message) -> TransactionState:
        return state_of(message) if message.body < b"2" else TransactionState.UNKNOWN

    def state_of(message: Message | StoredMessage) -> TransactionState:
        is_good = message.body.endswith(b"good")
        return TransactionState.COMMIT if is_good else TransactionState.ROLLBACK

    async with ApacheServer(version, tmp_path / "store", settings=APACHE_SOON) as apache:
        namesrv = apache.namesrv_address
        async with TransactionProducer(check, namesrv=namesrv, timeout_s=10) as producer:
            for body in (b"1 good", b"1 bad", b"2 good", b"2 bad"):
                await producer.send_in_transaction(Message("Sure", body, keys="k"), execute)
            found = await read_topic(namesrv, "Sure", 2, group="G")
            with trio.fail_after(30):
                while len(asked) < 2:  # noqa: ASYNC110  # it has no event
                    await trio.sleep(0.05)
        assert sorted(message.body for message in found) == [b"1 good", b"2 good"]
        assert asked == {b"2 good", b"2 bad"}


@pytest.mark.java_all
async def test_open_transactions_go_on_when_the_folder_changes_hands(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    async def check(_: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def send_both(namesrv: str, name: bytes) -> None:
        """Leave one half message open, and commit and roll back one each."""
        async with TransactionProducer(check, namesrv=namesrv, timeout_s=10) as producer:
            await producer.commit(await producer.send_half(Message("Sure", name + b" ended")))
            await producer.rollback(await producer.send_half(Message("Sure", name + b" bad")))
            await producer.send_half(Message("Sure", name + b" open"))

    async def read(namesrv: str, group: str, count: int) -> list[bytes]:
        async with TransactionProducer(check, namesrv=namesrv, topics=["Sure"]):
            found = await read_topic(namesrv, "Sure", count, group=group)
        return sorted(message.body for message in found)

    apache = ApacheServer(VERSION_5, folder, settings=APACHE_SOON)
    await apache.start()
    await send_both(apache.namesrv_address, b"apache")
    await trio.sleep(1)  # Its last ops are written.
    await apache.stop()
    async with started_stack(
        folder, transaction_timeout_s=0.2, transaction_check_interval_s=0.2
    ) as stack:
        namesrv = stack.namesrv_address
        assert await read(namesrv, "A", 2) == [b"apache ended", b"apache open"]
        await send_both(namesrv, b"ours")
    # After a kill, RocketMQ would ask again about what has been asked since progress was saved.
    async with apache:
        expected = [b"apache ended", b"apache open", b"ours ended", b"ours open"]
        assert await read(apache.namesrv_address, "B", 4) == expected
