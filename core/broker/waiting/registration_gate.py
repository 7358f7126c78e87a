"""Holds back answers to requests that made a topic until the name servers know it.

Owns: the held answers. Must not touch: registering (``registration``), what a request does.
A client that hears "yes" asks a name server next: a consumer for the retry topic that its heartbeat
has made, a tool for the topic it has created. RocketMQ's broker registers before it answers too.
Bounded: a name server that is away or slow holds up an answer for ``HOLD_S_MAX`` at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.broker.registration import Registrar
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.server import Connection, Processor, RemotingServer

HOLD_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    deadline: float
    connection: Connection
    answer: RemotingCommand


class RegistrationGate:
    """Answers in the order of the requests; state changes only between two awaits of ``run``."""

    def __init__(self, topics: TopicTable, registrars: Sequence[Registrar]) -> None:
        self._topics = topics
        self._registrars = registrars
        self._held: deque[_Held] = deque()
        self._holds = trio.Event()

    def guard(self, process: Processor) -> Processor:
        """Return ``process`` with its answer held back if it changed the topic table."""

        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            before = self._topics.version
            answer = process(request, connection)
            if answer is None or request.is_oneway or self._topics.version == before:
                return answer
            version = self._topics.version.counter
            deadline = trio.current_time() + HOLD_S_MAX
            self._held.append(_Held(version, deadline, connection, answer))
            self._holds.set()
            return None

        return guarded

    async def run(self, server: RemotingServer) -> None:
        """Send the held answers when it is time, until cancelled."""
        while True:
            await self._holds.wait()
            self._holds = trio.Event()
            while self._held:
                held = self._held.popleft()
                with trio.move_on_at(held.deadline):
                    for registrar in self._registrars:
                        await registrar.wait_registered(held.version)
                held.connection.reply(held.answer)
                server.flush()
