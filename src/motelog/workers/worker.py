"""One of several gateway processes: ``python -m motelog.workers.worker NAME``, started by a server.

Owns: the process from start to end. Must not touch: what the gateway does, who starts the process.
Invariant: the process ends when the channel to the server does, whatever happened to the server;
in an orderly way if that takes at most ENDED_WITHIN_S. SIGTERM ends it in the same way, and the
server starts another. SIGINT goes to all processes of a terminal: the server decides.

The channel is standard input.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec
import trio

from motelog import logs
from motelog.console.asking import GatewayHere, RefusedError
from motelog.core.errors import MotelogError, comes_again, leaves
from motelog.core.limited_log import LimitedLog
from motelog.core.threads import hear_without_memory
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.server import Gateway
from motelog.workers.channel import (
    Answer,
    Begin,
    Channel,
    Failed,
    Message,
    Question,
    Ready,
    State,
)

logger = logging.getLogger(__name__)

#: How long a stop may take: clients are disconnected, sessions stored, the last appends sent.
ENDED_WITHIN_S: Final = 8.0
STATE_INTERVAL_S: Final = 1.0
_FAILED: Final = msgspec.Raw(
    msgspec.msgpack.encode("the gateway process failed to answer; see its log")
)


def main() -> None:
    # A terminal sends these to all its processes; the server decides when this one ends.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    name = sys.argv[1]
    logs.set_up(logs.LogConfig(), process=name)
    channel = Channel(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    sys.exit(trio.run(_serve, channel, name))


async def _serve(channel: Channel, name: str) -> int:
    """Serve until the channel ends or SIGTERM; return the exit status."""
    hear_without_memory()
    messages = channel.messages()
    begin = await anext(messages, None)
    if not isinstance(begin, Begin):
        return 0  # the server ended meanwhile
    logs.set_up(begin.log, process=name)
    line = _Line(channel)
    errors: list[BaseException] = []
    try:
        log = RemoteLog.of(begin.gateway)
        gateway = Gateway(begin.gateway, log, access=begin.access, listeners=begin.listeners)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_at_signal, nursery.cancel_scope)
            nursery.start_soon(line.answer_all, messages, nursery.cancel_scope)
            await nursery.start(gateway.run)
            assert gateway.operator is not None, "it has started"
            line.here = GatewayHere(gateway.operator, gateway.reload_certificates)
            await line.send(Ready())
            while True:
                metrics = gateway.metrics
                counted = metrics.sample(), metrics.histograms()
                await line.send(State(*counted, log.outage, gateway.access_fault))
                await trio.sleep(STATE_INTERVAL_S)
    except* (MotelogError, OSError) as group:
        errors += leaves(group)
    if errors:
        await line.send(Failed(str(errors[0]), comes_again(errors[0])))
    return 1 if errors else 0


class _Line:
    """Our end of the channel; messages to a server that has ended are dropped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._turn = trio.Lock()
        self._faults = LimitedLog(logger)
        #: None until the gateway has started; there are no questions before.
        self.here: GatewayHere | None = None

    async def send(self, message: Message) -> None:
        async with self._turn:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._channel.send(message)

    async def answer_all(self, messages: AsyncIterator[Message], scope: trio.CancelScope) -> None:
        """Answer questions until the channel ends, then end the process."""
        async with trio.open_nursery() as nursery:
            async for message in messages:
                assert isinstance(message, Question)
                nursery.start_soon(self._answer, message)
            _end(scope)

    async def _answer(self, question: Question) -> None:
        assert self.here is not None, "the server asks only ready processes"
        answer = Answer(question.number, _FAILED, 500)
        with self._faults.boundary("a question failed name=%s", question.name):
            try:
                found, status = await getattr(self.here, question.name)(*question.arguments), 0
            except RefusedError as exc:
                found, status = str(exc), exc.status
            raw = msgspec.Raw(msgspec.msgpack.encode(found))
            answer = Answer(question.number, raw, status)
        await self.send(answer)


async def _end_at_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            _end(scope)


def _end(scope: trio.CancelScope) -> None:
    """Stop in an orderly way; if that takes too long, exit at once."""
    last = threading.Timer(ENDED_WITHIN_S, os._exit, (1,))
    last.daemon = True
    last.start()
    scope.cancel()


if __name__ == "__main__":
    main()
