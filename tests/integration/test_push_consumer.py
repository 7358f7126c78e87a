"""The push consumer against our name server and broker."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.asyncio import AsyncioPushConsumer
from motelog.bridge.errors import ClientError, FilterError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.push.offsets import FileOffsets
from motelog.bridge.sync import SyncPushConsumer
from motelog.core.broker.processors.send_back import SendBackProcessor
from motelog.core.message import Message, MessageQueue
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import ONLY_FORWARD
from motelog.core.remoting.frames import FLAG_ONEWAY, RemotingCommand, RequestCode, dumps, loads
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import (
    Stack,
    connected,
    eventually,
    joined,
    routed,
    started_stack,
    store_config,
)

TIMEOUT_S = 20

Handle = Callable[[Any], Any]


async def send(namesrv: str, bodies: Iterable[bytes], topic: str = "T", **options: Any) -> None:
    """Send to the queues in turn."""
    async with Producer(namesrv=namesrv, timeout_s=TIMEOUT_S) as producer:
        queues = await producer.queues(topic)
        for number, body in enumerate(bodies):
            queue = queues[number % len(queues)]
            await producer.send(Message(topic, body, **options), queue=queue)


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


@asynccontextmanager
async def running(
    stack: Stack, handle: Handle, *, batches: bool = False, **options: Any
) -> AsyncIterator[PushConsumer]:
    """Run a consumer of "T" for the length of the block, then stop it in order."""
    options = {"group": "G", "hold_s": 2, **options}
    async with (
        trio.open_nursery() as nursery,
        PushConsumer(namesrv=stack.namesrv_address, **options) as consumer,
    ):
        consumer.subscribe("T")
        nursery.start_soon(consumer.run_batches if batches else consumer.run, handle)
        yield consumer
        consumer.stop()


async def until(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not is_true():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(0.01)


def committed(stack: Stack, group: str = "G", topic: str = "T") -> int:
    offsets = stack.broker.tables.offsets
    return sum(offsets.query(group, topic, queue_id) or 0 for queue_id in range(4))


class Taker:
    """Handles messages by keeping their bodies; in a task or a thread."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def take(self, message: StoredMessage) -> None:
        self.bodies.append(message.body)

    def take_in_thread(self, message: StoredMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.bodies.append(message.body)

    async def take_batch(self, messages: list[StoredMessage]) -> None:
        assert len({message.queue_id for message in messages}) == 1
        self.bodies += [message.body for message in messages]


@pytest.mark.parametrize("kind", ["async", "thread", "batches"])
async def test_messages_are_handled_once_and_committed_at_the_end(
    tmp_path: Path, kind: str
) -> None:
    taker = Taker()
    handlers: dict[str, Handle] = {
        "async": taker.take,
        "thread": taker.take_in_thread,
        "batches": taker.take_batch,
    }
    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 100))
        await routed(stack, "T")
        async with running(stack, handlers[kind], batches=kind == "batches") as consumer:
            await until(lambda: len(taker.bodies) >= 100)
            await send(stack.namesrv_address, numbers(100, 120))
            await until(lambda: len(taker.bodies) >= 120)
            assert len([q for q in consumer.assigned if q.topic == "T"]) == 4
        assert Counter(taker.bodies) == Counter(numbers(0, 120))
        assert committed(stack) == 120
        assert stack.broker.tables.consumers.get("G") is None


async def test_members_share_queues_and_a_surplus_one_idles(tmp_path: Path) -> None:
    takers = [Taker() for _ in range(5)]
    async with started_stack(tmp_path) as stack, trio.open_nursery() as nursery:
        await send(stack.namesrv_address, numbers(0, 4))
        await routed(stack, "T")
        consumers = []
        leave = trio.Event()

        async def join(taker: Taker) -> None:
            async with running(stack, taker.take) as consumer:
                consumers.append(consumer)
                await leave.wait()

        for taker in takers:
            nursery.start_soon(join, taker)
        await until(lambda: len(consumers) == 5)

        def shares() -> list[int]:
            return sorted(len([q for q in one.assigned if q.topic == "T"]) for one in consumers)

        await until(lambda: shares() == [0, 1, 1, 1, 1])
        # What was handled while the members came has been handled at least once.
        await until(lambda: {b for t in takers for b in t.bodies} == set(numbers(0, 4)))
        await trio.sleep(1.0)
        await send(stack.namesrv_address, numbers(4, 44))
        await until(lambda: {b for t in takers for b in t.bodies} == set(numbers(0, 44)))
        later = Counter(b for t in takers for b in t.bodies if int(b) >= 4)
        assert set(later.values()) == {1}
        leave.set()
    assert committed(stack) == 44


