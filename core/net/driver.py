"""The one task that drives a reactor: it waits on its epoll descriptor, hands on turns and sends.

Owns: the loop. Must not touch: frames, sessions, the reactor's life (its maker shuts it down).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Never

import trio

from motelog.core import spare_memory
from motelog.core.limited_log import LimitedLog
from motelog.core.net.listen import ACCEPT_LINE_PERIOD_S, ACCEPTING_RESTS
from motelog.core.net.reactor import Reactor, Turn

logger = logging.getLogger(__name__)

TURNS_MAX: Final = 16
"""Turns taken in a row before other tasks get to run."""
SWEEP_INTERVAL_S: Final = 1
HELD_S: Final = 0.01
"""The interval of the checks whether turns are still held."""
CATCH_UP_MAX: Final = 64
"""After so many rounds of TURNS_MAX, a search for overdue connections is made in any case."""
CODEC_FAILED: Final = (
    "a codec failed and its connection was closed, a fault of this server; others are served"
)


async def drive(
    reactor: Reactor,
    handle_turn: Callable[[Turn], None],
    *,
    clock_s: Callable[[], int],
    after_turns: Callable[[], None] = lambda: None,
    is_held: Callable[[], bool] = lambda: False,
) -> None:
    """Poll and hand each turn that holds something to ``handle_turn``, until cancelled.

    Output queued by ``handle_turn`` is sent before the next wait. A task that queues output at
    another time calls ``reactor.flush()``. Overdue connections are looked for once a second.
    ``clock_s`` is a clock that does not go back. ``after_turns`` does the work that several turns
    in a row share; it is called each time before other tasks get to run. While ``is_held``, the
    reactor is not polled. A MemoryError ends a turn but not the loop: ``handle_turn`` has to close
    the connections whose frames it could not take.
    """
    faults = LimitedLog(logger, lines_max=1, period_s=ACCEPT_LINE_PERIOD_S)
    spare_memory.keep()
    while True:
        try:
            await _drive(reactor, handle_turn, clock_s, after_turns, is_held)
        except spare_memory.NO_MEMORY:
            faults.fault("a turn of a reactor lacks memory: free memory")
            await trio.sleep(HELD_S)


async def _drive(
    reactor: Reactor,
    handle_turn: Callable[[Turn], None],
    clock_s: Callable[[], int],
    after_turns: Callable[[], None],
    is_held: Callable[[], bool],
) -> Never:
    accepts = LimitedLog(logger, lines_max=1, period_s=ACCEPT_LINE_PERIOD_S)
    faults = LimitedLog(logger)
    is_more = True
    while True:
        # One scope for all waits of a second: a scope for each costs half as much as the wait.
        with trio.move_on_after(SWEEP_INTERVAL_S):
            while True:
                if is_held():
                    await trio.sleep(HELD_S)
                elif is_more:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(reactor.fileno())
                is_more = _take_turns(reactor, handle_turn, clock_s, is_held)
                after_turns()
        if is_held():
            continue
        # After a stall, many frames have come that were not read: their senders are not overdue.
        for _ in range(CATCH_UP_MAX):
            is_more = _take_turns(reactor, handle_turn, clock_s, is_held)
            after_turns()
            if not is_more:
                break
            await trio.lowlevel.checkpoint()
        spare_memory.keep()
        reactor.sweep(clock_s())
        codec_error = reactor.take_codec_error()
        if codec_error is not None:
            faults.fault(CODEC_FAILED, exc=codec_error)
        if reactor.accept_errno:
            accepts.warning(ACCEPTING_RESTS, os.strerror(reactor.accept_errno))
        is_more = _take_turns(reactor, handle_turn, clock_s, is_held)
        after_turns()


def _take_turns(
    reactor: Reactor,
    handle_turn: Callable[[Turn], None],
    clock_s: Callable[[], int],
    is_held: Callable[[], bool],
) -> bool:
    """Take turns until there is nothing to do; return whether TURNS_MAX was not enough."""
    for _ in range(TURNS_MAX):
        if is_held():
            return True
        # An empty poll costs one system call, a wait in trio fifty times that: wait only if the
        # answers to the last turn brought nothing new at once.
        turn = reactor.poll(clock_s())
        if turn:
            handle_turn(turn)
        elif not turn.more:
            return False
    # The rest of a full turn need not make epoll's descriptor readable: poll again without waiting.
    reactor.flush()
    return True
