"""A broker killed after it has acknowledged recalls delivers none of those messages."""

from __future__ import annotations

import random
from pathlib import Path

import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import Peer, connected, joined, pull_ext, send_ext

ROUNDS = 3
COUNT = 60
LATEST_MS = 2_500
TIMEOUT_S = 60


async def test_what_was_recalled_never_comes_although_the_broker_is_killed(tmp_path: Path) -> None:
    chance = random.Random(11)
    sent: set[bytes] = set()
    recalled: set[bytes] = set()
    unknown: set[bytes] = set()
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        broker = BrokerProcess(tmp_path, namesrv=joined(namesrv.address))
        with trio.fail_after(TIMEOUT_S):
            for round_ in range(ROUNDS):
                await trio.to_thread.run_sync(broker.start)
                try:
                    async with connected(broker.address) as peer:
                        await recall_some(peer, round_, chance, sent, recalled, unknown)
                        await trio.sleep(chance.uniform(0, 1.5))
                finally:
                    await trio.to_thread.run_sync(broker.kill)
            await trio.to_thread.run_sync(broker.start)
            try:
                async with connected(broker.address) as peer:
                    await trio.sleep(LATEST_MS / 1000)
                    found = await everything(peer, len(sent - recalled - unknown))
            finally:
                await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
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


async def everything(peer: Peer, count: int) -> set[bytes]:
    """Pull until at least ``count`` messages have come and no more do."""
    found: set[bytes] = set()
    offset = 0
    while True:
        ext = pull_ext("T", offset, sysFlag=6, suspendTimeoutMillis=2_000)
        answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
        offset = int(answer.ext["nextBeginOffset"])
        found |= {message.body for message in decode_messages(answer.body)}
        if answer.code != ResponseCode.SUCCESS and len(found) >= count:
            return found
