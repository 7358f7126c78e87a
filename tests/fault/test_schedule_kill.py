"""A broker killed while delayed messages come due loses none, and repeats few."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_lives import all_bodies, life_of, mortal_broker
from tests.support.broker_stack import Peer, send_ext

ROUNDS = 4
COUNT = 150
TIMEOUT_S = 60


async def test_each_delayed_message_comes_although_the_broker_is_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    accepted: set[bytes] = set()
    async with mortal_broker(tmp_path, timeout_s=TIMEOUT_S) as broker:
        for round_ in range(ROUNDS):
            async with life_of(broker) as peer:
                for number in range(COUNT):
                    body = b"%d:%d" % (round_, number)
                    await send_delayed(peer, body, chance)
                    accepted.add(body)
                await trio.sleep(chance.uniform(0, 2))
        async with life_of(broker) as peer:
            found = await all_bodies(peer, "T", len(accepted))
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
