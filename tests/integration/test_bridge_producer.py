"""The producer against a fake cluster on loopback: queues, retries, deadlines, refusals."""

from __future__ import annotations

import zlib
from datetime import timedelta

import pytest
import trio

from motelog.bridge.errors import (
    ClientClosedError,
    MessageRefusedError,
    NoNameServerError,
    RouteError,
    SendFailedError,
)
from motelog.bridge.producer import Producer, SendStatus
from motelog.core.errors import BrokerError
from motelog.core.message import Message, MessageQueue, decode_properties
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads
from tests.support.fake_cluster import NO_ANSWER, FakeBroker, fake_cluster, serve

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def sends(broker: FakeBroker) -> list[RemotingCommand]:
    return [request for request in broker.requests if request.code in SENDS]


async def test_queues_take_turns_over_all_brokers() -> None:
    async with fake_cluster("a", "b") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        results = [await producer.send(Message("T", b"%d" % i)) for i in range(8)]
        queues = await producer.queues("T")
    assert [result.queue for result in results] == [*queues, *queues]
    assert len(queues) == 4
    assert [result.queue_offset for result in results] == [0] * 4 + [1] * 4


async def test_message_arrives_with_its_properties() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        message = Message("T", b"x", tags="tag", keys=("k1", "k2"), properties={"p": "ü"}, flag=3)
        result = await producer.send(message)
        (request,) = sends(cluster.brokers[0])
        (stored,) = decode_messages(cluster.brokers[0].records["T", result.queue.queue_id][0])
    assert result.status is SendStatus.OK
    assert result.message_id == stored.message_id
    assert len(result.message_id) == 32
    assert stored.tags == "tag"
    assert stored.keys == ("k1", "k2")
    assert stored.properties["p"] == "ü"
    assert stored.properties["WAIT"] == "true"
    assert {request.ext[name] for name in "hjkm"} == {"3", "0", "false"}
    assert all(isinstance(value, str) for value in request.ext.values())


async def test_hash_key_and_chosen_queue_decide_the_queue() -> None:
    async with fake_cluster("a", "b") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        by_key = {(await producer.send(Message("T", b""), hash_key="dev7")).queue for _ in range(5)}
        chosen = MessageQueue("T", "b", 1)
        by_choice = (await producer.send(Message("T", b""), queue=chosen)).queue
    assert len(by_key) == 1
    assert by_choice == chosen


async def test_batch_is_stored_in_order_in_one_queue() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        result = await producer.send_batch([Message("T", b"%d" % i, tags="t") for i in range(5)])
        records = cluster.brokers[0].records["T", result.queue.queue_id]
        stored = decode_messages(b"".join(records))
        (request,) = sends(cluster.brokers[0])
    assert [message.body for message in stored] == [b"0", b"1", b"2", b"3", b"4"]
    assert result.message_id == ",".join(message.message_id for message in stored)
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert request.ext["m"] == "true"


@pytest.mark.parametrize(("size", "is_packed"), [(4096, False), (4097, True), (300_000, True)])
async def test_large_bodies_are_compressed(size: int, is_packed: bool) -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"x" * size))
        (request,) = sends(cluster.brokers[0])
        (stored,) = decode_messages(cluster.brokers[0].records["T", result.queue.queue_id][0])
    assert request.ext["f"] == ("1" if is_packed else "0")
    assert (zlib.decompress(request.body) if is_packed else request.body) == b"x" * size
    assert stored.body == b"x" * size


