"""A slave's requests to its master: what it must know before it copies, and the tables.

Owns: which requests are sent when. Must not touch: the log and the HA port (slave), what is in a
table, when our masters answer (table_feed).
Spec: RocketMQ SlaveSynchronize.

Tables are replaced as a whole, each by its master's: our masters send all that have changed, at
once; Apache's are asked for topics, groups, consume offsets and delay levels each 10 s. A master
that does not answer changes nothing.

Progress is used when this log is on the disk up to where the master's ended. What it has passed may
have been appended again: as a delivered message, a question about a transaction, the checkpoint of
a pop. A promoted slave that has the progress and not the record would never deliver the message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from motelog.core.broker.replication.namesakes import FILE_BYTES, TERM, TERM_BEGIN
from motelog.core.broker.replication.peers import TIMEOUT_S, Peers, ask, number_of, settings_of
from motelog.core.broker.tables.tables import Tables
from motelog.core.errors import RemotingDecodeError, RemotingError, StoreError
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.client import RemotingClient
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand, loads
from motelog.core.replication.table_versions import HOLD_S, Have, Newer, decode_newer, encode
from motelog.core.saved_table import Table
from motelog.core.state_file import StateFile
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

#: The name of what ``delay_files`` keep.
DELAYS: Final = "delays"
#: Between questions to Apache's masters (scheduleAtFixedRate in handleSlaveSynchronize).
_INTERVAL_S: Final = 10.0
_LINE_PERIOD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class MasterLog:
    """The log of a master: which offsets it has, and the size of its files."""

    begin_offset: int
    end_offset: int
    file_bytes: int
    #: Of its leadership; 0 for Apache's.
    term: int
    #: Where its log ended when it became the master.
    term_begin: int


class _Runtime(msgspec.Struct, rename="camel"):
    commit_log_min_offset: int
    commit_log_max_offset: int


class MasterLink:
    """Asks the master; ``follow`` keeps a connection, ``log_of`` has one of its own."""

    def __init__(
        self,
        tables: Tables,
        delay_files: Mapping[str, StateFile],
        peers: Peers,
        *,
        levels_file: str,
        save: Callable[[], Awaitable[str | None]],
        admit: Callable[[], None],
        when_copied: Callable[[int], Awaitable[None]],
    ) -> None:
        self._settings = tables.settings()
        self._progress = tables.progress()
        self._rounds: dict[RequestCode, Table] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: tables.topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: tables.groups,
        }
        self._delay_files = delay_files
        # The one of them whose content an Apache master tells.
        self._levels_file = levels_file
        self._peers = peers
        # Writes the settings to the disk; returns why that failed, or None.
        self._save = save
        # Lets new users in.
        self._admit = admit
        # Returns when this broker's log is on the disk up to an offset.
        self._when_copied = when_copied
        # Progress: where the log must end before it is used, the tables, and their versions.
        self._waiting: tuple[int, Mapping[str, Any], Mapping[str, Any]] | None = None
        self._has_waiting = Flag()
        # The versions of the progress in use; of an Apache master, what it has answered.
        self._used: dict[str, Any] = {}
        # What an Apache master has answered.
        self._taken: dict[RequestCode, bytes] = {}
        self._hurries = Flag()
        self._lines = LimitedLog(logger, lines_max=1, period_s=_LINE_PERIOD_S)

    def hurry(self) -> None:
        """Ask an Apache master again now: its log has come with queues of unknown topics."""
        self._hurries.set()

    async def log_of(self, address: str) -> MasterLog:
        """Return what the master says of its log; RemotingError if it does not answer."""
        async with self._peers.connected(address) as client:
            return await _log_of(client)

    async def follow(self, address: str, taken: Callable[[int], None]) -> None:
        """Take the master's tables as they change, until RemotingError says that it has gone.

        ``taken`` is called then, with the end of the master's log: the HA protocol does not tell it
        to a slave that lags.
        """
        async with self._peers.connected(address) as client:
            have = Have()
            self._used.clear()
            while (newer := await self._newer(client, have)) is not None:
                have = await self._take(newer, have)
                taken(newer.end_offset)
            while True:
                taken(await self._take_round(client))
                await self._hurries.take(_INTERVAL_S)

    # --- our masters ---------------------------------------------------------------------

    async def _newer(self, client: RemotingClient, have: Have) -> Newer | None:
        """Return what the master has, held by it while there is nothing; None if it never does."""
        request = RemotingCommand(RequestCode.FOLLOW_TABLES, body=encode(have))
        answer = await client.request(request, timeout_s=HOLD_S + TIMEOUT_S)
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise RemotingError(f"{client.peer} is not a master any more: {answer.remark}")
        if answer.code != ResponseCode.SUCCESS:
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._lines.warning(
                    "the master's tables come each %g s, without users master=%s reason=%s",
                    _INTERVAL_S, client.peer, answer.remark,
                )  # fmt: skip
            return None
        try:
            return decode_newer(answer.body)
        except msgspec.DecodeError as exc:
            raise RemotingError(f"tables of {client.peer} cannot be read: {exc}") from exc

    async def _take(self, newer: Newer, have: Have) -> Have:
        """Replace the settings that have come; return what is in use then."""
        versions = dict(have.versions) if have.epoch == newer.epoch else {}
        progress: dict[str, Any] = {}
        progress_versions: dict[str, int] = {}
        for name, versioned in newer.tables.items():
            content = msgspec.json.decode(versioned.content)
            if name in self._settings:
                _replace(self._settings[name], content)
                versions[name] = versioned.version
            else:
                progress[name] = content
                progress_versions[name] = versioned.version
        self._take_progress(newer.end_offset, progress, progress_versions)
        self._admit()
        fault = await self._save()
        if fault is not None:
            raise RemotingError(fault)
        return Have(newer.epoch, versions | self._used)

    # --- progress ------------------------------------------------------------------------

    def _take_progress(
        self, end_offset: int, content: Mapping[str, Any], versions: Mapping[str, Any]
    ) -> None:
        """Take it for when this log ends there, unless older progress waits: it comes again."""
        if self._waiting is None and content:
            self._waiting = end_offset, content, versions
            self._has_waiting.set()

    async def use_progress(self) -> None:
        """Use what ``follow`` takes of one master, until cancelled."""
        self._waiting = None  # another master's log may have something else there
        while True:
            await self._has_waiting.take()
            if self._waiting is None:
                continue
            end_offset, content, versions = self._waiting
            try:
                await self._when_copied(end_offset)
                await self._use(content)
            except (OSError, StoreError, RemotingError) as exc:
                self._lines.warning(
                    "the master's progress is not taken; it comes again error=%s", exc
                )
            else:
                self._used.update(versions)
            self._waiting = None

    async def _use(self, content: Mapping[str, Any]) -> None:
        for name, table in content.items():
            if name in self._progress:
                _replace(self._progress[name], table)
        for name, delays in content.get(DELAYS, {}).items():
            if name in self._delay_files:
                await run_in_thread(self._delay_files[name].save, delays)

    # --- Apache's masters ----------------------------------------------------------------

    async def _take_round(self, client: RemotingClient) -> int:
        """Replace the tables that RocketMQ copies; return the end of the master's log."""
        for code, table in self._rounds.items():
            body = await ask(client, code)
            if body != self._taken.get(code):
                _replace(table, loads(body))
                self._taken[code] = body
        offsets = await ask(client, RequestCode.GET_ALL_CONSUMER_OFFSET)
        levels = await ask(client, RequestCode.GET_ALL_DELAY_OFFSET)
        end_offset = (await _log_of(client)).end_offset
        answers = {"offsets": offsets, DELAYS: levels}
        if answers != self._used:
            progress = {"offsets": loads(offsets), DELAYS: {self._levels_file: loads(levels)}}
            self._take_progress(end_offset, progress, answers)
        return end_offset


async def _log_of(client: RemotingClient) -> MasterLog:
    info = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
    settings = await settings_of(client)
    try:
        table = msgspec.convert(loads(info)["table"], _Runtime, strict=False)
        return MasterLog(
            table.commit_log_min_offset,
            table.commit_log_max_offset,
            int(settings[FILE_BYTES]),
            number_of(settings, TERM),
            number_of(settings, TERM_BEGIN),
        )
    except (KeyError, ValueError, RemotingDecodeError) as exc:
        raise RemotingError(f"{client.peer} does not say what its log is: {exc!r}") from exc


def _replace(table: Table, content: Any) -> None:
    try:
        table.load(content)
    except (msgspec.ValidationError, ValueError) as exc:
        raise RemotingError(f"a table of the master is invalid: {exc}") from exc
    table.is_dirty = True
