"""Reading messages by explicit offsets: assign queues, poll them fairly, commit.

Owns: PullConsumer, the position in each assigned queue, at most two batches read ahead
per queue. Must not touch: connections and routes (bridge.client), the assignment of queues to the
members of a group (the caller decides). Used by one task at a time; ``poll`` and ``commit`` from
different tasks are fine.
Invariants: ``position`` is the offset after the last message handed out, never of one read ahead.
So the caller has seen every message below an offset that ``commit`` stores. Offsets live at the
broker.
Spec: RocketMQ DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import trio

from motelog.bridge.client import (
    REQUEST_TIMEOUT_S,
    Client,
    NameServers,
    check,
    check_text,
    int_field,
)
from motelog.bridge.errors import ClientError, FilterError, NoNameServerError, RouteError
from motelog.bridge.pull_request import (
    PULL_BYTES_MAX,
    PULL_COUNT,
    PullResult,
    PullStatus,
    pull_command,
    pull_result,
    queue_ext,
)
from motelog.bridge.query import QUERY_COUNT, TIME_MAX, query_command, query_result, view_command
from motelog.bridge.read_ahead import Reading, Start
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import TAGS_ALL, Selector, select
from motelog.core.errors import BrokerError, MotelogError, RecordError, RemotingError
from motelog.core.message import MessageQueue, StoredMessage
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, dumps

logger = logging.getLogger(__name__)

HOLD_S: Final = 15.0
# Added to the hold: the broker looks for expired holds every 5 s.
HOLD_GRACE_S: Final = 10.0
RETRY_S: Final = 1.0
TOPIC_RETRY_S: Final = 0.1

__all__ = ["HOLD_S", "PULL_BYTES_MAX", "PULL_COUNT", "PullConsumer", "PullResult", "PullStatus"]

_RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)

# A broker's answers to a filter that it refuses, or when it takes no filters.
_REFUSALS: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED})

T = TypeVar("T")


class PullConsumer:
    """Read chosen queues at chosen offsets, as a member of ``group`` for committed offsets.

    ``async with PullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue without a
    committed offset starts at its oldest message, or with ``start="last"`` at the next new one.
    ``async for message in consumer`` hands out one message after the other, without an end;
    ``commit`` inside the loop commits up to the message at hand.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        group: str = "motelog",
        start: Literal["first", "last"] = "first",
        hold_s: float = HOLD_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        if start not in ("first", "last"):
            raise ValueError(f"start is 'first' or 'last', not {start!r}")
        self.group = check_text("group", group)
        self._start = Start.BEGIN if start == "first" else Start.END
        self._hold_s = hold_s
        self._request_timeout_s = request_timeout_s
        self._reading: dict[MessageQueue, Reading] = {}
        self._turn: deque[Reading] = deque()
        self._arrived = trio.Event()
        self._assigned_at_ms = 0
        self._client = Client(
            namesrv=namesrv, groups=self._groups, unregister={"consumerGroup": group}
        )

    async def __aenter__(self) -> Self:
        await self._client.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all reading. Positions that were not committed are forgotten."""
        await self._client.leave()

    async def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        The name servers know a topic only a moment after its first message has created it;
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
        return tuple(self._reading)

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` selects.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker applies it. Queues that stay with the same selection keep their position; new ones
        start at the committed offset.
        """
        selector = select(tags, sql)
        wanted = list(dict.fromkeys(queues))
        for one in wanted:
            if not isinstance(one, MessageQueue):
                raise TypeError("assign takes queues: assign(await consumer.queues(topic))")
        for queue, reading in list(self._reading.items()):
            if queue not in wanted or reading.selector != selector:
                self._stop_reading(queue)
        for queue in wanted:
            if queue not in self._reading:
                self._start_reading(queue, Start.COMMITTED, selector)
        self._assigned_at_ms = time.time_ns() // 1_000_000
        self._client.want_heartbeat()

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Hand out ``queue`` from ``queue_offset`` next; drop the messages read ahead."""
        if queue_offset < 0:
            raise ValueError(f"queue offset {queue_offset} is negative")
        self._restart(queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out the assigned (or given) queues from their oldest message."""
        for queue in list(self._reading if queues is None else queues):
            self._restart(queue, Start.BEGIN)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out only messages stored after this call reaches the broker."""
        for queue in list(self._reading if queues is None else queues):
            self._restart(queue, Start.END)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last message handed out; None until the start is known."""
        return self._assigned_reading(queue).position

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any; [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; order holds within each.
        Brokers that cannot be reached are tried again in the background. An error that stops a
        queue (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` starts
        the queue again.
        """
        batches = await self.poll_batches(timeout_s=timeout_s, count_max=count_max)
        return [message for _, messages in batches for message in messages]

    async def poll_batches(
        self, *, timeout_s: float = 1.0, count_max: int = 512
    ) -> list[tuple[MessageQueue, list[StoredMessage]]]:
        """As ``poll``, with the queue of each messages that follow one another."""
        if count_max < 1:
            raise ValueError(f"count_max is at least 1, not {count_max}")
        deadline = trio.current_time() + timeout_s
        while True:
            batches = self._take(count_max)
            if batches:
                return batches
            self._raise_failure()
            self._arrived = trio.Event()
            with trio.move_on_at(deadline) as scope:
                await self._arrived.wait()
            if scope.cancelled_caught:
                return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors as with ``poll``."""
        await trio.lowlevel.checkpoint()  # others run too while messages are read ahead
        return (await self.poll(timeout_s=math.inf, count_max=1))[0]

    def uncommitted(self) -> dict[MessageQueue, int]:
        """Return the positions that ``commit`` would store."""
        return {
            queue: reading.position
            for queue, reading in self._reading.items()
            if reading.position is not None and reading.position != reading.committed
        }

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the positions of all assigned queues, or ``offsets``, at the brokers.

        Returns when every broker has confirmed. On an error some queues may have been committed.
        """
        if offsets is None:
            offsets = self.uncommitted()
        # One queue of each topic and broker goes ahead. RocketMQ creates the table of a group's
        # first commit to a topic without a lock, and of several that come at once it loses some.
        ahead = {(queue.topic, queue.broker_name): queue for queue in offsets}
        first = set(ahead.values())
        for group in (first, offsets.keys() - first):
            await _for_each(group, lambda queue: self._commit_one(queue, offsets[queue]))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none."""
        ext = queue_ext(queue) | {"consumerGroup": self.group}
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return int_field(check(answer), "offset")

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return await self._offsets(queues, RequestCode.GET_MIN_OFFSET, {})

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset after the newest message of each queue."""
        return await self._offsets(queues, RequestCode.GET_MAX_OFFSET, {})

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Return per queue the offset of the first message stored at ``timestamp_ms`` or later."""
        ext = {"timestamp": str(timestamp_ms)}
        return await self._offsets(queues, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)

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
        """Return one answer of a broker as it came, independent of assignment and position.

        The broker holds the request up to ``hold_s`` when there is nothing yet. It filters by tag
        hash, so the answer may have records of other tags with the same hash. It may return less
        than asked for; brokers before 5.0 do not know ``bytes_max``.
        """
        return await self._pull(
            queue, queue_offset, select(tags, sql), count_max, bytes_max, hold_s, broker_id
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

        A key is a word of KEYS or the producer's unique id. All brokers of the topic are asked;
        each gives 64 at most. Raises RouteError, BrokerError or RemotingError.
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

        await _for_each(route.addresses, ask)
        return query_result(answers, topic, key, count_max)

    async def view(self, message_id: str) -> StoredMessage:
        """Return the message that an offset id names, from the broker it names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks alike and is
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
        return await self._address(queue)

    def _take(self, count_max: int) -> list[tuple[MessageQueue, list[StoredMessage]]]:
        """Hand out messages read ahead, one batch of each queue in turn."""
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
        return batches

    def _raise_failure(self) -> None:
        for reading in self._turn:
            if reading.failure is not None:
                failure, reading.failure = reading.failure, None
                raise failure

    def _assigned_reading(self, queue: MessageQueue) -> Reading:
        try:
            return self._reading[queue]
        except KeyError:
            raise ClientError(f"{queue} is not assigned") from None

    def _restart(self, queue: MessageQueue, start: Start | int) -> None:
        selector = self._assigned_reading(queue).selector
        self._stop_reading(queue)
        self._start_reading(queue, start, selector)

    def _start_reading(self, queue: MessageQueue, start: Start | int, selector: Selector) -> None:
        reading = Reading(queue, start, selector)
        self._client.start_soon(self._read_ahead, reading)
        self._reading[queue] = reading
        self._turn.append(reading)

    def _stop_reading(self, queue: MessageQueue) -> None:
        reading = self._reading.pop(queue)
        self._turn.remove(reading)
        reading.scope.cancel()

    async def _read_ahead(self, reading: Reading) -> None:
        """Keep up to BATCHES_AHEAD batches of one queue ready, until the queue is given up."""
        with reading.scope:
            while True:
                await reading.room.wait()
                try:
                    await self._read_once(reading)
                except (RemotingError, NoNameServerError) as exc:
                    await self._pause(reading, exc)
                except BrokerError as exc:
                    if exc.code not in _RETRIED_CODES:
                        return self._fail(reading, exc)
                    await self._pause(reading, exc)
                except RouteError as exc:
                    # A broker that restarts takes its topics with it for a moment; a topic that
                    # was never there is the caller's mistake.
                    if isinstance(reading.next_offset, Start):
                        return self._fail(reading, exc)
                    await self._pause(reading, exc)
                except (FilterError, RecordError) as exc:
                    return self._fail(reading, exc)

    async def _read_once(self, reading: Reading) -> None:
        if not reading.is_checked:
            await self._check_selector(reading)
        if isinstance(reading.next_offset, Start):
            reading.begin_at(await self._resolve(reading.queue, reading.next_offset))
        asked_offset = reading.next_offset
        assert not isinstance(asked_offset, Start)
        result = await self._pull(
            reading.queue,
            asked_offset,
            reading.selector,
            PULL_COUNT,
            PULL_BYTES_MAX,
            self._hold_s,
            reading.broker_id,
        )
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "the broker has no message at this offset; reading goes on at next, and messages "
                "between the two are skipped queue=%s offset=%d min=%d max=%d next=%d",
                reading.queue,
                asked_offset,
                result.min_offset,
                result.max_offset,
                result.next_offset,
            )
            await trio.sleep(RETRY_S)  # a broker that goes on refusing is not asked in a tight loop
        reading.broker_id = result.suggested_broker_id
        reading.add(reading.selector.keep(result.messages()), result.next_offset)
        if reading.batches:
            self._arrived.set()

    async def _pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        selector: Selector,
        count_max: int,
        bytes_max: int,
        hold_s: float,
        broker_id: int,
    ) -> PullResult:
        command = pull_command(
            queue,
            queue_offset,
            group=self.group,
            count_max=count_max,
            bytes_max=bytes_max,
            hold_s=hold_s,
            selector=selector,
        )
        answer = await self._ask(
            queue,
            RequestCode.PULL_MESSAGE,
            command.ext,
            timeout_s=self._request_timeout_s + (hold_s + HOLD_GRACE_S if hold_s > 0 else 0),
            broker_id=broker_id,
        )
        return pull_result(answer, answer.body)

    async def _check_selector(self, reading: Reading) -> None:
        """Ask the broker whether it takes the filter; FilterError with its words if it does not."""
        queue = reading.queue
        body = {
            "clientId": self._client.client_id,
            "group": self.group,
            "subscriptionData": reading.selector.subscription(queue.topic, self._assigned_at_ms),
        }
        answer = await self._ask(queue, RequestCode.CHECK_CLIENT_CONFIG, {}, body=dumps(body))
        if answer.code in _REFUSALS:
            raise FilterError(answer.remark or f"the broker of {queue} takes no SQL92 filter")
        check(answer)
        reading.is_checked = True

    async def _resolve(self, queue: MessageQueue, start: Start) -> int:
        if start is Start.COMMITTED:
            committed = await self.committed(queue)
            if committed is not None:
                return committed
            start = self._start
        if start is Start.BEGIN:
            return (await self.begin_offsets([queue]))[queue]
        return (await self.end_offsets([queue]))[queue]

    async def _pause(self, reading: Reading, exc: Exception) -> None:
        reading.broker_id = MASTER_ID
        reading.route_at = trio.current_time()
        await trio.sleep(RETRY_S)
        # Only after the pause: at a stop the connection may go first, and that is no failure.
        logger.warning("a pull failed and is tried again queue=%s error=%s", reading.queue, exc)

    def _fail(self, reading: Reading, exc: Exception) -> None:
        reading.failure = exc
        self._arrived.set()

    async def _commit_one(self, queue: MessageQueue, queue_offset: int) -> None:
        ext = queue_ext(queue) | {
            "consumerGroup": self.group,
            "commitOffset": str(queue_offset),
        }
        answer = await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            # RocketMQ 5 learns of a group from its heartbeat, which may still be under way.
            await self._client.send_heartbeats()
            answer = await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        check(answer)
        reading = self._reading.get(queue)
        if reading is not None:
            reading.committed = queue_offset

    async def _offsets(
        self, queues: Iterable[MessageQueue], code: RequestCode, ext: dict[str, str]
    ) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}

        async def ask(queue: MessageQueue) -> None:
            answer = await self._ask(queue, code, queue_ext(queue) | ext)
            found[queue] = int_field(check(answer), "offset")

        queues = list(queues)
        await _for_each(queues, ask)
        return {queue: found[queue] for queue in queues}

    async def _ask(
        self,
        queue: MessageQueue,
        code: RequestCode,
        ext: dict[str, str],
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
        broker_id: int = MASTER_ID,
    ) -> RemotingCommand:
        address = await self._address(queue, broker_id)
        request = RemotingCommand(code, ext=ext, body=body)
        timeout_s = timeout_s or self._request_timeout_s
        return await self._client.request(address, request, timeout_s=timeout_s)

    async def _address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        reading = self._reading.get(queue)
        newer_than = reading.route_at if reading is not None else None
        route = await self._client.route(queue.topic, newer_than=newer_than)
        address = route.any_address(queue.broker_name, broker_id)
        if address is None:
            raise RouteError(
                f"topic {queue.topic!r} has no broker {queue.broker_name!r}", topic=queue.topic
            )
        return address

    def _groups(self) -> dict[str, list[dict[str, Any]]]:
        """Return the heartbeat's members. Brokers create the group and show it to tools."""
        topics = {reading.queue.topic: reading.selector for reading in self._reading.values()}
        subscriptions = [
            selector.subscription(topic, self._assigned_at_ms) for topic, selector in topics.items()
        ]
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_ACTIVELY",
            "groupName": self.group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }
        return {"consumerDataSet": [consumer], "producerDataSet": []}


async def _for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Run ``work`` on all items at once; raise the first error after all have ended."""
    errors: list[MotelogError] = []

    async def run(item: T) -> None:
        try:
            await work(item)
        except MotelogError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(run, item)
    if errors:
        raise errors[0]
