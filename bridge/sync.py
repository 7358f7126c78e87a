"""The clients for programs with plain threads, such as Spark workers: each call blocks.

Written by ``python -m tests.twins`` from the classes for trio: do not edit.
Owns: nothing; each method calls the native one of its name. Must not touch: threads and loops
(motelog.bridge.sync_base).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from motelog.bridge.admin import READ_WRITE, Admin, ResetTo
from motelog.bridge.admin_answers import (
    BrokerInfo,
    ClientInfo,
    QueueProgress,
    QueueStats,
    QueueTimes,
    QueueUnit,
    Rates,
    Replication,
    TopicSettings,
)
from motelog.bridge.client import REQUEST_TIMEOUT_S, NameServers
from motelog.bridge.groups.allocation import Allocate, average
from motelog.bridge.popped import PoppedMessage
from motelog.bridge.producer import (
    COMPRESS_ABOVE_BYTES,
    MESSAGE_BYTES_MAX,
    REPLY_TIMEOUT_S,
    RETRIES,
    SEND_TIMEOUT_S,
    Producer,
    QueueChoice,
    SendResult,
)
from motelog.bridge.pull_request import PULL_BYTES_MAX, PULL_COUNT, PullResult
from motelog.bridge.push.consumer import CONSUME_TIMEOUT_S, STOP_S, SUSPEND_S, PushConsumer
from motelog.bridge.push.offsets import OffsetStore
from motelog.bridge.push.process_queue import Limits
from motelog.bridge.push.workers import BATCH_MAX, WORKERS
from motelog.bridge.query import QUERY_COUNT, TIME_MAX
from motelog.bridge.reader import HOLD_S
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import TAGS_ALL
from motelog.bridge.simple import INVISIBLE_S, WAIT_S, SimpleConsumer
from motelog.bridge.sync_base import (
    Blocking,
    Check,
    Execute,
    HandleOne,
    HandleSome,
    ProducerBase,
    PullConsumerBase,
)
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.bridge.trace.records import TraceRecord
from motelog.bridge.transactions import (
    CHECK_TASKS,
    HalfMessage,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    as_state,
)
from motelog.bridge.unseen import LoopedPullConsumer
from motelog.bridge.users import Rule, User, UserRules
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls


class SyncProducer(ProducerBase):
    """Send messages to the brokers that the name servers know.

    ``with SyncProducer(namesrv="127.0.0.1:9876", group="P") as producer:``; ``namesrv`` takes what
    ``NameServers`` says. One producer serves any number of topics and threads. All requests are
    signed with ``credentials``; servers with access control take no others.

    A message that a broker refuses by flow control (SYSTEM_BUSY, FLOW_CONTROL) is sent again like
    any other that failed, a little later: ``retries`` times besides the first. Without
    ``retry_when_busy`` the first refusal raises BrokerError, and the caller slows down. Where no
    broker can be connected to, it is tried until the timeout: nothing has been sent. With
    ``retry_when_not_stored`` an answer that says less than OK (not on the disk, not at a slave in
    time) has another broker asked, too; the message is then stored twice. With
    ``avoid_slow_brokers`` a broker that was slow or did not answer gets no turn for a while: 3 s
    after an answer that took 0.55 s, a minute after one of 1 s or none, and so on. With ``trace`` a
    record of each message that a broker has answered goes to ``trace_topic``, a little later and by
    a producer of its own: ``SyncAdmin.trace`` and RocketMQ's tools read it.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_when_busy: bool = True,
        retry_when_not_stored: bool = False,
        avoid_slow_brokers: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        super().__init__(
            Producer(
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                group=group,
                timeout_s=timeout_s,
                retries=retries,
                retry_when_busy=retry_when_busy,
                retry_when_not_stored=retry_when_not_stored,
                avoid_slow_brokers=avoid_slow_brokers,
                message_bytes_max=message_bytes_max,
                compress_above_bytes=compress_above_bytes,
                trace=trace,
                trace_topic=trace_topic,
            ),
            f"motelog-producer-{group}",
        )

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues; for a topic that does not exist yet, those it will get."""
        return self._call(self._service.queues, topic)

    def send(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
        delay: float | timedelta = 0,
    ) -> SendResult:
        """Return once a broker has stored ``message``.

        Without ``queue`` or ``hash_key`` queues take turns and a retry goes to another broker. With
        ``hash_key`` equal keys go to the same queue, as long as the number of queues stays.
        ``queue`` is one of ``queues(topic)``, or a function that chooses one of them.
        Consumers and subscribers get the message after ``delay``, in seconds: from our brokers and
        RocketMQ's from 5.0 on; older ones deliver it at once. Raises MessageRefusedError before
        anything is sent, BrokerError when the broker refuses the message, SendFailedError when no
        attempt was acknowledged within ``timeout_s``. After a SendFailedError the message may be
        stored all the same, under the same unique id.
        """
        return self._call(
            self._service.send,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
            delay=delay,
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        delay: float | timedelta = 0,
    ) -> None:
        """Give ``message`` to the connection and return; nobody says whether it was stored.

        For data of which some may be lost, since a broker that refuses it or ends does not answer.
        Errors are those of ``send`` before anything is sent, and RemotingError.
        """
        self._call(self._service.send_oneway, message, queue=queue, hash_key=hash_key, delay=delay)

    def send_batches(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send any number of messages as batches that are small enough; return their results.

        Messages of one topic stay in their order, also in the log if ``queue`` or ``hash_key``
        chooses the queue. Errors are those of ``send_batch``; batches before the one that failed
        are stored.
        """
        return self._call(
            self._service.send_batches,
            messages,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Return once a broker has stored all of ``messages``, which go to one queue, in order.

        They share a topic and have at most 4 MiB together. None may be delayed or go to a retry
        topic. A batch is stored whole or not at all. Errors are those of ``send``.
        """
        return self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """Take back a delayed message by its ``SendResult.recall_handle``; return its unique id.

        When this returns, the message is not delivered any more. BrokerError: its time has come, or
        the broker does not recall (RocketMQ's have to be told to, from 5.3.1 on).
        MessageRefusedError for a handle that is none, RemotingError if no answer came: it may be
        recalled all the same.
        """
        return self._call(self._service.recall, handle, timeout_s=timeout_s)

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Message:
        """Send ``message`` and return the reply of a consumer that got it (``reply_to``).

        ReplyTimeoutError when no reply comes within ``timeout_s``: somebody may have worked on the
        request all the same. Other errors are those of ``send``, and RemotingError.
        """
        return self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Answer a consumed message whose sender waits in ``request``; return once it has it.

        BrokerError or SendFailedError when the sender is not connected (any more),
        MessageRefusedError when it does not wait for a reply.
        """
        self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class SyncTransactionProducer(SyncProducer):
    """A producer whose messages may be bound to a local transaction.

    ``check`` is asked about half messages that nobody has ended, also those of other producers of
    the group and of an earlier process: it looks the transaction up where that is kept. It may be
    asked twice about one. An exception counts as UNKNOWN. Brokers know this producer once it has
    sent to them; ``topics`` are those whose brokers it tells of itself at once. Otherwise it is a
    SyncProducer.

    ``check`` is a plain function. It is called in threads of its own, ``check_tasks`` at a time.
    """

    _service: TransactionProducer

    def __init__(
        self,
        check: Check,
        *,
        topics: Iterable[str] = (),
        check_tasks: int = CHECK_TASKS,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_when_busy: bool = True,
        retry_when_not_stored: bool = False,
        avoid_slow_brokers: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        Blocking.__init__(
            self,
            TransactionProducer(
                self._as_async(check),
                topics=tuple(topics),
                check_tasks=check_tasks,
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                group=group,
                timeout_s=timeout_s,
                retries=retries,
                retry_when_busy=retry_when_busy,
                retry_when_not_stored=retry_when_not_stored,
                avoid_slow_brokers=avoid_slow_brokers,
                message_bytes_max=message_bytes_max,
                compress_above_bytes=compress_above_bytes,
                trace=trace,
                trace_topic=trace_topic,
            ),
            f"motelog-producer-{group}",
        )

    def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store a half message, call ``execute(message)`` and end it as that says.

        What ``execute`` raises goes on to the caller, and the broker will ask: whether its
        transaction took place may not be known. ``execute`` is not called, and the message rolled
        back, when the broker has stored it less safely than it should. If the end does not reach
        the broker, a log line says so and the broker will ask. Errors of the half message are those
        of ``send``; BrokerError when the end is refused.

        ``execute`` runs in the calling thread.
        """
        half = self.send_half(message, queue=queue, hash_key=hash_key, timeout_s=timeout_s)
        state = TransactionState.ROLLBACK
        if half.is_safe:
            state = as_state(execute(message))
        return self.finish(half, state)

    def send_half(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """Return once a broker has stored ``message``, to be seen after ``commit``.

        Arguments and errors are those of ``send``; it cannot be delayed.
        """
        return self._call(
            self._service.send_half, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def commit(self, half: HalfMessage) -> None:
        """Return once the broker has stored the message for its consumers.

        Raises BrokerError if it refuses, for example since the transaction is over, and
        RemotingError if the answer did not come: the broker will ask. Our broker takes a second
        commit as the first one; RocketMQ's stores the message twice.
        """
        self._call(self._service.commit, half)

    def rollback(self, half: HalfMessage) -> None:
        """Return once the broker has dropped the message; errors as ``commit``."""
        self._call(self._service.rollback, half)

    def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """End a half message as its local transaction did, as ``send_in_transaction`` does it.

        BrokerError if the broker refuses; if the end does not reach it, a log line says so, and the
        broker will ask.
        """
        return self._call(self._service.finish, half, state)


class SyncPullConsumer(PullConsumerBase):
    """Read queues from the offsets that ``group`` has committed, or from others.

    ``with SyncPullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue without a
    committed offset starts at its oldest message, or with ``start="last"`` at the next new one.
    ``for message in consumer`` hands out one message after the other, without an end; ``commit``
    inside the loop commits up to the message at hand.

    ``assign`` reads the queues that it is given. ``subscribe`` shares the queues of topics with the
    group's other members by the rule ``allocate`` (bridge.groups.allocation), which all of them
    must use; a queue that goes to another member goes on there at its committed offset.

    With ``trace`` records of each message that is handed out go to ``trace_topic``, which
    ``SyncAdmin.trace`` and RocketMQ's tools read. What becomes of it then, they do not know.
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
        super().__init__(
            LoopedPullConsumer(
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                group=group,
                start=start,
                allocate=allocate,
                hold_s=hold_s,
                request_timeout_s=request_timeout_s,
                trace=trace,
                trace_topic=trace_topic,
            ),
            f"motelog-consumer-{group}",
        )

    def topics(self) -> list[str]:
        """Return the names of the topics that users have, not those of the system or of groups."""
        return self._call(self._service.topics)

    def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        The name servers know a topic only a moment after its first message has created it;
        ``wait_s`` is how long to wait for that.
        """
        return self._call(self._service.queues, topic, wait_s=wait_s)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now."""
        return self._call_sync(lambda: self._service.assigned)

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` selects.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker applies it. Queues that stay with the same selection keep their position; new ones
        start at the committed offset.
        """
        self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Read this member's part of the topic's queues, from now on and as members come and go.

        ``tags`` and ``sql`` as with ``assign``; all members must give the same. May be called for
        several topics, and again to select otherwise. ``assigned`` has the queues that are this
        member's now. What it has not committed when a queue goes to another member is read there
        again.
        """
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these queues until ``resume``; they stay this consumer's."""
        self._call_sync(self._service.pause, tuple(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of these queues again."""
        self._call_sync(self._service.resume, tuple(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Hand out ``queue`` from ``queue_offset`` next; drop the messages read ahead."""
        self._call_sync(self._service.seek, queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out the assigned (or given) queues from their oldest message."""
        self._call_sync(self._service.seek_to_begin, None if queues is None else tuple(queues))

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out only messages stored after this call reaches the broker."""
        self._call_sync(self._service.seek_to_end, None if queues is None else tuple(queues))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last message handed out; None until the start is known."""
        return self._call_sync(self._service.position, queue)

    def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any; [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; order holds within each.
        Brokers that cannot be reached are tried again in the background. An error that stops a
        queue (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` starts
        the queue again.
        """
        return self._call(self._service.poll, timeout_s=timeout_s, count_max=count_max)

    def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Store the positions of all assigned queues, or ``offsets``, at the brokers.

        A position below what the member before has stored late, of a queue that came from it in the
        last half minute, is not among them. Returns when every broker has confirmed. One
        that is away or busy is asked again for ``timeout_s`` (by default ``request_timeout_s``; 0
        asks each broker once), the others commit at once. Then CommitFailedError names the queues
        that are not committed, and ``commit`` may be called again.
        """
        self._call(self._service.commit, offsets, timeout_s=timeout_s)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none."""
        return self._call(self._service.committed, queue)

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return self._call(self._service.begin_offsets, tuple(queues))

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset after the newest message of each queue."""
        return self._call(self._service.end_offsets, tuple(queues))

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Return per queue the offset of the first message stored at ``timestamp_ms`` or later."""
        return self._call(self._service.offsets_for_time, tuple(queues), timestamp_ms)

    def pull(
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
        return self._call(
            self._service.pull,
            queue,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            hold_s=hold_s,
            tags=tags,
            sql=sql,
            broker_id=broker_id,
        )

    def query_by_key(
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
        return self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    def view(self, message_id: str) -> StoredMessage:
        """Return the message that an offset id names, from the broker it names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks alike and is
        for ``query_by_key``). BrokerError if there is no such message.
        """
        return self._call(self._service.view, message_id)


class SyncPushConsumer(Blocking[PushConsumer]):
    """Hand the messages of topics to a function, sharing them with the group's other members.

    ``with SyncPushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("telemetry")`` and ``consumer.run(handle)``. A message is handled at least
    once. One that ``handle`` raises an exception for comes again, later each time, and is a dead
    letter (topic %DLQ%GROUP) after ``retries_max`` times; without it the group's setting
    ``retryMaxTimes`` counts (16).

    ``handle`` is called in threads; ``workers`` calls at once. With ``is_orderly`` the messages of
    a queue are handled one after the other: a refused one is tried again every ``suspend_s``,
    before those behind it, without an end unless ``retries_max`` is given. With ``broadcast`` each
    member gets all messages, refused ones do not come again, and offsets are kept here.

    ``start`` is where a group begins that has no offsets: at the "first" message, behind the "last"
    or at a time. ``offsets`` keeps them elsewhere than the brokers (bridge.push.offsets).
    ``allocate`` must be the rule of all members. With ``trace`` records of each call of ``handle``
    go to ``trace_topic``, which ``SyncAdmin.trace`` and RocketMQ's tools read.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        start: Literal["first", "last"] | datetime = "first",
        is_orderly: bool = False,
        broadcast: bool = False,
        workers: int = WORKERS,
        batch_max: int = BATCH_MAX,
        retries_max: int | None = None,
        allocate: Allocate = average,
        offsets: OffsetStore | None = None,
        limits: Limits | None = None,
        suspend_s: float = SUSPEND_S,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        stop_s: float = STOP_S,
        hold_s: float = HOLD_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        super().__init__(
            PushConsumer(
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                group=group,
                start=start,
                is_orderly=is_orderly,
                broadcast=broadcast,
                workers=workers,
                batch_max=batch_max,
                retries_max=retries_max,
                allocate=allocate,
                offsets=offsets,
                limits=limits,
                suspend_s=suspend_s,
                consume_timeout_s=consume_timeout_s,
                stop_s=stop_s,
                hold_s=hold_s,
                request_timeout_s=request_timeout_s,
                trace=trace,
                trace_topic=trace_topic,
            ),
            f"motelog-consumer-{group}",
        )

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Handle messages of ``topic`` too, those that ``tags`` or ``sql`` selects.

        As SyncPullConsumer.subscribe. All members of a group must subscribe to the same. May be
        called before and during ``run``; with another selection the topic's queues are read anew.
        """
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Handle no more messages of ``topic``."""
        self._call_sync(self._service.unsubscribe, topic)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this member's now, its retry topic's included."""
        return self._call_sync(lambda: self._service.assigned)

    def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, ``close`` or Ctrl-C.

        It then waits up to ``stop_s`` for messages in work, saves how far it has got, and leaves
        the group. FilterError if a broker refuses a filter.
        """
        self._call(self._service.run, handle)

    def run_batches(self, handle: HandleSome) -> None:
        """As ``run``, with up to ``batch_max`` messages of one queue in a list.

        If ``handle`` raises an exception, all of them come again.
        """
        self._call(self._service.run_batches, handle)

    def stop(self) -> None:
        """Have ``run`` finish what is in work and return. Another thread or ``handle`` calls it."""
        self._call_sync(self._service.stop)

    def pause(self) -> None:
        """Begin to handle no more messages until ``resume``; the queues stay this member's.

        Another thread or ``handle`` calls it.
        """
        self._call_sync(self._service.pause)

    def resume(self) -> None:
        """Go on handling messages. Another thread or ``handle`` calls it."""
        self._call_sync(self._service.resume)


class SyncSimpleConsumer(Blocking[SimpleConsumer]):
    """Receive messages of topics as a member of ``group``, each acknowledged on its own.

    ``with SyncSimpleConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("orders")``. A message that is received is invisible to the other members
    for ``invisible_s``. What is not acknowledged by then comes again, to anybody. A new group
    begins at the oldest message. With ``in_order`` a queue's messages come in their order, and the
    next ones when all before them are acknowledged.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        in_order: bool = False,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        super().__init__(
            SimpleConsumer(
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                group=group,
                in_order=in_order,
                request_timeout_s=request_timeout_s,
            ),
            f"motelog-consumer-{group}",
        )

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Receive messages of ``topic`` from now on that ``tags`` or ``sql`` selects.

        RouteError if there is no such topic. The members of a group must agree on what they select.
        """
        self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of ``topic``."""
        self._call_sync(self._service.unsubscribe, topic)

    def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to ``max_messages`` (32 at most) as soon as there are any; [] after ``wait_s``.

        Brokers that cannot be asked are passed over; the last one's error is raised if none can be.
        """
        return self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    def ack(self, message: PoppedMessage) -> None:
        """Tell the broker that a message is done with.

        RemotingError or RouteError if it cannot be asked: try again, or the message comes again.
        """
        self._call(self._service.ack, message)

    def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Tell the brokers that messages are done with, in one request to each.

        An error may come after some of them were told.
        """
        self._call(self._service.ack_many, tuple(messages))

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """Have a message come again ``invisible_s`` from now; 0: at once.

        Return it with its new receipt: the old one does not count any more. BrokerError
        (NO_MESSAGE) if its time was over before.
        """
        return self._call(self._service.change_invisible, message, invisible_s)


class SyncAdmin(Blocking[Admin]):
    """``with SyncAdmin(namesrv="127.0.0.1:9876") as admin:``; any number of threads may use it."""

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        super().__init__(
            Admin(
                namesrv=namesrv,
                credentials=credentials,
                tls=tls,
                request_timeout_s=request_timeout_s,
            ),
            "motelog-admin",
        )

    def brokers(self) -> list[BrokerInfo]:
        """Return the brokers that live, by cluster, name and id."""
        return self._call(self._service.brokers)

    def broker_status(self, broker: str) -> dict[str, str]:
        """Return what a broker tells of its work, under RocketMQ's names."""
        return self._call(self._service.broker_status, broker)

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, under RocketMQ's names."""
        return self._call(self._service.broker_config, broker)

    def set_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, under RocketMQ's names."""
        self._call(self._service.set_broker_config, broker, settings)

    def stop_writes(self, broker: str) -> int:
        """Have producers leave a broker alone; return how many topics that concerns.

        Each name server is told. Consumers go on.
        """
        return self._call(self._service.stop_writes, broker)

    def allow_writes(self, broker: str) -> int:
        """Take ``stop_writes`` back."""
        return self._call(self._service.allow_writes, broker)

    def rates(self, broker: str, name: str, key: str) -> Rates:
        """Return what a broker has counted under a name and key of RocketMQ's.

        Such as "TOPIC_PUT_NUMS" of "TOPIC", "GROUP_GET_NUMS" of "TOPIC@GROUP", "BROKER_PUT_NUMS" of
        the cluster. BrokerError if it has counted nothing there.
        """
        return self._call(self._service.rates, broker, name, key)

    def replication(self, broker: str) -> Replication:
        """Return a master's slaves, and how far they are; brokers tell it from RocketMQ 5.0 on."""
        return self._call(self._service.replication, broker)

    def remove_expired_log(self, broker: str) -> None:
        """Have a broker remove the log's files that have expired, and not wait for its hour."""
        self._call(self._service.remove_expired_log, broker)

    def remove_expired_queues(self, broker: str) -> None:
        """Have a broker remove the files of queues whose messages are no more in the log."""
        self._call(self._service.remove_expired_queues, broker)

    def remove_unused_queues(self, broker: str) -> None:
        """Have a broker remove the queues of topics that it does not have; ours have none."""
        self._call(self._service.remove_unused_queues, broker)

    def topics(self, broker: str | None = None) -> list[str]:
        """Return the names of all topics, or of those that have queues at ``broker``.

        The system's and the groups' are included. BrokerError if there is no such broker.
        """
        return self._call(self._service.topics, broker)

    def topic(self, topic: str) -> list[TopicSettings]:
        """Return a topic's settings on each of its brokers; RouteError if it does not exist."""
        return self._call(self._service.topic, topic)

    def put_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        permission: int = READ_WRITE,
        is_ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change it, on all masters or on ``brokers`` by name.

        Producers use ``write_queues`` of its queues, by default all. To make a topic smaller, lower
        these first, and ``queues`` when consumers have read the others: they are not read further.
        ``permission`` adds up 4 (read) and 2 (write). ``attributes`` are RocketMQ 5's, such as
        ``{"message.type": "FIFO"}``.
        """
        self._call(
            self._service.put_topic,
            topic,
            queues=queues,
            write_queues=write_queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=attributes,
            brokers=None if brokers is None else tuple(brokers),
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all brokers, and at the name servers.

        RouteError if it does not exist. The log gives the disk back when it is cleaned.
        """
        self._call(self._service.delete_topic, topic)

    def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return the ends of a topic's queues."""
        return self._call(self._service.topic_stats, topic)

    def queue_units(self, queue: MessageQueue, offset: int, count: int = 32) -> list[QueueUnit]:
        """Return where messages of a queue are in the log, from ``offset`` or the queue's begin on.

        At most ``count``, and no more than 1000 at once.
        """
        return self._call(self._service.queue_units, queue, offset, count)

    def groups_of(self, topic: str) -> list[str]:
        """Return the consumer groups that have consumed a topic or subscribe to it."""
        return self._call(self._service.groups_of, topic)

    def put_group(
        self,
        group: str,
        settings: Mapping[str, Any] | None = None,
        *,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a consumer group, or change it; ``settings`` by RocketMQ's names.

        Such as ``{"retryMaxTimes": 3, "consumeEnable": False}``; what is not named has its default.
        ``consumeFromMinEnable`` and ``consumeTimeoutMinute`` change nothing, as in RocketMQ.
        """
        self._call(
            self._service.put_group,
            group,
            settings,
            brokers=None if brokers is None else tuple(brokers),
        )

    def delete_group(self, group: str, *, with_offsets: bool = True) -> None:
        """Delete a consumer group on all brokers, and what it has committed."""
        self._call(self._service.delete_group, group, with_offsets=with_offsets)

    def groups(self) -> dict[str, dict[str, Any]]:
        """Return the consumer groups and their settings, under RocketMQ's names."""
        return self._call(self._service.groups)

    def consumers(self, group: str) -> list[ClientInfo]:
        """Return the members of a consumer group that are connected, each once."""
        return self._call(self._service.consumers, group)

    def producers(self, group: str) -> list[ClientInfo]:
        """Return the members of a producer group that are connected, each once."""
        return self._call(self._service.producers, group)

    def producer_groups(self) -> dict[str, list[ClientInfo]]:
        """Return the members of all producer groups that are connected, each once."""
        return self._call(self._service.producer_groups)

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return how far a group has consumed each queue, of all its topics or one."""
        return self._call(self._service.progress, group, topic)

    def progress_of_all(self, *, only_ordered: bool = False) -> dict[str, list[QueueProgress]]:
        """Return how far each group has consumed the queues in which it has an offset.

        Of a group with members only the topics that they subscribe to. With ``only_ordered`` only
        topics that were created with ``is_ordered``.
        """
        return self._call(self._service.progress_of_all, only_ordered=only_ordered)

    def queue_times(self, group: str, topic: str) -> list[QueueTimes]:
        """Return from when to when messages are in a topic's queues, and where a group is."""
        return self._call(self._service.queue_times, group, topic)

    def lowest_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the lowest offset that any group has committed, by queue.

        What is below it no group will read again. A queue without an offset is left out; Apache's
        brokers do not count offsets below the begin of the queue.
        """
        return self._call(self._service.lowest_offsets, topic)

    def reset_offsets(
        self, group: str, topic: str, to: ResetTo, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Have a group go on elsewhere in a topic, running consumers too; return the offsets.

        ``to`` is a time (datetime, or seconds since the epoch), "first" or "last". Without
        ``force`` offsets only go back. Apache's 4.x brokers refuse it for a group without members.
        """
        return self._call(self._service.reset_offsets, group, topic, to, force=force)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Have ``target`` go on in ``topic`` where ``source`` is; neither should be running."""
        self._call(self._service.clone_offsets, source, target, topic)

    def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """Return what a running consumer tells of itself: properties, subscriptions, queues.

        Under the names of RocketMQ's ConsumerRunningInfo. The broker asks the client.
        """
        return self._call(self._service.running_info, group, client_id)

    def consume_directly(self, group: str, client_id: str, offset_id: str) -> dict[str, Any]:
        """Have a running push consumer handle one message now, and return how it went.

        ``offset_id`` is that of a SendResult or StoredMessage. The answer has the names of
        RocketMQ's ConsumeMessageDirectlyResult: ``consumeResult`` is CR_SUCCESS when the message
        was handled. Offsets stay.
        """
        return self._call(self._service.consume_directly, group, client_id, offset_id)

    def member_offsets(self, topic: str, group: str) -> dict[str, dict[MessageQueue, int]]:
        """Return, by client id, how far the running members of a group are, committed or not."""
        return self._call(self._service.member_offsets, topic, group)

    def close_topic(self, topic: str, group: str, *, is_closed: bool = True) -> None:
        """Close one topic to a group: its pulls and POPs are refused. Or open it again.

        Apache's brokers (5.x) refuse only pulls that rely on the subscription of a heartbeat, as
        Java's push consumers' do; and opening one topic opens all that were closed to the group.
        """
        self._call(self._service.close_topic, topic, group, is_closed=is_closed)

    def set_request_mode(
        self, topic: str, group: str, *, by_pop: bool, shared_queues: int = 0
    ) -> None:
        """Have members whose queues the broker chooses get a topic by POP, or by pulls.

        With POP several members may have one queue: each gets those of ``shared_queues`` others as
        well, or all of them with 0. Brokers know this from RocketMQ 5.0 on.
        """
        self._call(
            self._service.set_request_mode, topic, group, by_pop=by_pop, shared_queues=shared_queues
        )

    def resend_dead_letters(
        self,
        group: str,
        *,
        to_all_groups: bool = False,
        count_max: int | None = None,
        per_second: float = 100.0,
    ) -> int:
        """Send a group's dead letters again, oldest first; return how many were sent.

        They come to the group alone (its retry topic), as if they were new; with ``to_all_groups``
        to their own topic, where other groups get them a second time. The group's offset in its
        %DLQ% topic says which were sent: the next call goes on there, also after an error. A crash
        may send up to 32 twice. RouteError if the group has no dead letters that can be read; on
        RocketMQ 4 an operator has to give the topic %DLQ%GROUP permission 6 first.
        """
        return self._call(
            self._service.resend_dead_letters,
            group,
            to_all_groups=to_all_groups,
            count_max=count_max,
            per_second=per_second,
        )

    def check_transaction(self, offset_id: str) -> None:
        """Have producers asked again, from the first time on, about a transaction without end.

        ``offset_id`` is that of the half message, or of where it ended up after the last time.
        BrokerError if it is none, or was committed.
        """
        self._call(self._service.check_transaction, offset_id)

    def create_user(
        self,
        name: str,
        password: str,
        *,
        is_admin: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a user on all masters, or on ``brokers`` by name; each keeps users of its own.

        Clients sign with ``Credentials(name, password)``. An administrator may everything, another
        user what its rules allow. BrokerError if there is the user already, or if the broker has no
        access control. The password goes over the wire as it is: use ``tls`` where others listen.
        """
        self._call(
            self._service.create_user,
            name,
            password,
            is_admin=is_admin,
            brokers=None if brokers is None else tuple(brokers),
        )

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_admin: bool | None = None,
        is_enabled: bool | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Change what is named of a user; ``is_enabled=False`` locks it out, and keeps its rules.

        BrokerError if there is no such user.
        """
        self._call(
            self._service.update_user,
            name,
            password=password,
            is_admin=is_admin,
            is_enabled=is_enabled,
            brokers=None if brokers is None else tuple(brokers),
        )

    def delete_user(self, name: str, *, brokers: Iterable[str] | None = None) -> None:
        """Delete a user and its rules; nothing happens where there is none."""
        self._call(
            self._service.delete_user, name, brokers=None if brokers is None else tuple(brokers)
        )

    def user(self, name: str) -> list[User]:
        """Return a user as each master has it, with its password; [] if none does."""
        return self._call(self._service.user, name)

    def users(self, name_part: str = "") -> list[User]:
        """Return the users of all masters whose names have ``name_part``."""
        return self._call(self._service.users, name_part)

    def put_rules(
        self, user: str, rules: Iterable[Rule], *, brokers: Iterable[str] | None = None
    ) -> None:
        """Add rules to a user's, in place of those for the same resources.

        BrokerError if there is no such user or a rule is none that the broker knows.
        """
        self._call(
            self._service.put_rules,
            user,
            tuple(rules),
            brokers=None if brokers is None else tuple(brokers),
        )

    def delete_rules(
        self,
        user: str,
        resource: str | None = None,
        *,
        is_default: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Delete a user's rule for ``resource``, or all of its rules; BrokerError without any."""
        self._call(
            self._service.delete_rules,
            user,
            resource,
            is_default=is_default,
            brokers=None if brokers is None else tuple(brokers),
        )

    def rules_of(self, user: str) -> list[UserRules]:
        """Return a user's rules as each master has them; BrokerError where there is no such user.

        A master where the user has no rules is left out.
        """
        return self._call(self._service.rules_of, user)

    def rules(self, user_part: str = "", resource_part: str = "") -> list[UserRules]:
        """Return the rules of all users at all masters.

        With ``user_part`` or ``resource_part`` only those whose "User:NAME", or whose resource, has
        that part.
        """
        return self._call(self._service.rules, user_part, resource_part)

    def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return what clients have traced of a message, ours and Java's, oldest first.

        ``message_id`` is its unique id; a key of the message finds all that have it. Empty if
        nobody has traced it (yet: records come a second or a few later). RouteError if no client
        has traced anything.
        """
        return self._call(self._service.trace, message_id, topic=topic)

    def put_value(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers."""
        self._call(self._service.put_value, namespace, key, value)

    def value(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        return self._call(self._service.value, namespace, key)

    def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at all name servers."""
        self._call(self._service.delete_value, namespace, key)
