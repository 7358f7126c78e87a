"""Reads of a remote log: one held pull for each queue that is followed, and pulls of older records.

Owns: Reads: followers, Fetch, pulls. Must not touch: appends, routes, which records stay in memory
(``kept``).
Invariants: a follower stops while UNREAD_BYTES_MAX of its queue are unread. A reader that has
waited for a fetch gets its records even if they have been dropped from memory meanwhile. While a
broker is away its slave is read, which moves no reader: it can only give records (links).
Spec: RocketMQ PullMessageRequestHeader.

    tail(queue)      -> follow from there -> held pull -> chunk -> growth is noted -> read
    read, no chunk   -> Fetch -> pull that is not held -> chunk -> read again
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import trio

from motelog.bridge.client import REQUEST_TIMEOUT_S, Client, check, int_field
from motelog.bridge.pull_request import (
    PullResult,
    PullStatus,
    pull_command,
    pull_result,
    queue_ext,
)
from motelog.bridge.queue_requests import HOLD_GRACE_S
from motelog.bridge.selector import SELECT_ALL
from motelog.core.errors import BrokerError, MotelogError, RecordError, RemotingError
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.records.decode import in_queue
from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.core.topic_names import GATEWAY_TOPICS, MQTT_SESSION_TOPIC
from motelog.gateway.log.growth import NotedGrowth
from motelog.gateway.log.log_port import LogRead
from motelog.gateway.log.remote.kept import KeptRecords
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.queues import Chunk, RemoteQueue

logger = logging.getLogger(__name__)

#: The limits of one pull. Brokers may return less; RocketMQ stops at 32 messages or 256 KiB.
PULL_COUNT: Final = 2048
PULL_BYTES: Final = 1_048_576
UNREAD_BYTES_MAX: Final = 1_048_576
#: Maximum fetches that pull at the same time, and fetches in all.
FETCHES_AT_ONCE: Final = 32
FETCHES_MAX: Final = 10_000
RETRY_S: Final = 1.0
#: Topics with one reader, which does not go back: many gateways append to them, and each gateway
#: would keep the records of all.
READ_ONCE: Final = frozenset({MQTT_SESSION_TOPIC})
#: An empty answer that comes sooner was not held: the broker is at its limit of held pulls.
HELD_S_MIN: Final = 0.5


class Fetch:
    """A read of records that were not in memory; ``found`` is its result."""

    __slots__ = ("found", "queue", "queue_offset", "then")

    def __init__(self, queue: RemoteQueue, queue_offset: int) -> None:
        self.queue = queue
        self.queue_offset = queue_offset
        #: A chunk, or an empty read with the offset to continue at.
        self.found: Chunk | LogRead | None = None
        self.then: list[Callable[[], None]] = []


class Reads:
    """The reads of one gateway from brokers in other processes."""

    def __init__(
        self,
        client: Client,
        links: BrokerLinks,
        *,
        group: str,
        hold_s: float,
        kept_bytes_max: int,
    ) -> None:
        self._client = client
        self._links = links
        self._group = group
        self._hold_s = hold_s
        self._kept = KeptRecords(kept_bytes_max)
        self._fetches: dict[tuple[RemoteQueue, int], Fetch] = {}
        self._fetching = trio.Semaphore(FETCHES_AT_ONCE)
        #: Number of tails that were requested from brokers and have not been returned yet.
        self.tails_asked = 0
        self._growth: list[NotedGrowth] = []
        #: How long a follower rests after each chunk, by topic.
        self._pauses_s: dict[str, Callable[[], float]] = {}
        self._faults = LimitedLog(logger, lines_max=1, period_s=5)

    # --- records in memory ---------------------------------------------------------------

    def read(
        self,
        queue: RemoteQueue,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        fetch: Fetch | None,
    ) -> LogRead | Fetch:
        """Return records in memory, or the Fetch that brings them."""
        if queue.name.topic in READ_ONCE:
            self._kept.drop_before(queue, queue_offset)
        found = fetch.found if fetch is not None else None
        if queue.chunk_at(queue_offset) is not None:
            records, next_offset = self._kept.read(queue, queue_offset, count_max, bytes_max)
        elif isinstance(found, LogRead):
            return found
        elif found is not None:
            records, next_offset = found.read(queue_offset, count_max, bytes_max)
        elif queue.follower is not None and queue_offset >= queue.pull_offset:
            # The follower notes when there is more.
            return LogRead(b"", queue_offset, queue.take_end(queue_offset), False)
        else:
            key = queue, queue_offset
            return self._fetches.get(key) or Fetch(queue, queue_offset)
        queue.note_read(next_offset, UNREAD_BYTES_MAX)
        end_offset = queue.end_offset if queue.follower is None else queue.pull_offset
        return LogRead(records, queue_offset, next_offset, next_offset < end_offset)

    def forget(self) -> None:
        """Drop all records from memory."""
        self._kept.clear()

    # --- older records -------------------------------------------------------------------

    def when_at_hand(self, fetch: Fetch, then: Callable[[], None]) -> bool:
        """Pull the records of ``fetch`` and call ``then``; False if too many fetches wait."""
        key = fetch.queue, fetch.queue_offset
        if key not in self._fetches:
            if len(self._fetches) >= FETCHES_MAX:
                return False
            self._fetches[key] = fetch
            self._client.start_soon(self._fetch, fetch)
        fetch.then.append(then)
        return True

    async def _fetch(self, fetch: Fetch) -> None:
        queue, queue_offset = fetch.queue, fetch.queue_offset
        # Other fetches pull between two attempts: a queue may be closed to readers for days.
        result = await self._pull_at_last(queue, queue_offset, hold_s=0, turn=self._fetching)
        queue.end_offset = result.max_offset
        next_offset = result.next_offset
        if result.status is PullStatus.FOUND:
            fetch.found = Chunk(queue, queue_offset, next_offset, bytes(result.records))
            self._kept.keep(fetch.found)
        else:
            # If it is later than the requested offset, retention has deleted the records before it.
            begin_offset = max(queue_offset, min(next_offset, result.min_offset))
            is_more = next_offset < result.max_offset
            fetch.found = LogRead(b"", begin_offset, next_offset, is_more)
        self._fetches.pop((queue, queue_offset), None)
        while fetch.then:
            fetch.then.pop(0)()

    # --- new records ---------------------------------------------------------------------

    def note_growth(self, wake: Callable[[], None]) -> NotedGrowth:
        """Return a Growth that notes which of the followed queues have grown."""
        growth = NotedGrowth(wake)
        self._growth.append(growth)
        return growth

    def follow(self, queue: RemoteQueue, queue_offset: int) -> None:
        """Note growth from an offset on."""
        if queue.follower is not None:
            queue.follower.cancel()
        queue.follower = trio.CancelScope()
        queue.pull_offset = queue_offset
        queue.unread.clear()
        queue.unread_bytes = 0
        queue.room.set()
        self._client.start_soon(self._follow, queue, queue.follower)

    def ask_tail(self, queue: RemoteQueue, then: Callable[[int], None]) -> None:
        """Ask for the tail of ``queue``, and note growth from there on."""
        self.tails_asked += 1
        self._client.start_soon(self._ask_tail, queue, then)

    async def _ask_tail(self, queue: RemoteQueue, then: Callable[[int], None]) -> None:
        # A queue that has not been read begins where the slave ends, so that its older records are
        # delivered; else the slave's end would look like a loss of what follows it.
        is_new = queue.follower is None
        code = RequestCode.GET_MAX_OFFSET
        tail = await self._offset_at_last(queue, code, {}, may_ask_slave=is_new)
        # A follower that has stopped has lost its reader: its unread records are not wanted.
        if queue.follower is None or not queue.room.is_set():
            self.follow(queue, tail)
        then(tail)
        self.tails_asked -= 1

    def ask_offset(self, queue: RemoteQueue, time_ms: int, then: Callable[[int], None]) -> None:
        """Ask for the offset of the first record that was stored at ``time_ms`` or later."""
        self._client.start_soon(self._ask_offset, queue, time_ms, then)

    async def _ask_offset(
        self, queue: RemoteQueue, time_ms: int, then: Callable[[int], None]
    ) -> None:
        ext, code = {"timestamp": str(time_ms)}, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        then(await self._offset_at_last(queue, code, ext, may_ask_slave=True))

    def ask_newest(self, queue: RemoteQueue, then: Callable[[int], None]) -> None:
        """Ask the master, once it is there, for the tail of ``queue``; nothing is followed."""
        self._client.start_soon(self._ask_newest, queue, then)

    async def _ask_newest(self, queue: RemoteQueue, then: Callable[[int], None]) -> None:
        code = RequestCode.GET_MAX_OFFSET
        then(await self._offset_at_last(queue, code, {}, may_ask_slave=False))

    async def _offset_at_last(
        self,
        queue: RemoteQueue,
        code: RequestCode,
        ext: dict[str, str],
        *,
        may_ask_slave: bool,
    ) -> int:
        """Return the offset in a broker's answer, however long that takes.

        A slave's may be lower than its master's. Readers that begin there lose nothing, and may get
        messages that are older than they wanted. For the state of gateways a slave is not asked: it
        counts as known once it has been read to the end.
        """
        may_ask_slave = may_ask_slave and queue.name.topic not in GATEWAY_TOPICS
        link = self._links.of(queue.name.broker_name)
        while True:
            try:
                request = RemotingCommand(code, ext={**queue_ext(queue.name), **ext})
                answer = await self._links.request(
                    link,
                    request,
                    timeout_s=REQUEST_TIMEOUT_S,
                    is_at_slave=may_ask_slave and link.is_at_slave,
                )
                return int_field(check(answer), "offset")
            except (RemotingError, BrokerError) as exc:
                await self._pause(queue, exc, may_ask_slave=may_ask_slave)

    def gather(self, topic: str, pause_s: Callable[[], float]) -> None:
        """Let one pull bring all messages that come to a topic in ``pause_s``."""
        self._pauses_s[topic] = pause_s

    async def _follow(self, queue: RemoteQueue, scope: trio.CancelScope) -> None:
        with scope:
            await run_again(self._pull_what_comes, queue)

    async def _pull_what_comes(self, queue: RemoteQueue) -> None:
        while True:
            await queue.room.wait()
            asked_at = trio.current_time()
            result = await self._pull_at_last(queue, queue.pull_offset, hold_s=self._hold_s)
            if result.status is PullStatus.FOUND:
                self._arrived(queue, result)
                if (pause_s := self._pauses_s.get(queue.name.topic)) is not None:
                    await trio.sleep(pause_s())
            elif result.next_offset != queue.pull_offset:
                queue.move_to(result.next_offset)
                self._note_growth(queue)
            elif trio.current_time() - asked_at < HELD_S_MIN:
                await trio.sleep(HELD_S_MIN)

    def _arrived(self, queue: RemoteQueue, result: PullResult) -> None:
        chunk = Chunk(queue, queue.pull_offset, result.next_offset, bytes(result.records))
        self._kept.keep(chunk)
        queue.pull_offset = chunk.next_offset
        queue.unread.append((chunk.next_offset, len(chunk.records)))
        queue.unread_bytes += len(chunk.records)
        if queue.unread_bytes >= UNREAD_BYTES_MAX:
            queue.room.clear()
        self._note_growth(queue)

    def _note_growth(self, queue: RemoteQueue) -> None:
        for growth in self._growth:
            growth.note((queue,))

    # --- pulls ---------------------------------------------------------------------------

    async def _pull_at_last(
        self,
        queue: RemoteQueue,
        queue_offset: int,
        *,
        hold_s: float,
        turn: AbstractAsyncContextManager[None] | None = None,
    ) -> PullResult:
        """Return a broker's answer to a pull, however long that takes."""
        while True:
            error: MotelogError | None = None
            try:
                async with turn or nullcontext():
                    result = await self._pull(queue, queue_offset, hold_s)
                if result is not None:
                    return result
            except (RemotingError, BrokerError, RecordError) as exc:
                error = exc
            await self._pause(queue, error)

    async def _pull(
        self, queue: RemoteQueue, queue_offset: int, hold_s: float
    ) -> PullResult | None:
        """Return a broker's answer to a pull; None from a slave that does not have the records."""
        link = self._links.of(queue.name.broker_name)
        is_at_slave = link.is_at_slave
        command = pull_command(
            queue.name,
            queue_offset,
            group=self._group,
            count_max=PULL_COUNT,
            bytes_max=PULL_BYTES,
            hold_s=0 if is_at_slave else hold_s,
            selector=SELECT_ALL,
        )
        timeout_s = REQUEST_TIMEOUT_S + (hold_s + HOLD_GRACE_S if hold_s else 0)
        answer = await self._links.request(
            link, command, timeout_s=timeout_s, is_at_slave=is_at_slave
        )
        result = pull_result(answer, answer.body)
        if result.status is PullStatus.FOUND:
            topic, queue_id = queue.name.topic.encode(), queue.name.queue_id
            # The kernels that read these bytes later trust them.
            if not in_queue(result.records, topic, queue_id, queue_offset, result.next_offset):
                text = f"the broker's answer for offset {queue_offset} is not of this queue"
                raise RecordError(text, offset_bytes=0)
        elif is_at_slave:
            return None
        return result

    async def _pause(
        self, queue: RemoteQueue, error: MotelogError | None, *, may_ask_slave: bool = True
    ) -> None:
        """Wait until a read that failed, or for which a slave has nothing, may be tried again."""
        link = self._links.of(queue.name.broker_name)
        if error is not None and link.away_since is None:
            await trio.sleep(RETRY_S)
            # Only after the pause: at a stop the connection may close first, which is not a fault.
            self._faults.warning(
                "a read of a queue failed and is tried again queue=%s error=%s", queue, error
            )
        while link.away_since is not None:
            with trio.move_on_after(RETRY_S):
                await link.is_back.wait()
            if may_ask_slave and link.is_at_slave:
                break
