"""Services that outlive a cancellation: whoever started them chooses their end.

Owns: when a service's scope becomes a shield. Must not touch: what the service does, its order
among others.

Concurrency: a start that is cancelled ends with the service. One that were shielded from its
beginning would keep ``nursery.start`` waiting for ever, which hands a service to its nursery only
while nobody has cancelled that.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio


async def run_lasting(
    run: Callable[..., Awaitable[None]],
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a service in ``scope``, whose ``cancel()`` alone ends it once it has started."""
    with scope:
        await run(task_status=_Starting(scope, task_status))


class _Starting:
    """What the service calls when it has started."""

    def __init__(self, scope: trio.CancelScope, task_status: trio.TaskStatus[Any]) -> None:
        self._scope = scope
        self._task_status = task_status

    def started(self, value: Any = None) -> None:
        is_cancelled = trio.current_effective_deadline() == -math.inf
        self._task_status.started(value)
        self._scope.shield = not is_cancelled
