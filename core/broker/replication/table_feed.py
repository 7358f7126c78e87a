"""A master's tables for slaves that follow them, and which versions a slave has.

Owns: the versions, the held requests. Must not touch: what is in a table, which answers wait for a
slave (settings_gate).

    settings   topics, groups, request modes, users: at once; answers to who changed them wait
    progress   consume offsets, orders, deliveries of delayed messages: each HOLD_S

A version counts how often a table's content was found changed. Nothing is encoded while no slave
follows. Apache's slaves ask for three tables each 10 s instead, with requests of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from motelog.core.acl.addresses import Addresses
from motelog.core.broker.replication.master import Master
from motelog.core.errors import BrokerError
from motelog.core.flag import Flag
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.server import Connection, RemotingServer
from motelog.core.replication.table_versions import HOLD_S, Newer, Versioned, decode_have, encode

#: A slave that has not asked for so long is not waited for.
_FOLLOWS_S: Final = 2 * HOLD_S

Snapshot = Callable[[], object]


@dataclass(slots=True)
class _Follower:
    versions: Mapping[str, int] = field(default_factory=dict)
    #: The request that waits for a change.
    held: RemotingCommand | None = None
    asked_at: float = 0.0
    progress_at: float = -HOLD_S


class TableFeed:
    """The tables of one master; ``run`` answers what ``follow`` takes."""

    def __init__(
        self,
        master: Master,
        peers: Addresses,
        settings: Mapping[str, Snapshot],
        progress: Mapping[str, Snapshot],
        *,
        end_offset: Callable[[], int],
        waits_for_slaves: bool,
        slaves_min: int,
    ) -> None:
        self._master = master
        self._peers = peers
        self._settings = settings
        self._progress = progress
        self._end_offset = end_offset
        self._waits_for_slaves = waits_for_slaves
        self._slaves_min = slaves_min
        self._epoch = secrets.token_hex(8)
        self._tables: dict[str, Versioned] = {}
        # Whether settings may have changed since they were encoded.
        self._is_stale = True
        self._followers: dict[Connection, _Follower] = {}
        self._changed = Flag()
        self._asked = Flag()

    def note_change(self) -> None:
        """Let slaves know that settings may have changed."""
        self._is_stale = True
        self._changed.set()

    def connection_closed(self, connection: Connection) -> None:
        """Forget a slave."""
        if self._followers.pop(connection, None) is not None:
            self._asked.pulse()

    async def wait_copied(self, deadline: float) -> str | None:
        """Return None when a slave has all settings as they are now, or if none needs to have them.

        Otherwise return at ``deadline`` why they may go with this broker.
        """
        if not self._waits_for_slaves:
            return None
        wanted: dict[str, int] = {}
        if self._is_followed():
            self._refresh_settings()
            wanted = {name: self._tables[name].version for name in self._settings}
        with trio.move_on_at(deadline) as waiting:
            while self._is_followed() and not self._is_copied(wanted):
                await self._asked.wait()
        if self._master.near_count < self._slaves_min:
            return f"changed here, but no slave has it (slaves_min is {self._slaves_min})"
        if waiting.cancelled_caught and self._slaves_min:
            return "changed here, but no slave has confirmed it in time"
        return None

    def _is_followed(self) -> bool:
        now = trio.current_time()
        return any(one.held or now - one.asked_at < _FOLLOWS_S for one in self._followers.values())

    def _is_copied(self, wanted: Mapping[str, int]) -> bool:
        return any(
            all(one.versions.get(name, 0) >= version for name, version in wanted.items())
            for one in self._followers.values()
        )

    def follow(self, request: RemotingCommand, connection: Connection) -> None:
        """Take a slave's request; it is answered when there is something new."""
        host = connection.peer[0]
        if not self._peers.holds(host):
            text = f"{host} may not follow this broker's tables: it is not in ha_peers"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        try:
            have = decode_have(request.body)
        except msgspec.DecodeError as exc:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"invalid versions: {exc}") from None
        follower = self._followers.setdefault(connection, _Follower())
        follower.versions = have.versions if have.epoch == self._epoch else {}
        follower.held = request
        follower.asked_at = trio.current_time()
        self._asked.pulse()
        self._changed.set()

    async def run(self, server: RemotingServer) -> None:
        """Answer held requests when there is something new, until cancelled."""
        while True:
            await self._changed.take(self._pause_s())
            for connection, follower in list(self._followers.items()):
                request = follower.held
                if request is not None and (newer := self._newer(follower)) is not None:
                    follower.held = None
                    connection.reply(request.answer(body=encode(newer)))
            server.flush()

    def _pause_s(self) -> float | None:
        due = [one.progress_at + HOLD_S for one in self._followers.values() if one.held is not None]
        return max(min(due) - trio.current_time(), 0) if due else None

    def _newer(self, follower: _Follower) -> Newer | None:
        """Return what a follower lacks, None if there is nothing new and nothing due yet."""
        names, now = list(self._settings), trio.current_time()
        is_due = now >= follower.progress_at + HOLD_S
        if is_due:
            follower.progress_at = now
            self._is_stale = True  # whoever changes settings may not have said so
            self._refresh(self._progress)
            names += self._progress
        self._refresh_settings()
        tables = {
            name: table
            for name in names
            if (table := self._tables[name]).version != follower.versions.get(name)
        }
        if not (tables or is_due):
            return None
        return Newer(self._epoch, self._end_offset(), tables)

    def _refresh_settings(self) -> None:
        if self._is_stale:
            self._refresh(self._settings)
            self._is_stale = False

    def _refresh(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Give a new version to each table that has changed."""
        for name, snapshot in snapshots.items():
            content = encode(snapshot())
            known = self._tables.get(name)
            if known is None or bytes(known.content) != content:
                version = 1 if known is None else known.version + 1
                self._tables[name] = Versioned(version, msgspec.Raw(content))