@pytest.mark.parametrize("delay", [2.5, timedelta(seconds=2, milliseconds=500)])
async def test_delay_is_what_the_broker_is_asked_for(delay: float | timedelta) -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        await producer.send(Message("T", b""), delay=delay)
        await producer.send(Message("T", b""))
        with pytest.raises(MessageRefusedError, match="already has a delay"):
            await producer.send(Message("T", b"", properties={"DELAY": "1"}), delay=delay)
        first, second = (
            decode_properties(one.ext["i"].encode()) for one in sends(cluster.brokers[0])
        )
    assert first["TIMER_DELAY_MS"] == "2500"
    assert "TIMER_DELAY_MS" not in second


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(Message("", b""), "topic", id="no_topic"),
        pytest.param(Message("a/b", b""), "topic", id="slash"),
        pytest.param(Message("t" * 128, b""), "topic", id="long_topic"),
        pytest.param(
            Message("T", bytes(4 * 1024 * 1024 + 1)), "the limit is 4194304", id="too_large"
        ),
        pytest.param(Message("T", b"", keys=("a b",)), "a key", id="key_with_space"),
        pytest.param(Message("T", b"", properties={"a": "\x01"}), "separator", id="separator"),
        pytest.param(Message("T", b"", properties={"a": "x" * 33000}), "32767", id="properties"),
    ],
)
async def test_message_that_no_broker_would_take_is_refused_here(
    message: Message, words: str
) -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        with pytest.raises(MessageRefusedError, match=words):
            await producer.send(message)
        with pytest.raises(MessageRefusedError):
            await producer.send_batch([message])
        assert sends(cluster.brokers[0]) == []


async def test_batch_of_several_topics_or_delayed_or_empty_is_refused() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        for messages in (
            [],
            [Message("T", b""), Message("U", b"")],
            [Message("T", b"", properties={"DELAY": "1"})],
            [Message("%RETRY%G", b"")],
        ):
            with pytest.raises(MessageRefusedError):
                await producer.send_batch(messages)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
async def test_busy_broker_is_left_for_another_one(code: ResponseCode) -> None:
    async with fake_cluster("a", "b") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        cluster.brokers[0].script = lambda request: (
            request.answer(code, "busy") if request.code in SENDS else None
        )
        for _ in range(4):
            assert (await producer.send(Message("T", b""))).queue.broker_name == "b"


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
async def test_a_send_refused_by_flow_control_is_not_sent_again_if_that_is_wanted(
    code: ResponseCode,
) -> None:
    async with (
        fake_cluster("a", "b") as cluster,
        Producer(namesrv=cluster.namesrv, retry_when_busy=False) as producer,
    ):
        for broker in cluster.brokers:
            broker.script = lambda request: (
                request.answer(code, "busy") if request.code in SENDS else None
            )
        with pytest.raises(BrokerError, match="busy") as refused:
            await producer.send(Message("T", b""))
        assert refused.value.code == code
        assert sum(len(sends(broker)) for broker in cluster.brokers) == 1


async def test_stuck_broker_leaves_time_for_another_one() -> None:
    async with fake_cluster("a", "b") as cluster:
        cluster.brokers[0].script = lambda request: NO_ANSWER if request.code in SENDS else None
        async with Producer(namesrv=cluster.namesrv, timeout_s=1.5) as producer:
            results = [await producer.send(Message("T", b"%d" % i)) for i in range(2)]
        assert {result.queue.broker_name for result in results} == {"b"}
        ids = {request.ext["i"] for broker in cluster.brokers for request in sends(broker)}
    assert len(ids) == 2  # a repeated attempt carries the same unique id


async def test_silent_connection_is_given_up_for_a_new_one() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        await producer.send(Message("T", b""))
        client = producer._client
        silent = client._connections[cluster.brokers[0].address]
        cluster.brokers[0].script = lambda request: NO_ANSWER
        with pytest.raises(SendFailedError, match="no answer"):
            await producer.send(Message("T", b""), timeout_s=1.1)
        assert not silent.is_open
        cluster.brokers[0].script = lambda request: None
        await producer.send(Message("T", b""))
        # A deadline that leaves no time to judge by does not cost the connection.
        fresh = client._connections[cluster.brokers[0].address]
        cluster.brokers[0].script = lambda request: NO_ANSWER
        with pytest.raises(SendFailedError):
            await producer.send(Message("T", b""), timeout_s=0.1)
        assert fresh.is_open


