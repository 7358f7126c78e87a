"""A remote log on the tests' cluster, for the check that every log must pass.

Owns: RemoteStage: holding and refusing at the broker, waiting until the log has heard of it. Must
not touch: expectations.
"""

from __future__ import annotations

import trio

from motelog.core.errors import BrokerError
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.gateway.log.log_port import QueueHandle
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import eventually
from tests.support.fake_cluster import FakeCluster


class RemoteStage:
    """A RemoteLog and the one broker of ``cluster``."""

    settles_late = True
    refuses_late = True
    can_lose = False

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        (self.broker,) = cluster.brokers
        self.log = RemoteLog(cluster.namesrv, wait_s=5)
        self._is_refusing = False
        #: Topic -> how its creation ends, once that is decided.
        self._creations: dict[str, BrokerError | None] | None = None
        self._hides_tails = False
        self._decided = trio.Event()
        answer = self.broker.answer
        self.broker.script = self._script

        async def answer_in_time(request: RemotingCommand) -> RemotingCommand | None:
            while self._is_held(request):
                await self._decided.wait()
            return await answer(request)

        self.broker.answer = answer_in_time  # type: ignore[method-assign]  # it can be slow here

    async def settle(self) -> None:
        self.log.settle_soon()
        await eventually(lambda: not self.log._appends._under_way)

    async def taken(self) -> None:
        await self.settle()

    def refuse_appends(self, *, refused: bool) -> None:
        self._is_refusing = refused

    async def created(self) -> None:
        topics = self.log._topics._topics.values()
        await eventually(lambda: all(topic.is_known for topic in topics))

    def hold_topics(self) -> None:
        self._creations = {}

    async def finish_topic(self, topic: str, error: BrokerError | None) -> bool:
        assert self._creations is not None
        self._creations[topic] = error
        self._decide()
        topics = self.log._topics._topics
        await eventually(lambda: topic not in topics or topics[topic].is_known)
        return True

    async def change_queues(self, topic: str, *, read: int, write: int) -> None:
        self.cluster.open_queues[topic] = read, write
        route = await self.log._client.route(topic, newer_than=trio.current_time())
        self.log._topics.adopt(route, new_at=route.addresses)

    async def grown(self) -> None:
        await eventually(
            lambda: (
                not self.log._reads.tails_asked
                and all(
                    queue.follower is None or queue.pull_offset == len(self.records_of(queue))
                    for queue in self.log._topics._queues.values()
                )
            )
        )

    def records_of(self, queue: QueueHandle) -> list[bytes]:
        name = queue.name  # type: ignore[attr-defined]  # it is this log's own
        return self.broker.records[name.topic, name.queue_id]

    def put_away(self) -> None:
        self.log._reads.forget()

    async def bring(self, *, keeps: bool = True) -> None:
        await eventually(lambda: not self.log._reads._fetches)
        if not keeps:
            self.log._reads.forget()

    async def expire(self, queue: QueueHandle) -> None:
        self.broker.min_offset = 4
        self.log._reads.forget()

    def hide_tails(self) -> None:
        self._hides_tails = True

    async def tell_tails(self) -> None:
        self._hides_tails = False
        self._decide()
        await eventually(lambda: not self.log._reads.tails_asked)

    def _decide(self) -> None:
        self._decided.set()
        self._decided = trio.Event()

    def _is_held(self, request: RemotingCommand) -> bool:
        match request.code:
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                return self._creations is not None and request.ext["topic"] not in self._creations
            case RequestCode.GET_MAX_OFFSET:
                return self._hides_tails
        return False

    def _script(self, request: RemotingCommand) -> RemotingCommand | None:
        match request.code:
            case RequestCode.SEND_BATCH_MESSAGE if self._is_refusing:
                return request.answer(ResponseCode.SYSTEM_ERROR, "refused")
            case RequestCode.UPDATE_AND_CREATE_TOPIC if self._creations:
                error = self._creations[request.ext["topic"]]
                return None if error is None else request.answer(error.code, error.remark)
        return None
