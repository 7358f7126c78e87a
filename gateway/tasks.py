"""What a gateway does between the batches of its reactor: deliver, tick, read back, look again.

Owns: its tasks, and when each begins another round. Must not touch: what a round does (the parts),
sockets, the order of start and stop (``server``).
Invariant: a task changes the gateway's state within a turn of its own (``listener.during``).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from motelog.core.clock import Clock
from motelog.core.flag import Flag
from motelog.core.lasting import run_again
from motelog.core.net.driver import HELD_S
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.access.access import Access
from motelog.gateway.assembly import GatewayParts
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.output import Output
from motelog.gateway.state.retained import RetainedStore

#: How often progress is stored: a crash costs repeated QoS 1 messages of this time.
TICK_S: Final = 1.0
#: Changes that are read back before others have their turn: some milliseconds.
READ_BACK_MAX: Final = 50
#: Records of state that are appended again in one tick.
REWRITES_MAX: Final = 100
#: How often it is checked whether a paused client may be read again.
RESUME_S: Final = 0.05
HOUR_MS: Final = 3_600_000
#: How long records of other gateways, and claims for them, wait for more after a look: for each of
#: these gateways, so that all together look as often as two do. From some twenty on the records
#: cost more than the looks, as each is read by all: their number a second is kept then. What comes
#: when all is quiet waits for nothing.
GATHER_S: Final = 0.002
GATHER_RECORDS_S: Final = 0.0001
GATHER_S_MAX: Final = 0.3


class Tasks:
    """The tasks of one gateway; ``start`` begins them all."""

    def __init__(
        self,
        parts: GatewayParts,
        log: LogPort,
        retained: RetainedStore,
        output: Output,
        *,
        wanted: Flag,
        to_meet: Flag,
        clock: Clock,
        access: Access | None,
        state_rewrite_hours: int,
    ) -> None:
        """``wanted`` and ``to_meet`` are what the parts set by their ``wake`` and ``meet``."""
        self._parts = parts
        self._listener = parts.listener
        self._journal = parts.journal
        self._log_port = log
        self._retained = retained
        self._output = output
        self._wanted = wanted
        self._to_meet = to_meet
        self._clock = clock
        self._access = access
        self.state_rewrite_hours = state_rewrite_hours
        # Set once a rate is limited, when other gateways have written, when rights have changed.
        self._has_rates = Flag()
        self._state_grown = Flag()
        self._access_changed = Flag()
        self._growth = log.follow(self._log_has_grown)
        for topic in GATEWAY_TOPICS:
            log.gather(topic, self._gather_s)
        log.fence(lambda: self._journal.run)
        self.look_at_rates()

    def start(self, nursery: trio.Nursery) -> None:
        """Begin all of them; one that fails begins again."""
        nursery.start_soon(run_again, self._deliver)
        nursery.start_soon(run_again, self._tick)
        nursery.start_soon(run_again, self._meet_others)
        nursery.start_soon(run_again, self._resume)
        if self._access is not None:
            nursery.start_soon(run_again, self._access.logins.run, self._carry)
            nursery.start_soon(self._access.follow, self._access_changed.set)
            nursery.start_soon(run_again, self._recheck)

    def look_at_rates(self) -> None:
        """Have paused clients looked at from now on, if a rate is limited."""
        if self._parts.rates.is_on:
            self._has_rates.set()

    async def _deliver(self) -> None:
        """Deliver what the slice of a turn has left over, and what others have appended."""
        self._wanted.set()  # where a round has failed, something is left
        while True:
            await self._wanted.wait()
            if self._journal.is_in_doubt():
                await trio.sleep(HELD_S)
                continue
            self._wanted.clear()
            while self._listener.deliver():
                await trio.lowlevel.checkpoint()

    async def _tick(self) -> None:
        """Store how far delivery has got; end sessions and publish wills that are due."""
        parts, journal, during = self._parts, self._journal, self._listener.during
        while True:
            await trio.sleep(TICK_S)
            during(parts.memory.tick)
            parts.operator.tick()
            while during(parts.clients.tick):
                await trio.lowlevel.checkpoint()
            await self._read_back()
            younger_ms = self._clock.now_ms() - self.state_rewrite_hours * HOUR_MS
            journal.rewrite_older(younger_ms, REWRITES_MAX)
            if journal.is_first:
                self._retained.rewrite_older(younger_ms, REWRITES_MAX)
            self._output.flush()

    # --- other gateways ------------------------------------------------------------------

    async def _read_back(self) -> None:
        read_back = partial(self._parts.clients.read_back, READ_BACK_MAX)
        while self._listener.during(read_back):
            self._output.flush()
            await trio.lowlevel.checkpoint()
        while self._parts.delivery.refresh_retained(READ_BACK_MAX):
            await trio.lowlevel.checkpoint()

    def _gather_s(self) -> float:
        others = self._journal.others_count
        return min(others * max(GATHER_S, GATHER_RECORDS_S * others), GATHER_S_MAX)

    def _log_has_grown(self) -> None:
        queues, journal = self._growth.take(), self._journal
        is_awaited = journal.others_live or journal.is_far_behind
        if is_awaited and (journal.has_grown(queues) or self._retained.has_grown(queues)):
            self._state_grown.set()
            self._to_meet.set()

    async def _meet_others(self) -> None:
        """Read back what others may have written, and tell them what is wanted here.

        Clients wait for that. Also if this gateway itself has written much.
        """
        self._to_meet.set()
        while True:
            await self._to_meet.take()
            has_grown = self._state_grown.is_set()
            self._state_grown.clear()
            await self._read_back()
            self._output.flush()
            self._log_port.settle_soon()
            if has_grown:
                await trio.sleep(self._gather_s())
                continue
            # What this gateway has only now asked for is read back as soon as the log has it.
            with trio.move_on_after(self._gather_s()):
                await self._state_grown.wait()

    # --- clients -------------------------------------------------------------------------

    async def _resume(self) -> None:
        """Read again from clients that have sent, or come, faster than they may."""
        await self._has_rates.wait()
        while True:
            await trio.sleep(RESUME_S)
            self._parts.rates.resume_due(self._clock.monotonic_ms())

    def _carry(self) -> None:
        """Carry what waits for a turn, and send what is to be sent."""
        self._listener.during(lambda: None)
        self._output.flush()
        self._log_port.settle_soon()

    async def _recheck(self) -> None:
        """Look at all clients again when logins or rights have changed."""
        clients = self._parts.clients
        self._access_changed.set()
        while True:
            await self._access_changed.take()
            clients.access_changed()
            while self._listener.during(clients.recheck):
                self._carry()
                await trio.lowlevel.checkpoint()
            self._carry()
