"""What the gateways of a cluster have written down for each other, in the name servers.

Owns: Entry, Entries: which entry counts, reading and writing at all name servers. Must not touch:
what an entry says (``home``, ``order``).
Invariants: name servers do not share their tables, and one that was away may have an older entry,
or none. The entry with the highest number counts, and is written where it is missing. A gateway
remembers what it has read or written, so that a table which is lost is written again while a
gateway runs. Of entries with the same number, which gateways have written at the same moment, all
take the one that has remained in the tables.
Spec: RocketMQ PutKVConfigRequestHeader, GetKVListByNamespaceRequestHeader.

    name servers' key-value table:   MQTT_GATEWAY   home             1:broker-a
                                     MQTT_GATEWAY   order.telemetry  2:[[0,[["broker-a",0,8]]],...]
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError
from motelog.core.errors import BrokerError, RemotingError
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads_as

logger = logging.getLogger(__name__)

NAMESPACE: Final = "MQTT_GATEWAY"
#: Answers of name servers that have no entries, or cannot have any.
_NO_ENTRIES: Final = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class Entry(NamedTuple):
    """What is written down for a key: the how many-th it is, and what it says."""

    number: int
    text: str

    @classmethod
    def parse(cls, value: str) -> Entry | None:
        """Return the entry with this value, None if it is not one."""
        number, colon, text = value.partition(":")
        if not (colon and text and number.isdecimal()):
            return None
        return cls(int(number), text)

    def __str__(self) -> str:
        return f"{self.number}:{self.text}"


class Entries:
    """The entries by key, as they were when they were last read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.known: dict[str, Entry] = {}
        self._faults = LimitedLog(logger, lines_max=1, period_s=60)

    async def read(self) -> Mapping[str, Entry]:
        """Return the entries that name servers have; write those that count where they are missing.

        NoNameServerError if no name server answers.
        """
        found: dict[str, dict[str, Entry]] = {}
        why = ""

        async def ask(address: str) -> None:
            nonlocal why
            try:
                found[address] = await self._ask(address)
            except (BrokerError, RemotingError) as exc:
                why = str(exc)

        async with trio.open_nursery() as nursery:
            for address in self._client.namesrv_addresses:
                nursery.start_soon(ask, address)
        if not found:
            raise NoNameServerError(f"no name server says what gateways have written down: {why}")
        written: dict[str, Entry] = {}
        for entries in found.values():
            for key, entry in entries.items():
                written[key] = max(entry, written.get(key, entry))
        for key, entry in written.items():
            if entry.number >= self.known.get(key, entry).number:
                self.known[key] = entry
        async with trio.open_nursery() as nursery:
            for address, entries in found.items():
                missing = {k: e for k, e in self.known.items() if entries.get(k) != e}
                nursery.start_soon(self._put, address, missing)
        return written

    async def write(self, key: str, text: str) -> None:
        """Write the next entry of a key at all name servers; those that fail get it later."""
        before = self.known.get(key)
        entry = self.known[key] = Entry(1 if before is None else before.number + 1, text)
        async with trio.open_nursery() as nursery:
            for address in self._client.namesrv_addresses:
                nursery.start_soon(self._put, address, {key: entry})

    async def _ask(self, address: str) -> dict[str, Entry]:
        command = RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, ext={"namespace": NAMESPACE})
        answer = await self._client.request(address, command)
        if answer.code in _NO_ENTRIES:
            return {}
        table = loads_as(check(answer).body, _Table, "the name server's table").table
        entries = {key: Entry.parse(value) for key, value in table.items()}
        return {key: entry for key, entry in entries.items() if entry is not None}

    async def _put(self, address: str, entries: Mapping[str, Entry]) -> None:
        for key, entry in entries.items():
            ext = {"namespace": NAMESPACE, "key": key, "value": str(entry)}
            command = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext=ext)
            try:
                check(await self._client.request(address, command))
            except (BrokerError, RemotingError) as exc:
                self._faults.warning(
                    "a name server does not store what gateways have to agree on: where their"
                    " state is, the order of queues address=%s key=%s error=%s",
                    address,
                    key,
                    exc,
                )
                return


class _Table(msgspec.Struct):
    table: dict[str, str] = {}
