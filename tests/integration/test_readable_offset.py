"""A log whose end may not be read yet: no reader of broker or gateway sees it, all are woken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from motelog.core.message import DELAY, KEYS
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import PullSysFlag, RemotingCommand, RequestCode, ResponseCode
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.server import Gateway
from tests.support.broker_stack import (
    Peer,
    connected,
    eventually,
    pull_ext,
    send_ext,
    started_stack,
    store_config,
)
from tests.support.mqtt_wire import Wire, published

HOLDING = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
LEVEL_1 = "1s"


async def send(peer: Peer, body: bytes, *, topic: str = "T", properties: str = "") -> Any:
    text = f"{KEYS}\x01{body.decode()}\x02{properties}"
    ext = send_ext(topic, properties=text)
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
    assert answer.code == ResponseCode.SUCCESS
    return answer


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body)] if answer.body else []


async def test_nobody_reads_beyond_the_readable_offset_and_all_are_woken(tmp_path: Path) -> None:
    config = store_config(tmp_path, delay_levels=LEVEL_1)
    with trio.fail_after(60):
        async with (
            started_stack(tmp_path, store=config) as stack,
            connected(stack.broker_address) as producer,
            connected(stack.broker_address) as consumer,
            connected(stack.broker_address) as holder,
            trio.open_nursery() as nursery,
        ):
            broker = stack.broker
            store = broker.parts.store
            gateway = Gateway(GatewayConfig(listen="127.0.0.1:0"), LocalLog(broker.api))
            await nursery.start(gateway.run)
            await send(producer, b"seen")
            store.readable.set_limit(store.end_offset)

            wire = await trio.to_thread.run_sync(Wire, gateway.address)
            with wire:
                connack = await trio.to_thread.run_sync(wire.connect, "reader")
                assert connack.reason_code == 0
                await trio.to_thread.run_sync(wire.subscribe, "T")

                async def pull(peer: Peer, offset: int, **fields: Any) -> RemotingCommand:
                    return await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", offset, **fields))

                async def ask(code: int, **fields: Any) -> RemotingCommand:
                    return await consumer.ask(code, {"topic": "T", "queueId": 0, **fields})

                async def by_key(key: str) -> list[bytes]:
                    answer = await consumer.ask(
                        RequestCode.QUERY_MESSAGE,
                        {
                            "topic": "T",
                            "key": key,
                            "maxNum": 32,
                            "beginTimestamp": 0,
                            "endTimestamp": 1 << 62,
                        },
                    )
                    return bodies(answer)

                held: list[RemotingCommand] = []

                async def hold() -> None:
                    held.append(
                        await pull(holder, 1, sysFlag=int(HOLDING), suspendTimeoutMillis=9_000)
                    )

                nursery.start_soon(hold)
                await eventually(lambda: len(broker.parts.processors.pull.held) == 1)
                hidden = await send(producer, b"hidden")
                place = int(hidden.ext["msgId"][16:], 16)
                await send(producer, b"delayed", properties=f"{DELAY}\x011\x02")
                # Long enough for whoever would see it.
                await trio.sleep(1.3)

                assert bodies(await pull(consumer, 0)) == [b"seen"]
                nothing = await pull(consumer, 1)
                assert nothing.code == ResponseCode.PULL_NOT_FOUND
                assert nothing.ext["maxOffset"] == "1"
                assert held == []
                assert broker.sample()["held_pulls_woken"] == 0
                assert (await ask(RequestCode.GET_MAX_OFFSET)).ext["offset"] == "1"
                by_time = await ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1 << 62)
                assert by_time.ext["offset"] == "1"
                assert await by_key("seen") == [b"seen"]
                assert await by_key("hidden") == []
                by_id = await consumer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
                assert by_id.code == ResponseCode.SYSTEM_ERROR
                stats = await consumer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
                assert b'"maxOffset":1' in stats.body
                assert b'"maxOffset":2' not in stats.body
                assert broker.sample()["delayed_messages_delivered"] == 0
                assert gateway.metrics.messages_delivered == 0

                store.readable.set_limit(store.end_offset)
                first_byte, body = await trio.to_thread.run_sync(wire.packet)
                assert (first_byte & 0xF0, published(first_byte, body)[-1]) == (0x30, b"hidden")
                await eventually(lambda: len(held) == 1)
                assert bodies(held[0]) == [b"hidden"]
                assert await by_key("hidden") == [b"hidden"]
                assert bodies(
                    await consumer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
                ) == [b"hidden"]
                # The delayed message was seen, and what it became lies beyond the limit again.
                await eventually(lambda: broker.sample()["delayed_messages_delivered"] == 1)
                assert (await ask(RequestCode.GET_MAX_OFFSET)).ext["offset"] == "2"
                store.readable.set_limit(store.end_offset)
                assert (await ask(RequestCode.GET_MAX_OFFSET)).ext["offset"] == "3"
                first_byte, body = await trio.to_thread.run_sync(wire.packet)
                assert published(first_byte, body)[-1] == b"delayed"
            nursery.cancel_scope.cancel()
