"""The hand-written part of the clients for plain threads: the thread, its end, the loops.

Owns: how a call gets into the thread of a client and back, what has no counterpart in trio.
Must not touch: decisions of the trio-native classes. ``bridge/sync.py`` has the rest of the
methods, written by ``python -m tests.twins``: each calls the native one of its name.
The thread lives from construction to ``close``. Methods may be called from any thread. After a fork
the child has no such thread: create the object there (a call on an inherited one raises
ClientClosedError).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Generic, Self, TypeVar

import trio

from motelog.bridge.background import Background, Service
from motelog.bridge.mapped_log import FoundLogs
from motelog.bridge.producer import Producer, QueueChoice, SendResult
from motelog.bridge.pull_request import PULL_BYTES_MAX
from motelog.bridge.queue_puller import QueuePuller
from motelog.bridge.selector import TAGS_ALL, select
from motelog.bridge.transactions import TransactionState
from motelog.bridge.unseen import LoopedPullConsumer
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage

A = TypeVar("A")
T = TypeVar("T")

#: The user's functions, as the native classes name them: plain ones.
Check = Callable[[StoredMessage], TransactionState]
Execute = Callable[[Message], TransactionState]
HandleOne = Callable[[StoredMessage], object]
HandleSome = Callable[[list[StoredMessage]], object]


class Blocking(Generic[Service]):
    """What all these clients share."""

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

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _as_async(self, function: Callable[[A], T]) -> Callable[[A], Awaitable[T]]:
        """Return an async function that runs a function of the user in a thread of its own."""

        async def in_thread(argument: A) -> T:
            return await trio.to_thread.run_sync(function, argument)

        return in_thread


class ProducerBase(Blocking[Producer]):
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
        Any number of sends may be under way: the caller must limit it.
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


class PullConsumerBase(Blocking[LoopedPullConsumer]):
    def __init__(self, service: LoopedPullConsumer, name: str) -> None:
        super().__init__(service, name)
        self._found_logs: FoundLogs = {}

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors as with ``poll``."""
        while (message := self._service.unseen.pop()) is None:
            self._call(self._service.fetch)
        return message

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
        broker on this machine that allows it (bridge.mapped_log).
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
