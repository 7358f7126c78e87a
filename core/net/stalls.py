"""Waiting until it may be looked who was silent for too long.

Owns: the wait. Must not touch: who is silent, and what becomes of them.

A process that was stopped for minutes (a paused container, a virtual machine that was moved) has
read nothing meanwhile, and everybody seems to have been silent. What they have sent is in their
sockets: it is read before anybody is looked for.
"""

from __future__ import annotations

import trio


async def sleep_unstalled(interval_s: float) -> None:
    """Sleep for ``interval_s``, and again as long if the process was stalled meanwhile."""
    is_stalled = True
    while is_stalled:
        due_at = trio.current_time() + interval_s
        await trio.sleep_until(due_at)
        is_stalled = trio.current_time() - due_at > interval_s / 2
