"""Records of how messages were handled, before and after each call of the user's function.

Owns: which calls are traced. Must not touch: what the records say (bridge.trace), what becomes of
a message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from motelog.bridge.push.workers import Handler
from motelog.bridge.trace.handled import HandledTraces


def traced(handler: Handler, traces: HandledTraces) -> Handler:
    """Return a handler that does what ``handler`` does, and whose calls are traced."""
    function = handler.function

    async def handle_async(argument: Any) -> object:
        with traces.call(argument if handler.in_batches else [argument]):
            return await function(argument)

    def handle(argument: Any) -> object:
        with traces.call(argument if handler.in_batches else [argument]):
            return function(argument)

    return replace(handler, function=handle_async if handler.is_async else handle)
