"""Producer and consumer for programs that run asyncio.

Owns: how a call waits on an asyncio loop, and what cancelling it does. Must not touch: decisions of
the trio-native classes; each method here calls theirs, in a thread of its own (bridge.background).
Used on one loop, by any number of its tasks.
Invariants: a cancelled call has ended in the thread before CancelledError goes on; messages of a
cancelled poll are handed out again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

import trio

from motelog.bridge.background import Background, Service
from motelog.bridge.errors import ClientClosedError
from motelog.bridge.producer import (
    REPLY_TIMEOUT_S,
    Producer,
    ProducerOptions,
    QueueChoice,
    SendResult,
)
from motelog.bridge.pull import PullConsumer, PullOptions
from motelog.bridge.push.consumer import PushConsumer, PushOptions
from motelog.bridge.query import QUERY_COUNT, TIME_MAX
from motelog.bridge.selector import TAGS_ALL
from motelog.bridge.simple import INVISIBLE_S, WAIT_S, PoppedMessage, SimpleConsumer, SimpleOptions
from motelog.bridge.transactions import (
    CHECK_TASKS,
    HalfMessage,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    as_state,
)
from motelog.bridge.unseen import Unseen
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage

T = TypeVar("T")
Batches = list[tuple[MessageQueue, list[StoredMessage]]]


class _OnAsyncio(Generic[Service]):
    """What producer and consumer share: entering, leaving, and a call."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name
        self._background: Background[Service] | None = None

    async def __aenter__(self) -> Self:
        self._background = await asyncio.to_thread(Background, self._service, self._name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._background is not None
        await asyncio.to_thread(self._background.close)

    async def _call(
        self,
        method: Callable[..., Awaitable[T]],
        *args: Any,
        undo: Callable[[T], object] | None = None,
        **options: Any,
    ) -> T:
        """Return what ``method`` returns in the thread; its errors are raised here.

        If this is cancelled when there is a result already, ``undo`` gets it, in the thread.
        """
        if self._background is None:
            raise ClientClosedError("not open: use it inside `async with`")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        scope = trio.CancelScope()

        def settle(outcome: Callable[[], object]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(outcome)

        def refuse() -> None:
            settle(partial(future.set_exception, ClientClosedError("closed during the call")))

        async def work() -> None:
            outcome: Callable[[], object] | None = None
            try:
                with scope:
                    outcome = partial(future.set_result, await method(*args, **options))
                if scope.cancelled_caught:
                    outcome = future.cancel
            except Exception as exc:
                outcome = partial(future.set_exception, exc)
            finally:
                settle(outcome) if outcome is not None else refuse()

        self._background.start_soon(work, refuse)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(ClientClosedError):
                self._background.run_soon(scope.cancel)
            if undo is not None:
                future.add_done_callback(partial(self._undo, undo))
            await asyncio.wait([future])
            raise

    async def _call_sync(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        async def call() -> T:
            return function(*args, **options)

        return await self._call(call)

    def _undo(self, undo: Callable[[T], object], future: asyncio.Future[T]) -> None:
        assert self._background is not None
        if not future.cancelled() and future.exception() is None:
            with suppress(ClientClosedError):
                self._background.run_soon(partial(undo, future.result()))


class AsyncioProducer(_OnAsyncio[Producer]):
    """``bridge.producer.Producer`` for asyncio; use it in ``async with``.

    Any number of tasks may send at once.
    """

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        producer = Producer(**options)
        super().__init__(producer, f"motelog-producer-{producer.group}")

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As Producer.queues."""
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
        """As Producer.send. A message whose send was cancelled may be stored or not."""
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
        """As Producer.send_oneway."""
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
        """As Producer.send_batches."""
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
        """As Producer.send_batch."""
        return await self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """As Producer.recall."""
        return await self._call(self._service.recall, handle, timeout_s=timeout_s)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Message:
        """As Producer.request."""
        return await self._call(
            self._service.request, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    async def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """As Producer.reply_to."""
        await self._call(self._service.reply_to, request, body, timeout_s=timeout_s)


class AsyncioTransactionProducer(AsyncioProducer):
    """``bridge.transactions.TransactionProducer`` for asyncio; use it in ``async with``.

    ``check`` is a coroutine function and runs on the loop, ``check_tasks`` calls at a time.
    """

    def __init__(
        self,
        check: Callable[[StoredMessage], Coroutine[Any, Any, TransactionState]],
        *,
        topics: Iterable[str] = (),
        check_tasks: int = CHECK_TASKS,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

        async def check_on_loop(message: StoredMessage) -> TransactionState:
            assert self._loop is not None
            future = asyncio.run_coroutine_threadsafe(check(message), self._loop)
            try:
                return await trio.to_thread.run_sync(future.result, abandon_on_cancel=True)
            finally:
                future.cancel()

        producer = TransactionProducer(
            check_on_loop, topics=topics, check_tasks=check_tasks, **options
        )
        _OnAsyncio.__init__(self, producer, f"motelog-producer-{producer.group}")
        self._transactions = producer

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return await super().__aenter__()

    async def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message], Awaitable[TransactionState]],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """As TransactionProducer.send_in_transaction; ``execute`` is awaited on the loop."""
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
        """As TransactionProducer.send_half."""
        return await self._call(
            self._transactions.send_half,
            message,
            queue=queue,
            hash_key=hash_key,
            timeout_s=timeout_s,
        )

    async def commit(self, half: HalfMessage) -> None:
        """As TransactionProducer.commit."""
        await self._call(self._transactions.commit, half)

    async def rollback(self, half: HalfMessage) -> None:
        """As TransactionProducer.rollback."""
        await self._call(self._transactions.rollback, half)

    async def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """As TransactionProducer.finish."""
        return await self._call(self._transactions.finish, half, state)


class AsyncioPullConsumer(_OnAsyncio[PullConsumer]):
    """``bridge.pull.PullConsumer`` for asyncio; use it in ``async with``.

    Every method is awaited. ``async for message in consumer`` hands out one message after the
    other, without an end.
    """

    def __init__(self, **options: Unpack[PullOptions]) -> None:
        consumer = PullConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")
        self._unseen = Unseen()

    async def topics(self) -> list[str]:
        """As PullConsumer.topics."""
        return await self._call(self._service.topics)

    async def queues(self, topic: str, *, wait_s: float = 2.0) -> tuple[MessageQueue, ...]:
        """As PullConsumer.queues."""
        return await self._call(self._service.queues, topic, wait_s=wait_s)

    async def assign(
        self, queues: Iterable[MessageQueue], *, tags: str = TAGS_ALL, sql: str | None = None
    ) -> None:
        """As PullConsumer.assign."""
        wanted = tuple(queues)
        await self._call_sync(self._seek_all, self._unseen.drop())
        await self._call_sync(self._service.assign, wanted, tags=tags, sql=sql)

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As PullConsumer.subscribe."""
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """As PullConsumer.assigned."""
        return await self._call_sync(lambda: self._service.assigned)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """As PullConsumer.pause."""
        await self._call_sync(self._service.pause, tuple(queues))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """As PullConsumer.resume."""
        await self._call_sync(self._service.resume, tuple(queues))

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """As PullConsumer.seek."""
        self._unseen.drop((queue,))
        await self._call_sync(self._service.seek, queue, queue_offset)

    async def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_begin."""
        chosen = None if queues is None else tuple(queues)
        self._unseen.drop(chosen)
        await self._call_sync(self._service.seek_to_begin, chosen)

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_end."""
        chosen = None if queues is None else tuple(queues)
        self._unseen.drop(chosen)
        await self._call_sync(self._service.seek_to_end, chosen)

    async def position(self, queue: MessageQueue) -> int | None:
        """As PullConsumer.position."""
        position = await self._call_sync(self._service.position, queue)
        return self._unseen.first_offsets().get(queue, position)

    async def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """As PullConsumer.poll. What a cancelled call had taken is handed out by the next one."""
        left = self._unseen.take(count_max)
        if left:
            return left
        batches = await self._poll(timeout_s, count_max)
        return [message for _, messages in batches for message in messages]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors as with ``poll``."""
        while (message := self._unseen.pop()) is None:
            self._unseen.add(await self._poll(math.inf, 512))
        return message

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """As PullConsumer.commit; inside ``async for``, up to the message at hand."""
        if offsets is None:
            # What the loop has not come to is not committed.
            unseen = self._unseen.first_offsets(await self.assigned())
            offsets = await self._call(self._service.uncommitted, unseen)
        await self._call(self._service.commit, offsets, timeout_s=timeout_s)

    async def committed(self, queue: MessageQueue) -> int | None:
        """As PullConsumer.committed."""
        return await self._call(self._service.committed, queue)

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As PullConsumer.begin_offsets."""
        return await self._call(self._service.begin_offsets, queues)

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As PullConsumer.end_offsets."""
        return await self._call(self._service.end_offsets, queues)

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """As PullConsumer.offsets_for_time."""
        return await self._call(self._service.offsets_for_time, queues, timestamp_ms)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        count_max: int = QUERY_COUNT,
    ) -> list[StoredMessage]:
        """As PullConsumer.query_by_key."""
        return await self._call(self._service.query_by_key, topic, key, begin_ms, end_ms, count_max)

    async def view(self, message_id: str) -> StoredMessage:
        """As PullConsumer.view."""
        return await self._call(self._service.view, message_id)

    async def _poll(self, timeout_s: float, count_max: int) -> Batches:
        return await self._call(
            self._service.poll_batches,
            timeout_s=timeout_s,
            count_max=count_max,
            undo=self._give_back,
        )

    def _give_back(self, batches: Batches) -> None:
        """Have the consumer hand these out again; runs in the thread."""
        first: dict[MessageQueue, int] = {}
        for queue, messages in batches:
            first.setdefault(queue, messages[0].queue_offset)
        self._seek_all(first)

    def _seek_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, queue_offset in offsets.items():
            if queue in self._service.assigned:
                self._service.seek(queue, queue_offset)


class AsyncioPushConsumer(_OnAsyncio[PushConsumer]):
    """``bridge.push.consumer.PushConsumer`` for asyncio; use it in ``async with``.

    Every method is awaited. The functions that ``run`` is given are ``async def`` and run on the
    loop that called it, or plain ones, which run in threads; ``workers`` of them at once. One that
    is still running when ``stop_s`` is over is cancelled.
    """

    def __init__(self, **options: Unpack[PushOptions]) -> None:
        consumer = PushConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As PushConsumer.subscribe."""
        await self._call_sync(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """As PushConsumer.unsubscribe."""
        await self._call_sync(self._service.unsubscribe, topic)

    async def assigned(self) -> tuple[MessageQueue, ...]:
        """As PushConsumer.assigned."""
        return await self._call_sync(lambda: self._service.assigned)

    async def run(self, handle: Callable[[StoredMessage], object]) -> None:
        """As PushConsumer.run."""
        with _OnThisLoop(handle) as on_loop:
            await self._call(self._service.run, on_loop)

    async def run_batches(self, handle: Callable[[list[StoredMessage]], object]) -> None:
        """As PushConsumer.run_batches."""
        with _OnThisLoop(handle) as on_loop:
            await self._call(self._service.run_batches, on_loop)

    async def stop(self) -> None:
        """As PushConsumer.stop."""
        await self._call_sync(self._service.stop)

    async def pause(self) -> None:
        """As PushConsumer.pause."""
        await self._call_sync(self._service.pause)

    async def resume(self) -> None:
        """As PushConsumer.resume."""
        await self._call_sync(self._service.resume)


class _OnThisLoop(Generic[T]):
    """A function for other threads that has the coroutines of ``handle`` run on this loop.

    It waits for each. Those that are left at the end of the ``with`` block are cancelled.
    """

    def __init__(self, handle: Callable[[T], object]) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._left: set[Future[object]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for future in list(self._left):
            future.cancel()

    def __call__(self, argument: T) -> object:
        result = self._handle(argument)
        if not inspect.iscoroutine(result):
            return result
        future: Future[object] = asyncio.run_coroutine_threadsafe(result, self._loop)
        self._left.add(future)
        try:
            return future.result()
        finally:
            self._left.discard(future)


class AsyncioSimpleConsumer(_OnAsyncio[SimpleConsumer]):
    """``bridge.simple.SimpleConsumer`` for asyncio; use it in ``async with``.

    Messages of a cancelled ``receive`` come again when their time is over.
    """

    def __init__(self, **options: Unpack[SimpleOptions]) -> None:
        consumer = SimpleConsumer(**options)
        super().__init__(consumer, f"motelog-consumer-{consumer.group}")

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """As SimpleConsumer.subscribe."""
        await self._call(self._service.subscribe, topic, tags=tags, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """As SimpleConsumer.unsubscribe."""

        async def unsubscribe() -> None:
            self._service.unsubscribe(topic)

        await self._call(unsubscribe)

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """As SimpleConsumer.receive."""
        return await self._call(
            self._service.receive, max_messages, invisible_s=invisible_s, wait_s=wait_s
        )

    async def ack(self, message: PoppedMessage) -> None:
        """As SimpleConsumer.ack."""
        await self._call(self._service.ack, message)

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """As SimpleConsumer.ack_many."""
        await self._call(self._service.ack_many, messages)

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """As SimpleConsumer.change_invisible."""
        return await self._call(self._service.change_invisible, message, invisible_s)
