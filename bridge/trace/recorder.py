"""Sending a client's trace records without disturbing its work.

Owns: waiting records and their memory limit, packing them into messages, the task that sends them.
Must not touch: the text of a record (records), how a message is sent.
Invariants: recording never waits and never fails; records for which there is no room, or whose
message no broker accepts, are dropped and logged. ``note`` may be called from any thread.
Spec: RocketMQ AsyncTraceDispatcher.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol, Self

import trio

from motelog.bridge.trace.records import TraceRecord
from motelog.core.errors import MotelogError
from motelog.core.limited_log import LimitedByKey
from motelog.core.message import Message

logger = logging.getLogger(__name__)

#: The topic that RocketMQ's clients write to and its tools read.
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
FLUSH_S: Final = 1.0
#: How long records may delay the closing of a client.
CLOSE_S: Final = 3.0
#: Waiting records, of about 200 bytes each; twenty times the limit of Java's clients.
WAITING_MAX: Final = 40_000
MESSAGE_BYTES_MAX: Final = 128_000
#: A message's properties have at most 32,767 bytes, and each key costs an index entry.
KEYS_BYTES_MAX: Final = 24_000


class Sender(Protocol):
    """The producer for the records, separate so that nothing waits behind them."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_error: object) -> None: ...

    async def send(self, message: Message) -> object: ...


class TraceRecorder:
    """Takes records and sends them every second; used in ``async with``, around ``run``."""

    def __init__(self, sender: Sender, *, topic: str) -> None:
        self.topic = topic
        self._sender = sender
        self._lock = threading.Lock()
        self._waiting: deque[TraceRecord] = deque()
        self._dropped = 0
        self._faults = LimitedByKey(logger)

    async def __aenter__(self) -> Self:
        await self._sender.__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Send waiting records within CLOSE_S, and close the sender."""
        try:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self._flush()
            if self._waiting:
                self._log_dropped("the client closes", len(self._waiting))
        finally:
            await self._sender.__aexit__(None, None, None)

    async def run(self) -> None:
        """Send the recorded records until cancelled."""
        while True:
            await trio.sleep(FLUSH_S)
            await self._flush()

    def note(self, records: Iterable[TraceRecord]) -> None:
        """Queue records to be sent a little later."""
        with self._lock:
            for record in records:
                if len(self._waiting) < WAITING_MAX:
                    self._waiting.append(record)
                else:
                    self._dropped += 1

    async def _flush(self) -> None:
        while records := self._take():
            try:
                await self._sender.send(trace_message(records, self.topic))
            except MotelogError as exc:
                self._log_dropped(str(exc), len(records))
            except trio.Cancelled:
                with self._lock:
                    self._waiting.extendleft(reversed(records))
                raise
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._log_dropped("records come faster than they are sent, or are too large", dropped)

    def _take(self) -> list[TraceRecord]:
        """Remove and return the next records, as many as fit into one message."""
        taken: list[TraceRecord] = []
        body_bytes = keys_bytes = 0
        with self._lock:
            while self._waiting:
                record = self._waiting[0]
                body_bytes += len(record.encode().encode())
                keys_bytes += sum(len(key.encode()) + 1 for key in _keys(record))
                if body_bytes <= MESSAGE_BYTES_MAX and keys_bytes <= KEYS_BYTES_MAX:
                    taken.append(self._waiting.popleft())
                elif taken:
                    break
                else:
                    self._waiting.popleft()
                    self._dropped += 1
                    body_bytes = keys_bytes = 0
        return taken

    def _log_dropped(self, reason: str, count: int) -> None:
        self._faults.warning(
            self.topic,
            "trace records are dropped; messages are still sent and handled topic=%s "
            "reason=%s records=%d",
            self.topic,
            reason,
            count=count,
        )


def trace_message(records: Iterable[TraceRecord], topic: str) -> Message:
    """Return the message that carries records; their ids and keys are its keys."""
    records = list(records)
    keys = dict.fromkeys(key for record in records for key in _keys(record))
    body = "".join(record.encode() for record in records).encode()
    return Message(topic, body, keys=tuple(keys))


def _keys(record: TraceRecord) -> tuple[str, ...]:
    return (record.message_id, *record.keys)
