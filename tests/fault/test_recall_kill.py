"""A broker killed after it has acknowledged recalls delivers none of those messages."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_lives import all_bodies, life_of, mortal_broker
from tests.support.broker_stack import Peer, send_ext

ROUNDS = 3
COUNT = 60
LATEST_MS = 2_500
TIMEOUT_S = 60


async def test_what_was_recalled_never_comes_although_the_broker_is_killed(tmp_path: Path) -> None:
    chance = random.Random(11)
    sent: set[bytes] = set()
    recalled: set[bytes] = set()
    unknown: set[bytes] = set()
    async with mortal_broker(tmp_path, timeout_s=TIMEOUT_S) as broker:
        for round_ in range(ROUNDS):
            async with life_of(broker) as peer:
                await recall_some(peer, round_, chance, sent, recalled, unknown)
                await trio.sleep(chance.uniform(0, 1.5))
        async with life_of(broker) as peer:
            await trio.sleep(LATEST_MS / 1000)
            found = set(await all_bodies(peer, "T", len(sent - recalled - unknown)))
    assert len(recalled) > COUNT // 2
    assert not found & recalled
    assert found >= sent - recalled - unknown


async def recall_some(
    peer: Peer,
    round_: int,
    chance: random.Random,
    sent: set[bytes],
    recalled: set[bytes],
    unknown: set[bytes],
) -> None:
    """Send delayed messages, and recall half of them some time later."""
    handles: list[tuple[bytes, str]] = []
    # Many share a due time.
    due_ms = [1_000 + 500 * number for number in range(4)]
    for number in range(COUNT):
        body = b"%d:%d" % (round_, number)
        properties = f"TIMER_DELAY_MS\x01{min(chance.choice(due_ms), LATEST_MS)}\x02"
        ext = send_ext("T", properties=properties)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        sent.add(body)
        if number % 2:
            handles.append((body, answer.ext["recallHandle"]))
    for body, handle in handles:
        unknown.add(body)
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle})
        if answer.code == ResponseCode.SUCCESS:
            recalled.add(body)
            unknown.discard(body)
        else:
            assert answer.code == ResponseCode.ILLEGAL_OPERATION, answer.remark
