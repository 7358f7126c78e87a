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
    """Send messages to the brokers that the name servers know.

    ``async with AsyncioProducer(namesrv="127.0.0.1:9876", group="P") as producer:``; ``namesrv``
    takes what ``NameServers`` says. One producer serves any number of topics and tasks. All
    requests are signed with ``credentials``; servers with access control take no others.

    A message that a broker refuses by flow control (SYSTEM_BUSY, FLOW_CONTROL) is sent again like
    any other that failed, a little later: ``retries`` times besides the first. Without
    ``retry_when_busy`` the first refusal raises BrokerError, and the caller slows down. Where no
    broker can be connected to, it is tried until the timeout: nothing has been sent.
    With ``retry_when_not_stored`` an answer that says less than OK (not on the disk, not at a
    slave in time) has another broker asked, too; the message is then stored twice.
    With ``avoid_slow_brokers`` a broker that was slow or did not answer gets no turn for a while:
    3 s after an answer that took 0.55 s, a minute after one of 1 s or none, and so on.
    With ``trace`` a record of each message that a broker has answered goes to ``trace_topic``, a
    little later and by a producer of its own: ``Admin.trace`` and RocketMQ's tools read it.
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
        """Return the writable queues; for a topic that does not exist yet, those it will get."""
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

        Without ``queue`` or ``hash_key`` queues take turns and a retry goes to another broker. With
        ``hash_key`` equal keys go to the same queue, as long as the number of queues stays.
        ``queue`` is one of ``queues(topic)``, or a function that chooses one of them.
        Consumers and subscribers get the message after ``delay``, in seconds: from our brokers and
        RocketMQ's from 5.0 on; older ones deliver it at once. Raises MessageRefusedError before
        anything is sent, BrokerError when the broker refuses the message, SendFailedError when no
        attempt was acknowledged within ``timeout_s``. After a SendFailedError the message may be
        stored all the same, under the same unique id.

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
        """Give ``message`` to the connection and return; nobody says whether it was stored.

        For data of which some may be lost, since a broker that refuses it or ends does not answer.
        Errors are those of ``send`` before anything is sent, and RemotingError.
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
        """Send any number of messages as batches that are small enough; return their results.

        Messages of one topic stay in their order, also in the log if ``queue`` or ``hash_key``
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
        """Return once a broker has stored all of ``messages``, which go to one queue, in order.

        They share a topic and have at most 4 MiB together. None may be delayed or go to a retry
        topic. A batch is stored whole or not at all. Errors are those of ``send``.
        """
        return await self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """Take back a delayed message by its ``SendResult.recall_handle``; return its unique id.

        When this returns, the message is not delivered any more. BrokerError: its time has come, or
        the broker does not recall (RocketMQ's have to be told to, from 5.3.1 on).
        MessageRefusedError for a handle that is none, RemotingError if no answer came: it may be
        recalled all the same.
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
        """Send ``message`` and return the reply of a consumer that got it (``reply_to``).

        ReplyTimeoutError when no reply comes within ``timeout_s``: somebody may have worked on the
        request all the same. Other errors are those of ``send``, and RemotingError.
        """
        return await self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Answer a consumed message whose sender waits in ``request``; return once it has it.

        BrokerError or SendFailedError when the sender is not connected (any more),
        MessageRefusedError when it does not wait for a reply.
        """
        await self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class AsyncioTransactionProducer(AsyncioProducer):
    """A producer whose messages may be bound to a local transaction.

    ``check`` is asked about half messages that nobody has ended, also those of other producers of
    the group and of an earlier process: it looks the transaction up where that is kept. It may be
    asked twice about one. An exception counts as UNKNOWN. Brokers know this producer once it has
    sent to them; ``topics`` are those whose brokers it tells of itself at once. Otherwise it is an
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
        """Store a half message, await ``execute(message)`` and end it as that says.

        What ``execute`` raises goes on to the caller, and the broker will ask: whether its
        transaction took place may not be known. ``execute`` is not called, and the message rolled
        back, when the broker has stored it less safely than it should. If the end does not reach
        the broker, a log line says so and the broker will ask. Errors of the half message are those
        of ``send``; BrokerError when the end is refused.

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
        """Return once a broker has stored ``message``, to be seen after ``commit``.

        Arguments and errors are those of ``send``; it cannot be delayed.
        """
        return await self._call(
            self._service.send_half, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def commit(self, half: HalfMessage) -> None:
        """Return once the broker has stored the message for its consumers.

        Raises BrokerError if it refuses, for example since the transaction is over, and
        RemotingError if the answer did not come: the broker will ask. Our broker takes a second
        commit as the first one; RocketMQ's stores the message twice.
        """
        await self._call(self._service.commit, half)

    async def rollback(self, half: HalfMessage) -> None:
        """Return once the broker has dropped the message; errors as ``commit``."""
        await self._call(self._service.rollback, half)

    async def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """End a half message as its local transaction did, as ``send_in_transaction`` does it.

        BrokerError if the broker refuses; if the end does not reach it, a log line says so, and the
        broker will ask.
        """
        return await self._call(self._service.finish, half, state)


class AsyncioPullConsumer(PullConsumerBase):
    """Read queues from the offsets that ``group`` has committed, or from others.

    ``async with AsyncioPullConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``. A queue
    without a committed offset starts at its oldest message, or with ``start="last"`` at the next
    new one. ``async for message in consumer`` hands out one message after the other, without an
    end; ``commit`` inside the loop commits up to the message at hand.

    ``assign`` reads the queues that it is given. ``subscribe`` shares the queues of topics with the
    group's other members by the rule ``allocate`` (bridge.groups.allocation), which all of them
    must use; a queue that goes to another member goes on there at its committed offset.

    With ``trace`` records of each message that is handed out go to ``trace_topic``, which
    ``Admin.trace`` and RocketMQ's tools read. What becomes of it then, they do not know.

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
        """Return the names of the topics that users have, not those of the system or of groups."""
        return await self._call(self._service.topics)

    async def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues; RouteError if it does not exist.

        The name servers know a topic only a moment after its first message has created it;
        ``wait_s`` is how long to wait for that.
        """
        return await self._call(self._service.queues, topic, wait_s=wait_s)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now."""
        return await self._call_sync(lambda: self._service.assigned)

    async def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """Read exactly ``queues`` from now on, and only messages that ``tags`` or ``sql`` selects.

        ``tags`` is "*" or "A || B", ``sql`` a filter over the messages' properties, such as
        "temperature > 30 AND site = 'north'" (docs/store.md); FilterError if it is malformed. The
        broker applies it. Queues that stay with the same selection keep their position; new ones
        start at the committed offset.
        """
        await self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Read this member's part of the topic's queues, from now on and as members come and go.

        ``tags`` and ``sql`` as with ``assign``; all members must give the same. May be called for
        several topics, and again to select otherwise. ``assigned`` has the queues that are this
        member's now. What it has not committed when a queue goes to another member is read there
        again.
        """
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these queues until ``resume``; they stay this consumer's."""
        await self._call_sync(self._service.pause, tuple(queues))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of these queues again."""
        await self._call_sync(self._service.resume, tuple(queues))

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Hand out ``queue`` from ``queue_offset`` next; drop the messages read ahead."""
        await self._call_sync(self._service.seek, queue, queue_offset)

    async def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out the assigned (or given) queues from their oldest message."""
        await self._call_sync(
            self._service.seek_to_begin, None if queues is None else tuple(queues)
        )

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out only messages stored after this call reaches the broker."""
        await self._call_sync(self._service.seek_to_end, None if queues is None else tuple(queues))

    async def position(self, queue: MessageQueue) -> int | None:
        """Return the offset after the last message handed out; None until the start is known."""
        return await self._call_sync(self._service.position, queue)

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """Return up to ``count_max`` messages as soon as there are any; [] after ``timeout_s``.

        Queues take turns, so a busy one does not starve the others; order holds within each.
        Brokers that cannot be reached are tried again in the background. An error that stops a
        queue (BrokerError, RouteError, RecordError, FilterError) is raised once; ``seek`` starts
        the queue again.

        What a cancelled call had taken is handed out by the next one.
        """
        return await self._poll(timeout_s=timeout_s, count_max=count_max)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Store the positions of all assigned queues, or ``offsets``, at the brokers.

        A position below what the member before has stored late, of a queue that came from it in the
        last half minute, is not among them. Returns when every broker has confirmed. One
        that is away or busy is asked again for ``timeout_s`` (by default ``request_timeout_s``; 0
        asks each broker once), the others commit at once. Then CommitFailedError names the queues
        that are not committed, and ``commit`` may be called again.
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

        A key is a word of KEYS or the producer's unique id. All brokers of the topic are asked;
        each gives 64 at most. Raises RouteError, BrokerError or RemotingError.
        """
        return await self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    async def view(self, message_id: str) -> StoredMessage:
        """Return the message that an offset id names, from the broker it names.

        ValueError if it is not an offset id (32 or 56 hex digits; a unique id looks alike and is
        for ``query_by_key``). BrokerError if there is no such message.
        """
        return await self._call(self._service.view, message_id)


class AsyncioPushConsumer(PushConsumerBase):
    """Hand the messages of topics to a function, sharing them with the group's other members.

    ``async with AsyncioPushConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``await consumer.subscribe("telemetry")`` and ``await consumer.run(handle)``. A message is
    handled at least once. One that ``handle`` raises an exception for comes again, later each time,
    and is a dead letter (topic %DLQ%GROUP) after ``retries_max`` times; without it the group's
    setting ``retryMaxTimes`` counts (16).

    ``handle`` is an ``async def`` or a plain function, which runs in threads; ``workers`` calls at
    once. With ``is_orderly`` the messages of a queue are handled one after the other: a refused one
    is tried again every ``suspend_s``, before those behind it, without an end unless
    ``retries_max`` is given. With ``broadcast`` each member gets all messages, refused ones do not
    come again, and offsets are kept here.

    ``start`` is where a group begins that has no offsets: at the "first" message, behind the "last"
    or at a time. ``offsets`` keeps them elsewhere than the brokers (bridge.push.offsets).
    ``allocate`` must be the rule of all members. With ``trace`` records of each call of ``handle``
    go to ``trace_topic``, which ``Admin.trace`` and RocketMQ's tools read.

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
        """Handle messages of ``topic`` too, those that ``tags`` or ``sql`` selects.

        As AsyncioPullConsumer.subscribe. All members of a group must subscribe to the same. May be
        called before and during ``run``; with another selection the topic's queues are read anew.
        """
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """Handle no more messages of ``topic``."""
        await self._call_sync(self._service.unsubscribe, topic)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that are this member's now, its retry topic's included."""
        return await self._call_sync(lambda: self._service.assigned)

    async def run(self, handle: HandleOne) -> None:
        """Call ``handle`` with one message after the other until ``stop``, or until cancelled.

        It then waits up to ``stop_s`` for messages in work, saves how far it has got, and leaves
        the group. FilterError if a broker refuses a filter.
        """
        await self._run(handle)

    async def run_batches(self, handle: HandleSome) -> None:
        """As ``run``, with up to ``batch_max`` messages of one queue in a list.

        If ``handle`` raises an exception, all of them come again.
        """
        await self._run_batches(handle)

    async def stop(self) -> None:
        """Have ``run`` finish what is in work and return."""
        await self._call_sync(self._service.stop)

    async def pause(self) -> None:
        """Begin to handle no more messages until ``resume``; the queues stay this member's."""
        await self._call_sync(self._service.pause)

    async def resume(self) -> None:
        """Go on handling messages."""
        await self._call_sync(self._service.resume)


class AsyncioSimpleConsumer(OnAsyncio[SimpleConsumer]):
    """Receive messages of topics as a member of ``group``, each acknowledged on its own.

    ``async with AsyncioSimpleConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``await consumer.subscribe("orders")``. A message that is received is invisible to the other
    members for ``invisible_s``. What is not acknowledged by then comes again, to anybody. A new
    group begins at the oldest message. With ``in_order`` a queue's messages come in their order,
    and the next ones when all before them are acknowledged.

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
        """Receive messages of ``topic`` from now on that ``tags`` or ``sql`` selects.

        RouteError if there is no such topic. The members of a group must agree on what they select.
        """
        await self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of ``topic``."""
        await self._call_sync(self._service.unsubscribe, topic)

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to ``max_messages`` (32 at most) as soon as there are any; [] after ``wait_s``.

        Brokers that cannot be asked are passed over; the last one's error is raised if none can be.
        """
        return await self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    async def ack(self, message: PoppedMessage) -> None:
        """Tell the broker that a message is done with.

        RemotingError or RouteError if it cannot be asked: try again, or the message comes again.
        """
        await self._call(self._service.ack, message)

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Tell the brokers that messages are done with, in one request to each.

        An error may come after some of them were told.
        """
        await self._call(self._service.ack_many, tuple(messages))

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """Have a message come again ``invisible_s`` from now; 0: at once.

        Return it with its new receipt: the old one does not count any more. BrokerError
        (NO_MESSAGE) if its time was over before.
        """
        return await self._call(self._service.change_invisible, message, invisible_s)
