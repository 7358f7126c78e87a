"""What a gateway does between the batches of its reactor: deliver, tick, read back, recheck.

Owns: its tasks, and when each starts another round. Must not touch: what a round does (the parts),
sockets, the order of start and stop (``server``).
Invariant: a task changes connections and sessions only within a turn (``listener.during``).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from motelog.core.flag import Flag
from motelog.core.lasting import run_again
from motelog.core.net.driver import HELD_S
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.assembly import GatewayParts, Surroundings
from motelog.gateway.log.reckoning import TICK_S
from motelog.gateway.state.starting import READ_BACK_MAX

#: State records that are appended again in one tick.
REWRITES_MAX: Final = 100
#: How often to check whether a paused client may be read again.
RESUME_S: Final = 0.05
HOUR_MS: Final = 3_600_000
#: After a read, how long records of other gateways, and claims for them, wait so that more are read
#: together. This time is multiplied by the number of other gateways, so that all gateways together
#: read as often as two do. From about twenty gateways on, the records cost more than the reads, as
#: each gateway reads each record; from there on the number of records per second stays constant. A
#: record that comes after a quiet time does not wait.
GATHER_S: Final = 0.002
GATHER_RECORDS_S: Final = 0.0001
GATHER_S_MAX: Final = 0.3


class Tasks:
    """The tasks of one gateway; ``start`` starts them all."""

    def __init__(
        self,
        parts: GatewayParts,
        around: Surroundings,
        *,
        wanted: Flag,
        to_meet: Flag,
    ) -> None:
        """The parts set ``wanted`` by calling ``wake``, and ``to_meet`` by calling ``meet``."""
        self._parts = parts
        self._listener = parts.listener
        self._journal = parts.journal
        self._log_port = log = around.log
        self._retained = around.retained
        self._output = around.output
        self._wanted = wanted
        self._to_meet = to_meet
        self._clock = around.clock
        self._access = around.access
        self.state_rewrite_hours = around.config.state_rewrite_hours
        # Set when a rate is limited (from then on), when other gateways have written, and when
        # logins or rights have changed.
        self._has_rates = Flag()
        self._state_grown = Flag()
        self._access_changed = Flag()
        self._growth = log.follow(self._log_has_grown)
        for topic in GATEWAY_TOPICS:
            log.gather(topic, self._gather_s)
        log.fence(lambda: self._journal.run)
        self.look_at_rates()

    def start(self, nursery: trio.Nursery) -> None:
        """Start all tasks. A task that fails is started again."""
        nursery.start_soon(run_again, self._deliver)
        nursery.start_soon(run_again, self._tick)
        nursery.start_soon(run_again, self._meet_others)
        nursery.start_soon(run_again, self._resume)
        if self._access is not None:
            nursery.start_soon(run_again, self._access.logins.run, self._carry)
            nursery.start_soon(self._access.follow, self._access_changed.set)
            nursery.start_soon(run_again, self._recheck)

    def look_at_rates(self) -> None:
        """From now on, check when paused clients may be read again, if a rate is limited."""
        if self._parts.rates.is_on:
            self._has_rates.set()

    async def _deliver(self) -> None:
        """Deliver what a turn had no time for, and what others have appended."""
        self._wanted.set()  # a round that failed has left something
        while True:
            await self._wanted.wait()
            if self._journal.is_in_doubt():
                await trio.sleep(HELD_S)
                continue
            self._wanted.clear()
            while self._listener.deliver():
                await trio.lowlevel.checkpoint()

    async def _tick(self) -> None:
        """Each second, store delivery progress, end sessions and publish wills that are due."""
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
        """Read back what other gateways have written, and append the claims of this gateway.

        Clients wait for this. It also runs when this gateway itself has written a lot.
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
            # A claim that was appended just now is read back as soon as the log has it.
            with trio.move_on_after(self._gather_s()):
                await self._state_grown.wait()

    # --- clients -------------------------------------------------------------------------

    async def _resume(self) -> None:
        """Resume reading from clients that were paused because they exceeded a rate."""
        await self._has_rates.wait()
        while True:
            await trio.sleep(RESUME_S)
            self._parts.rates.resume_due(self._clock.monotonic_ms())

    def _carry(self) -> None:
        """Process what waits for a turn, and send what is queued."""
        self._listener.during(lambda: None)
        self._output.flush()
        self._log_port.settle_soon()

    async def _recheck(self) -> None:
        """Recheck all clients when logins or rights have changed."""
        clients = self._parts.clients
        self._access_changed.set()
        while True:
            await self._access_changed.take()
            clients.access_changed()
            while self._listener.during(clients.recheck):
                self._carry()
                await trio.lowlevel.checkpoint()
            self._carry()
