"""Holds back answers to requests that changed a table until the change is durable.

Owns: the held answers. Must not touch: saving, registering (``registration``), what a request does.
A client relies on a success even if the broker is killed then, so the change must be on the disk
before the answer, and at a slave if messages wait for one. Next the client asks a name server: a
consumer for the retry topic that its heartbeat has created, a tool for its new topic. RocketMQ's
broker also saves and registers before it answers. Bounded: an unreachable or slow name server or
slave delays an answer by at most ``HOLD_S_MAX``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.acl.users import UserTable
from motelog.core.broker.registration import Registrar
from motelog.core.broker.replication.table_feed import TableFeed
from motelog.core.broker.tables.request_modes import RequestModes
from motelog.core.broker.tables.subscription_groups import SubscriptionGroups
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.flag import Flag
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer
from motelog.core.remoting.topic_config import DataVersion

HOLD_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    topics_version: int
    deadline: float
    request: RemotingCommand
    connection: Connection
    answer: RemotingCommand


class SettingsGate:
    """Answers in the order of the requests; state changes only between two awaits of ``run``.

    ``save`` returns None if every change so far is on the disk, or the reason why not.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: SubscriptionGroups,
        modes: RequestModes,
        users: UserTable,
        registrars: Sequence[Registrar],
        *,
        save: Callable[[], Awaitable[str | None]],
        feed: TableFeed | None = None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._modes = modes
        self._users = users
        self._registrars = registrars
        self._save = save
        self._feed = feed
        self._held: deque[_Held] = deque()
        self._holds = Flag()

    def guard(self, process: Processor) -> Processor:
        """Return ``process``; its answer is held back if it changed a table."""

        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            before = self._versions()
            answer = process(request, connection)
            if answer is None or request.is_oneway or self._versions() == before:
                return answer
            if self._feed is not None:
                self._feed.note_change()
            version = self._topics.version.counter
            deadline = trio.current_time() + HOLD_S_MAX
            self._held.append(_Held(version, deadline, request, connection, answer))
            self._holds.set()
            return None

        return guarded

    def _versions(self) -> tuple[DataVersion, DataVersion, int, int]:
        return (
            self._topics.version,
            self._groups.version,
            self._modes.version,
            self._users.version,
        )

    async def run(self, server: RemotingServer) -> None:
        """Send each held answer when its change is saved and registered, until cancelled."""
        while True:
            await self._holds.take()
            while self._held:
                held = self._held.popleft()
                answer = held.answer
                fault = await self._save()
                with trio.move_on_at(held.deadline):
                    for registrar in self._registrars:
                        await registrar.wait_registered(held.topics_version)
                if fault is None and self._feed is not None:
                    fault = await self._feed.wait_copied(held.deadline)
                if fault is not None:
                    answer = held.request.answer(ResponseCode.SYSTEM_ERROR, fault)
                held.connection.reply(answer)
                server.flush()
