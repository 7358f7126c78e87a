"""Records of how messages were handled, before and after each call of the user's function.

Owns: which calls are traced and what their records say. Must not touch: how records are sent
(bridge.trace), what becomes of a message.
Spec: RocketMQ ConsumeMessageTraceHookImpl.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from motelog.bridge.push.workers import Handler
from motelog.bridge.trace.recorder import TraceRecorder
from motelog.bridge.trace.records import (
    ContextCode,
    TraceKind,
    TraceRecord,
    is_traced,
    region_of,
)
from motelog.core.message import StoredMessage


class Traces:
    """Traces the calls of the function of one consumer; from any thread."""

    def __init__(self, recorder: TraceRecorder, *, group: str, timeout_s: float) -> None:
        self._recorder = recorder
        self._group = group
        self._timeout_ms = timeout_s * 1000

    def around(self, handler: Handler) -> Handler:
        """Return a handler that does what ``handler`` does, and whose calls are traced."""
        function = handler.function

        async def handle_async(argument: Any) -> object:
            with self._call(argument if handler.in_batches else [argument]):
                return await function(argument)

        def handle(argument: Any) -> object:
            with self._call(argument if handler.in_batches else [argument]):
                return function(argument)

        return replace(handler, function=handle_async if handler.is_async else handle)

    @contextmanager
    def _call(self, messages: list[StoredMessage]) -> Iterator[None]:
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
            # Whoever reads traces would make them without an end.
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
