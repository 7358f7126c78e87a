"""Reading messages at the caller's pace: assign or share queues, poll them fairly, commit.

Owns: PullConsumer, its position in each queue, at most two batches read ahead per queue.
Must not touch: connections and routes (bridge.client), how members of a group share queues
(bridge.groups). Used by one task at a time; ``poll`` and ``commit`` from different tasks are fine.
Invariants: ``position`` is the offset after the last message returned, never of one read ahead.
So the caller has seen every message below an offset that ``commit`` stores. Offsets are stored by
the broker. With assigned queues the consumer is not a member of its group: members that share
queues keep theirs.
Spec: RocketMQ DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Self

import trio

from motelog.bridge.client import (
    REQUEST_TIMEOUT_S,
    Client,
    NameServers,
    check,
    check_group,
    check_subscribed,
)
from motelog.bridge.errors import ClientError, NoNameServerError, RouteError
from motelog.bridge.groups.allocation import Allocate, average
from motelog.bridge.groups.rebalance import Rebalance
from motelog.bridge.groups.running_info import consumer_status, running_info
from motelog.bridge.producer import enter_traced, leave_traced, trace_recorder
from motelog.bridge.pull_request import PULL_BYTES_MAX, PULL_COUNT, PullResult, PullStatus
from motelog.bridge.query import QUERY_COUNT, TIME_MAX, query_command, query_result, view_command
from motelog.bridge.queue_requests import (
    PASSING_CODES,
    TAKEN_OVER_WITHIN_S,
    QueueRequests,
    for_each,
    saved_ahead,
)
from motelog.bridge.read_ahead import ReadAhead
from motelog.bridge.reader import HOLD_S, Reader, Reading, Start
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import TAGS_ALL, Selector, select
from motelog.bridge.topic_list import user_topics
from motelog.bridge.trace.handled import HandledTraces
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.core.errors import BrokerError, RemotingError
from motelog.core.flag import Flag
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.tls import Tls

logger = logging.getLogger(__name__)

TOPIC_RETRY_S: Final = 0.1

__all__ = ["HOLD_S", "PULL_BYTES_MAX", "PULL_COUNT", "PullConsumer", "PullResult", "PullStatus"]


class PullConsumer:
    """Reads queues from the offsets that ``group`` has committed, or from others.

    ``async with PullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue without a
    committed offset starts at its oldest message, or with ``start="last"`` at the next new one.
    ``async for message in consumer`` yields one message after the other, without end; ``commit``
    inside the loop commits up to the current message.

    ``assign`` reads the given queues. ``subscribe`` shares the queues of topics with the group's
    other members by the rule ``allocate`` (bridge.groups.allocation), which must be the same for
    all members; a queue that moves to another member continues there at its committed offset.

    With ``trace``, a record of each returned message is sent to ``trace_topic``, which
    ``Admin.trace`` and RocketMQ's tools read. It does not say how the message was handled.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        start: Literal["first", "last"] = "first",
        allocate: Allocate = average,
        hold_s: float = HOLD_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        if start not in ("first", "last"):
            raise ValueError(f"start must be 'first' or 'last', not {start!r}")
        self.group = check_group(group)
        self.credentials = credentials
        self.tls = tls
        self._start = Start.BEGIN if start == "first" else Start.END
        self._request_timeout_s = request_timeout_s
        self._reading: dict[MessageQueue, ReadAhead] = {}
        self._turn: deque[ReadAhead] = deque()
        self._arrived = Flag()
        self._assigned_at_ms = 0
        self._started_ms = 0
        self._subscriptions: dict[str, Selector] = {}
        self._client = Client(
            namesrv=namesrv,
            groups=self._groups,
            unregister={"consumerGroup": group},
            on_request=self._answer,
            credentials=credentials,
            tls=tls,
        )
        traces_to = trace_topic if trace else None
        self._recorder = trace_recorder(self._client, group, "CONSUME", traces_to)
        self._traces: HandledTraces | None = None
        if self._recorder is not None:
            self._traces = HandledTraces(self._recorder, group=group, timeout_s=math.inf)
        self._requests = QueueRequests(self._client, group=group, timeout_s=request_timeout_s)
        self._reader = Reader(
            self._requests,
            hold_s=hold_s,
            version=lambda: self._assigned_at_ms,
            resolve=self._resolve,
            added=lambda reading, count: self._arrived.set(),
            ends=self._ends,
        )
        self._rebalance = Rebalance(
            self._client,
            group=group,
            topics=lambda: self._subscriptions,
            allocate=allocate,
            apply=self._share,
        )

    async def __aenter__(self) -> Self:
        await enter_traced(self._client, self._recorder)
        self._started_ms = time.time_ns() // 1_000_000
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop reading. Positions that were not committed are lost."""
        await leave_traced(self._client, self._recorder)

    async def topics(self) -> list[str]:
        """Return the names of users' topics, without those of the system or of groups."""
        return await user_topics(self._client, timeout_s=self._request_timeout_s)

    async def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        A topic is registered with the name servers only a moment after its first message;
        ``wait_s`` is how long to wait for that.
        """
        deadline = trio.current_time() + wait_s
        while True:
            try:
                return (await self._client.route(topic, newer_than=trio.current_time())).read_queues
            except RouteError:
                if trio.current_time() + TOPIC_RETRY_S > deadline:
                    raise
            await trio.sleep(TOPIC_RETRY_S)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now."""
        return tuple(self._reading)

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` select.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker filters. Queues that were assigned before with the same filter keep their position;
        others start at the committed offset.
        """
        if self._subscriptions:
            raise ClientError("this consumer has subscriptions: use another one for assign")
        selector = select(tags, sql)
        wanted = list(dict.fromkeys(queues))
        for one in wanted:
            if not isinstance(one, MessageQueue):
                raise TypeError("assign takes queues, as in assign(await consumer.queues(topic))")
        self._assigned_at_ms = time.time_ns() // 1_000_000
        self._read_only(list(self._reading), wanted, selector)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Read this member's share of the topic's queues, which changes as members come and go.

        ``tags`` and ``sql`` are as in ``assign``, and must be the same for all members. May be
        called for several topics, and again to change the filter. ``assigned`` lists this member's
        current queues. When a queue moves to another member, uncommitted messages are read there
        again.
        """
        if self._reading and not self._subscriptions:
            raise ClientError("this consumer has assigned queues: use another one for subscribe")
        selector = select(tags, sql)
        is_first = not self._subscriptions
        self._subscriptions[check_subscribed(topic)] = selector
        self._assigned_at_ms = time.time_ns() // 1_000_000
        own = [queue for queue in self._reading if queue.topic == topic]
        self._read_only(own, own, selector)
        if is_first:
            self._client.start_soon(self._rebalance.run)
        self._client.want_heartbeat()
        self._rebalance.wake()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until ``resume``; the consumer keeps the queues."""
        for queue in queues:
            self._assigned_reading(queue).is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        for queue in queues:
            self._assigned_reading(queue).is_paused = False
        self._arrived.set()

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue ``queue`` at ``queue_offset``; messages read ahead are dropped."""
        if queue_offset < 0:
            raise ValueError(f"queue offset {queue_offset} is negative")
        self._restart(queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the assigned (or given) queues at their oldest message."""
        for queue in list(self._reading if queues is None else queues):
            self._restart(queue, Start.BEGIN)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue with messages stored after this call reaches the broker."""
        for queue in list(self._reading if queues is None else queues):
            self._restart(queue, Start.END)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last returned message; None until the start is known."""
        return self._assigned_reading(queue).position

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any, [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; each keeps its order. Brokers
        that cannot be reached are tried again in the background. An error that stops a queue
        (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` restarts the
        queue.
        """
        batches = await self.poll_batches(timeout_s=timeout_s, count_max=count_max)
        return [message for _, messages in batches for message in messages]

    async def poll_batches(
        self, *, timeout_s: float = 1.0, count_max: int = 512
    ) -> list[tuple[MessageQueue, list[StoredMessage]]]:
        """Do as ``poll``, but return (queue, messages) for each run of one queue's messages."""
        if count_max < 1:
            raise ValueError(f"count_max must be at least 1, not {count_max}")
        deadline = trio.current_time() + timeout_s
        while True:
            batches = self._take(count_max)
            if batches:
                return batches
            self._raise_failure()
            self._arrived.clear()
            with trio.move_on_at(deadline) as scope:
                await self._arrived.wait()
            if scope.cancelled_caught:
                return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors are those of ``poll``."""
        await trio.lowlevel.checkpoint()  # let other tasks run while messages are read ahead
        return (await self.poll(timeout_s=math.inf, count_max=1))[0]

    async def uncommitted(
        self, unseen: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the positions that ``commit`` would store: changed ones, and all now and then.

        ``unseen`` has the offset of each queue's first message that was returned but not yet seen
        by the user. If a queue came from another member whose late commit is ahead, that commit is
        kept.
        """
        now = trio.current_time()
        found = {
            queue: reading.position
            for queue, reading in self._reading.items()
            if reading.position is not None and reading.is_uncommitted(now)
        }
        found |= unseen or {}
        taken_since = now - TAKEN_OVER_WITHIN_S
        new = {
            queue: offset
            for queue, offset in found.items()
            if queue in self._reading and self._reading[queue].taken_over_at > taken_since
        }
        ahead = await saved_ahead(new, self.committed)
        # The queue may have been given up meanwhile.
        return {
            queue: offset
            for queue, offset in found.items()
            if queue in self._reading and queue not in ahead
        }

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit the positions of all assigned queues, or ``offsets``, to the brokers.

        For a queue that came from another member in the last half minute, a position below that
        member's late commit is not stored. Returns when every broker has confirmed. A broker that
        is unreachable or busy is asked again for ``timeout_s`` (by default ``request_timeout_s``; 0
        asks each broker once) without delaying the others. After that CommitFailedError names the
        queues that are not committed, and ``commit`` may be called again.
        """
        if offsets is None:
            offsets = await self.uncommitted()
        if timeout_s is None:
            timeout_s = self._request_timeout_s
        reading = self._reading
        forward = {
            q for q, offset in offsets.items() if q in reading and reading[q].is_forward(offset)
        }
        await self._requests.commit(offsets, self._committed, forward=forward, timeout_s=timeout_s)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none."""
        return await self._requests.committed(queue)

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return await self._requests.offsets(queues, RequestCode.GET_MIN_OFFSET, {})

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset after the newest message of each queue."""
        return await self._requests.offsets(queues, RequestCode.GET_MAX_OFFSET, {})

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Return per queue the offset of the first message stored at ``timestamp_ms`` or later."""
        ext = {"timestamp": str(timestamp_ms)}
        return await self._requests.offsets(queues, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        count_max: int = PULL_COUNT,
        bytes_max: int = PULL_BYTES_MAX,
        hold_s: float = 0.0,
        tags: str = TAGS_ALL,
        sql: str | None = None,
        broker_id: int = MASTER_ID,
    ) -> PullResult:
        """Return one answer of a broker unchanged, independent of assignment and position.

        The broker holds the request up to ``hold_s`` if there is no message yet. It filters by tag
        hash, so the answer may contain records of other tags with the same hash. It may return less
        than asked for; brokers before 5.0 ignore ``bytes_max``.
        """
        return await self._requests.pull(
            queue,
            queue_offset,
            selector=select(tags, sql),
            count_max=count_max,
            bytes_max=bytes_max,
            hold_s=hold_s,
            broker_id=broker_id,
        )

    async def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        count_max: int = QUERY_COUNT,
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic that have a key, stored in [begin_ms, end_ms].

        A key is a word of KEYS or the producer's unique id. All brokers of the topic are asked, and
        each returns at most 64. Raises RouteError, BrokerError or RemotingError.
        """
        command = query_command(topic, key, begin_ms, end_ms, count_max)
        route = await self._client.route(topic, newer_than=trio.current_time())
        answers: list[RemotingCommand] = []

        async def ask(broker_name: str) -> None:
            address = route.any_address(broker_name, MASTER_ID)
            if address is not None:
                request = RemotingCommand(command.code, ext=command.ext)
                timeout_s = self._request_timeout_s
                answers.append(await self._client.request(address, request, timeout_s=timeout_s))

        await for_each(route.addresses, ask)
        return query_result(answers, topic, key, count_max)

    async def view(self, message_id: str) -> StoredMessage:
        """Return the message with an offset id, from the broker that the id names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks the same and is
        for ``query_by_key``). BrokerError if there is no such message.
        """
        address, command = view_command(message_id)
        timeout_s = self._request_timeout_s
        answer = check(await self._client.request(address, command, timeout_s=timeout_s))
        messages = decode_messages(answer.body)
        if len(messages) != 1:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{len(messages)} records for one id")
        return messages[0]

    async def broker_address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master; RouteError if it has no route."""
        return await self._requests.address(queue)

    def _take(self, count_max: int) -> list[tuple[MessageQueue, list[StoredMessage]]]:
        """Return messages read ahead, one batch of each queue in turn."""
        batches: list[tuple[MessageQueue, list[StoredMessage]]] = []
        idle = 0
        while idle < len(self._turn) and count_max:
            reading = self._turn[0]
            taken = reading.take(count_max)
            self._turn.rotate(-1)
            idle = 0 if taken else idle + 1
            if taken:
                batches.append((reading.queue, taken))
                count_max -= len(taken)
        if self._traces is not None:
            for _queue, messages in batches:
                with self._traces.call(messages):
                    pass  # only their return is recorded
        return batches

    def _raise_failure(self) -> None:
        for reading in self._turn:
            if reading.failure is not None:
                failure, reading.failure = reading.failure, None
                raise failure

    def _assigned_reading(self, queue: MessageQueue) -> ReadAhead:
        try:
            return self._reading[queue]
        except KeyError:
            text = f"queue {queue} is not assigned to this consumer; `assigned` lists its queues"
            raise ClientError(text) from None

    def _read_only(
        self, own: Iterable[MessageQueue], wanted: Iterable[MessageQueue], selector: Selector
    ) -> None:
        """Replace the queues ``own`` by ``wanted``; reading continues for those in both."""
        wanted = list(wanted)
        for queue in own:
            if queue not in wanted or self._reading[queue].selector != selector:
                self._stop_reading(queue)
        for queue in wanted:
            if queue not in self._reading:
                self._start_reading(queue, Start.COMMITTED, selector)

    async def _share(self, topic: str, queues: list[MessageQueue]) -> bool:
        """Read this member's share of a topic's queues."""
        own = [queue for queue in self._reading if queue.topic == topic]
        self._read_only(own, queues, self._subscriptions[topic])
        for queue in set(queues).difference(own):
            self._reading[queue].taken_over_at = trio.current_time()
        return True

    def _restart(self, queue: MessageQueue, start: Start | int) -> None:
        before = self._assigned_reading(queue)
        self._stop_reading(queue)
        self._start_reading(queue, start, before.selector)
        self._reading[queue].is_paused = before.is_paused

    def _start_reading(self, queue: MessageQueue, start: Start | int, selector: Selector) -> None:
        reading = ReadAhead(queue, start, selector)
        self._client.start_soon(self._reader.run, reading)
        self._reading[queue] = reading
        self._turn.append(reading)

    def _stop_reading(self, queue: MessageQueue) -> None:
        reading = self._reading.pop(queue)
        self._turn.remove(reading)
        reading.scope.cancel()

    def _ends(self, reading: Reading, exc: Exception) -> bool:
        """Return whether an error stops a queue; ``poll`` then raises it."""
        if isinstance(exc, RemotingError | NoNameServerError):
            return False
        if isinstance(exc, BrokerError) and exc.code in PASSING_CODES:
            return False
        # While a broker restarts, its topics are missing for a moment. Assigning queues of a topic
        # that never existed is the caller's mistake; those of a subscription come from a route.
        if isinstance(exc, RouteError) and (
            not isinstance(reading.next_offset, Start) or reading.queue.topic in self._subscriptions
        ):
            return False
        assert isinstance(reading, ReadAhead)
        reading.failure = exc
        self._arrived.set()
        return True

    async def _resolve(self, queue: MessageQueue, start: Start) -> int:
        if start is Start.COMMITTED:
            committed = await self.committed(queue)
            if committed is not None:
                return committed
            start = self._start
        if start is Start.BEGIN:
            return (await self.begin_offsets([queue]))[queue]
        return (await self.end_offsets([queue]))[queue]

    def _committed(self, queue: MessageQueue, queue_offset: int) -> None:
        reading = self._reading.get(queue)
        if reading is not None:
            reading.committed = queue_offset
            reading.committed_at = trio.current_time()

    def _answer(self, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker's request to a member."""
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._rebalance.wake()
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                topic = request.ext.get("topic", "")
                offsets = {
                    queue: reading.position
                    for queue, reading in self._reading.items()
                    if queue.topic == topic and reading.position is not None
                }
                return request.answer(body=consumer_status(offsets))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return request.answer(body=self._running_info(request.ext))
        return None

    def _running_info(self, ext: Mapping[str, str]) -> bytes:
        return running_info(
            namesrv=self._client.namesrv_addresses,
            is_push=False,
            is_orderly=False,
            workers=1,
            started_ms=self._started_ms,
            subscriptions=self._subscription_data(),
            queues={
                queue: {"commitOffset": reading.committed or 0}
                for queue, reading in self._reading.items()
            },
            statuses={},
            with_stacks=ext.get("jstackEnable") == "true",
        )

    def _subscription_data(self) -> list[dict[str, Any]]:
        return [
            selector.subscription(topic, self._assigned_at_ms)
            for topic, selector in self._subscriptions.items()
        ]

    def _groups(self) -> dict[str, list[dict[str, Any]]]:
        """Return the heartbeat's groups: this consumer's if it shares queues."""
        if not self._subscriptions:
            return {"consumerDataSet": [], "producerDataSet": []}
        is_first = self._start is Start.BEGIN
        consumer = {
            "consumeFromWhere": f"CONSUME_FROM_{'FIRST' if is_first else 'LAST'}_OFFSET",
            "consumeType": "CONSUME_ACTIVELY",
            "groupName": self.group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": self._subscription_data(),
            "unitMode": False,
        }
        return {"consumerDataSet": [consumer], "producerDataSet": []}
