"""The state that a worker keeps between tasks of a streaming query: clients and the read ledger.

Owns: Clients, those of this process. Must not touch: pyspark.
A client holds a thread and sockets, which do not survive a fork, so the process id is part of the
key. Clients reconnect by themselves. A task that fails drops them.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from motelog.bridge.sync import SyncProducer, SyncPullConsumer
from motelog.spark.sink.ledger import Ledger
from motelog.spark.sink.options import GROUP, SinkOptions


class Clients(NamedTuple):
    """The clients and the ledger of one query's attempts in one process."""

    producer: SyncProducer
    reader: SyncPullConsumer
    ledger: Ledger

    def close(self) -> None:
        self.producer.close()
        self.reader.close()


_kept: dict[tuple[int, str, SinkOptions], Clients] = {}
_lock = threading.Lock()


def open_clients(query: str, options: SinkOptions, *, since_ms: int | None = None) -> Clients:
    """Return new clients; the caller closes them. ``since_ms``: see Ledger."""
    namesrv, group, credentials, tls = options.endpoint
    # The sink itself decides whether to repeat a send, after searching the log.
    producer = SyncProducer(
        namesrv=namesrv, group=group, credentials=credentials, tls=tls, retries=0
    )
    # The group stores the offset from which the ledger matters to this query.
    reader = SyncPullConsumer(
        namesrv=namesrv, group=f"{GROUP}-{query}", credentials=credentials, tls=tls
    )
    ledger = Ledger(producer, reader, topic=options.ledger_topic, query=query, since_ms=since_ms)
    return Clients(producer, reader, ledger)


def kept_clients(query: str, options: SinkOptions) -> Clients:
    """Return this process's clients for a query, opened at the first call."""
    key = (os.getpid(), query, options)
    with _lock:
        clients = _kept.get(key)
        if clients is None:
            clients = _kept[key] = open_clients(query, options)
        return clients


def drop(query: str, options: SinkOptions) -> None:
    """Close and forget this process's clients for a query, if there are any."""
    with _lock:
        clients = _kept.pop((os.getpid(), query, options), None)
    if clients is not None:
        clients.close()