async def test_refused_messages_come_again_and_end_as_dead_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, bytes, int]] = []

    def refuse(message: StoredMessage) -> None:
        seen.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"bad":
            raise ValueError("no good")

    store = store_config(tmp_path, delay_levels="1s 1s 1s 1s 1s 1s")
    async with started_stack(tmp_path, store=store) as stack:
        await send(stack.namesrv_address, [b"good", b"bad", b"good2"])
        await routed(stack, "T")
        async with running(stack, refuse, retries_max=2):
            await eventually_dead(stack)
        assert [times for _, body, times in seen if body == b"bad"] == [0, 1, 2]
        assert {topic for topic, *_ in seen} == {"T"}
        assert committed(stack) == 3
        lines = [
            r.getMessage()
            for r in caplog.records
            if "the function failed for a message" in r.getMessage()
        ]
        assert len(lines) == 3
        assert "no good" in lines[0]
        assert "test_push_consumer.py:" in lines[0]


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_group_says_how_often_its_messages_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    seen: list[int] = []

    def refuse(message: StoredMessage) -> None:
        seen.append(message.reconsume_times)
        raise ValueError("no good")

    if is_sent:  # to the retry topic, as the broker does not know the request
        monkeypatch.setattr(SendBackProcessor, "processors", lambda self: {})
    store = store_config(tmp_path, delay_levels="1s")
    async with started_stack(tmp_path, store=store) as stack:
        async with Admin(namesrv=stack.namesrv_address) as admin:
            await admin.put_group("G", {"retryMaxTimes": 1})
        await send(stack.namesrv_address, [b"bad"])
        await routed(stack, "T")
        async with running(stack, refuse):
            await eventually_dead(stack)
        assert seen == [0, 1]


async def eventually_dead(stack: Stack) -> None:
    await until(lambda: stack.broker.api.max_offset("%DLQ%G", 0) == 1)


async def test_when_no_broker_takes_it_back_it_goes_to_the_retry_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def refuse_once(message: StoredMessage) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times < 2:
            raise ValueError

    # A broker that does not know the request.
    monkeypatch.setattr(SendBackProcessor, "processors", lambda self: {})
    store = store_config(tmp_path, delay_levels="1s 1s 1s 1s 1s 1s")
    async with started_stack(tmp_path, store=store) as stack:
        await send(stack.namesrv_address, [b"x"])
        await routed(stack, "T")
        async with running(stack, refuse_once):
            await until(lambda: len(seen) == 3)
        assert seen == [0, 1, 2]


async def test_orderly_queue_waits_for_a_refused_message(tmp_path: Path) -> None:
    seen: defaultdict[int, list[int]] = defaultdict(list)
    refused: set[int] = set()

    def handle(message: StoredMessage) -> None:
        number = int(message.body)
        seen[message.queue_id].append(number)
        if number % 10 == 3 and number not in refused:
            refused.add(number)
            raise ValueError(number)

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 80))
        await routed(stack, "T")
        async with running(stack, handle, is_orderly=True, suspend_s=0.05):
            await until(lambda: sum(map(len, seen.values())) >= 88)
        for queue_id in range(4):
            expected: list[int] = []
            for number in range(queue_id, 80, 4):
                expected += [number] * (2 if number % 10 == 3 else 1)
            assert seen[queue_id] == expected
        assert committed(stack) == 80


async def test_orderly_members_hand_queues_over_in_order(tmp_path: Path) -> None:
    seen: defaultdict[int, list[int]] = defaultdict(list)

    async def handle(message: StoredMessage) -> None:
        await trio.sleep(0.005)
        seen[message.queue_id].append(int(message.body))

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 400))
        await routed(stack, "T")
        async with running(stack, handle, is_orderly=True) as first:
            await until(lambda: len(seen) == 4)
            async with running(stack, handle, is_orderly=True) as second:
                await until(lambda: len([q for q in second.assigned if q.topic == "T"]) == 2)
                assert not set(first.assigned) & set(second.assigned)
                await trio.sleep(0.2)
            await until(lambda: sum(map(len, seen.values())) >= 400)
        # Each queue in its order and each message once: nobody began before the other was done.
        assert all(seen[q] == list(range(q, 400, 4)) for q in range(4))


