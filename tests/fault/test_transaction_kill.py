"""A broker killed in the middle of transactions commits what was committed, once, and no more."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import trio

from motelog.bridge.errors import SendFailedError
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.errors import RemotingError
from motelog.core.message import Message
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import Peer, connected, joined, pull_ext

ROUNDS = 4
SENDERS = 4
TIMEOUT_S = 120
QUIET_S = 1.5
SOON: dict[str, Any] = {"transaction_timeout_s": 0.2, "transaction_check_interval_s": 0.2}


async def test_transactions_outlive_kills(tmp_path: Path) -> None:
    chance = random.Random(11)
    #: What each local transaction came to; written before its end is sent, as a database would.
    known: dict[bytes, TransactionState] = {}
    acknowledged: set[bytes] = set()

    async def check(message: StoredMessage) -> TransactionState:
        return known.get(message.body, TransactionState.ROLLBACK)

    async def send(producer: TransactionProducer, name: str) -> None:
        for number in range(1_000_000):
            body = f"{name}:{number}".encode()
            how = chance.choice([*TransactionState])
            try:
                half = await producer.send_half(Message("T", body))
                known[body] = how or chance.choice(
                    [TransactionState.COMMIT, TransactionState.ROLLBACK]
                )
                if how is TransactionState.COMMIT:
                    await producer.commit(half)
                elif how is TransactionState.ROLLBACK:
                    await producer.rollback(half)
            except (SendFailedError, RemotingError):
                return
            acknowledged.add(body)

    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        broker = BrokerProcess(tmp_path, namesrv=joined(namesrv.address), **SOON)
        with trio.fail_after(TIMEOUT_S):
            for round_ in range(ROUNDS):
                await trio.to_thread.run_sync(broker.start)
                async with (
                    TransactionProducer(
                        check, namesrv=joined(namesrv.address), retries=0, topics=["T"]
                    ) as producer,
                    trio.open_nursery() as senders,
                ):
                    for sender in range(SENDERS):
                        senders.start_soon(send, producer, f"{round_}-{sender}")
                    await trio.sleep(chance.uniform(0.3, 1.2))
                    await trio.to_thread.run_sync(broker.kill)
            await trio.to_thread.run_sync(broker.start)
            expected = {b for b, how in known.items() if how is TransactionState.COMMIT}
            try:
                async with (
                    TransactionProducer(check, namesrv=joined(namesrv.address), topics=["T"]),
                    connected(broker.address) as peer,
                ):
                    found = await everything(peer, expected)
            finally:
                await trio.to_thread.run_sync(broker.kill)
        nursery.cancel_scope.cancel()
    assert len(acknowledged) > 100
    assert set(found) == expected
    assert set(found.values()) == {1}


async def everything(peer: Peer, expected: set[bytes]) -> Counter[bytes]:
    """Read each queue until all that is expected is there, and nothing more comes for a while."""
    found: Counter[bytes] = Counter()
    offsets = dict.fromkeys(range(4), 0)
    quiet_at = trio.current_time() + QUIET_S
    while trio.current_time() < quiet_at or not found.keys() >= expected:
        for queue_id, offset in offsets.items():
            answer = await peer.ask(
                RequestCode.PULL_MESSAGE, pull_ext("T", offset, queue_id=queue_id)
            )
            offsets[queue_id] = int(answer.ext["nextBeginOffset"])
            if answer.code == ResponseCode.SUCCESS:
                quiet_at = trio.current_time() + QUIET_S
                found.update(message.body for message in decode_messages(answer.body))
        await trio.sleep(0.05)
    return found
