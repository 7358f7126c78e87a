"""A slave's requests to its master: what it must know before it copies, and the tables.

Owns: which requests are sent when. Must not touch: the log and the HA port (slave), what is in a
table, when our masters answer (table_feed).
Spec: RocketMQ SlaveSynchronize.

Tables are replaced as a whole, each by its master's: our masters send all that have changed, at
once; Apache's are asked for topics, groups, consume offsets and delay levels each 10 s. How far
delayed messages are delivered is saved when the log has what was delivered, lest a promoted slave
deliver too little. A master that does not answer changes nothing.
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
from motelog.core.errors import RemotingDecodeError, RemotingError
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
        use: Callable[[], None],
        end_offset: Callable[[], int],
    ) -> None:
        self._tables = tables.settings() | tables.progress()
        self._rounds: dict[RequestCode, Table] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: tables.topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: tables.groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: tables.offsets,
        }
        self._delay_files = delay_files
        # The one of them whose content an Apache master tells.
        self._levels_file = levels_file
        self._peers = peers
        # Writes the settings to the disk; returns why that failed, or None.
        self._save = save
        # Lets new users in.
        self._use = use
        # Of this broker's log.
        self._end_offset = end_offset
        # The content of delay files, and where the log must end before they are saved.
        self._delays: tuple[int, Mapping[str, Any]] | None = None
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
        """Replace the tables that have come; return what is on the disk then."""
        versions = dict(have.versions) if have.epoch == newer.epoch else {}
        for name, versioned in newer.tables.items():
            content = msgspec.json.decode(versioned.content)
            if name in self._tables:
                _replace(self._tables[name], content)
            elif name == DELAYS and not await self._take_delays(newer.end_offset, content):
                continue  # it comes again
            versions[name] = versioned.version
        self._use()
        await self._save_delays()
        fault = await self._save()
        if fault is not None:
            raise RemotingError(fault)
        return Have(newer.epoch, versions)

    # --- how far delayed messages are delivered ------------------------------------------

    async def _take_delays(self, end_offset: int, content: Mapping[str, Any]) -> bool:
        """Take it for when the log ends there; return False while older progress waits so."""
        await self._save_delays()
        if self._delays is not None:
            return False
        self._delays = (end_offset, content)
        return True

    async def _save_delays(self) -> None:
        if self._delays is None or self._end_offset() < self._delays[0]:
            return
        try:
            for name, content in self._delays[1].items():
                if name in self._delay_files:
                    await run_in_thread(self._delay_files[name].save, content)
        except OSError as exc:
            self._lines.warning("the progress of delayed messages is not saved error=%s", exc)
        else:
            self._delays = None

    # --- Apache's masters ----------------------------------------------------------------

    async def _take_round(self, client: RemotingClient) -> int:
        """Replace the tables that RocketMQ copies; return the end of the master's log."""
        for code, table in self._rounds.items():
            body = await ask(client, code)
            if body != self._taken.get(code):
                _replace(table, loads(body))
                self._taken[code] = body
        levels = await ask(client, RequestCode.GET_ALL_DELAY_OFFSET)
        end_offset = (await _log_of(client)).end_offset
        if levels != self._taken.get(RequestCode.GET_ALL_DELAY_OFFSET) and (
            await self._take_delays(end_offset, {self._levels_file: loads(levels)})
        ):
            self._taken[RequestCode.GET_ALL_DELAY_OFFSET] = levels
        await self._save_delays()
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
