"""The wait before a check for peers that were silent for too long.

Owns: the wait. Must not touch: which peers are silent, and what happens to them.

A process that was stopped for minutes (a paused container, a virtual machine that was moved) has
read nothing meanwhile, so all peers seem to have been silent. What they have sent is in their
sockets: it is read before the check.
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
