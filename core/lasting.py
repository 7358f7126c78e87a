"""Services that continue despite a cancellation or a lack of memory.

Owns: when a service's scope becomes a shield, when a service begins again. Must not touch: what the
service does, its order among others.

Concurrency: cancelling a start ends the service. If the service were shielded from its beginning,
``nursery.start`` would wait for ever, because it hands a service to its nursery only while that is
not cancelled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from motelog.core.errors import leaves
from motelog.core.limited_log import LimitedLog
from motelog.core.spare_memory import NO_MEMORY

logger = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
_LINE_PERIOD_S: Final = 60.0


async def run_lasting(
    run: Callable[..., Awaitable[None]],
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a service in ``scope``, whose ``cancel()`` alone ends it once it has started."""
    with scope:
        await run(task_status=_Starting(scope, task_status))


async def run_again(run: Callable[..., Awaitable[None]], *args: object) -> None:
    """Run a service, and run it again a second later if it ended with a MemoryError.

    The service must allow that: the next run does the work that was left undone. There is at most
    one log line a minute.
    """
    faults = LimitedLog(logger, lines_max=1, period_s=_LINE_PERIOD_S)
    while True:
        try:
            await run(*args)
        except (*NO_MEMORY, BaseExceptionGroup) as exc:
            if not all(isinstance(one, NO_MEMORY) for one in leaves(exc)):
                raise
            faults.fault("a service lacks memory and begins again: free memory")
        else:
            return
        await trio.sleep(AGAIN_S)


class _Starting:
    """The ``task_status`` of the service, which it calls when it has started."""

    def __init__(self, scope: trio.CancelScope, task_status: trio.TaskStatus[Any]) -> None:
        self._scope = scope
        self._task_status = task_status

    def started(self, value: Any = None) -> None:
        is_cancelled = trio.current_effective_deadline() == -math.inf
        self._task_status.started(value)
        self._scope.shield = not is_cancelled
