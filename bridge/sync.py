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
    """Sends messages to the brokers that are registered with the name servers.

    ``with SyncProducer(namesrv="127.0.0.1:9876", group="P") as producer:``; see ``NameServers`` for
    the forms of ``namesrv``. One producer serves any number of topics and threads. All requests are
    signed with ``credentials``; servers with access control refuse unsigned ones.

    A message that a broker refuses by flow control (SYSTEM_BUSY, FLOW_CONTROL) is sent again a
    little later, like any other failed message: ``retries`` times after the first attempt. Without
    ``retry_when_busy`` the first refusal raises BrokerError, so that the caller can slow down. If
    no broker accepts a connection, attempts continue until the timeout: nothing has been sent. With
    ``retry_when_not_stored``, after an answer other than OK (not on disk, or not at a slave in
    time) the message is also sent to another broker; it is then stored twice. With
    ``avoid_slow_brokers`` a broker that was slow or did not answer is avoided for a while: for 3 s
    after an answer that took 0.55 s, a minute after one of 1 s or none, and so on. With ``trace``,
    a record of each message that a broker has answered is sent to ``trace_topic`` a little later,
    by a separate producer; ``SyncAdmin.trace`` and RocketMQ's tools read these records.
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
        """Return the writable queues; for a topic that does not exist yet, those it will have."""
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

        Without ``queue`` or ``hash_key`` queues take turns, and a retry goes to another broker.
        With ``hash_key`` equal keys go to the same queue, as long as the number of queues does not
        change.
        ``queue`` is one of ``queues(topic)``, or a function that chooses one of them.
        Consumers and subscribers receive the message after ``delay`` (seconds or a timedelta) from
        our brokers and RocketMQ's since 5.0; older ones deliver it at once. Raises
        MessageRefusedError before anything is sent, BrokerError if the broker refuses the message,
        SendFailedError if no attempt was acknowledged within ``timeout_s``. After a SendFailedError
        the message may nevertheless be stored, under the same unique id.
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
        """Write ``message`` to the connection and return, without an acknowledgement.

        For data that may be lost: a broker that refuses the message or ends does not answer. Errors
        are those of ``send`` before anything is sent, and RemotingError.
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
        """Send any number of messages in batches of allowed size; return the batches' results.

        Messages of one topic keep their order, also in the log if ``queue`` or ``hash_key``
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
        """Return once a broker has stored all of ``messages`` in one queue, in order.

        They must have the same topic and at most 4 MiB together. None may be delayed or go to a
        retry topic. A batch is stored completely or not at all. Errors are those of ``send``.
        """
        return self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """Recall a delayed message by its ``SendResult.recall_handle``; return its unique id.

        After this returns, the message will not be delivered. BrokerError if its time has come, or
        if the broker does not support recall (RocketMQ's do since 5.3.1, if configured).
        MessageRefusedError if the handle is malformed, RemotingError if no answer came: the message
        may nevertheless be recalled.
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
        """Send ``message`` and return the reply of a consumer that received it (``reply_to``).

        ReplyTimeoutError if no reply comes within ``timeout_s``: a consumer may nevertheless have
        handled the request. Other errors are those of ``send``, and RemotingError.
        """
        return self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Reply to a consumed message whose sender waits in ``request``; return once delivered.

        BrokerError or SendFailedError if the sender is not (or no longer) connected,
        MessageRefusedError if it does not wait for a reply.
        """
        self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class SyncTransactionProducer(SyncProducer):
    """A producer whose messages may be bound to a local transaction.

    ``check`` is called for half messages that were not ended, including those of other producers of
    the group and of an earlier process: it looks the transaction up where that is stored. It may be
    called twice for one message. An exception counts as UNKNOWN. Brokers know this producer once it
    has sent to them; it registers at once with the brokers of ``topics``. Otherwise it is a
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
        """Store a half message, call ``execute(message)``, then commit or roll back.

        Exceptions of ``execute`` are raised to the caller, and the broker will ask, since it may
        not be known whether the transaction took place. If the broker has stored the half message
        less safely than it should, ``execute`` is not called and the message is rolled back. If the
        end does not reach the broker, this is logged and the broker will ask. Errors of the half
        message are those of ``send``; BrokerError if the end is refused.

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
        """Return once a broker has stored ``message``, which is delivered after ``commit``.

        Arguments and errors are those of ``send``; a delay is not possible.
        """
        return self._call(
            self._service.send_half, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def commit(self, half: HalfMessage) -> None:
        """Return once the broker has stored the message for its consumers.

        Raises BrokerError if it refuses, for example because the transaction has ended, and
        RemotingError if no answer came: the broker will ask. Our broker accepts a second commit
        like the first; RocketMQ's stores the message twice.
        """
        self._call(self._service.commit, half)

    def rollback(self, half: HalfMessage) -> None:
        """Return once the broker has dropped the message; errors are those of ``commit``."""
        self._call(self._service.rollback, half)

    def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """End a half message like its local transaction, as ``send_in_transaction`` does.

        BrokerError if the broker refuses; if the end does not reach it, this is logged and the
        broker will ask.
        """
        return self._call(self._service.finish, half, state)


class SyncPullConsumer(PullConsumerBase):
    """Reads queues from the offsets that ``group`` has committed, or from others.

    ``with SyncPullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue without a
    committed offset starts at its oldest message, or with ``start="last"`` at the next new one.
    ``for message in consumer`` yields one message after the other, without end; ``commit`` inside
    the loop commits up to the current message.

    ``assign`` reads the given queues. ``subscribe`` shares the queues of topics with the group's
    other members by the rule ``allocate`` (bridge.groups.allocation), which must be the same for
    all members; a queue that moves to another member continues there at its committed offset.

    With ``trace``, a record of each returned message is sent to ``trace_topic``, which
    ``SyncAdmin.trace`` and RocketMQ's tools read. It does not say how the message was handled.
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
        """Return the names of users' topics, without those of the system or of groups."""
        return self._call(self._service.topics)

    def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        A topic is registered with the name servers only a moment after its first message;
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
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` select.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker filters. Queues that were assigned before with the same filter keep their position;
        others start at the committed offset.
        """
        self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Read this member's share of the topic's queues, which changes as members come and go.

        ``tags`` and ``sql`` are as in ``assign``, and must be the same for all members. May be
        called for several topics, and again to change the filter. ``assigned`` lists this member's
        current queues. When a queue moves to another member, uncommitted messages are read there
        again.
        """
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until ``resume``; the consumer keeps the queues."""
        self._call_sync(self._service.pause, tuple(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        self._call_sync(self._service.resume, tuple(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue ``queue`` at ``queue_offset``; messages read ahead are dropped."""
        self._call_sync(self._service.seek, queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the assigned (or given) queues at their oldest message."""
        self._call_sync(self._service.seek_to_begin, None if queues is None else tuple(queues))

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue with messages stored after this call reaches the broker."""
        self._call_sync(self._service.seek_to_end, None if queues is None else tuple(queues))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last returned message; None until the start is known."""
        return self._call_sync(self._service.position, queue)

    def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any, [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; each keeps its order. Brokers
        that cannot be reached are tried again in the background. An error that stops a queue
        (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` restarts the
        queue.
        """
        return self._call(self._service.poll, timeout_s=timeout_s, count_max=count_max)

    def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit the positions of all assigned queues, or ``offsets``, to the brokers.

        For a queue that came from another member in the last half minute, a position below that
        member's late commit is not stored. Returns when every broker has confirmed. A broker that
        is unreachable or busy is asked again for ``timeout_s`` (by default ``request_timeout_s``; 0
        asks each broker once) without delaying the others. After that CommitFailedError names the
        queues that are not committed, and ``commit`` may be called again.
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
        """Return one answer of a broker unchanged, independent of assignment and position.

        The broker holds the request up to ``hold_s`` if there is no message yet. It filters by tag
        hash, so the answer may contain records of other tags with the same hash. It may return less
        than asked for; brokers before 5.0 ignore ``bytes_max``.
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

        A key is a word of KEYS or the producer's unique id. All brokers of the topic are asked, and
        each returns at most 64. Raises RouteError, BrokerError or RemotingError.
        """
        return self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    def view(self, message_id: str) -> StoredMessage:
        """Return the message with an offset id, from the broker that the id names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks the same and is
        for ``query_by_key``). BrokerError if there is no such message.
        """
        return self._call(self._service.view, message_id)


class SyncPushConsumer(Blocking[PushConsumer]):
    """Calls a function with the messages of topics, shared with the group's other members.

    ``with SyncPushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("telemetry")`` and ``consumer.run(handle)``. Each message is handled at
    least once. If ``handle`` raises an exception, the message is delivered again with growing
    delays, and becomes a dead letter (topic %DLQ%GROUP) after ``retries_max`` retries, by default
    the group's setting ``retryMaxTimes`` (16).

    ``handle`` is called in threads; up to ``workers`` calls run at once. With ``is_orderly`` the
    messages of a queue are handled one after the other: a failed one is tried again every
    ``suspend_s`` before the following ones, for ever unless ``retries_max`` is given. With
    ``broadcast`` each member receives all messages, failed ones are not retried, and offsets are
    stored locally.

    ``start`` is where a group without offsets begins: at the "first" message, after the "last", or
    at a time. ``offsets`` stores offsets elsewhere than at the brokers (bridge.push.offsets).
    ``allocate`` must be the same rule for all members. With ``trace``, records of each call of
    ``handle`` are sent to ``trace_topic``, which ``SyncAdmin.trace`` and RocketMQ's tools read.
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
        """Also handle the messages of ``topic`` that ``tags`` or ``sql`` select.

        As in SyncPullConsumer.subscribe. All members of a group must have the same subscriptions.
        May be called before and during ``run``; with a new filter the topic's queues are read
        again.
        """
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Stop handling messages of ``topic``."""
        self._call_sync(self._service.unsubscribe, topic)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """This member's current queues, including those of the retry topic."""
        return self._call_sync(lambda: self._service.assigned)

    def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, ``close`` or Ctrl-C.

        It then waits up to ``stop_s`` for messages in work, saves its offsets, and leaves the
        group. FilterError if a broker refuses a filter.
        """
        self._call(self._service.run, handle)

    def run_batches(self, handle: HandleSome) -> None:
        """Do as ``run``, with a list of up to ``batch_max`` messages of one queue.

        If ``handle`` raises an exception, all of them are delivered again.
        """
        self._call(self._service.run_batches, handle)

    def stop(self) -> None:
        """Have ``run`` finish its messages and return. Another thread or ``handle`` calls it."""
        self._call_sync(self._service.stop)

    def pause(self) -> None:
        """Stop handling further messages until ``resume``; this member keeps its queues.

        Another thread or ``handle`` calls it.
        """
        self._call_sync(self._service.pause)

    def resume(self) -> None:
        """Continue handling messages. Another thread or ``handle`` calls it."""
        self._call_sync(self._service.resume)


class SyncSimpleConsumer(Blocking[SimpleConsumer]):
    """Receives messages of topics as a member of ``group``, and acknowledges each separately.

    ``with SyncSimpleConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``consumer.subscribe("orders")``. A received message is invisible to the other members for
    ``invisible_s``. If it is not acknowledged by then, it is delivered again, to any member. A new
    group begins at the oldest message. With ``in_order`` a queue's messages come in their order,
    and the next ones only when all before them are acknowledged.
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
        """Receive from now on the messages of ``topic`` that ``tags`` or ``sql`` select.

        RouteError if there is no such topic. All members of a group must use the same filter.
        """
        self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic``."""
        self._call_sync(self._service.unsubscribe, topic)

    def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to ``max_messages`` (32 at most) as soon as there are any; [] after ``wait_s``.

        Brokers that cannot be reached are skipped; if none can be, the last error is raised.
        """
        return self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message.

        RemotingError or RouteError if the broker cannot be reached: try again, or the message is
        delivered again.
        """
        self._call(self._service.ack, message)

    def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, with one request to each broker.

        On an error some of them may be acknowledged.
        """
        self._call(self._service.ack_many, tuple(messages))

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """Let a message be delivered again ``invisible_s`` from now; 0: at once.

        Return it with its new receipt, which replaces the old one. BrokerError (NO_MESSAGE) if its
        time had already ended.
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
        """Return the live brokers, sorted by cluster, name and id."""
        return self._call(self._service.brokers)

    def broker_status(self, broker: str, *, broker_id: int = MASTER_ID) -> dict[str, str]:
        """Return the runtime statistics of a master or slave, under RocketMQ's names."""
        return self._call(self._service.broker_status, broker, broker_id=broker_id)

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, under RocketMQ's names."""
        return self._call(self._service.broker_config, broker)

    def set_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, under RocketMQ's names."""
        self._call(self._service.set_broker_config, broker, settings)

    def stop_writes(self, broker: str) -> int:
        """Make producers stop writing to a broker; return the number of topics affected.

        The change is made at each name server. Consumers continue.
        """
        return self._call(self._service.stop_writes, broker)

    def allow_writes(self, broker: str) -> int:
        """Undo ``stop_writes``."""
        return self._call(self._service.allow_writes, broker)

    def rates(self, broker: str, name: str, key: str) -> Rates:
        """Return a broker's counter with one of RocketMQ's statistics names and keys.

        For example "TOPIC_PUT_NUMS" with key "TOPIC", "GROUP_GET_NUMS" with "TOPIC@GROUP", or
        "BROKER_PUT_NUMS" with the cluster's name. BrokerError if nothing was counted there.
        """
        return self._call(self._service.rates, broker, name, key)

    def replication(self, broker: str, *, broker_id: int = MASTER_ID) -> Replication:
        """Return a master's slaves and their progress, or a slave's own.

        Needs RocketMQ 5.0 or our broker.
        """
        return self._call(self._service.replication, broker, broker_id=broker_id)

    def promote(
        self, broker: str, broker_id: int, *, is_forced: bool = False, wait_s: float = 30.0
    ) -> str:
        """Make a slave the master of its name; return its address when clients find it so.

        BrokerError if it refuses: it is the master, or its master still sends it the log; the
        latter does not matter with ``is_forced``. Needs our broker. RemotingError if it does not
        serve within ``wait_s``: it will become the master all the same.
        """
        return self._call(
            self._service.promote, broker, broker_id, is_forced=is_forced, wait_s=wait_s
        )

    def remove_expired_log(self, broker: str) -> None:
        """Make a broker remove expired files of the log now, whatever its configured hour."""
        self._call(self._service.remove_expired_log, broker)

    def remove_expired_queues(self, broker: str) -> None:
        """Make a broker remove files of queues whose messages are no longer in the log."""
        self._call(self._service.remove_expired_queues, broker)

    def remove_unused_queues(self, broker: str) -> None:
        """Make a broker remove the queues of deleted topics; our brokers keep none."""
        self._call(self._service.remove_unused_queues, broker)

    def topics(self, broker: str | None = None) -> list[str]:
        """Return the names of all topics, or of those that have queues at ``broker``.

        Topics of the system and of groups are included. BrokerError if there is no such broker.
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
        """Create or change a topic on all masters, or on the named ``brokers``.

        Producers use ``write_queues`` of its queues, by default all. To reduce the number of
        queues, lower ``write_queues`` first, and ``queues`` once consumers have read the others,
        which are not read after that. ``permission`` is the sum of 4 (read) and 2 (write).
        ``attributes`` are RocketMQ 5's, such as
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

        RouteError if it does not exist. Disk space is freed when the log is cleaned up.
        """
        self._call(self._service.delete_topic, topic)

    def topic_stats(self, topic: str) -> list[QueueStats]:
        """Return the begin and end offsets of a topic's queues."""
        return self._call(self._service.topic_stats, topic)

    def queue_units(self, queue: MessageQueue, offset: int, count: int = 32) -> list[QueueUnit]:
        """Return where a queue's messages are in the log, from ``offset`` or the queue's begin.

        At most ``count``, and at most 1000.
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
        """Create or change a consumer group; ``settings`` have RocketMQ's names.

        For example ``{"retryMaxTimes": 3, "consumeEnable": False}``. Other settings get their
        defaults. ``consumeFromMinEnable`` and ``consumeTimeoutMinute`` have no effect, as in
        RocketMQ.
        """
        self._call(
            self._service.put_group,
            group,
            settings,
            brokers=None if brokers is None else tuple(brokers),
        )

    def delete_group(self, group: str, *, with_offsets: bool = True) -> None:
        """Delete a consumer group on all brokers, with its committed offsets by default."""
        self._call(self._service.delete_group, group, with_offsets=with_offsets)

    def groups(self) -> dict[str, dict[str, Any]]:
        """Return the consumer groups and their settings, under RocketMQ's names."""
        return self._call(self._service.groups)

    def consumers(self, group: str) -> list[ClientInfo]:
        """Return the connected members of a consumer group, each once."""
        return self._call(self._service.consumers, group)

    def producers(self, group: str) -> list[ClientInfo]:
        """Return the connected members of a producer group, each once."""
        return self._call(self._service.producers, group)

    def producer_groups(self) -> dict[str, list[ClientInfo]]:
        """Return the connected members of all producer groups, each once."""
        return self._call(self._service.producer_groups)

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return a group's progress in each queue, of all its topics or one."""
        return self._call(self._service.progress, group, topic)

    def progress_of_all(self, *, only_ordered: bool = False) -> dict[str, list[QueueProgress]]:
        """Return each group's progress in the queues in which it has an offset.

        For a group with members, only topics that they subscribe to are included. With
        ``only_ordered``, only topics that were created with ``is_ordered``.
        """
        return self._call(self._service.progress_of_all, only_ordered=only_ordered)

    def queue_times(self, group: str, topic: str) -> list[QueueTimes]:
        """Return the times of the messages in a topic's queues, and a group's place among them."""
        return self._call(self._service.queue_times, group, topic)

    def lowest_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the lowest offset that any group has committed, by queue.

        No group will read the messages below it again. A queue without an offset is omitted;
        Apache's brokers ignore offsets below the begin of the queue.
        """
        return self._call(self._service.lowest_offsets, topic)

    def reset_offsets(
        self, group: str, topic: str, to: ResetTo, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets in a topic, also for running consumers; return the new offsets.

        ``to`` is a time (datetime, or seconds since the epoch), "first" or "last". Without
        ``force`` offsets only go back. Apache's 4.x brokers refuse this for a group without
        members.
        """
        return self._call(self._service.reset_offsets, group, topic, to, force=force)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Copy offsets in ``topic`` from group ``source`` to ``target``; stop both groups first."""
        self._call(self._service.clone_offsets, source, target, topic)

    def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """Return what a running consumer reports: properties, subscriptions, queues.

        The names are those of RocketMQ's ConsumerRunningInfo. The broker asks the client.
        """
        return self._call(self._service.running_info, group, client_id)

    def consume_directly(self, group: str, client_id: str, offset_id: str) -> dict[str, Any]:
        """Make a running push consumer handle one message now; return the outcome.

        ``offset_id`` is that of a SendResult or StoredMessage. The answer has the names of
        RocketMQ's ConsumeMessageDirectlyResult: ``consumeResult`` is CR_SUCCESS if the message was
        handled. Offsets do not change.
        """
        return self._call(self._service.consume_directly, group, client_id, offset_id)

    def member_offsets(self, topic: str, group: str) -> dict[str, dict[MessageQueue, int]]:
        """Return the positions of a group's running members by client id, committed or not."""
        return self._call(self._service.member_offsets, topic, group)

    def close_topic(self, topic: str, group: str, *, is_closed: bool = True) -> None:
        """Close a topic to a group, so that its pulls and POPs are refused; or reopen it.

        Apache's brokers (5.x) refuse only pulls that rely on the subscription of a heartbeat, as
        those of Java's push consumers do; and reopening one topic reopens all that were closed to
        the group.
        """
        self._call(self._service.close_topic, topic, group, is_closed=is_closed)

    def set_request_mode(
        self, topic: str, group: str, *, by_pop: bool, shared_queues: int = 0
    ) -> None:
        """Choose POP or pulls for a topic, for members whose queues the broker assigns.

        With POP several members may share a queue: each also gets the queues of ``shared_queues``
        other members, or of all with 0. Needs RocketMQ 5.0 or our broker.
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
        """Resend a group's dead letters, oldest first; return how many were sent.

        Only the group receives them (through its retry topic), as if they were new; with
        ``to_all_groups`` they go to their original topic, where other groups receive them a second
        time. The group's offset in its %DLQ% topic records which were sent: the next call continues
        there, also after an error. After a crash up to 32 may be sent twice. RouteError if the
        group has no readable dead letters; on RocketMQ 4 an operator must first give the topic
        %DLQ%GROUP permission 6.
        """
        return self._call(
            self._service.resend_dead_letters,
            group,
            to_all_groups=to_all_groups,
            count_max=count_max,
            per_second=per_second,
        )

    def check_transaction(self, offset_id: str) -> None:
        """Make the broker check an unfinished transaction again, starting from the first attempt.

        ``offset_id`` is that of the half message, or of its copy after the last check.
        BrokerError if there is no such half message, or it was committed.
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
        """Create a user on all masters, or on the named ``brokers``; each broker has its own users.

        Clients sign with ``Credentials(name, password)``. An administrator may do everything, other
        users what their rules allow. BrokerError if the user exists already, or if the broker has
        no access control. The password is sent in plain text: use ``tls`` on untrusted networks.
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
        """Change the given attributes of a user; ``is_enabled=False`` locks it out, keeping rules.

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
        """Delete a user and its rules; brokers without the user ignore this."""
        self._call(
            self._service.delete_user, name, brokers=None if brokers is None else tuple(brokers)
        )

    def user(self, name: str) -> list[User]:
        """Return a user, with its password, as each master has it; [] if no master does."""
        return self._call(self._service.user, name)

    def users(self, name_part: str = "") -> list[User]:
        """Return the users of all masters whose names contain ``name_part``."""
        return self._call(self._service.users, name_part)

    def put_rules(
        self, user: str, rules: Iterable[Rule], *, brokers: Iterable[str] | None = None
    ) -> None:
        """Add rules to a user, replacing those for the same resources.

        BrokerError if there is no such user, or the broker does not accept a rule.
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
        """Delete a user's rule for ``resource``, or all its rules; BrokerError if it has none."""
        self._call(
            self._service.delete_rules,
            user,
            resource,
            is_default=is_default,
            brokers=None if brokers is None else tuple(brokers),
        )

    def rules_of(self, user: str) -> list[UserRules]:
        """Return a user's rules as each master has them; BrokerError if there is no such user.

        Masters where the user has no rules are omitted.
        """
        return self._call(self._service.rules_of, user)

    def rules(self, user_part: str = "", resource_part: str = "") -> list[UserRules]:
        """Return the rules of all users at all masters.

        With ``user_part`` or ``resource_part``, only those whose "User:NAME" or whose resource
        contains it.
        """
        return self._call(self._service.rules, user_part, resource_part)

    def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return the trace records of a message from our clients and Java's, oldest first.

        ``message_id`` is its unique id; a key finds all messages that have it. Empty if no client
        has traced the message (yet: records arrive a few seconds later). RouteError if no client
        has ever traced anything.
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
