"""Reading back when a gateway starts, until it knows everything that the log has.

Owns: the order of refresh and ticks. Must not touch: clients.
"""

from __future__ import annotations

from typing import Final

import trio

from motelog.core.clock import Clock
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.log.reckoning import TICK_S
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore

#: Changes that are read back before other tasks run: some milliseconds.
READ_BACK_MAX: Final = 50
#: How long to wait when the log does not have the records in memory yet.
READ_BACK_PAUSE_S: Final = 0.005


async def read_back(
    journal: SessionJournal, retained: RetainedStore, log: LogPort, clock: Clock
) -> None:
    """Bring the view up to date with the log, before the first client is admitted.

    Meanwhile this gateway ticks, so that other gateways know of it, and waits until they say so.
    """
    ticked_ms = clock.monotonic_ms()
    while True:
        is_more = journal.refresh(READ_BACK_MAX)
        is_more = retained.refresh(READ_BACK_MAX) or is_more
        if journal.is_over:
            journal.begin_again()
        elif journal.is_current and retained.is_current and journal.is_known and not is_more:
            break
        if clock.monotonic_ms() - ticked_ms >= TICK_S * 1000:
            ticked_ms = clock.monotonic_ms()
            journal.tick({}, [])
        log.settle_soon()
        await trio.sleep(0 if is_more else READ_BACK_PAUSE_S)
