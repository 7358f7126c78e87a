"""Apache RocketMQ's own Java client, 4.9 and 5.3, against our name server and broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.broker.tables.heartbeat import Heartbeat, decode_heartbeat
from motelog.core.message import Message
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from motelog.core.store import message_store
from motelog.core.store.config import StoreConfig
from tests.support.broker_stack import (
    Stack,
    connected,
    eventually,
    json_body,
    pop_ext,
    pull_ext,
    routed,
    send_ext,
    started_stack,
    store_config,
)
from tests.support.java import (
    DRIVER,
    VERSION_4,
    VERSION_5,
    VERSIONS,
    java_command,
    run_tool,
)
from tests.support.slow_disk import SlowDisk

pytestmark = pytest.mark.java

COUNT = 5
DEADLINE_S = 90


async def run_client(version: str, mode: str, stack: Stack, *arguments: str) -> list[list[str]]:
    """Have the driver of this version do something; return the fields of the lines it printed."""
    return await DRIVER.run(version, mode, stack.namesrv_address, *arguments)


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_producer_creates_its_topic_and_sends_in_every_way(
    tmp_path: Path, version: str
) -> None:
    async with started_stack(tmp_path) as stack:
        results = await run_client(version, "send", stack, "FromJava", "P", str(COUNT))
        kinds = Counter(kind for kind, *_ in results)
        assert kinds == {"single": COUNT, "batch": 1, "async": COUNT, "large": 1}
        assert {status for _, status, *_ in results} == {"SEND_OK"}
        assert stack.broker.api.topic_queue_count("FromJava") == 4
        api = stack.broker.api
        total = 4 * COUNT + 1
        await eventually(lambda: sum(api.max_offset("FromJava", i) for i in range(4)) == total)
        stored = {}
        async with connected(stack.broker_address) as peer:
            for queue_id in range(4):
                ext = pull_ext("FromJava", 0, queue_id=queue_id)
                answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
                for message in decode_messages(answer.body):
                    stored[message.offset_id] = message
        bodies = {message.body.decode() for message in stored.values()}
        expected = {f"{k}{i}" for k in ("single", "batch", "async", "oneway") for i in range(COUNT)}
        assert bodies == expected | {"L" * 50_000}
        for kind, _, offset_ids, *queue_and_offset in results:
            first = stored[offset_ids.split(",")[0]]
            assert [first.queue_id, first.queue_offset] == list(map(int, queue_and_offset))
            assert first.body.decode().startswith("L" if kind == "large" else kind)


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        (VERSION_5, "consume"),
        (VERSION_4, "orderly"),
        pytest.param(VERSION_5, "orderly", marks=pytest.mark.java_all),
        pytest.param(VERSION_4, "consume", marks=pytest.mark.java_all),
    ],
)
async def test_java_push_consumer_gets_its_tags_once_and_commits(
    tmp_path: Path, version: str, mode: str
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:

        async def produce(first: int) -> list[str]:
            for i in range(first, first + 24):
                properties = f"TAGS\x01Tag{'ABC'[i % 3]}\x02KEYS\x01k{i}\x02"
                ext = send_ext("ToJava", queue_id=i % 4, properties=properties)
                answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"message %d" % i)
                assert answer.code == ResponseCode.SUCCESS
            return [f"message {i}" for i in range(first, first + 24) if i % 3 < 2]

        for first in (0, 24):
            expected = await produce(first)
            received = await run_client(
                version, mode, stack, "ToJava", "G", str(len(expected)), "TagA || TagB"
            )
            assert sorted(body for *_, body in received) == sorted(expected)
            assert {tag for _, _, tag, _, _ in received} == {"TagA", "TagB"}
            for queue_id in range(4):
                offsets = [int(o) for q, o, *_ in received if int(q) == queue_id]
                assert mode == "consume" or offsets == sorted(offsets)
        assert stack.broker.tables.consumers.get("G") is None


async def test_java_push_consumer_with_brief_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[Heartbeat] = []

    def decode(body: bytes) -> Heartbeat:
        beats.append(decode_heartbeat(body))
        return beats[-1]

    monkeypatch.setattr("motelog.core.broker.processors.consumer.decode_heartbeat", decode)

    def has_come(is_brief: bool) -> bool:
        return any(
            beat.fingerprint and one.is_brief == is_brief
            for beat in beats
            for one in beat.consumers
        )

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Brief"), b"first")
        assert answer.code == ResponseCode.SUCCESS
        await run_client(VERSION_5, "join", stack, "Brief", "G", "0", "brief")
        await within_deadline(lambda: has_come(is_brief=True))
        group = stack.broker.tables.consumers.get("G")
        assert group is not None
        wanted = {"Brief", "%RETRY%G"}
        assert group.subscriptions.keys() == wanted
        # As if another member had told the broker otherwise: the next one has all again.
        group.fingerprint = 1
        group.subscriptions.clear()
        del beats[:]
        await within_deadline(lambda: has_come(is_brief=False))
        del beats[:]
        await within_deadline(lambda: has_come(is_brief=True))
        assert group.subscriptions.keys() == wanted
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Brief"), b"last")
        bodies: set[str] = set()
        with trio.fail_after(DEADLINE_S):
            while bodies != {"first", "last"}:
                taken = await run_client(VERSION_5, "taken", stack, "-", "-", "0")
                bodies = {body for *_, body in taken}
        await run_client(VERSION_5, "leave", stack, "-", "-", "0")


async def within_deadline(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(0.02)


@pytest.mark.parametrize("mode", ["PULL", "POP"])
async def test_java_push_consumer_lets_the_broker_choose_its_queues(
    tmp_path: Path, mode: str
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for i in range(40):
            ext = send_ext(
                "Assigned", queue_id=i % 4, properties=f"TAGS\x01TagA\x02KEYS\x01k{i}\x02"
            )
            answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"message %d" % i)
            assert answer.code == ResponseCode.SUCCESS
        chosen = {"topic": "Assigned", "consumerGroup": "G", "mode": mode, "popShareQueueNum": 0}
        answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json_body(chosen))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if mode == "POP":
            # Somebody takes some messages and is gone: the consumer gets them as retries.
            ext = pop_ext("Assigned", maxMsgNums=5, invisibleTime=3_000)
            answer = await peer.ask(RequestCode.POP_MESSAGE, ext)
            assert len(decode_messages(answer.body)) == 5
        received = await run_client(VERSION_5, "assigned", stack, "Assigned", "G", "40", "*")
        assert sorted(body for *_, body in received) == sorted(f"message {i}" for i in range(40))
        offsets = stack.broker.tables.offsets
        if mode == "PULL":
            assert {offsets.query("G", "Assigned", i) for i in range(4)} == {10}
        else:
            assert stack.broker.sample()["messages_in_work_now"] == 0
            assert stack.broker.sample()["messages_revived"] == 5


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_push_consumer_filters_by_sql(tmp_path: Path, version: str) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for i in range(40):
            properties = f"TAGS\x01Tag{'ABC'[i % 3]}\x02a\x01{i}\x02"
            ext = send_ext("ToSql", queue_id=i % 4, properties=properties if i % 8 else "")
            await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"message %d" % i)
        # As in RocketMQ's example.
        wanted = (
            "(TAGS is not null and TAGS in ('TagA', 'TagB'))"
            "and (a is not null and a between 0 and 30)"
        )
        expected = [f"message {i}" for i in range(31) if i % 3 < 2 and i % 8]
        received = await run_client(version, "sql", stack, "ToSql", "G", str(len(expected)), wanted)
        assert sorted(body for *_, body in received) == sorted(expected)


@pytest.mark.parametrize(
    "version", [VERSION_4, pytest.param(VERSION_5, marks=pytest.mark.java_all)]
)
async def test_java_consumer_is_told_that_its_filter_is_none(tmp_path: Path, version: str) -> None:
    for is_enabled, expression, code, text in (
        (True, "a > 5 AND b = ", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "at column 15"),
        (False, "a > 5", ResponseCode.SYSTEM_ERROR, "does not support consumer to filter"),
    ):
        folder = tmp_path / str(is_enabled)
        async with started_stack(folder, enable_property_filter=is_enabled) as stack:
            async with connected(stack.broker_address) as peer:
                await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("ToSql"), b"x")
            await routed(stack, "ToSql")
            lines = await run_client(version, "sql", stack, "ToSql", "G", "1", expression)
            (refusal,) = [line for line in lines if line[0] == "refused"]
            assert refusal[1] == str(int(code))
            assert text in refusal[2]


@pytest.mark.parametrize(
    "version", [VERSION_4, pytest.param(VERSION_5, marks=pytest.mark.java_all)]
)
async def test_java_delayed_messages_come_later_and_again_when_refused(
    tmp_path: Path, version: str
) -> None:
    store = store_config(tmp_path, delay_levels="1s")
    async with started_stack(tmp_path, store=store) as stack:
        lines = await run_client(version, "later", stack, "Later", "G", str(COUNT))
        assert [status for kind, status, *_ in lines if kind == "sent"] == ["SEND_OK"] * COUNT
        came = [line[1:] for line in lines if line[0] == "came"]
        # The client shows a retry under the topic it was sent to first.
        assert {topic for topic, *_ in came} == {"Later"}
        for times in ("0", "1"):
            bodies = sorted(body for _, t, _, body in came if t == times)
            assert bodies == [f"later{i}" for i in range(COUNT)]
        assert min(int(waited_ms) for _, times, waited_ms, _ in came if times == "0") >= 900
        assert stack.broker.api.max_offset("%DLQ%G", 0) == 0


MODES = [
    VERSION_5,
    pytest.param(VERSION_4, marks=pytest.mark.java_all),
]


@pytest.mark.parametrize("version", MODES)
async def test_java_messages_of_a_key_stay_in_order(tmp_path: Path, version: str) -> None:
    async with started_stack(tmp_path) as stack:
        stack.broker.api.create_topic("Ordered", 4)
        await routed(stack, "Ordered")
        sent = await run_client(version, "ordered", stack, "Ordered", "G", str(COUNT))
        places = [[str(key), str(number)] for number in range(COUNT) for key in range(2)]
        assert sent == [["sent", "SEND_OK", *place] for place in places]
        read = await run_client(version, "orderly", stack, "Ordered", "G", str(2 * COUNT), "*")
        for key in range(2):
            bodies = [line[-1] for line in read if line[0] == str(key)]
            assert bodies == [f"ordered{2 * number + key}" for number in range(COUNT)]


@pytest.mark.parametrize("version", MODES)
async def test_java_members_of_a_broadcast_get_all(tmp_path: Path, version: str) -> None:
    async with started_stack(tmp_path) as stack:
        stack.broker.api.create_topic("Broadcast", 4)
        await routed(stack, "Broadcast")
        lines = await run_client(version, "broadcast", stack, "Broadcast", "B", str(COUNT))
        members = ("member0", "member1")
        expected = [(one, "0", f"broadcast{i}") for one in members for i in range(COUNT)]
        assert sorted(map(tuple, lines)) == expected
        # They keep their offsets themselves.
        assert stack.broker.tables.offsets.groups_of("Broadcast") == []


@pytest.mark.parametrize("version", MODES)
async def test_java_messages_that_are_refused_too_often_are_dead_letters(
    tmp_path: Path, version: str
) -> None:
    store = store_config(tmp_path, delay_levels="1s")
    async with started_stack(tmp_path, store=store) as stack:
        lines = await run_client(version, "dead", stack, "Dead", "D", str(COUNT))
        bodies = [f"dead{i}" for i in range(COUNT)]
        expected = [("refused", times, body) for times in ("0", "1") for body in bodies]
        assert sorted(map(tuple, lines)) == expected
        await eventually(lambda: stack.broker.api.max_offset("%DLQ%D", 0) == COUNT)


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_messages_that_are_suspended_too_often_are_dead_letters(
    tmp_path: Path, version: str
) -> None:
    store = store_config(tmp_path, delay_levels="1s")
    async with started_stack(tmp_path, store=store) as stack:
        stack.broker.api.create_topic("Suspended", 1)
        await routed(stack, "Suspended")
        lines = await run_client(version, "suspended", stack, "Suspended", "S", str(COUNT))
        assert lines == [["refused", t, f"suspended{i}"] for i in range(COUNT) for t in "01"]
        dead = [stack.broker.api.max_offset("%DLQ%S", 0), stack.broker.sample()["dead_letters"]]
        assert dead == [COUNT, COUNT]


@pytest.mark.parametrize("version", MODES)
async def test_java_consumer_goes_back_when_its_group_is_reset(
    tmp_path: Path, version: str
) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        for i in range(COUNT):
            await producer.send(Message("Reset", b"%d" % i))
        await routed(stack, "Reset")
        await run_client(version, "join", stack, "Reset", "R", "0", "average")

        async def taken(count: int) -> list[str]:
            with trio.fail_after(DEADLINE_S):
                while len(lines := await DRIVER.run(version, "taken", *"---0")) < count:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.1)
            return sorted(line[-1] for line in lines)

        bodies = [str(i) for i in range(COUNT)]
        assert await taken(COUNT) == bodies
        words = ("resetOffsetByTime", "-g", "R", "-t", "Reset", "-s", "0")
        await run_client(version, "mqadmin", stack, *words)
        assert await taken(2 * COUNT) == sorted(2 * bodies)
        await DRIVER.run(version, "leave", *"---0")


async def test_java_producer_recalls_messages_that_wait(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        lines = await run_client(VERSION_5, "recall", stack, "T", "G", str(COUNT))
        assert lines == [["recalled", "true"]] * (COUNT - 1)
        sample = stack.broker.sample
        await eventually(lambda: sample()["delayed_messages_recalled"] == COUNT - 1)
        assert sample()["delayed_messages_delivered"] == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_transactions_are_committed_rolled_back_and_asked_about(
    tmp_path: Path, version: str
) -> None:
    async with started_stack(
        tmp_path, transaction_timeout_s=0.5, transaction_check_interval_s=0.5
    ) as stack:
        await routed(stack, "TBW102")
        lines = await run_client(version, "transact", stack, "Sure", "Buyers", str(COUNT))
        sent = {line[4]: line[1:4] for line in lines if line[0] == "sent"}
        kinds = ("commit", "rollback", "asked-commit", "asked-rollback")
        assert set(sent) == {f"{kind}{i}" for kind in kinds for i in range(COUNT)}
        states = {body: state for body, (_, state, _) in sent.items()}
        assert states["commit0"] == "COMMIT_MESSAGE"
        assert states["asked-commit0"] == "UNKNOW"
        assert {(status, is_id) for status, _, is_id in sent.values()} == {("SEND_OK", "true")}
        asked = [line[1:] for line in lines if line[0] == "asked"]
        assert {tuple(line[:3]) for line in asked} == {("Sure", "Tag", "true")}
        assert {body for *_, body in asked} == {b for b in sent if b.startswith("asked")}
        received = await run_client(version, "consume", stack, "Sure", "G", str(2 * COUNT), "*")
        expected = {f"{kind}{i}" for kind in ("commit", "asked-commit") for i in range(COUNT)}
        assert sorted(body for *_, body in received) == sorted(expected)
        assert sum(stack.broker.api.max_offset("Sure", i) for i in range(4)) == 2 * COUNT


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_client_finds_messages_by_key_and_by_both_ids(
    tmp_path: Path, version: str
) -> None:
    async with started_stack(tmp_path) as stack:
        found = await run_client(version, "query", stack, "Queried", "G", str(COUNT))
        bodies = [f"query{i}" for i in range(COUNT)]
        for kind in ("by-unique-id", "by-offset-id"):
            assert [body for k, body in found if k == kind] == bodies
        assert sorted(body for k, body in found if k == "every") == bodies
        assert [body for k, body in found if k == "own2"] == ["query2"]
        assert [int(code) for k, code in found if k == "future"] == [
            208
        ]  # NO_MESSAGE, the client's own


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_requests_are_replied_to_from_java_and_python(
    tmp_path: Path, version: str
) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address, group="P") as producer,
    ):
        # A Java consumer asks for the route of a topic that is new to it every 30 s only.
        for topic in ("FromJava", "FromPython", "ToPython"):
            stack.broker.api.create_topic(topic, 2)
            await routed(stack, topic)
        lines = await run_client(version, "request", stack, "FromJava", "G", str(COUNT))
        questions = {f"question{i}" for i in range(COUNT)}
        assert {body for kind, body in lines if kind == "answered"} == questions
        assert {body for kind, body in lines if kind == "reply"} == {f"re {q}" for q in questions}
        assert stack.broker.api.max_offset("DefaultCluster_REPLY_TOPIC", 0) == COUNT
        async with trio.open_nursery() as nursery:
            # The program answers one request of ours,
            order = partial(run_client, version, "answer", stack, "FromPython", "G", "1")
            nursery.start_soon(order)
            reply = await producer.request(Message("FromPython", b"ours"), timeout_s=60)
            assert reply.body == b"re ours"
        async with (
            PullConsumer(namesrv=stack.namesrv_address, group="H") as consumer,
            trio.open_nursery() as nursery,
        ):
            # and asks one that is answered here.
            nursery.start_soon(run_client, version, "ask", stack, "ToPython", "G", "1")
            consumer.assign(await consumer.queues("ToPython", wait_s=30))
            with trio.fail_after(DEADLINE_S):
                while not (requests := await consumer.poll(timeout_s=5)):
                    pass
            await producer.reply_to(requests[0], b"re it")


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_the_tools_show_the_broker(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motelog.core.broker.shown.stats.MINUTE_STEP_MS", 1_000)
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for _ in range(3):
            await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0, sysFlag=5, commitOffset=3))
        home, to_namesrv = tmp_path / "home", ("-n", stack.namesrv_address)
        to_broker = ("-b", stack.broker_address, *to_namesrv)
        status = await run_tool(version, home, "brokerStatus", *to_broker)
        shown = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        shown = {name.strip(): value.strip() for name, value in shown.items()}
        assert shown["msgPutTotalTodayNow"] == shown["putMessageTimesTotal"] == "3"
        assert shown["msgGetTotalTodayNow"] == "3"
        assert shown["commitLogMaxOffset"] == shown["putMessageSizeTotal"] != "0"
        listed = await run_tool(version, home, "clusterList", *to_namesrv)
        (line,) = [line for line in listed.splitlines() if stack.broker_address in line]
        assert "V4_9_8" in line
        wanted = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
        with trio.fail_after(DEADLINE_S):
            # What came behind the first sample is seen with the next one.
            body = b""
            while b'"sum":3,' not in body:
                await trio.sleep(0.2)
                body = (await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, wanted)).body
        counted = await run_tool(version, home, "statsAll", *to_namesrv, "-t", "T")
        (line,) = [line for line in counted.splitlines() if line.startswith("T ")]
        # Topic, group, accumulated, in and out per second, in and out of a day.
        columns = line.split()
        assert columns[:3] == ["T", "consumers", "0"]
        assert columns[5:] == ["3", "3"]


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_the_program_of_the_reference_sends_and_reads(tmp_path: Path, version: str) -> None:
    async with started_stack(tmp_path) as stack:
        java = partial(java_command, version, "QuickStart", stack.namesrv_address)
        command = await trio.to_thread.run_sync(java)
        with trio.fail_after(DEADLINE_S):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        # The client of 4.9 logs to standard output.
        assert done.stdout.decode().splitlines().count("21.5") == 1
        offsets = stack.broker.tables.offsets
        committed = [offsets.query("reports", "telemetry", queue_id) or 0 for queue_id in range(4)]
        assert sorted(committed) == [0, 0, 0, 1]


@asynccontextmanager
async def second_broker(
    stack: Stack, folder: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Broker]:
    """Run a broker on ``disk`` beside the stack's, whose small files are soon full."""
    store = StoreConfig(
        directory=str(folder),
        commitlog_file_bytes=65_536,
        flush_timeout_ms=60_000,
        page_cache_busy_ms=100,
    )
    config = BrokerConfig(
        listen="127.0.0.1:0", name="slow", namesrv=(stack.namesrv_address,), store=store
    )
    broker = Broker(config)
    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(message_store, "OsStorage", lambda: disk)
            await nursery.start(broker.run)
        try:
            yield broker
        finally:
            disk.may_make.set()
        nursery.cancel_scope.cancel()


