"""Blocking producer, consumers and Admin for programs that do not run trio, such as Spark workers.

Owns: one background thread with a trio run per object. Must not touch: decisions of the trio-native
classes; each method here calls theirs.
The thread lives from construction to ``close``. Methods may be called from any thread. After a fork
the child has no such thread: create the object there (a call on an inherited one raises
ClientClosedError).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, Unpack

import trio

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
from motelog.bridge.background import Background, Service
from motelog.bridge.client import REQUEST_TIMEOUT_S, NameServers
from motelog.bridge.mapped_log import FoundLogs
from motelog.bridge.producer import (
    REPLY_TIMEOUT_S,
    Producer,
    ProducerOptions,
    QueueChoice,
    SendResult,
)
from motelog.bridge.pull import (
    PULL_BYTES_MAX,
    PULL_COUNT,
    PullConsumer,
    PullOptions,
    PullResult,
)
from motelog.bridge.push.consumer import PushConsumer, PushOptions
from motelog.bridge.query import QUERY_COUNT, TIME_MAX
from motelog.bridge.queue_puller import QueuePuller
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import TAGS_ALL, select
from motelog.bridge.simple import INVISIBLE_S, WAIT_S, PoppedMessage, SimpleConsumer, SimpleOptions
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
from motelog.bridge.unseen import Unseen
from motelog.bridge.users import Rule, User, UserRules
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls


class _Blocking(Generic[Service]):
    """What producer and consumer share: the thread, and its end."""

    def __init__(self, service: Service, name: str) -> None:
        self._background = Background(service, name)
        self._service = service
        self._call = self._background.call
        self._call_sync = self._background.call_sync

    def close(self) -> None:
        """End the thread; safe to call twice, and after a fork."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncProducer(_Blocking[Producer]):
    """``bridge.producer.Producer``, blocking. Close it, or use it in ``with``."""

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        producer = Producer(**options)
        super().__init__(producer, f"motelog-producer-{producer.group}")

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As Producer.queues."""
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
        """As Producer.send."""
        return self._call(
            self._service.send,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
            delay=delay,
        )

    def send_async(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
        delay: float | timedelta = 0,
        callback: Callable[[Future[SendResult]], object] | None = None,
    ) -> Future[SendResult]:
        """Start a send and return at once; the future has what ``send`` returns or raises.

        ``callback`` gets the future when it is done, in the producer's thread: it must not block.
        Many sends may be on their way; who starts them sees to it that they are not too many.
        """
        return self._background.start_call(
            self._service.send,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
            delay=delay,
            callback=callback,
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        delay: float | timedelta = 0,
    ) -> None:
        """As Producer.send_oneway."""
        self._call(self._service.send_oneway, message, queue=queue, hash_key=hash_key, delay=delay)

    def send_batches(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """As Producer.send_batches."""
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
        """As Producer.send_batch."""
        return self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """As Producer.recall."""
        return self._call(self._service.recall, handle, timeout_s=timeout_s)

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Message:
        """As Producer.request."""
        return self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """As Producer.reply_to."""
        self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class SyncTransactionProducer(SyncProducer):
    """``bridge.transactions.TransactionProducer``, blocking. Close it, or use it in ``with``.

    ``check`` is a plain function. It is called in threads of its own, ``check_tasks`` at a time.
    """

    def __init__(
        self,
        check: Callable[[StoredMessage], TransactionState],
        *,
        topics: Iterable[str] = (),
        check_tasks: int = CHECK_TASKS,
        **options: Unpack[ProducerOptions],
    ) -> None:
        async def check_in_thread(message: StoredMessage) -> TransactionState:
            return await trio.to_thread.run_sync(check, message)

        producer = TransactionProducer(
            check_in_thread, topics=topics, check_tasks=check_tasks, **options
        )
        _Blocking.__init__(self, producer, f"motelog-producer-{producer.group}")
        self._transactions = producer

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message], TransactionState],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """As TransactionProducer.send_in_transaction; ``execute`` runs in the calling thread."""
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
        """As TransactionProducer.send_half."""
        return self._call(
            self._transactions.send_half,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
        )

    def commit(self, half: HalfMessage) -> None:
        """As TransactionProducer.commit."""
        self._call(self._transactions.commit, half)

    def rollback(self, half: HalfMessage) -> None:
        """As TransactionProducer.rollback."""
        self._call(self._transactions.rollback, half)

    def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """As TransactionProducer.finish."""
        return self._call(self._transactions.finish, half, state)


class SyncPullConsumer(_Blocking[PullConsumer]):
    """``bridge.pull.PullConsumer``, blocking. Close it, or use it in ``with``.

    ``for message in consumer`` hands out one message after the other, without an end.
    """

    def __init__(self, **options: Unpack[PullOptions]) -> None:
        consumer = PullConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")
        self._unseen = Unseen()
        self._found_logs: FoundLogs = {}

    def topics(self) -> list[str]:
        """As PullConsumer.topics."""
        return self._call(self._service.topics)

    def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """As PullConsumer.queues."""
        return self._call(self._service.queues, topic, wait_s=wait_s)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        return self._call_sync(lambda: self._service.assigned)

    def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """As PullConsumer.assign."""
        for queue, queue_offset in self._unseen.drop().items():
            self._call_sync(self._service.seek, queue, queue_offset)
        self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As PullConsumer.subscribe."""
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """As PullConsumer.pause."""
        self._call_sync(self._service.pause, tuple(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """As PullConsumer.resume."""
        self._call_sync(self._service.resume, tuple(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """As PullConsumer.seek."""
        self._unseen.drop((queue,))
        self._call_sync(self._service.seek, queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_begin."""
        queues = None if queues is None else tuple(queues)
        self._unseen.drop(queues)
        self._call_sync(self._service.seek_to_begin, queues)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_end."""
        queues = None if queues is None else tuple(queues)
        self._unseen.drop(queues)
        self._call_sync(self._service.seek_to_end, queues)

    def position(self, queue: MessageQueue) -> int | None:
        """As PullConsumer.position."""
        position = self._call_sync(self._service.position, queue)
        return self._unseen.first_offsets().get(queue, position)

    def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """As PullConsumer.poll."""
        left = self._unseen.take(count_max)
        return left or self._call(self._service.poll, timeout_s=timeout_s, count_max=count_max)

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors as with ``poll``."""
        while (message := self._unseen.pop()) is None:
            self._unseen.add(self._call(self._service.poll_batches, timeout_s=math.inf))
        return message

    def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """As PullConsumer.commit; inside ``for message in consumer``, up to that message."""
        if offsets is None:
            # What the loop has not come to is not committed.
            unseen = self._unseen.first_offsets(self.assigned)
            offsets = self._call(self._service.uncommitted, unseen)
        self._call(self._service.commit, offsets, timeout_s=timeout_s)

    def committed(self, queue: MessageQueue) -> int | None:
        """As PullConsumer.committed."""
        return self._call(self._service.committed, queue)

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As PullConsumer.begin_offsets."""
        return self._call(self._service.begin_offsets, queues)

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As PullConsumer.end_offsets."""
        return self._call(self._service.end_offsets, queues)

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """As PullConsumer.offsets_for_time."""
        return self._call(self._service.offsets_for_time, queues, timestamp_ms)

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
        """As PullConsumer.pull."""
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

    def open_puller(
        self,
        queue: MessageQueue,
        *,
        bytes_max: int = PULL_BYTES_MAX,
        tags: str = TAGS_ALL,
        sql: str | None = None,
        may_map: bool = False,
    ) -> QueuePuller:
        """Return a QueuePuller for one queue, with its own connection, for the calling thread.

        Its pulls cost a fraction of ``pull``, which goes through the background thread. It connects
        at the first pull. The caller closes it. With ``may_map`` it reads records in the files of a
        broker on this machine that lets it (bridge.mapped_log).
        """
        return QueuePuller(
            queue,
            group=self._service.group,
            address=lambda: self._call(self._service.broker_address, queue),
            credentials=self._service.credentials,
            tls=self._service.tls,
            bytes_max=bytes_max,
            selector=select(tags, sql),
            # For a SQL92 filter the broker looks into the records anyway.
            found_logs=self._found_logs if may_map and sql is None else None,
        )

    def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        count_max: int = QUERY_COUNT,
    ) -> list[StoredMessage]:
        """As PullConsumer.query_by_key."""
        return self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    def view(self, message_id: str) -> StoredMessage:
        """As PullConsumer.view."""
        return self._call(self._service.view, message_id)


class SyncPushConsumer(_Blocking[PushConsumer]):
    """``bridge.push.consumer.PushConsumer``, blocking. Close it, or use it in ``with``.

    ``run`` blocks until another thread calls ``stop`` or ``close``, or until Ctrl-C. The functions
    it is given are plain ones, and run in threads.
    """

    def __init__(self, **options: Unpack[PushOptions]) -> None:
        consumer = PushConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As PushConsumer.subscribe."""
        self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """As PushConsumer.unsubscribe."""
        self._call_sync(self._service.unsubscribe, topic)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        return self._call_sync(lambda: self._service.assigned)

    def run(self, handle: Callable[[StoredMessage], object]) -> None:
        """As PushConsumer.run."""
        self._call(self._service.run, handle)

    def run_batches(self, handle: Callable[[list[StoredMessage]], object]) -> None:
        """As PushConsumer.run_batches."""
        self._call(self._service.run_batches, handle)

    def stop(self) -> None:
        """As PushConsumer.stop."""
        self._call_sync(self._service.stop)

    def pause(self) -> None:
        """As PushConsumer.pause."""
        self._call_sync(self._service.pause)

    def resume(self) -> None:
        """As PushConsumer.resume."""
        self._call_sync(self._service.resume)


class SyncSimpleConsumer(_Blocking[SimpleConsumer]):
    """``bridge.simple.SimpleConsumer``, blocking. Close it, or use it in ``with``."""

    def __init__(self, **options: Unpack[SimpleOptions]) -> None:
        consumer = SimpleConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")

    def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As SimpleConsumer.subscribe."""
        self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """As SimpleConsumer.unsubscribe."""
        self._call_sync(self._service.unsubscribe, topic)

    def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """As SimpleConsumer.receive."""
        return self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    def ack(self, message: PoppedMessage) -> None:
        """As SimpleConsumer.ack."""
        self._call(self._service.ack, message)

    def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """As SimpleConsumer.ack_many."""
        self._call(self._service.ack_many, messages)

    def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """As SimpleConsumer.change_invisible."""
        return self._call(self._service.change_invisible, message, invisible_s)


class SyncAdmin(_Blocking[Admin]):
    """``bridge.admin.Admin``, blocking. Close it, or use it in ``with``."""

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        admin = Admin(
            namesrv=namesrv,
            credentials=credentials,
            tls=tls,
            request_timeout_s=request_timeout_s,
        )
        super().__init__(admin, "motelog-admin")

    def brokers(self) -> list[BrokerInfo]:
        """As Admin.brokers."""
        return self._call(self._service.brokers)

    def broker_status(self, broker: str) -> dict[str, str]:
        """As Admin.broker_status."""
        return self._call(self._service.broker_status, broker)

    def broker_config(self, broker: str) -> dict[str, str]:
        """As Admin.broker_config."""
        return self._call(self._service.broker_config, broker)

    def set_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """As Admin.set_broker_config."""
        self._call(self._service.set_broker_config, broker, settings)

    def stop_writes(self, broker: str) -> int:
        """As Admin.stop_writes."""
        return self._call(self._service.stop_writes, broker)

    def allow_writes(self, broker: str) -> int:
        """As Admin.allow_writes."""
        return self._call(self._service.allow_writes, broker)

    def rates(self, broker: str, name: str, key: str) -> Rates:
        """As Admin.rates."""
        return self._call(self._service.rates, broker, name, key)

    def replication(self, broker: str) -> Replication:
        """As Admin.replication."""
        return self._call(self._service.replication, broker)

    def remove_expired_log(self, broker: str) -> None:
        """As Admin.remove_expired_log."""
        self._call(self._service.remove_expired_log, broker)

    def remove_expired_queues(self, broker: str) -> None:
        """As Admin.remove_expired_queues."""
        self._call(self._service.remove_expired_queues, broker)

    def remove_unused_queues(self, broker: str) -> None:
        """As Admin.remove_unused_queues."""
        self._call(self._service.remove_unused_queues, broker)

    def topics(self, broker: str | None = None) -> list[str]:
        """As Admin.topics."""
        return self._call(self._service.topics, broker)

    def topic(self, topic: str) -> list[TopicSettings]:
        """As Admin.topic."""
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
        """As Admin.put_topic."""
        self._call(
            self._service.put_topic,
            topic,
            queues=queues,
            write_queues=write_queues,
            permission=permission,
            is_ordered=is_ordered,
            attributes=attributes,
            brokers=brokers,
        )

    def delete_topic(self, topic: str) -> None:
        """As Admin.delete_topic."""
        self._call(self._service.delete_topic, topic)

    def topic_stats(self, topic: str) -> list[QueueStats]:
        """As Admin.topic_stats."""
        return self._call(self._service.topic_stats, topic)

    def queue_units(self, queue: MessageQueue, offset: int, count: int = 32) -> list[QueueUnit]:
        """As Admin.queue_units."""
        return self._call(self._service.queue_units, queue, offset, count)

    def groups_of(self, topic: str) -> list[str]:
        """As Admin.groups_of."""
        return self._call(self._service.groups_of, topic)

    def put_group(
        self,
        group: str,
        settings: Mapping[str, Any] | None = None,
        *,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """As Admin.put_group."""
        self._call(self._service.put_group, group, settings, brokers=brokers)

    def delete_group(self, group: str, *, with_offsets: bool = True) -> None:
        """As Admin.delete_group."""
        self._call(self._service.delete_group, group, with_offsets=with_offsets)

    def groups(self) -> dict[str, dict[str, Any]]:
        """As Admin.groups."""
        return self._call(self._service.groups)

    def consumers(self, group: str) -> list[ClientInfo]:
        """As Admin.consumers."""
        return self._call(self._service.consumers, group)

    def producers(self, group: str) -> list[ClientInfo]:
        """As Admin.producers."""
        return self._call(self._service.producers, group)

    def producer_groups(self) -> dict[str, list[ClientInfo]]:
        """As Admin.producer_groups."""
        return self._call(self._service.producer_groups)

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """As Admin.progress."""
        return self._call(self._service.progress, group, topic)

    def progress_of_all(self, *, only_ordered: bool = False) -> dict[str, list[QueueProgress]]:
        """As Admin.progress_of_all."""
        return self._call(self._service.progress_of_all, only_ordered=only_ordered)

    def queue_times(self, group: str, topic: str) -> list[QueueTimes]:
        """As Admin.queue_times."""
        return self._call(self._service.queue_times, group, topic)

    def lowest_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """As Admin.lowest_offsets."""
        return self._call(self._service.lowest_offsets, topic)

    def reset_offsets(
        self, group: str, topic: str, to: ResetTo, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """As Admin.reset_offsets."""
        return self._call(self._service.reset_offsets, group, topic, to, force=force)

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """As Admin.clone_offsets."""
        self._call(self._service.clone_offsets, source, target, topic)

    def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """As Admin.running_info."""
        return self._call(self._service.running_info, group, client_id)

    def consume_directly(self, group: str, client_id: str, offset_id: str) -> dict[str, Any]:
        """As Admin.consume_directly."""
        return self._call(self._service.consume_directly, group, client_id, offset_id)

    def member_offsets(self, topic: str, group: str) -> dict[str, dict[MessageQueue, int]]:
        """As Admin.member_offsets."""
        return self._call(self._service.member_offsets, topic, group)

    def close_topic(self, topic: str, group: str, *, is_closed: bool = True) -> None:
        """As Admin.close_topic."""
        self._call(self._service.close_topic, topic, group, is_closed=is_closed)

    def set_request_mode(
        self, topic: str, group: str, *, by_pop: bool, shared_queues: int = 0
    ) -> None:
        """As Admin.set_request_mode."""
        self._call(
            self._service.set_request_mode,
            topic,
            group,
            by_pop=by_pop,
            shared_queues=shared_queues,
        )

    def resend_dead_letters(
        self,
        group: str,
        *,
        to_all_groups: bool = False,
        count_max: int | None = None,
        per_second: float = 100.0,
    ) -> int:
        """As Admin.resend_dead_letters."""
        return self._call(
            self._service.resend_dead_letters,
            group,
            to_all_groups=to_all_groups,
            count_max=count_max,
            per_second=per_second,
        )

    def check_transaction(self, offset_id: str) -> None:
        """As Admin.check_transaction."""
        self._call(self._service.check_transaction, offset_id)

    def create_user(
        self,
        name: str,
        password: str,
        *,
        is_admin: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """As Admin.create_user."""
        self._call(self._service.create_user, name, password, is_admin=is_admin, brokers=brokers)

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_admin: bool | None = None,
        is_enabled: bool | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """As Admin.update_user."""
        self._call(
            self._service.update_user,
            name,
            password=password,
            is_admin=is_admin,
            is_enabled=is_enabled,
            brokers=brokers,
        )

    def delete_user(self, name: str, *, brokers: Iterable[str] | None = None) -> None:
        """As Admin.delete_user."""
        self._call(self._service.delete_user, name, brokers=brokers)

    def user(self, name: str) -> list[User]:
        """As Admin.user."""
        return self._call(self._service.user, name)

    def users(self, name_part: str = "") -> list[User]:
        """As Admin.users."""
        return self._call(self._service.users, name_part)

    def put_rules(
        self, user: str, rules: Iterable[Rule], *, brokers: Iterable[str] | None = None
    ) -> None:
        """As Admin.put_rules."""
        self._call(self._service.put_rules, user, tuple(rules), brokers=brokers)

    def delete_rules(
        self,
        user: str,
        resource: str | None = None,
        *,
        is_default: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """As Admin.delete_rules."""
        self._call(
            self._service.delete_rules, user, resource, is_default=is_default, brokers=brokers
        )

    def rules_of(self, user: str) -> list[UserRules]:
        """As Admin.rules_of."""
        return self._call(self._service.rules_of, user)

    def rules(self, user_part: str = "", resource_part: str = "") -> list[UserRules]:
        """As Admin.rules."""
        return self._call(self._service.rules, user_part, resource_part)

    def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """As Admin.trace."""
        return self._call(self._service.trace, message_id, topic=topic)

    def put_value(self, namespace: str, key: str, value: str) -> None:
        """As Admin.put_value."""
        self._call(self._service.put_value, namespace, key, value)

    def value(self, namespace: str, key: str) -> str | None:
        """As Admin.value."""
        return self._call(self._service.value, namespace, key)

    def delete_value(self, namespace: str, key: str) -> None:
        """As Admin.delete_value."""
        self._call(self._service.delete_value, namespace, key)
