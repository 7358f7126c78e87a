"""The other brokers of the same name, as name servers know them: a rival, and slaves.

Owns: the questions to a name server and to those brokers. Must not touch: what a broker does then.

There must not be two masters. A name server takes the last one that registers as the master. A
master that was away while its slave was promoted would take the clients back, with an older log. So
it asks first, each time before it registers. Of two masters the one with the higher term stays: a
promotion adds one to it. Apache's brokers have no term, and count as 0.

RocketMQ's HA protocol does not say how large the files of a log are, and a slave with others would
damage its copy: so a master asks the slaves at an address from which one connects.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.broker.replication.peers import Peers, ask, number_of, settings_of
from motelog.core.errors import RemotingDecodeError, RemotingError
from motelog.core.remoting.client import RemotingClient
from motelog.core.remoting.frames import RequestCode, loads

_MASTER = "0"
#: The settings in which our masters show their term, and where their log ended when it began.
TERM = "masterTerm"
TERM_BEGIN = "masterTermBegin"
FILE_BYTES = "mappedFileSizeCommitLog"


class _Addresses(msgspec.Struct, rename="camel"):
    broker_addrs: dict[str, str] = {}


class _Clusters(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Addresses] = {}


@dataclass(frozen=True, slots=True)
class Namesakes:
    """The brokers with the name of the master at ``address``, whose term this is."""

    name: str
    address: str
    term: int
    peers: Peers

    async def rival(self, namesrv: RemotingClient, *, or_equal: bool = False) -> str | None:
        """Return the address of a living master with a higher term, as the name server knows it.

        With ``or_equal`` also of one with the same term. A broker that does not answer is no rival.
        RemotingError if the name server does not answer.
        """
        known = (await self._addresses(namesrv)).get(_MASTER, self.address)
        if known == self.address:
            return None
        settings = await self._settings(known)
        term = number_of(settings, TERM)
        is_master = settings.get("brokerId") == _MASTER and settings.get("brokerName") == self.name
        return known if is_master and term >= self.term + (not or_equal) else None

    async def file_sizes(self, namesrv: RemotingClient, host: str) -> list[int]:
        """Return the sizes of the log's files of each slave at a host that answers.

        RemotingError if the name server does not answer.
        """
        sizes = []
        for broker_id, address in (await self._addresses(namesrv)).items():
            if broker_id != _MASTER and parse_address(address)[0] == host:
                sizes.append(number_of(await self._settings(address), FILE_BYTES))
        return [size for size in sizes if size]

    async def _addresses(self, namesrv: RemotingClient) -> dict[str, str]:
        """Return the addresses of the brokers by their numbers, which are texts."""
        body = await ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            table = msgspec.convert(loads(body), _Clusters, strict=False).broker_addr_table
        except (msgspec.ValidationError, RemotingDecodeError) as exc:
            raise RemotingError(f"{namesrv.peer} names the brokers in another way: {exc}") from exc
        return table.get(self.name, _Addresses()).broker_addrs

    async def _settings(self, address: str) -> dict[str, str]:
        """Return a broker's settings; none if it does not answer."""
        try:
            async with self.peers.connected(address) as broker:
                return await settings_of(broker)
        except RemotingError:
            return {}
