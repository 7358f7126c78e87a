"""The broker's interface for users in the same process: the gateway appends and reads here.

Owns: nothing; it calls the topic table and the store. Must not touch: sockets, files.
The system's topics and the consumer groups' retry topics cannot be reached from here: a device's
message must not get into topics from which the broker reads its own state.
"""

from __future__ import annotations

from collections.abc import Callable

from motelog.core.broker.acknowledge import Acknowledge, policy_of
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.broker.waiting.append_line import AppendLine
from motelog.core.broker.waiting.cold_reads import ColdReads
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError, StoreError
from motelog.core.message import REAL_QID, REAL_TOPIC, TIMER_OUT_MS, encode_properties
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.topic_config import TopicConfig
from motelog.core.store.disk.page_cache import NotInMemoryError, Pageable, PageIns
from motelog.core.store.due_time import in_time, timer_queue
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadResult, ReadStatus
from motelog.core.topic_names import (
    GATEWAY_TOPICS,
    MQTT_SESSION_TOPIC,
    REVIVE_PREFIX,
    TIMER_TOPIC,
    is_group_topic,
)

__all__ = [
    "BrokerApi",
    "NotInMemoryError",
    "PageIns",
    "Pageable",
    "QueueTail",
    "ReadResult",
    "ReadStatus",
    "is_state_of_session",
]

_SESSIONS = MQTT_SESSION_TOPIC.encode()
_REVIVE = REVIVE_PREFIX.encode()


def is_state_of_session(message: AppendMessage) -> bool:
    """Return whether it is a gateway's record of sessions, accepted even if the disk is full."""
    return message[0].topic == _SESSIONS


def _is_state(message: AppendMessage) -> bool:
    """Return whether it is a record that readers need, accepted even if the disk is full."""
    return is_state_of_session(message) or message[0].topic.startswith(_REVIVE)


class BrokerApi:
    """Topics and messages of one broker; usable while ``Broker.run`` is running."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        *,
        clock: Clock,
        store_host: bytes,
        cold_reads_max: int,
        acknowledge: Acknowledge | None = None,
        refusal: Callable[[], StoreError | None] | None = None,
    ) -> None:
        # Returns why nothing is appended now.
        self._refusal = refusal
        self._store = store
        #: The usage of the disk, and why messages are refused while it has no room for them.
        self.disk = store.disk_watch
        self._topics = topics
        self.clock = clock
        #: The clock that dates messages: it knows its jumps, even across a restart.
        self.steady_clock = store.clock
        self.store_host = store_host
        self.acknowledge = acknowledge or policy_of(store)
        # The hot calls go straight to the store.
        self.read = store.reader.read
        self.follow = store.readable.follow
        self.queue_tail = store.queue_tail
        self.now_ms = store.now_ms
        self.due_times = store.due_times
        self.max_offset = store.reader.max_offset
        self.min_offset = store.reader.min_offset
        self.offset_by_time = store.reader.offset_by_time
        # The event loop must not wait for a file.
        self.line = AppendLine(
            self._append,
            clock=clock,
            timeout_ms=store.config.flush_timeout_ms,
            busy_ms=store.config.page_cache_busy_ms,
            in_time=lambda message: in_time(message, store.now_ms(), store.queue_tail),
        )
        self.cold_reads = ColdReads(store.reader.page_in, waiting_max=cold_reads_max)

    @property
    def fence_reason(self) -> str | None:
        """Why nothing is accepted until a restart; None without a failure."""
        return self._store.fence_reason

    def _append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None = None,
        *,
        store_timestamp_ms: int | None = None,
    ) -> int:
        """Append without waiting; sessions and checkpoints even while the disk is over its limit.

        Without them no gateway could start, no client could return and continue, and no consumer
        could pop stored messages. They are small, and the limit leaves room. A batch that contains
        anything else is refused as a whole.
        """
        refusal = self._refusal() if self._refusal is not None else None
        if refusal is not None:
            raise refusal
        is_state = self.disk.full_reason is not None and all(map(_is_state, messages))
        return self._store.append(
            messages,
            placed,
            store_timestamp_ms=store_timestamp_ms,
            even_if_full=is_state,
            may_wait=False,
        )

    def topic_queue_count(self, topic: str) -> int | None:
        """Return how many queues may be written to; None if there is no such topic.

        Of the system's topics only those of gateways exist here.
        """
        config = self._config_of(topic)
        return config.write_queue_nums if config is not None and config.is_writable else None

    def topic_read_queue_count(self, topic: str) -> int:
        """Return how many queues of the same topics may be read; 0 if there is no such topic.

        A topic that shrinks, or is no longer writable, still has queues to read, with
        acknowledged messages.
        """
        config = self._config_of(topic)
        return config.read_queue_nums if config is not None and config.is_readable else 0

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue of the same topics exists, even if it is closed to readers."""
        config = self._config_of(topic)
        if config is None:
            return False
        is_open = queue_id < max(config.read_queue_nums, config.write_queue_nums)
        return is_open or self.max_offset(topic, queue_id) > 0

    def _config_of(self, topic: str) -> TopicConfig | None:
        if self._is_closed(topic) and topic not in GATEWAY_TOPICS:
            return None
        return self._topics.get(topic)

    def create_topic(self, topic: str, queue_count: int) -> int:
        """Return the queue count of the topic, created with ``queue_count`` queues if it is new.

        BrokerError if the name or the count is refused or the broker has too many topics.
        """
        if topic in GATEWAY_TOPICS:
            created = self._topics.create_gateway_topic(topic, queue_count, self.clock.now_ms())
            return created.write_queue_nums
        if self._is_closed(topic):
            text = f"the topic {ascii(topic)[1:-1]} belongs to the system"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        known = self._topics.get(topic)
        if known is not None:
            if known.write_queue_nums < 1:
                text = f"the topic {topic} has no queue to write to"
                raise BrokerError(ResponseCode.NO_PERMISSION, text)
            return known.write_queue_nums
        config = TopicConfig(
            topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count
        )
        return self._topics.put(config, self.clock.now_ms()).write_queue_nums

    def delayed(self, message: AppendMessage, delay_ms: int) -> AppendMessage:
        """Return the message that waits for ``delay_ms`` in place of ``message``.

        Like every delayed message, it gets into its own queue a moment after it is due. It must be
        appended before anything else is delivered.
        """
        tail, body, properties = message[:3]
        due_ms = self.now_ms() + delay_ms
        told = {
            REAL_TOPIC: tail.topic.decode(),
            REAL_QID: str(tail.queue_id),
            TIMER_OUT_MS: str(due_ms),
        }
        waits = self.queue_tail(TIMER_TOPIC, timer_queue(due_ms))
        return (waits, body, properties + encode_properties(told), due_ms, *message[4:])

    def topics(self) -> list[str]:
        """Return the users' topics in the order of creation."""
        return self._topics.user_topics()

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the name of each users' topic that is created or changed."""

        def hear(topic: str) -> None:
            if not self._is_closed(topic):
                listener(topic)

        self._topics.listeners.append(hear)

    def _is_closed(self, topic: str) -> bool:
        return self._topics.is_system(topic) or is_group_topic(topic)
