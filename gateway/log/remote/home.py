"""The broker that has the state of all gateways of a cluster: their home.

Owns: Home: which broker it is, how that is chosen and written down. Must not touch: topics, queues.
Invariants: a home that is written down is never chosen again, whichever brokers are away: sessions
and retained messages are there, and gateways that began elsewhere would not see them. All gateways
agree, as they read the same entry.
Spec: RocketMQ PutKVConfigRequestHeader, GetKVConfigRequestHeader.

    name servers' key-value table:   MQTT_GATEWAY   home   1:broker-a

The number counts the homes that a cluster has had. A name server that was away may have an older
entry, or none: the highest number counts, and is written where it is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError
from motelog.core.errors import BrokerError, RemotingError
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode

logger = logging.getLogger(__name__)

NAMESPACE: Final = "MQTT_GATEWAY"
KEY: Final = "home"
#: Gateways that start for the first time may choose at the same moment: the last entry counts for
#: all, so each reads it again after this time.
SETTLE_S: Final = 0.5
#: Answers of name servers that have no entry, or cannot have any.
_NO_ENTRY: Final = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class Entry(NamedTuple):
    """The home of a cluster: how many it has had, and the broker's name."""

    number: int
    broker: str

    @classmethod
    def parse(cls, value: str) -> Entry | None:
        """Return the entry with this text, None if it is not one."""
        number, colon, broker = value.partition(":")
        if not (colon and broker and number.isdecimal()):
            return None
        return cls(int(number), broker)

    def __str__(self) -> str:
        return f"{self.number}:{self.broker}"


class Home:
    """Knows the home once ``find`` has returned."""

    def __init__(self, client: Client, choose: Callable[[], Awaitable[str]]) -> None:
        """``choose`` returns the broker that becomes the home of a cluster without one."""
        self._client = client
        self._choose = choose
        self._entry: Entry | None = None
        self._finding = trio.Lock()
        self._faults = LimitedLog(logger, lines_max=1, period_s=60)

    @property
    def broker(self) -> str | None:
        """The broker's name, None before it is known."""
        return None if self._entry is None else self._entry.broker

    def take(self, broker: str) -> None:
        """Use a broker as the home from now on; nothing is written down."""
        self._entry = Entry(0, broker)

    async def written(self) -> str | None:
        """Return the broker that is written down, None without one; NoNameServerError."""
        entry = await self._read()
        return None if entry is None else entry.broker

    async def write(self, broker: str) -> None:
        """Make a broker the home; NoNameServerError if no name server stores that."""
        before = await self._read()
        entry = Entry(1 if before is None else before.number + 1, broker)
        await self._write(entry, self._client.namesrv_addresses)
        if await self._read() != entry:
            raise NoNameServerError("no name server has stored the new home: see the log above")

    async def find(self) -> str:
        """Return the broker's name; it is chosen if no name server knows one.

        NoNameServerError if none answers; whatever ``choose`` raises.
        """
        async with self._finding:
            if self._entry is None:
                entry = await self._read()
                if entry is None:
                    chosen = Entry(1, await self._choose())
                    await self._write(chosen, self._client.namesrv_addresses)
                    await trio.sleep(SETTLE_S)
                    entry = await self._read() or chosen
                    logger.info(
                        "the state of gateways has a home, which is written down at the name"
                        " servers broker=%s",
                        entry.broker,
                    )
                self._entry = entry
            return self._entry.broker

    async def look(self) -> None:
        """Write the entry where it is missing; log if gateways have another home by now."""
        if self._entry is None or not self._entry.number:
            return  # it is not known, or only taken
        try:
            entry = await self._read(self._entry)
        except NoNameServerError:
            return
        if entry != self._entry:
            self._faults.fault(
                "the state of gateways has another home: restart this gateway broker=%s"
                " instead_of=%s",
                entry.broker if entry is not None else None,
                self._entry.broker,
            )

    async def _read(self, known: Entry | None = None) -> Entry | None:
        """Return the entry that counts, and write it where it is missing; NoNameServerError."""
        found: dict[str, Entry | None] = {}
        why = ""

        async def ask(address: str) -> None:
            command = RemotingCommand(
                RequestCode.GET_KV_CONFIG, ext={"namespace": NAMESPACE, "key": KEY}
            )
            nonlocal why
            try:
                answer = await self._client.request(address, command)
                if answer.code not in _NO_ENTRY:
                    check(answer)
            except (BrokerError, RemotingError) as exc:
                why = str(exc)
            else:
                found[address] = Entry.parse(answer.ext.get("value", ""))

        async with trio.open_nursery() as nursery:
            for address in self._client.namesrv_addresses:
                nursery.start_soon(ask, address)
        if not found:
            text = f"no name server says which broker has the gateways' state: {why}"
            raise NoNameServerError(text)
        entries = [entry for entry in (known, *found.values()) if entry is not None]
        if not entries:
            return None
        highest = max(entries)
        await self._write(highest, [one for one, entry in found.items() if entry != highest])
        return highest

    async def _write(self, entry: Entry, addresses: Iterable[str]) -> None:
        async def put(address: str) -> None:
            ext = {"namespace": NAMESPACE, "key": KEY, "value": str(entry)}
            command = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext=ext)
            try:
                check(await self._client.request(address, command))
            except (BrokerError, RemotingError) as exc:
                self._faults.warning(
                    "a name server does not store which broker has the gateways' state address=%s"
                    " error=%s",
                    address,
                    exc,
                )

        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(put, address)
