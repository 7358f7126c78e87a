"""Queue locks at the brokers, so that only one member of a group handles a queue, in order.

Owns: QueueLocks: the requests 41 and 42, one for all queues of a broker. Must not touch: when locks
are renewed and what a lost lock means (bridge.push.consumer).
Spec: RocketMQ RebalanceImpl.lock, LockBatchRequestBody. A broker keeps a lock for 60 s.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.queue_requests import QueueRequests
from motelog.core.errors import MotelogError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import RemotingCommand, RequestCode, dumps, loads_as

logger = logging.getLogger(__name__)

RENEW_S: Final = 20.0
# A broker that did not answer, perhaps because it restarts, is asked again after this: by the next
# renewal its locks would have expired.
RENEW_AGAIN_S: Final = 1.0

_Work = Callable[[list[MessageQueue]], Awaitable[None]]


class QueueLocks:
    """Lock and unlock queues for one member of a group."""

    def __init__(self, client: Client, requests: QueueRequests, *, group: str) -> None:
        self._client = client
        self._requests = requests
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Return per queue whether this member has the lock; omits queues without an answer."""
        found: dict[MessageQueue, bool] = {}

        async def lock(of_broker: list[MessageQueue]) -> None:
            answer = check(await self._ask(RequestCode.LOCK_BATCH_MQ, of_broker))
            held = loads_as(answer.body, _Locked, "answer to a lock request").lockOKMQSet
            locked = {MessageQueue(one.topic, one.brokerName, one.queueId) for one in held}
            found.update({queue: queue in locked for queue in of_broker})

        await self._for_each_broker(queues, lock)
        return found

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; a broker that cannot be reached releases them after 60 s."""

        async def unlock(of_broker: list[MessageQueue]) -> None:
            check(await self._ask(RequestCode.UNLOCK_BATCH_MQ, of_broker))

        await self._for_each_broker(queues, unlock)

    async def _for_each_broker(self, queues: Iterable[MessageQueue], work: _Work) -> None:
        by_broker: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)

        async def run(of_broker: list[MessageQueue]) -> None:
            try:
                await work(of_broker)
            except MotelogError as exc:
                logger.info(
                    "a broker did not answer a lock request; it is repeated broker=%s group=%s "
                    "queues=%d error=%s",
                    of_broker[0].broker_name,
                    self._group,
                    len(of_broker),
                    exc,
                )

        async with trio.open_nursery() as nursery:
            for of_broker in by_broker.values():
                nursery.start_soon(run, of_broker)

    async def _ask(self, code: RequestCode, queues: list[MessageQueue]) -> RemotingCommand:
        body = {
            "clientId": self._client.client_id,
            "consumerGroup": self._group,
            "mqSet": queues,
            "onlyThisBroker": False,
        }
        # A slave does not know the locks that its master has granted, and would grant them again.
        return await self._requests.ask(queues[0], code, {}, body=dumps(body), is_for_master=True)


class _Queue(msgspec.Struct):
    topic: str
    brokerName: str
    queueId: int


class _Locked(msgspec.Struct):
    lockOKMQSet: list[_Queue] = []
