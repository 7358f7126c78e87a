"""What users of our clients are told of their commonest mistakes: by whom, and what to do."""

from __future__ import annotations

import logging
import random
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.errors import (
    ClientClosedError,
    ClientError,
    FilterError,
    MessageRefusedError,
    NoNameServerError,
    ReplyTimeoutError,
    RouteError,
    SendFailedError,
)
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.simple import SimpleConsumer
from motelog.core.errors import BrokerError, RemotingTimeoutError
from motelog.core.message import Message, MessageQueue
from tests.support.broker_stack import routed, started_stack

NOBODY = "127.0.0.1:1"
FROM = r"from 127\.0\.0\.1:\d+"

Call = Callable[[], Awaitable[object]]


async def queues(namesrv: str, topic: str = "T") -> object:
    async with PullConsumer(namesrv=namesrv, group="G") as consumer:
        return await consumer.queues(topic)


async def send(namesrv: str, message: Message, **options: object) -> object:
    async with Producer(namesrv=namesrv, message_bytes_max=1 << 23, timeout_s=1) as producer:
        return await producer.send(message, **options)  # type: ignore[arg-type]


async def recall_what_does_not_wait(namesrv: str) -> object:
    async with Producer(namesrv=namesrv) as producer:
        sent = await producer.send(Message("T", b""))
        return await producer.recall(sent.recall_handle)


async def request(namesrv: str) -> object:
    async with Producer(namesrv=namesrv) as producer:
        await producer.send(Message("T", b""))  # the route is known, and so is the connection
        return await producer.request(Message("T", b""), timeout_s=0.2)


async def poll(namesrv: str, group: str, topic: str = "T", sql: str | None = None) -> object:
    async with PullConsumer(namesrv=namesrv, group=group) as consumer:
        consumer.assign([MessageQueue(topic, "broker-a", 0)], sql=sql)
        return await consumer.poll(timeout_s=10)


async def test_a_mistake_is_told_with_its_place_and_a_remedy(tmp_path: Path) -> None:
    async with started_stack(tmp_path, auto_create_topics=False) as stack:
        namesrv, broker = stack.namesrv_address, stack.broker_address
        async with Admin(namesrv=namesrv) as admin:
            for topic, permission in (("T", 6), ("ReadOnly", 4), ("WriteOnly", 2)):
                await admin.put_topic(topic, permission=permission)
                await routed(stack, topic)
            await admin.put_group("closed", {"consumeEnable": False})
        producer = Producer(namesrv=namesrv)
        behind, of_another = MessageQueue("T", "broker-a", 99), MessageQueue("U", "broker-a", 0)
        large = Message("T", random.Random(1).randbytes(5_000_000))
        elsewhere = MessageQueue("T", "other", 0)
        mistakes: list[tuple[Call, type[Exception], str]] = [
            (
                lambda: queues(NOBODY),
                NoNameServerError,
                f"check that one is running .* {NOBODY}: Conn",
            ),
            (
                lambda: send(NOBODY, Message("T", b"")),
                SendFailedError,
                f"topic 'T' .* name servers .*{NOBODY}: Connection refused",
            ),
            (lambda: queues(broker), NoNameServerError, f"{broker} is not a name server"),
            (lambda: queues("http://h:9876"), ValueError, "remove the part before //"),
            (lambda: queues("localhost"), ValueError, "'localhost' is not HOST:PORT"),
            (lambda: queues(namesrv, "None"), RouteError, "'None' does not exist: create it"),
            (
                lambda: send(namesrv, Message("None", b"")),
                RouteError,
                "'None' does not exist: create it",
            ),
            (
                lambda: send(namesrv, Message("ReadOnly", b"")),
                RouteError,
                "'ReadOnly' has no writable queue: check its permission",
            ),
            (
                lambda: send(namesrv, large),
                BrokerError,
                rf"limit is 4194304 \(code 13 MESSAGE_ILLEGAL, {FROM}, topic 'T'\)",
            ),
            (
                lambda: send(namesrv, Message("T", b""), queue=elsewhere),
                SendFailedError,
                "no master of broker 'other' is registered: is it running",
            ),
            (
                lambda: send(namesrv, Message("T", b""), queue=behind),
                BrokerError,
                rf"queue id 99 is illegal: topic T has 8 queues, from 0 on \(code 29 .*, {FROM}",
            ),
            (
                lambda: send(namesrv, Message("T", b""), queue=of_another),
                MessageRefusedError,
                "queue U/0@broker-a does not belong to topic 'T'",
            ),
            (lambda: send(namesrv, Message("a/b", b"")), MessageRefusedError, "'a/b' holds"),
            (
                lambda: poll(namesrv, "closed"),
                BrokerError,
                rf"group closed may not consume \(code 16 NO_PERMISSION, {FROM}.*: check the perm",
            ),
            (
                lambda: poll(namesrv, "G", "WriteOnly"),
                BrokerError,
                rf"WriteOnly is not readable \(code 16 NO_PERMISSION, {FROM}.*: check the perm",
            ),
            (
                lambda: send(namesrv, Message("T", b""), queue=lambda queues: None),
                TypeError,
                "the function returned NoneType, not one of the queues",
            ),
            (
                lambda: send(namesrv, Message("T", b""), timeout_s=0),
                SendFailedError,
                "within 0 s and 0 attempts: there was no time for an attempt",
            ),
            (
                lambda: recall_what_does_not_wait(namesrv),
                MessageRefusedError,
                r"send\(delay=\.\.\.\)",
            ),
            (
                lambda: request(namesrv),
                ReplyTimeoutError,
                r"topic 'T', within 0\.2 s: does a consumer of it call reply_to",
            ),
            (lambda: poll(namesrv, "G", sql="a >"), FilterError, "wrong at column 4"),
            (lambda: producer.send(Message("T", b"")), ClientClosedError, "inside `async with`"),
        ]
        for call, kind, text in mistakes:
            with trio.fail_after(20), pytest.raises(kind, match=text):
                await call()
        async with Admin(namesrv=namesrv) as admin:
            with pytest.raises(
                ClientError, match=r"broker 'other' has no master; known brokers: broker-a"
            ):
                await admin.broker_status("other")


