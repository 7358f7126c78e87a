"""Trace records of handling: one for each message before, and one after.

Owns: which messages are traced and what their records contain. Must not touch: how records are sent
(recorder), how messages are handled.
Spec: RocketMQ ConsumeMessageTraceHookImpl.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from motelog.bridge.trace.recorder import TraceRecorder
from motelog.bridge.trace.records import (
    ContextCode,
    TraceKind,
    TraceRecord,
    is_traced,
    region_of,
)
from motelog.core.records.decode import StoredMessage


class HandledTraces:
    """Traces the messages that one consumer passes to its user; any thread may call it."""

    def __init__(self, recorder: TraceRecorder, *, group: str, timeout_s: float) -> None:
        self._recorder = recorder
        self._group = group
        self._timeout_ms = timeout_s * 1000

    @contextmanager
    def call(self, messages: Sequence[StoredMessage]) -> Iterator[None]:
        """Trace the handling of messages in the ``with`` block; an exception is a failure."""
        began_ms = _now_ms()
        request_id = secrets.token_hex(16).upper()
        before = [
            TraceRecord(
                kind=TraceKind.SUB_BEFORE,
                message_id=message.message_id,
                group=self._group,
                time_ms=began_ms,
                region=region_of(message.properties),
                request_id=request_id,
                retry_times=message.reconsume_times,
                keys=message.keys,
            )
            for message in messages
            # Tracing a reader of traces would never end.
            if is_traced(message.properties) and not message.topic.startswith(self._recorder.topic)
        ]
        self._recorder.note(before)
        code = ContextCode.EXCEPTION
        try:
            yield
            is_late = _now_ms() - began_ms >= self._timeout_ms
            code = ContextCode.TIME_OUT if is_late else ContextCode.SUCCESS
        finally:
            ended_ms = _now_ms()
            self._recorder.note(
                replace(
                    record,
                    kind=TraceKind.SUB_AFTER,
                    time_ms=ended_ms,
                    cost_ms=(ended_ms - began_ms) // len(messages),
                    is_ok=code is not ContextCode.EXCEPTION,
                    context_code=code,
                )
                for record in before
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
