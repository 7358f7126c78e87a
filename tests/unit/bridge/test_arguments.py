"""Arguments of producers and consumers are checked where they are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from motelog.bridge.client import NameServers, parse_namesrv
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.message import Message


@pytest.mark.parametrize(
    ("namesrv", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1; b:2;", ("a:1", "b:2")),
        (("127.0.0.1", 9876), ("127.0.0.1:9876",)),
        (("::1", 9876), ("[::1]:9876",)),
        (["a:1", "b:2;c:3"], ("a:1", "b:2", "c:3")),
        ([("a", 1), "b:2"], ("a:1", "b:2")),
        (("a:1", "b:2"), ("a:1", "b:2")),
    ],
)
def test_name_servers_in_each_form(namesrv: NameServers, addresses: tuple[str, ...]) -> None:
    assert parse_namesrv(namesrv) == addresses


@pytest.mark.parametrize("namesrv", ["", ";", [], "a", ("a", 0), [1], [b"a:1"]])
def test_name_servers_that_are_none(namesrv: Any) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_namesrv(namesrv)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.send("text"), r"send takes Message\(topic, body\), not str"),
        (lambda p: p.send_batch(Message("T", b"")), "a batch must be a list of Message"),
        (lambda p: p.send_batch(["text"]), "not str"),
        (
            lambda p: p.send(Message("T", b""), queue=1),
            r"queue must be one of queues\(topic\) or a function, not int",
        ),
        (lambda p: p.send(Message("T", b""), hash_key=1), "hash_key must be a str, not int"),
    ],
)
async def test_what_is_no_message(call: Any, text: str) -> None:
    async with Producer(namesrv="127.0.0.1:1") as producer:
        with pytest.raises(TypeError, match=text):
            await call(producer)


@pytest.mark.parametrize("delay", [-1, float("inf"), float("nan"), "5", timedelta(seconds=-1)])
async def test_delays_that_are_none(delay: Any) -> None:
    async with Producer(namesrv="127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match="delay must be seconds or a timedelta"):
            await producer.send(Message("T", b""), delay=delay)


async def test_what_is_no_queue_count_or_start() -> None:
    async with PullConsumer(namesrv="127.0.0.1:1") as consumer:
        with pytest.raises(TypeError, match="assign takes queues"):
            consumer.assign("telemetry")  # type: ignore[arg-type]  # the mistake is the test
        with pytest.raises(ValueError, match="count_max must be at least 1"):
            await consumer.poll(count_max=0)
    with pytest.raises(ValueError, match="start must be 'first' or 'last', not 'begin'"):
        PullConsumer(start="begin")  # type: ignore[arg-type]  # the mistake is the test
    with pytest.raises(ValueError, match="group is empty"):
        Producer(group="")