async def test_refusal_for_good_is_not_retried() -> None:
    async with fake_cluster("a", "b") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        for broker in cluster.brokers:
            broker.script = lambda request: (
                request.answer(ResponseCode.MESSAGE_ILLEGAL, "too odd")
                if request.code in SENDS
                else None
            )
        with pytest.raises(BrokerError, match="too odd") as caught:
            await producer.send(Message("T", b""))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert sum(len(sends(broker)) for broker in cluster.brokers) == 1


async def test_failure_of_every_attempt_says_what_happened() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        cluster.brokers[0].script = lambda request: (
            request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "shutting down")
            if request.code in SENDS
            else None
        )
        with pytest.raises(SendFailedError, match="shutting down") as caught:
            await producer.send(Message("T", b""))
        assert len(caught.value.attempts) == 3
        # Of a batch the first one is named, and the reason can be read.
        with pytest.raises(SendFailedError, match="shutting down") as caught:
            await producer.send_batch([Message("T", b"") for _ in range(500)])
        assert str(caught.value).startswith("a batch of 500 messages (the first is ")
        assert len(str(caught.value)) < 400


async def test_a_broker_that_starts_again_in_time_gets_the_message_once() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        broker = cluster.brokers[0]
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            alive, broker.address = broker.address, f"127.0.0.1:{unused.getsockname()[1]}"

            async def start_again() -> None:
                await trio.sleep(1.5)  # three attempts take half of it
                broker.address = alive

            async with trio.open_nursery() as nursery:
                nursery.start_soon(start_again)
                await producer.send(Message("T", b"late"), timeout_s=10)
            assert len(sends(broker)) == 1


async def test_a_broker_that_takes_its_topics_with_it_is_waited_for() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        (broker,) = cluster.brokers
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            alive, broker.address = broker.address, f"127.0.0.1:{unused.getsockname()[1]}"
            await producer.queues("T")  # the route is known, and then it is none any more
            count = cluster.topics.pop("T")

            async def register_again() -> None:
                await trio.sleep(1.5)  # three attempts take half of it
                broker.address = alive
                cluster.topics["T"] = count

            async with trio.open_nursery() as nursery:
                nursery.start_soon(register_again)
                await producer.send(Message("T", b"late"), timeout_s=10)
            assert len(sends(broker)) == 1


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (2, 4)])
async def test_a_broker_that_stays_away_is_tried_for_as_long_as_there_is_time(
    retries: int, attempts: int
) -> None:
    async with fake_cluster("a") as cluster:
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            cluster.brokers[0].address = f"127.0.0.1:{unused.getsockname()[1]}"
            async with Producer(namesrv=cluster.namesrv, retries=retries) as producer:
                with pytest.raises(SendFailedError, match="refused") as caught:
                    await producer.send(Message("T", b""), timeout_s=2)
    assert len(caught.value.attempts) >= attempts
    assert retries or len(caught.value.attempts) == 1


async def test_warnings_of_the_broker_are_a_status() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        cluster.brokers[0].script = lambda request: (
            request.answer(
                ResponseCode.FLUSH_DISK_TIMEOUT,
                ext={"msgId": "M", "queueId": "1", "queueOffset": "9"},
            )
            if request.code in SENDS
            else None
        )
        result = await producer.send(Message("T", b""))
    assert (result.status, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 9)


async def test_unknown_topic_is_sent_to_the_brokers_of_the_default_topic() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        with pytest.raises(RouteError, match="'New' does not exist"):
            await producer.send(Message("New", b""))
        cluster.topics["TBW102"] = 8
        result = await producer.send(Message("New", b""))
        (request,) = sends(cluster.brokers[0])
        assert (request.ext["b"], request.ext["c"], request.ext["d"]) == ("New", "TBW102", "4")
        assert result.queue.topic == "New"
        assert len(await producer.queues("New")) == 4
        # Once it exists its own route counts.
        cluster.topics["New"] = 2
        await trio.sleep(0.15)
        assert len(await producer.queues("New")) == 2


