"""Consumers of this process, one per name server, group and account, kept from task to task.

Owns: the only state that a worker keeps between tasks, and the work of its first task.
Must not touch: pyspark.
Spark forks its Python workers and uses them for many tasks. A consumer holds a thread and sockets,
which do not survive a fork, so the process id is part of the key. A consumer reconnects by itself.
It is dropped if it was closed or after a long outage.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol

from motelog.bridge.pull import PullResult
from motelog.bridge.sync import SyncPullConsumer
from motelog.core.message import MessageQueue
from motelog.spark.options import Endpoint
from motelog.spark.pull_ahead import Pull


class Puller(Protocol):
    """The part of ``bridge.queue_puller.QueuePuller`` that reading a range needs."""

    def ask(self, queue_offset: int, count_max: int) -> Pull: ...
    def close(self) -> None: ...


class LogReader(Protocol):
    """The part of ``bridge.sync.SyncPullConsumer`` that source and sink need."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]: ...
    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]: ...
    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]: ...
    def offsets_for_time(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]: ...
    def pull(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> PullResult: ...
    def committed(self, queue: MessageQueue) -> int | None: ...
    def commit(self, offsets: Mapping[MessageQueue, int]) -> None: ...


class Consumer(LogReader, Protocol):
    """The further methods that the source needs."""

    def topics(self) -> list[str]: ...
    def open_puller(
        self, queue: MessageQueue, *, bytes_max: int, tags: str, sql: str | None, may_map: bool
    ) -> Puller: ...
    def close(self) -> None: ...


_consumers: dict[tuple[int, Endpoint], Consumer] = {}
_answered: set[tuple[int, Endpoint]] = set()
_lock = threading.Lock()


def consumer_for(endpoint: Endpoint) -> Consumer:
    """Return this process's consumer for the endpoint, created at the first call."""
    key = (os.getpid(), endpoint)
    with _lock:
        consumer = _consumers.get(key)
        if consumer is None:
            namesrv, group, credentials, tls = endpoint
            consumer = _consumers[key] = SyncPullConsumer(
                namesrv=namesrv, group=group, credentials=credentials, tls=tls
            )
        return consumer


@cache
def settle() -> None:
    """Exclude what this worker has imported from garbage collection, once.

    Spark forks a worker that has imported pyspark, pyarrow and Motelog; each full collection would
    traverse all of that again, and copy the pages.
    """
    gc.collect()
    gc.freeze()


def answered(endpoint: Endpoint) -> None:
    """Record that the endpoint's name servers have answered this process."""
    _answered.add((os.getpid(), endpoint))


def has_answered(endpoint: Endpoint) -> bool:
    """Return whether the endpoint's name servers have ever answered this process."""
    return (os.getpid(), endpoint) in _answered


def drop(endpoint: Endpoint) -> None:
    """Close and forget this process's consumer for the endpoint, if there is one."""
    with _lock:
        consumer = _consumers.pop((os.getpid(), endpoint), None)
    if consumer is not None:
        consumer.close()
