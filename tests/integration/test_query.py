"""Messages are found by key and by id: over the wire and with the native client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.sync import SyncPullConsumer
from motelog.core.errors import BrokerError
from motelog.core.message import Message
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from tests.support.broker_stack import connected, routed, send_ext, started_stack

FOREVER = (1 << 63) - 1


def query_ext(key: str, **fields: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "key": key,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": FOREVER,
        **fields,
    }


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body)]


async def test_broker_answers_queries_by_key(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for number in range(5):
            text = f"KEYS\x01even{number % 2} k{number}\x02UNIQ_KEY\x01U{number}\x02"
            ext = send_ext("T", queue_id=number % 4, properties=text)
            answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number)
            assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, query_ext("even0"))
        assert bodies(answer) == [b"4", b"2", b"0"]
        newest = decode_messages(answer.body)[0]
        assert answer.ext["indexLastUpdateTimestamp"] == str(newest.store_timestamp_ms)
        assert answer.ext["indexLastUpdatePhyoffset"] == str(newest.physical_offset)
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, query_ext("even0", maxNum=2))
        assert bodies(answer) == [b"4", b"2"]
        ext = query_ext("even0", beginTimestamp=newest.store_timestamp_ms + 1)
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, ext)
        assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
        unique = {"_UNIQUE_KEY_QUERY": "true", "maxNum": 1}
        for key, found in (("U3", [b"3"]), ("k3", [])):
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, query_ext(key, **unique))
            assert bodies(answer) == found
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "even0"})
        assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("key", ["\x00", "a b", "\N{PILE OF POO}", "k" * 30_000, "#", "c"])
async def test_strange_keys_find_nothing(tmp_path: Path, key: str) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        ext = send_ext("T", properties="KEYS\x01a b\x02")
        assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"")).code == 0
        for topic, count in (("T", 1), ("T", -1), ("nowhere", 1), ("a/b", 1)):
            ext = query_ext(key, topic=topic, maxNum=count)
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, ext)
            assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_native_client_finds_by_key_by_unique_id_and_by_offset_id(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        Producer(namesrv=stack.namesrv_address, group="P") as producer,
        PullConsumer(namesrv=stack.namesrv_address, group="G") as consumer,
    ):
        sent = [
            await producer.send(Message("T", b"%d" % n, keys=(f"k{n}", "grün"))) for n in range(9)
        ]
        await routed(stack, "T")
        found = await consumer.query_by_key("T", "grün")
        assert [m.body for m in found] == [b"%d" % n for n in range(8, -1, -1)]
        assert len(await consumer.query_by_key("T", "grün", count_max=2)) == 2
        times = [m.store_timestamp_ms for m in found]
        late = await consumer.query_by_key("T", "grün", times[0] + 1, times[0] + 2)
        assert late == []
        (by_id,) = await consumer.query_by_key("T", sent[4].message_id)
        assert by_id.body == b"4"
        assert await consumer.view(by_id.offset_id) == by_id
        with pytest.raises(ValueError, match="range"):
            await consumer.query_by_key("T", "k", 2, 1)
        with pytest.raises(ValueError, match="digits"):
            await consumer.view("ABCD")
        with pytest.raises(BrokerError):
            await consumer.view(by_id.offset_id[:-1] + "F")

        def ask_blocking() -> None:
            with SyncPullConsumer(namesrv=stack.namesrv_address, group="S") as blocking:
                assert blocking.query_by_key("T", "k4") == [by_id]
                assert blocking.view(by_id.offset_id) == by_id

        await trio.to_thread.run_sync(ask_blocking)
