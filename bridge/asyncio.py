"""The clients for programs that run asyncio.

Written by ``python -m tests.twins`` from the classes for trio: do not edit.
Owns: nothing; each method calls the native one of its name. Must not touch: threads and loops
(motelog.bridge.asyncio_base).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from motelog.bridge.asyncio_base import (
    Check,
    Execute,
    HandleOne,
    HandleSome,
    OnAsyncio,
    PullConsumerBase,
    PushConsumerBase,
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
from motelog.bridge.push.consumer import CONSUME_TIMEOUT_S, STOP_S, SUSPEND_S, PushConsumer
from motelog.bridge.push.offsets import OffsetStore
from motelog.bridge.push.process_queue import Limits
from motelog.bridge.push.workers import BATCH_MAX, WORKERS
from motelog.bridge.query import QUERY_COUNT, TIME_MAX
from motelog.bridge.reader import HOLD_S
from motelog.bridge.selector import TAGS_ALL
from motelog.bridge.simple import INVISIBLE_S, WAIT_S, SimpleConsumer
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.bridge.transactions import (
    CHECK_TASKS,
    HalfMessage,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    as_state,
)
from motelog.bridge.unseen import LoopedPullConsumer
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls


class AsyncioProducer(OnAsyncio[Producer]):
    """Sends messages to the brokers that are registered with the name servers.

    ``async with AsyncioProducer(namesrv="127.0.0.1:9876", group="P") as producer:``; see
    ``NameServers`` for the forms of ``namesrv``. One producer serves any number of topics and
    tasks. All requests are signed with ``credentials``; servers with access control refuse unsigned
    ones.

    A message that a broker refuses by flow control (SYSTEM_BUSY, FLOW_CONTROL) is sent again a
    little later, like any other failed message: ``retries`` times after the first attempt. Without
    ``retry_when_busy`` the first refusal raises BrokerError, so that the caller can slow down. If
    no broker accepts a connection, attempts continue until the timeout: nothing has been sent.
    With ``retry_when_not_stored``, after an answer other than OK (not on disk, or not at a slave in
    time) the message is also sent to another broker; it is then stored twice.
    With ``avoid_slow_brokers`` a broker that was slow or did not answer is avoided for a while: for
    3 s after an answer that took 0.55 s, a minute after one of 1 s or none, and so on.
    With ``trace``, a record of each message that a broker has answered is sent to ``trace_topic`` a
    little later, by a separate producer; ``Admin.trace`` and RocketMQ's tools read these records.
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

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues; for a topic that does not exist yet, those it will have."""
        return await self._call(self._service.queues, topic)

    async def send(
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

        A message whose send was cancelled may be stored or not.
        """
        return await self._call(
            self._service.send,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
            delay=delay,
        )

    async def send_oneway(
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
        await self._call(
            self._service.send_oneway, message, queue=queue, hash_key=hash_key, delay=delay
        )

    async def send_batches(
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
        return await self._call(
            self._service.send_batches,
            messages,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
        )

    async def send_batch(
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
        return await self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """Recall a delayed message by its ``SendResult.recall_handle``; return its unique id.

        After this returns, the message will not be delivered. BrokerError if its time has come, or
        if the broker does not support recall (RocketMQ's do since 5.3.1, if configured).
        MessageRefusedError if the handle is malformed, RemotingError if no answer came: the message
        may nevertheless be recalled.
        """
        return await self._call(self._service.recall, handle, timeout_s=timeout_s)

    async def request(
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
        return await self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Reply to a consumed message whose sender waits in ``request``; return once delivered.

        BrokerError or SendFailedError if the sender is not (or no longer) connected,
        MessageRefusedError if it does not wait for a reply.
        """
        await self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class AsyncioTransactionProducer(AsyncioProducer):
    """A producer whose messages may be bound to a local transaction.

    ``check`` is called for half messages that were not ended, including those of other producers of
    the group and of an earlier process: it looks the transaction up where that is stored. It may be
    called twice for one message. An exception counts as UNKNOWN. Brokers know this producer once it
    has sent to them; it registers at once with the brokers of ``topics``. Otherwise it is an
    AsyncioProducer.

    ``check`` is a coroutine function and runs on the loop, ``check_tasks`` calls at a time.
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
        OnAsyncio.__init__(
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

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store a half message, await ``execute(message)``, then commit or roll back.

        Exceptions of ``execute`` are raised to the caller, and the broker will ask, since it may
        not be known whether the transaction took place. If the broker has stored the half message
        less safely than it should, ``execute`` is not called and the message is rolled back. If the
        end does not reach the broker, this is logged and the broker will ask. Errors of the half
        message are those of ``send``; BrokerError if the end is refused.

        ``execute`` is awaited on the loop.
        """
        half = await self.send_half(message, queue=queue, hash_key=hash_key, timeout_s=timeout_s)
        state = TransactionState.ROLLBACK
        if half.is_safe:
            state = as_state(await execute(message))
        return await self.finish(half, state)

    async def send_half(
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
        return await self._call(
            self._service.send_half, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def commit(self, half: HalfMessage) -> None:
        """Return once the broker has stored the message for its consumers.

        Raises BrokerError if it refuses, for example because the transaction has ended, and
        RemotingError if no answer came: the broker will ask. Our broker accepts a second commit
        like the first; RocketMQ's stores the message twice.
        """
        await self._call(self._service.commit, half)

    async def rollback(self, half: HalfMessage) -> None:
        """Return once the broker has dropped the message; errors are those of ``commit``."""
        await self._call(self._service.rollback, half)

    async def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """End a half message like its local transaction, as ``send_in_transaction`` does.

        BrokerError if the broker refuses; if the end does not reach it, this is logged and the
        broker will ask.
        """
        return await self._call(self._service.finish, half, state)


class AsyncioPullConsumer(PullConsumerBase):
    """Reads queues from the offsets that ``group`` has committed, or from others.

    ``async with AsyncioPullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue
    without a committed offset starts at its oldest message, or with ``start="last"`` at the next
    new one. ``async for message in consumer`` yields one message after the other, without end;
    ``commit`` inside the loop commits up to the current message.

    ``assign`` reads the given queues. ``subscribe`` shares the queues of topics with the group's
    other members by the rule ``allocate`` (bridge.groups.allocation), which must be the same for
    all members; a queue that moves to another member continues there at its committed offset.

    With ``trace``, a record of each returned message is sent to ``trace_topic``, which
    ``Admin.trace`` and RocketMQ's tools read. It does not say how the message was handled.

    Every method is awaited.
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

    async def topics(self) -> list[str]:
        """Return the names of users' topics, without those of the system or of groups."""
        return await self._call(self._service.topics)

    async def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        A topic is registered with the name servers only a moment after its first message;
        ``wait_s`` is how long to wait for that.
        """
        return await self._call(self._service.queues, topic, wait_s=wait_s)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now."""
        return await self._call_sync(lambda: self._service.assigned)

    async def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` select.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker filters. Queues that were assigned before with the same filter keep their position;
        others start at the committed offset.
        """
        await self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Read this member's share of the topic's queues, which changes as members come and go.

        ``tags`` and ``sql`` are as in ``assign``, and must be the same for all members. May be
        called for several topics, and again to change the filter. ``assigned`` lists this member's
        current queues. When a queue moves to another member, uncommitted messages are read there
        again.
        """
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until ``resume``; the consumer keeps the queues."""
        await self._call_sync(self._service.pause, tuple(queues))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        await self._call_sync(self._service.resume, tuple(queues))

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue ``queue`` at ``queue_offset``; messages read ahead are dropped."""
        await self._call_sync(self._service.seek, queue, queue_offset)

    async def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the assigned (or given) queues at their oldest message."""
        await self._call_sync(
            self._service.seek_to_begin, None if queues is None else tuple(queues)
        )

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue with messages stored after this call reaches the broker."""
        await self._call_sync(self._service.seek_to_end, None if queues is None else tuple(queues))

    async def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last returned message; None until the start is known."""
        return await self._call_sync(self._service.position, queue)

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any, [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; each keeps its order. Brokers
        that cannot be reached are tried again in the background. An error that stops a queue
        (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` restarts the
        queue.

        What a cancelled call had taken is handed out by the next one.
        """
        return await self._poll(timeout_s=timeout_s, count_max=count_max)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit the positions of all assigned queues, or ``offsets``, to the brokers.

        For a queue that came from another member in the last half minute, a position below that
        member's late commit is not stored. Returns when every broker has confirmed. A broker that
        is unreachable or busy is asked again for ``timeout_s`` (by default ``request_timeout_s``; 0
        asks each broker once) without delaying the others. After that CommitFailedError names the
        queues that are not committed, and ``commit`` may be called again.
        """
        await self._call(self._service.commit, offsets, timeout_s=timeout_s)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none."""
        return await self._call(self._service.committed, queue)

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return await self._call(self._service.begin_offsets, tuple(queues))

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset after the newest message of each queue."""
        return await self._call(self._service.end_offsets, tuple(queues))

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Return per queue the offset of the first message stored at ``timestamp_ms`` or later."""
        return await self._call(self._service.offsets_for_time, tuple(queues), timestamp_ms)

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
        return await self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    async def view(self, message_id: str) -> StoredMessage:
        """Return the message with an offset id, from the broker that the id names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks the same and is
        for ``query_by_key``). BrokerError if there is no such message.
        """
        return await self._call(self._service.view, message_id)


class AsyncioPushConsumer(PushConsumerBase):
    """Calls a function with the messages of topics, shared with the group's other members.

    ``async with AsyncioPushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``await consumer.subscribe("telemetry")`` and ``await consumer.run(handle)``. Each message is
    handled at least once. If ``handle`` raises an exception, the message is delivered again with
    growing delays, and becomes a dead letter (topic %DLQ%GROUP) after ``retries_max`` retries, by
    default the group's setting ``retryMaxTimes`` (16).

    ``handle`` is an ``async def`` or a plain function, which runs in threads; up to ``workers``
    calls run at once. With ``is_orderly`` the messages of a queue are handled one after the other:
    a failed one is tried again every ``suspend_s`` before the following ones, for ever unless
    ``retries_max`` is given. With ``broadcast`` each member receives all messages, failed ones are
    not retried, and offsets are stored locally.

    ``start`` is where a group without offsets begins: at the "first" message, after the "last", or
    at a time. ``offsets`` stores offsets elsewhere than at the brokers (bridge.push.offsets).
    ``allocate`` must be the same rule for all members. With ``trace``, records of each call of
    ``handle`` are sent to ``trace_topic``, which ``Admin.trace`` and RocketMQ's tools read.

    Every method is awaited. An ``async def`` runs on the loop that called ``run``; one that is
    still running when ``stop_s`` is over is cancelled.
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

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Also handle the messages of ``topic`` that ``tags`` or ``sql`` select.

        As in AsyncioPullConsumer.subscribe. All members of a group must have the same
        subscriptions. May be called before and during ``run``; with a new filter the topic's queues
        are read again.
        """
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """Stop handling messages of ``topic``."""
        await self._call_sync(self._service.unsubscribe, topic)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """This member's current queues, including those of the retry topic."""
        return await self._call_sync(lambda: self._service.assigned)

    async def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, or until cancelled.

        It then waits up to ``stop_s`` for messages in work, saves its offsets, and leaves the
        group. FilterError if a broker refuses a filter.
        """
        await self._run(handle)

    async def run_batches(self, handle: HandleSome) -> None:
        """Do as ``run``, with a list of up to ``batch_max`` messages of one queue.

        If ``handle`` raises an exception, all of them are delivered again.
        """
        await self._run_batches(handle)

    async def stop(self) -> None:
        """Have ``run`` finish its messages and return."""
        await self._call_sync(self._service.stop)

    async def pause(self) -> None:
        """Stop handling further messages until ``resume``; this member keeps its queues."""
        await self._call_sync(self._service.pause)

    async def resume(self) -> None:
        """Continue handling messages."""
        await self._call_sync(self._service.resume)


class AsyncioSimpleConsumer(OnAsyncio[SimpleConsumer]):
    """Receives messages of topics as a member of ``group``, and acknowledges each separately.

    ``async with AsyncioSimpleConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``await consumer.subscribe("orders")``. A received message is invisible to the other members for
    ``invisible_s``. If it is not acknowledged by then, it is delivered again, to any member. A new
    group begins at the oldest message. With ``in_order`` a queue's messages come in their order,
    and the next ones only when all before them are acknowledged.

    Messages of a cancelled ``receive`` come again when their time is over.
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

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Receive from now on the messages of ``topic`` that ``tags`` or ``sql`` select.

        RouteError if there is no such topic. All members of a group must use the same filter.
        """
        await self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic``."""
        await self._call_sync(self._service.unsubscribe, topic)

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to ``max_messages`` (32 at most) as soon as there are any; [] after ``wait_s``.

        Brokers that cannot be reached are skipped; if none can be, the last error is raised.
        """
        return await self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message.

        RemotingError or RouteError if the broker cannot be reached: try again, or the message is
        delivered again.
        """
        await self._call(self._service.ack, message)

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, with one request to each broker.

        On an error some of them may be acknowledged.
        """
        await self._call(self._service.ack_many, tuple(messages))

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """Let a message be delivered again ``invisible_s`` from now; 0: at once.

        Return it with its new receipt, which replaces the old one. BrokerError (NO_MESSAGE) if its
        time had already ended.
        """
        return await self._call(self._service.change_invisible, message, invisible_s)