@pytest.mark.parametrize("kind", [Producer, PullConsumer, PushConsumer, SimpleConsumer])
def test_what_no_server_would_take_is_refused_where_it_is_given(
    kind: Callable[..., object],
) -> None:
    with pytest.raises(ValueError, match="the group name 'a b' holds characters other than"):
        kind(group="a b")
    with pytest.raises(TypeError, match=r"credentials is Credentials\(...\), not tuple"):
        kind(credentials=("key", "secret"))
    with pytest.raises(TypeError, match=r"tls is Tls\(...\), not bool"):
        kind(tls=True)


@pytest.mark.parametrize("kind", [PullConsumer, PushConsumer])
async def test_what_nobody_can_subscribe_to_is_refused_at_once(
    kind: type[PullConsumer | PushConsumer],
) -> None:
    async with kind(namesrv=NOBODY) as consumer:
        with pytest.raises(ValueError, match="the topic name 'telemetry/dev42' holds"):
            consumer.subscribe("telemetry/dev42")
        for selection in ({"tags": None}, {"sql": 5}):
            with pytest.raises(TypeError, match=r"(tags|sql) must be a str, not (NoneType|int)"):
                consumer.subscribe("T", **selection)
        consumer.subscribe("%LMQ%telemetry.dev42")


async def test_a_name_server_that_does_not_answer_costs_no_more_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        namesrv = f"127.0.0.1:{silent.getsockname()[1]}"
        message = Message("T", b"")
        async with Producer(namesrv=namesrv, timeout_s=0.1) as producer:
            calls: list[tuple[Call, type[Exception]]] = [
                (lambda: producer.send(message), SendFailedError),
                (lambda: producer.send_oneway(message), RemotingTimeoutError),
                (lambda: producer.request(message, timeout_s=0.1), RemotingTimeoutError),
            ]
            for call, kind in calls:
                # Without a deadline of the call that of the request ends it, with another error.
                with pytest.raises(
                    kind, match=rf"the name servers \({namesrv}\) did not return a route"
                ):
                    await call()


@pytest.mark.parametrize(
    ("group", "has_namesrv", "told"),
    [
        ("G", False, f"a rebalance failed.*topic=T group=G .*{NOBODY}: Connection refused"),
        (
            "none",
            True,
            rf"refuses a heartbeat.*group none does not exist \(code 26 .*, {FROM}: create",
        ),
    ],
)
async def test_a_push_consumer_that_gets_nothing_says_why(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    group: str,
    has_namesrv: bool,
    told: str,
) -> None:
    caplog.set_level(logging.WARNING, logger="motelog.bridge")
    async with started_stack(tmp_path, auto_create_groups=False) as stack:
        stack.broker.api.create_topic("T", 1)
        await routed(stack, "T")
        namesrv = stack.namesrv_address if has_namesrv else NOBODY
        async with (
            trio.open_nursery() as nursery,
            PushConsumer(namesrv=namesrv, group=group, stop_s=0.2) as consumer,
        ):
            consumer.subscribe("T")
            nursery.start_soon(consumer.run, lambda message: None)
            with trio.fail_after(20):
                while re.search(told, caplog.text) is None:  # noqa: ASYNC110  # logging has no event
                    await trio.sleep(0.05)
            consumer.stop()
