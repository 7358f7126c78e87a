"""Trace records before and after each call of the user's function.

Owns: which calls are traced. Must not touch: what the records contain (bridge.trace), how messages
are handled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from motelog.bridge.push.workers import Handler
from motelog.bridge.trace.handled import HandledTraces


def traced(handler: Handler, traces: HandledTraces) -> Handler:
    """Return ``handler`` with its calls traced."""
    function = handler.function

    async def handle_async(argument: Any) -> object:
        with traces.call(argument if handler.in_batches else [argument]):
            return await function(argument)

    def handle(argument: Any) -> object:
        with traces.call(argument if handler.in_batches else [argument]):
            return function(argument)

    return replace(handler, function=handle_async if handler.is_async else handle)