async def fill(broker: Broker) -> None:
    """Send until a message waits for the next file for so long that the broker is busy."""
    host, port = broker.address
    line = broker.api.line
    async with connected(f"{host}:{port}") as peer, trio.open_nursery() as nursery:

        async def send_all() -> None:
            while True:
                await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Fill"), bytes(4_000))

        nursery.start_soon(send_all)
        await eventually(lambda: line.is_busy)
        nursery.cancel_scope.cancel()


def brokers_of(stack: Stack, topic: str) -> list[str]:
    """Return the brokers that the name server knows to have ``topic``."""
    route = stack.namesrv.routes.route(topic)
    return [] if route is None else [queues.broker_name for queues in route.queues]


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_java_producer_goes_round_a_busy_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    disk = SlowDisk()
    async with (
        started_stack(tmp_path / "quick") as stack,
        second_broker(stack, tmp_path / "slow", disk, monkeypatch) as slow,
    ):
        for api in (stack.broker.api, slow.api):
            api.create_topic("Both", 4)
        await eventually(lambda: len(brokers_of(stack, "Both")) == 2)
        disk.may_make.clear()
        await fill(slow)
        results = await run_client(version, "singles", stack, "Both", "P", "8")
        sent = [fields for fields in results if fields[0] == "sent"]
        refused = [fields for fields in results if fields[0] == "refused"]
        assert len(sent) + len(refused) == 8
        assert {name for _, name in sent} == {"broker-a"}
        assert slow.sample()["requests_busy_rejected"] > 0
        if version == VERSION_5:
            assert refused == []
        else:
            # Clients before 5.1 leave another attempt to their callers.
            assert {code for _, code in refused} == {str(int(ResponseCode.SYSTEM_BUSY))}
        disk.may_make.set()
        await eventually(lambda: not slow.api.line.is_waiting)
        results = await run_client(version, "singles", stack, "Both", "P", "8")
        assert {name for kind, name in results if kind == "sent"} == {"broker-a", "slow"}
        assert len(results) == 8