async def test_broadcast_gives_all_to_each_and_keeps_offsets_in_a_file(tmp_path: Path) -> None:
    first, second, after = Taker(), Taker(), Taker()
    async with started_stack(tmp_path / "store") as stack:
        await send(stack.namesrv_address, numbers(0, 20))
        await routed(stack, "T")

        def options(name: str) -> dict[str, Any]:
            return {"broadcast": True, "offsets": FileOffsets(tmp_path / name)}

        async with (
            running(stack, first.take, **options("a")),
            running(stack, second.take, **options("b")),
        ):
            await until(lambda: len(first.bodies) == len(second.bodies) == 20)
        await send(stack.namesrv_address, numbers(20, 30))
        async with running(stack, after.take, **options("a")):
            await until(lambda: len(after.bodies) == 10)
        assert sorted(after.bodies) == sorted(numbers(20, 30))
        assert committed(stack) == 0
    saved = loads((tmp_path / "a" / "G" / "offsets.json").read_bytes())
    assert sum(saved["offsetTable"].values()) == 30


async def test_slow_messages_are_sent_back_and_pause_holds_all(tmp_path: Path) -> None:
    seen: list[tuple[bytes, int]] = []
    stuck = threading.Event()

    def handle(message: StoredMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0" and not message.reconsume_times:
            stuck.wait(TIMEOUT_S)

    store = store_config(tmp_path, delay_levels="1s 1s 1s 1s 1s")
    async with started_stack(tmp_path, store=store) as stack:
        await send(stack.namesrv_address, numbers(0, 4))
        await routed(stack, "T")
        async with running(stack, handle, consume_timeout_s=0.5) as consumer:
            await until(lambda: (b"0", 1) in seen)
            consumer.pause()
            count = len(seen)
            await send(stack.namesrv_address, numbers(4, 8))
            await trio.sleep(0.3)
            assert len(seen) == count
            consumer.resume()
            await until(lambda: len(seen) == count + 4)
            stuck.set()
        assert committed(stack) == 8


async def test_a_plain_function_pauses_resumes_and_stops(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        consumer.pause()
        consumer.resume()
        bodies.append(message.body)
        if len(bodies) == 8:
            consumer.stop()

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 8))
        await routed(stack, "T")
        async with PushConsumer(namesrv=stack.namesrv_address, group="G", workers=1) as consumer:
            consumer.subscribe("T")
            with trio.fail_after(TIMEOUT_S):
                await consumer.run(handle)
        assert Counter(bodies) == Counter(numbers(0, 8))
        assert committed(stack) == 8
        consumer.stop()  # there is nothing left to stop


async def test_stop_waits_for_work_and_cancel_stops_too(tmp_path: Path) -> None:
    begun, ended = trio.Event(), []

    async def handle(message: StoredMessage) -> None:
        begun.set()
        await trio.sleep(0.3)
        ended.append(message.body)

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, [b"x"])
        await routed(stack, "T")
        with trio.CancelScope() as scope:
            async with PushConsumer(namesrv=stack.namesrv_address, group="G") as consumer:
                consumer.subscribe("T")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consumer.run, handle)
                    await begun.wait()
                    scope.cancel()
        assert ended == [b"x"]
        assert committed(stack) == 1
        assert stack.broker.tables.consumers.get("G") is None


@pytest.mark.parametrize(
    ("taken_over_within_s", "field", "kept"),
    [(30.0, "not known", 5), (0.0, "not known", 0), (0.0, ONLY_FORWARD, 5)],
)
async def test_what_the_other_member_has_saved_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken_over_within_s: float,
    field: str,
    kept: int,
) -> None:
    """At a broker of Apache's for a while after a queue was taken over, at ours always."""
    monkeypatch.setattr("motelog.bridge.push.consumer.TAKEN_OVER_WITHIN_S", taken_over_within_s)
    monkeypatch.setattr("motelog.bridge.queue_requests.ONLY_FORWARD", field)
    begun = trio.Event()

    async def hang(message: StoredMessage) -> None:
        begun.set()
        await trio.sleep_forever()

    async with started_stack(tmp_path) as stack:
        async with Producer(namesrv=stack.namesrv_address) as producer:
            queue = (await producer.queues("T"))[0]
            for body in numbers(0, 10):
                await producer.send(Message("T", body), queue=queue)
        await routed(stack, "T")
        with trio.fail_after(TIMEOUT_S):
            async with running(stack, hang, stop_s=0.2):
                await begun.wait()
                # The member before hands the queue over late, or has it still.
                async with PullConsumer(namesrv=stack.namesrv_address, group="G") as before:
                    await before.commit({queue: 5})
        assert committed(stack) == kept


