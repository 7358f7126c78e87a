"""Blocking producer and consumer for programs that do not run trio, such as Spark workers.

Owns: one background thread with a trio run per object. Must not touch: decisions of the trio-native
classes; each method here calls theirs.
The thread lives from construction to ``close``. Methods may be called from any thread. After a fork
the child has no such thread: create the object there (a call on an inherited one raises
ClientClosedError).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import trio

from motelog.bridge.errors import ClientClosedError
from motelog.bridge.producer import (
    COMPRESS_ABOVE_BYTES,
    MESSAGE_BYTES_MAX,
    RETRIES,
    SEND_TIMEOUT_S,
    Producer,
    SendResult,
)
from motelog.bridge.pull import HOLD_S, PULL_BYTES_MAX, PULL_COUNT, PullConsumer, PullResult
from motelog.bridge.query import QUERY_COUNT, TIME_MAX
from motelog.bridge.queue_puller import QueuePuller
from motelog.bridge.selector import TAGS_ALL, select
from motelog.core.message import Message, MessageQueue, StoredMessage

T = TypeVar("T")
_Service = TypeVar("_Service", bound=AbstractAsyncContextManager[Any])


class _Background(Generic[_Service]):
    """Runs a trio-native service in a thread of its own and calls it from other threads."""

    def __init__(self, service: _Service, name: str) -> None:
        self._service = service
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._leave: trio.Event | None = None
        # A daemon, so that a program that forgets to close can still end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Leave the service and end the thread; safe to call twice, and after a fork."""
        with self._lock:
            if self._is_closed or self._process_id != os.getpid():
                return
            self._is_closed = True
        assert self._token is not None
        assert self._leave is not None
        with suppress(trio.RunFinishedError):  # raised when the thread has ended by itself
            self._token.run_sync_soon(self._leave.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Run ``method`` in the thread and return its result; its errors are raised here."""
        token = self._check_open()
        try:
            return trio.from_thread.run(partial(method, *args, **options), trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClientClosedError("closed while the call was running") from None

    def _call_sync(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        token = self._check_open()
        try:
            return trio.from_thread.run_sync(partial(function, *args, **options), trio_token=token)
        except trio.RunFinishedError:
            raise ClientClosedError("closed while the call was running") from None

    def _check_open(self) -> trio.lowlevel.TrioToken:
        if self._process_id != os.getpid():
            raise ClientClosedError("created before a fork: create it in the process that uses it")
        if self._is_closed or self._token is None:
            raise ClientClosedError("closed")
        return self._token

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as exc:
            # Raised where the object is constructed or closed: a thread cannot raise to anyone.
            self._failure = exc
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._leave = trio.Event()
        async with self._service:
            self._token = trio.lowlevel.current_trio_token()
            self._started.set()
            await self._leave.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncProducer(_Background[Producer]):
    """``bridge.producer.Producer``, blocking. Close it, or use it in ``with``."""

    def __init__(
        self,
        *,
        namesrv: str = "127.0.0.1:9876",
        group: str = "motelog",
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_when_busy: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
    ) -> None:
        producer = Producer(
            namesrv=namesrv,
            group=group,
            timeout_s=timeout_s,
            retries=retries,
            retry_when_busy=retry_when_busy,
            message_bytes_max=message_bytes_max,
            compress_above_bytes=compress_above_bytes,
        )
        super().__init__(producer, f"motelog-producer-{group}")

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As Producer.queues."""
        return self._call(self._service.queues, topic)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """As Producer.send."""
        return self._call(
            self._service.send, message, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """As Producer.send_batch."""
        return self._call(
            self._service.send_batch, messages, queue=queue, hash_key=hash_key, timeout_s=timeout_s
        )


class SyncPullConsumer(_Background[PullConsumer]):
    """``bridge.pull.PullConsumer``, blocking. Close it, or use it in ``with``."""

    def __init__(
        self,
        *,
        namesrv: str = "127.0.0.1:9876",
        group: str = "motelog",
        start: Literal["first", "last"] = "first",
        hold_s: float = HOLD_S,
    ) -> None:
        consumer = PullConsumer(namesrv=namesrv, group=group, start=start, hold_s=hold_s)
        super().__init__(consumer, f"motelog-consumer-{group}")

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
        self._call_sync(self._service.assign, tuple(queues), tags=tags, sql=sql)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """As PullConsumer.seek."""
        self._call_sync(self._service.seek, queue, queue_offset)

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_begin."""
        self._call_sync(self._service.seek_to_begin, queues)

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As PullConsumer.seek_to_end."""
        self._call_sync(self._service.seek_to_end, queues)

    def position(self, queue: MessageQueue) -> int | None:
        """As PullConsumer.position."""
        return self._call_sync(self._service.position, queue)

    def poll(self, *, timeout_s: float = 1.0, count_max: int = 512) -> list[StoredMessage]:
        """As PullConsumer.poll."""
        return self._call(self._service.poll, timeout_s=timeout_s, count_max=count_max)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """As PullConsumer.commit."""
        self._call(self._service.commit, offsets)

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
        )

    def open_puller(
        self,
        queue: MessageQueue,
        *,
        bytes_max: int = PULL_BYTES_MAX,
        tags: str = TAGS_ALL,
        sql: str | None = None,
    ) -> QueuePuller:
        """Return a QueuePuller for one queue, with its own connection, for the calling thread.

        Its pulls cost a fraction of ``pull``, which goes through the background thread. It connects
        at the first pull. The caller closes it.
        """
        return QueuePuller(
            queue,
            group=self._service.group,
            address=lambda: self._call(self._service.broker_address, queue),
            bytes_max=bytes_max,
            selector=select(tags, sql),
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