async def test_dead_name_server_is_passed_over() -> None:
    async with fake_cluster("a") as cluster:
        with trio.socket.socket() as unused:
            await unused.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{unused.getsockname()[1]}"
            async with Producer(namesrv=f"{dead};{cluster.namesrv}") as producer:
                await producer.send(Message("T", b""))
            async with Producer(namesrv=dead, timeout_s=0.5) as producer:
                with pytest.raises(SendFailedError, match="no name server answered"):
                    await producer.send(Message("T", b""))
                with pytest.raises(NoNameServerError):
                    await producer.queues("T")


async def test_name_server_that_dies_later_does_not_stop_sends() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        await producer.send(Message("T", b""))
        cluster.script = lambda request: NO_ANSWER
        answers = iter([ResponseCode.SERVICE_NOT_AVAILABLE])
        cluster.brokers[0].script = lambda request: (
            request.answer(code, "busy")
            if request.code in SENDS and (code := next(answers, None)) is not None
            else None
        )
        await producer.send(Message("T", b""), timeout_s=8)


async def test_heartbeat_and_goodbye_name_the_group() -> None:
    async with fake_cluster("a") as cluster:
        async with Producer(namesrv=cluster.namesrv, group="P") as producer:
            await producer.send(Message("T", b""))
            heartbeat = loads((await cluster.brokers[0].received(RequestCode.HEART_BEAT)).body)
        goodbye = (await cluster.brokers[0].received(RequestCode.UNREGISTER_CLIENT)).ext
    assert heartbeat["producerDataSet"] == [{"groupName": "P"}]
    assert goodbye == {"clientID": heartbeat["clientID"], "producerGroup": "P"}


async def test_errors_of_the_callers_block_come_out_as_they_are() -> None:
    async with fake_cluster("a") as cluster:
        with pytest.raises(KeyError, match="own"):  # noqa: PT012 (leaving the block is the point)
            async with Producer(namesrv=cluster.namesrv) as producer:
                await producer.send(Message("T", b""))
                raise KeyError("own")
        with trio.move_on_after(0.05) as scope:
            async with Producer(namesrv=cluster.namesrv):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_closed_producer_says_so() -> None:
    async with fake_cluster("a") as cluster:
        producer = Producer(namesrv=cluster.namesrv)
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", b""))
        async with producer:
            pass
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", b""))


async def test_many_tasks_share_one_producer() -> None:
    async with (
        fake_cluster("a", "b") as cluster,
        # No attempt must end early on a slow machine: the producer would repeat it.
        Producer(namesrv=cluster.namesrv, timeout_s=60) as producer,
    ):
        ids: set[str] = set()

        async def send_some() -> None:
            for _ in range(20):
                ids.add((await producer.send(Message("T", b"x"))).message_id)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(send_some)
        assert len(ids) == 400
        assert sum(len(records) for b in cluster.brokers for records in b.records.values()) == 400


async def test_name_server_with_garbage_for_a_route_is_reported() -> None:
    async def garbage(request: RemotingCommand) -> RemotingCommand | None:
        return request.answer(body=b"{nonsense")

    async with trio.open_nursery() as nursery:
        address = await serve(nursery, garbage)
        async with Producer(namesrv=address) as producer:
            with pytest.raises(SendFailedError, match="not JSON"):
                await producer.send(Message("T", b""))
        nursery.cancel_scope.cancel()


async def test_a_function_chooses_the_queue() -> None:
    async with fake_cluster("a", "b") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        last = (await producer.queues("T"))[-1]
        results = [await producer.send(Message("T", b""), queue=lambda qs: qs[-1]) for _ in "123"]
    assert {result.queue for result in results} == {last}


