"""A broker killed while delayed messages come due loses none, and repeats few."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import Peer, connected, joined, pull_ext, send_ext

ROUNDS = 4
COUNT = 150
TIMEOUT_S = 60


async def test_each_delayed_message_comes_although_the_broker_is_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    accepted: set[bytes] = set()
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        broker = BrokerProcess(tmp_path, namesrv=joined(namesrv.address))
        with trio.fail_after(TIMEOUT_S):
            for round_ in range(ROUNDS):
                await trio.to_thread.run_sync(broker.start)
                try:
                    async with connected(broker.address) as peer:
                        for number in range(COUNT):
                            body = b"%d:%d" % (round_, number)
                            await send_delayed(peer, body, chance)
                            accepted.add(body)
                        await trio.sleep(chance.uniform(0, 2))
                finally:
                    await trio.to_thread.run_sync(broker.kill)
            await trio.to_thread.run_sync(broker.start)
            try:
                async with connected(broker.address) as peer:
                    found = await everything(peer, len(accepted))
            finally:
                await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    assert set(found) == accepted


async def send_delayed(peer: Peer, body: bytes, chance: random.Random) -> None:
    properties = (
        "DELAY\x011\x02"
        if chance.random() < 0.3
        else f"TIMER_DELAY_MS\x01{chance.randint(1, 2_000)}\x02"
    )
    ext = send_ext("T", properties=properties)
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def everything(peer: Peer, count: int) -> Counter[bytes]:
    """Pull until ``count`` different messages have come and no more do."""
    found: Counter[bytes] = Counter()
    offset = 0
    while True:
        ext = pull_ext("T", offset, sysFlag=6, suspendTimeoutMillis=3_000)
        answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
        offset = int(answer.ext["nextBeginOffset"])
        found.update(message.body for message in decode_messages(answer.body))
        if answer.code != ResponseCode.SUCCESS and len(found) >= count:
            return found
