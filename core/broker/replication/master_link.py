"""A slave's requests to its master: what it must know before it copies, and the tables.

Owns: which requests are sent when. Must not touch:
the log and the HA port (slave), what is in a table.
Spec: RocketMQ SlaveSynchronize.

Topics, groups and consume offsets are the master's, each replaced as a whole; so are the levels
of delayed messages. A master that does not answer changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from motelog.core.broker.replication.namesakes import FILE_BYTES, TERM, TERM_BEGIN
from motelog.core.broker.replication.peers import Peers, ask, number_of, settings_of
from motelog.core.broker.tables.tables import Tables
from motelog.core.errors import RemotingDecodeError, RemotingError
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RequestCode, loads
from motelog.core.saved_table import Table
from motelog.core.state_file import StateFile
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

#: Time between rounds (RocketMQ's scheduleAtFixedRate in handleSlaveSynchronize).
INTERVAL_S: Final = 10.0
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
    """Asks the master; a connection lasts for one round."""

    def __init__(
        self,
        tables: Tables,
        levels_file: StateFile,
        peers: Peers,
    ) -> None:
        self._tables: dict[RequestCode, Table] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: tables.topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: tables.groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: tables.offsets,
        }
        self._levels_file = levels_file
        self._peers = peers
        # The bodies that the tables have.
        self._taken: dict[RequestCode, bytes] = {}
        self._levels = b""
        self._lines = LimitedLog(logger, lines_max=1, period_s=_LINE_PERIOD_S)

    async def log_of(self, address: str) -> MasterLog:
        """Return what the master says of its log; RemotingError if it does not answer."""
        async with self._peers.connected(address) as client:
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
            raise RemotingError(f"{address} does not say what its log is: {exc!r}") from exc

    async def take_tables(self, address: str) -> None:
        """Replace the tables by the master's; RemotingError if it does not answer."""
        async with self._peers.connected(address) as client:
            for code, table in self._tables.items():
                body = await ask(client, code)
                if body != self._taken.get(code):
                    _replace(table, body)
                    self._taken[code] = body
            levels = await ask(client, RequestCode.GET_ALL_DELAY_OFFSET)
        if levels != self._levels:
            try:
                await run_in_thread(self._levels_file.save, loads(levels))
            except OSError as exc:
                self._lines.warning("the progress of delayed messages is not saved error=%s", exc)
            else:
                self._levels = levels


def _replace(table: Table, body: bytes) -> None:
    try:
        table.load(loads(body))
    except (msgspec.ValidationError, ValueError) as exc:
        raise RemotingError(f"a table of the master is invalid: {exc}") from exc
    table.is_dirty = True
