"""Each of our clients does its work once: for what all of them must be able to do.

Owns: use_every_client. Must not touch: servers.
"""

from __future__ import annotations

from typing import Any

import trio

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.simple import SimpleConsumer
from motelog.bridge.sync import SyncPullConsumer
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage


async def use_every_client(who: dict[str, Any]) -> None:
    """Exchange messages of the empty topic ``jobs``; ``who`` are options that all clients take."""
    async with Producer(**who, group="P") as producer:
        await producer.send(Message("jobs", b"0", keys=("k",)))
        await producer.send_batch([Message("jobs", b"1"), Message("jobs", b"2")])
        await producer.send_oneway(Message("jobs", b"3"))

    async def check(_: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def execute(_: Message) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(check, **who, group="T") as transactions:
        await transactions.send_in_transaction(Message("jobs", b"4"), execute)
    with trio.fail_after(30):
        assert await pulled(who) == [b"0", b"1", b"2", b"3", b"4"]
        assert await pushed(who) == [b"0", b"0", b"1", b"2", b"3", b"4"]
        assert await received(who) == [b"0", b"1", b"2", b"3", b"4"]
    bodies = await trio.to_thread.run_sync(pulled_by_thread, who)
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]


async def pulled(who: dict[str, Any]) -> list[bytes]:
    async with PullConsumer(**who, group="pullers") as consumer:
        consumer.assign(await consumer.queues("jobs"))
        bodies: list[bytes] = []
        while len(bodies) < 5:
            bodies += [message.body for message in await consumer.poll(timeout_s=5)]
        await consumer.commit()
        (found,) = await consumer.query_by_key("jobs", "k")
        assert found.body == b"0"
    return sorted(bodies)


async def pushed(who: dict[str, Any]) -> list[bytes]:
    """Take all messages, the first one at its second attempt."""
    bodies: list[bytes] = []
    async with PushConsumer(**who, group="workers") as consumer:
        consumer.subscribe("jobs")

        async def handle(message: StoredMessage) -> None:
            bodies.append(message.body)
            if len(bodies) == 6:
                consumer.stop()
            if message.body == b"0" and bodies.count(b"0") == 1:
                raise RuntimeError("try it again")

        await consumer.run(handle)
    return sorted(bodies)


async def received(who: dict[str, Any]) -> list[bytes]:
    bodies: list[bytes] = []
    async with SimpleConsumer(**who, group="simple") as consumer:
        await consumer.subscribe("jobs")
        while len(bodies) < 5:
            messages = await consumer.receive(wait_s=5)
            bodies += [message.body for message in messages]
            await consumer.ack_many(messages[1:])
            for message in messages[:1]:
                await consumer.ack(message)
    return sorted(bodies)


def pulled_by_thread(who: dict[str, Any]) -> list[bytes]:
    """Read as Spark's tasks do, by pulls on connections of their own."""
    bodies: list[bytes] = []
    with SyncPullConsumer(**who, group="pullers") as consumer:
        for queue in consumer.queues("jobs"):
            with consumer.open_puller(queue) as puller:
                bodies += [message.body for message in puller.ask(0, 10).result().messages()]
    return sorted(bodies)