async def test_a_oneway_send_waits_for_nothing_and_is_stored() -> None:
    async with fake_cluster("a") as cluster, Producer(namesrv=cluster.namesrv) as producer:
        broker = cluster.brokers[0]
        broker.script = lambda request: NO_ANSWER if request.is_oneway else None
        assert await producer.send_oneway(Message("T", b"x")) is None  # type: ignore[func-returns-value]
        request = await broker.received(RequestCode.SEND_MESSAGE_V2)
        with pytest.raises(RouteError):
            await producer.send_oneway(Message("none", b"x"))
    assert request.is_oneway
    assert request.body == b"x"


async def test_any_number_of_messages_go_as_batches_that_are_small_enough() -> None:
    async with (
        fake_cluster("a") as cluster,
        Producer(namesrv=cluster.namesrv, message_bytes_max=1000) as producer,
    ):
        cluster.topics["U"] = 1
        messages = [Message("TU"[n % 3 == 0], b"%03d" % n + b"x" * 97) for n in range(40)]
        results = await producer.send_batches(messages, queue=lambda queues: queues[0])
        batches = sends(cluster.brokers[0])
        stored = cluster.brokers[0].records
    assert len(results) == len(batches) > 10
    assert all(len(request.body) <= 1000 for request in batches)
    for topic in "TU":
        bodies = [decode_messages(record)[0].body for record in stored[topic, 0]]
        assert bodies == [message.body for message in messages if message.topic == topic]


async def test_less_than_stored_is_tried_at_another_broker_where_that_is_asked_for() -> None:
    async with fake_cluster("a", "b") as cluster:
        first = cluster.brokers[0]
        not_stored = ResponseCode.FLUSH_DISK_TIMEOUT

        def script(request: RemotingCommand) -> RemotingCommand | None:
            if request.code not in SENDS:
                return None
            ext = {"msgId": "id", "queueId": request.ext["e"], "queueOffset": "0"}
            return request.answer(not_stored, ext=ext)

        first.script = script
        async with Producer(namesrv=cluster.namesrv) as producer:
            statuses = {(await producer.send(Message("T", b""))).status for _ in range(4)}
        assert statuses == {SendStatus.OK, SendStatus.FLUSH_DISK_TIMEOUT}
        async with Producer(namesrv=cluster.namesrv, retry_when_not_stored=True) as producer:
            results = [await producer.send(Message("T", b"")) for _ in range(4)]
            assert {result.status for result in results} == {SendStatus.OK}
            # When no broker does better, the caller learns what the last one said.
            cluster.brokers[1].script = script
            result = await producer.send(Message("T", b""))
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_a_broker_that_does_not_answer_gets_no_turn_for_a_while() -> None:
    async with (
        fake_cluster("a", "b") as cluster,
        Producer(namesrv=cluster.namesrv, avoid_slow_brokers=True, timeout_s=0.9) as producer,
    ):
        await producer.send(Message("T", b""))
        for broker in cluster.brokers:
            broker.requests.clear()
        cluster.brokers[0].script = lambda request: NO_ANSWER if request.code in SENDS else None
        results = [await producer.send(Message("T", b"")) for _ in range(8)]
        # One attempt was enough to learn it.
        assert len(sends(cluster.brokers[0])) == 1
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_name_servers_are_asked_by_chance() -> None:
    async with fake_cluster("a") as one, fake_cluster("a") as other:
        asked = set()
        for _ in range(64):
            async with Producer(namesrv=[one.namesrv, other.namesrv]) as producer:
                (first, *_) = await producer.queues("T")
                await producer.send(Message("T", b""), queue=first)
            asked |= {
                number for number, fake in enumerate((one, other)) if fake.brokers[0].requests
            }
            if asked == {0, 1}:
                break
    assert asked == {0, 1}