async def test_a_group_ahead_of_a_log_that_lost_its_end_goes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would skip what comes at these offsets when it starts again."""
    bodies: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        bodies.append(message.body)
        if len(bodies) == 2:
            done.set()

    done = trio.Event()
    async with started_stack(tmp_path) as stack:
        async with Producer(namesrv=stack.namesrv_address) as producer:
            queue = (await producer.send(Message("T", b"handled"))).queue
            await routed(stack, "T")
            async with PullConsumer(namesrv=stack.namesrv_address, group="G") as before:
                await before.commit({queue: 5})
            with trio.fail_after(TIMEOUT_S):
                async with running(stack, handle):
                    await until(lambda: "no message at this offset" in caplog.text)
                    for body in (b"new", b"newer"):
                        await producer.send(Message("T", body), queue=queue)
                    await done.wait()
        assert bodies == [b"new", b"newer"]
        assert committed(stack) == 3


async def test_work_that_does_not_end_is_left_at_the_deadline(tmp_path: Path) -> None:
    async def hang(message: StoredMessage) -> None:
        begun.set()
        await trio.sleep_forever()

    begun = trio.Event()
    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, [b"x"])
        await routed(stack, "T")
        with trio.fail_after(TIMEOUT_S):
            async with running(stack, hang, stop_s=0.2):
                await begun.wait()
        assert committed(stack) == 0


async def test_operator_resets_asks_and_has_one_message_handled(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if message.body == b"6" and len(seen) > 13:
            raise ValueError("on purpose")

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 8))
        await routed(stack, "T")
        async with running(stack, handle) as consumer:
            # The group's retry topic is made by its first heartbeat, and has a route when the
            # broker has registered it: its queue comes after the others.
            await until(lambda: len(seen) == 8 and len(consumer.assigned) == 5)
            group = stack.broker.tables.consumers.get("G")
            assert group is not None
            (member,) = group.members.values()

            def ask(code: RequestCode, body: bytes = b"", **ext: str) -> RemotingCommand:
                return RemotingCommand(code, ext=ext, body=body)

            queue = MessageQueue("T", consumer.assigned[0].broker_name, 1)
            # As brokers push it: oneway, and the table with objects for keys.
            reset = ask(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                dumps({"offsetTable": {queue: 0}}),
                topic="T",
                group="G",
                timestamp="0",
            )
            reset.flag = FLAG_ONEWAY
            member.owner.reply(reset)
            await until(lambda: len(seen) == 10)
            assert sorted(seen[8:]) == [b"1", b"5"]
            answer = consumer._answer(
                ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
            )
            assert isinstance(answer, RemotingCommand)
            info = loads(answer.body)
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert len(info["mqTable"]) == 5
            assert "test_push_consumer" in info["jstack"]

            def handled() -> int:
                status = ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="T", group="G")
                answer = consumer._answer(status)
                assert isinstance(answer, RemotingCommand)
                return sum(loads(answer.body)["messageQueueTable"].values())

            await until(lambda: handled() == 8)
            async with connected(stack.broker_address) as peer:
                ext = {"consumerGroup": "x", "topic": "T", "queueId": 2, "queueOffset": 1}
                ext |= {"maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "subscription": "*"}
                ext |= {"suspendTimeoutMillis": 0, "subVersion": 0}
                record = (await peer.ask(RequestCode.PULL_MESSAGE, ext)).body
            for expected in ("CR_SUCCESS", "CR_SUCCESS", "CR_SUCCESS", "CR_THROW_EXCEPTION"):
                later = consumer._answer(
                    ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, record, consumerGroup="G")
                )
                assert callable(later)
                result = loads((await later()).body)
                assert result["consumeResult"] == expected
            assert seen[10:] == [b"6"] * 4


async def test_wrong_use_is_said(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        async with PushConsumer(namesrv=stack.namesrv_address) as consumer:
            with pytest.raises(ClientError, match="subscribe"):
                await consumer.run(print)
            with pytest.raises(FilterError):
                consumer.subscribe("T", sql="a >")
        with pytest.raises(ValueError, match="workers"):
            PushConsumer(workers=0)
        with pytest.raises(ValueError, match="start must be"):
            PushConsumer(start="begin")  # type: ignore[arg-type]  # the mistake is the test


async def test_killed_broker_costs_no_message_and_offsets_never_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motelog.bridge.push.consumer.COMMIT_S", 0.1)
    monkeypatch.setattr("motelog.bridge.reader.RETRY_S", 0.2)
    seen: set[bytes] = set()
    offsets: list[int] = []

    async def handle(message: StoredMessage) -> None:
        seen.add(message.body)

    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        address = joined(namesrv.address)
        broker = BrokerProcess(tmp_path, namesrv=address)
        await trio.to_thread.run_sync(broker.start)
        try:
            await send(address, numbers(0, 200))
            async with PushConsumer(namesrv=address, group="G", hold_s=2) as consumer:
                consumer.subscribe("T")
                nursery.start_soon(consumer.run, handle)
                await until(lambda: len(seen) == 200)
                for _ in range(2):
                    offsets.append(await stored_offset(broker.address))
                    await trio.to_thread.run_sync(broker.kill)
                    await trio.to_thread.run_sync(broker.start)
                    await send(address, numbers(len(seen), len(seen) + 100))
                    await until(lambda: len(seen) in (300, 400))
                await until(lambda: len(seen) == 400)
            offsets.append(await stored_offset(broker.address))
        finally:
            await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    assert offsets == sorted(offsets)
    assert offsets[-1] == 400


async def stored_offset(address: str) -> int:
    total = 0
    async with connected(address) as peer:
        for queue_id in range(4):
            ext = {"consumerGroup": "G", "topic": "T", "queueId": queue_id}
            total += int((await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"])
    return total


async def test_on_asyncio_a_plain_function_runs_in_a_thread(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    async def consume(namesrv: str) -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def handle(message: StoredMessage) -> None:
            bodies.append(message.body)
            if len(bodies) == 8:
                loop.call_soon_threadsafe(done.set)

        async with AsyncioPushConsumer(namesrv=namesrv, group="G", hold_s=2) as consumer:
            await consumer.subscribe("T")
            running = asyncio.create_task(consumer.run(handle))
            async with asyncio.timeout(TIMEOUT_S):
                await done.wait()
                await consumer.stop()
                await running

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 8))
        await routed(stack, "T")
        await trio.to_thread.run_sync(asyncio.run, consume(stack.namesrv_address))
        assert Counter(bodies) == Counter(numbers(0, 8))
        assert committed(stack) == 8


async def test_on_asyncio_work_that_does_not_end_is_cancelled_at_the_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endings: list[str] = []

    async def consume(namesrv: str) -> None:
        begun = asyncio.Event()

        async def handle(message: StoredMessage) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                endings.append("cancelled")
                raise

        async with AsyncioPushConsumer(namesrv=namesrv, stop_s=0.1) as consumer:
            await consumer.subscribe("T")
            running = asyncio.create_task(consumer.run(handle))
            async with asyncio.timeout(TIMEOUT_S):
                await begun.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
        endings.append("closed")

    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, [b"x"])
        await routed(stack, "T")
        await trio.to_thread.run_sync(asyncio.run, consume(stack.namesrv_address))
    assert endings == ["cancelled", "closed"]
    assert "did not end in time" in caplog.text
    assert "refused" not in caplog.text


async def test_blocking_and_asyncio_consumers(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        await send(stack.namesrv_address, numbers(0, 20))
        await routed(stack, "T")
        assert await trio.to_thread.run_sync(run_blocking, stack.namesrv_address) == 20
        assert await trio.to_thread.run_sync(asyncio.run, run_asyncio(stack.namesrv_address)) == 20
        await eventually(lambda: committed(stack, "S") == committed(stack, "A") == 20)


def run_blocking(namesrv: str) -> int:
    bodies: list[bytes] = []
    with SyncPushConsumer(namesrv=namesrv, group="S", hold_s=2) as consumer:
        consumer.subscribe("T")

        def handle(message: StoredMessage) -> None:
            bodies.append(message.body)
            if len(bodies) == 20:
                consumer.stop()

        threading.Timer(TIMEOUT_S, consumer.close).start()
        consumer.run(handle)
    return len(bodies)


async def run_asyncio(namesrv: str) -> int:
    bodies: list[bytes] = []
    loop = asyncio.get_running_loop()
    async with AsyncioPushConsumer(namesrv=namesrv, group="A", hold_s=2) as consumer:
        await consumer.subscribe("T")

        async def handle(message: StoredMessage) -> None:
            assert asyncio.get_running_loop() is loop
            bodies.append(message.body)
            if len(bodies) == 20:
                await consumer.stop()

        async with asyncio.timeout(TIMEOUT_S):
            await consumer.run(handle)
    return len(bodies)
