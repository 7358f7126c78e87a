"""Reading a queue ahead of its consumer, until the queue is given up.

Owns: Reading (the state of a queue that is read), Start, Reader with the loop of pulls.
Must not touch: what is done with messages; subclasses of Reading keep them (bridge.read_ahead,
bridge.push.process_queue), and unset ``room`` when they have enough.
Spec: RocketMQ DefaultLitePullConsumerImpl.PullTaskImpl, DefaultMQPushConsumerImpl.pullMessage.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import trio

from motelog.bridge.pull_request import PULL_BYTES_MAX, PULL_COUNT, PullResult, PullStatus
from motelog.bridge.queue_requests import QueueRequests
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import Selector
from motelog.core.errors import MotelogError
from motelog.core.flag import Flag
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.spare_memory import NO_MEMORY

logger = logging.getLogger(__name__)

# How long a broker holds a pull that found nothing.
HOLD_S: Final = 15.0
RETRY_S: Final = 1.0
# A slave that did not return what it should have is not read for this long. In RocketMQ 5 it learns
# of new topics from its master once a minute.
SLAVE_AVOIDED_S: Final = 60.0


class Start(Enum):
    """Where to begin, until the broker has returned the offset."""

    COMMITTED = 1
    BEGIN = 2
    END = 3


class Reading:
    """One queue that is read: the offset of the next pull, and the broker it is sent to."""

    __slots__ = (
        "broker_id",
        "committed",
        "is_checked",
        "is_refused",
        "master_until",
        "next_offset",
        "pulled_at",
        "queue",
        "room",
        "scope",
        "selector",
    )

    def __init__(self, queue: MessageQueue, start: Start | int, selector: Selector) -> None:
        self.queue = queue
        self.selector = selector
        self.next_offset = start
        #: The offset stored at the brokers: -1 if there is none, None if it is not known.
        self.committed: int | None = None
        self.room = Flag()
        self.room.set()
        self.scope = trio.CancelScope()
        # The broker is asked once whether it accepts the filter: one without filters answers a pull
        # with a code that would be retried.
        self.is_checked = not selector.is_sql
        self.broker_id = MASTER_ID
        # Until this time no slave is read, whatever the master suggests.
        self.master_until = -math.inf
        # Whether the last answer had no messages and did not change the offset.
        self.is_refused = False
        self.pulled_at = trio.current_time()

    def is_forward(self, offset: int) -> bool:
        """Whether committing ``offset`` moves the group forward, as far as this member knows."""
        return self.committed is not None and offset >= self.committed

    def begin_at(self, queue_offset: int) -> None:
        """Set the first offset to read."""
        self.next_offset = queue_offset

    def add(self, messages: list[StoredMessage], next_offset: int) -> None:
        """Add a pull's messages; ``next_offset`` is after them and all that were filtered out."""
        raise NotImplementedError

    def move_to(self, next_offset: int) -> None:
        """Continue at ``next_offset``: the broker has no message at the last pull's offset."""
        self.add([], next_offset)


# Judges the error of a pull: True if it ends the reading, False if the pull is retried.
Judge = Callable[[Reading, Exception], bool]


class Reader:
    """Read queues with long polls, one ``run`` each."""

    def __init__(
        self,
        requests: QueueRequests,
        *,
        hold_s: float,
        version: Callable[[], int],
        resolve: Callable[[MessageQueue, Start], Awaitable[int]],
        added: Callable[[Reading, int], None],
        ends: Judge,
    ) -> None:
        """``resolve`` returns where a queue begins; ``added`` is called with message counts."""
        self._requests = requests
        self._hold_s = hold_s
        self._version = version
        self._resolve = resolve
        self._added = added
        self._ends = ends

    async def run(self, reading: Reading) -> None:
        """Pull while there is room, until the reading's scope is cancelled or an error ends it."""
        with reading.scope:
            while True:
                await reading.room.wait()
                try:
                    await self._read_once(reading)
                except MotelogError as exc:
                    if self._ends(reading, exc):
                        return
                    await self._pause(reading, exc)
                except NO_MEMORY as exc:
                    await self._pause(reading, exc)

    async def _read_once(self, reading: Reading) -> None:
        reading.pulled_at = trio.current_time()
        if not reading.is_checked:
            await self._requests.check_selector(reading.queue, reading.selector, self._version())
            reading.is_checked = True
        if isinstance(reading.next_offset, Start):
            reading.begin_at(await self._resolve(reading.queue, reading.next_offset))
        asked_offset = reading.next_offset
        assert not isinstance(asked_offset, Start)
        result = await self._requests.pull(
            reading.queue,
            asked_offset,
            selector=reading.selector,
            count_max=PULL_COUNT,
            bytes_max=PULL_BYTES_MAX,
            hold_s=self._hold_s,
            broker_id=reading.broker_id,
        )
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _log_moved(reading.queue, asked_offset, result)
            await trio.sleep(RETRY_S)  # do not ask a broker that keeps refusing in a tight loop
            await trio.lowlevel.checkpoint_if_cancelled()
            reading.move_to(result.next_offset)
            return
        # The queue may have been given up after the answer arrived. Its messages then belong to
        # another member, and an offset moved now would be saved past messages that were skipped.
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._choose_broker(reading, result, asked_offset)
        messages = reading.selector.keep(result.messages())
        reading.add(messages, result.next_offset)
        if messages:
            self._added(reading, len(messages))

    async def _choose_broker(self, reading: Reading, result: PullResult, asked_offset: int) -> None:
        """Choose which member of the broker's group is asked next; pause if asking is useless.

        A slave that must not be read sends its readers to the master with such an answer, even
        while the master is down. Our broker makes a connection with too much output ask again.
        """
        is_refused = (
            result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_offset == asked_offset
        )
        if is_refused and reading.is_refused:
            await trio.sleep(RETRY_S)
        reading.is_refused = is_refused
        is_free = trio.current_time() >= reading.master_until
        reading.broker_id = result.suggested_broker_id if is_free else MASTER_ID

    async def _pause(self, reading: Reading, exc: Exception) -> None:
        if reading.broker_id != MASTER_ID:
            reading.master_until = trio.current_time() + SLAVE_AVOIDED_S
        reading.broker_id = MASTER_ID
        self._requests.distrust(reading.queue.topic)
        await trio.sleep(RETRY_S)
        # Logged after the pause: at a stop the connection may close first, which is no failure.
        logger.warning("a pull failed and is retried queue=%s error=%s", reading.queue, exc)


def _log_moved(queue: MessageQueue, asked_offset: int, result: PullResult) -> None:
    """Log that the broker makes a reader continue at another offset, and why."""
    if result.min_offset <= asked_offset <= result.max_offset:
        logger.info(
            "the group's offset was reset; reading continues there queue=%s offset=%d next=%d",
            queue,
            asked_offset,
            result.next_offset,
        )
        return
    logger.warning(
        "the broker has no message at this offset; reading continues at next, and messages "
        "between the two %s queue=%s offset=%d min=%d max=%d next=%d",
        "are skipped" if asked_offset < result.next_offset else "are read again",
        queue,
        asked_offset,
        result.min_offset,
        result.max_offset,
        result.next_offset,
    )
