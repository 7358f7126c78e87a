"""Whether another broker is the master of the same name: there must not be two.

Owns: the question to a name server and to that broker. Must not touch: what a broker does then.

A name server takes the last one that registers as the master. A master that was away while its
slave was promoted would take the clients back, with an older log. So it asks first, each time
before it registers. Of two masters the one with the higher term stays: a promotion adds one to it.
Apache's brokers have no term, and count as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from motelog.core.broker.replication.peers import Peers, ask, settings_of
from motelog.core.errors import RemotingDecodeError, RemotingError
from motelog.core.remoting.client import RemotingClient
from motelog.core.remoting.frames import RequestCode, loads

_MASTER = "0"
#: The setting in which our masters show their term.
TERM = "masterTerm"
TERM_BEGIN = "masterTermBegin"


class _Addresses(msgspec.Struct, rename="camel"):
    broker_addrs: dict[str, str] = {}


class _Clusters(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Addresses] = {}


@dataclass(frozen=True, slots=True)
class Rivals:
    """The question of the master ``name`` at ``address``, whose term this is."""

    name: str
    address: str
    term: int
    peers: Peers

    async def find(self, namesrv: RemotingClient, *, or_equal: bool = False) -> str | None:
        """Return the address of a living master with a higher term, as the name server knows it.

        With ``or_equal`` also of one with the same term. One that does not answer is none.
        RemotingError if the name server does not answer.
        """
        body = await ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            table = msgspec.convert(loads(body), _Clusters, strict=False).broker_addr_table
        except (msgspec.ValidationError, RemotingDecodeError) as exc:
            raise RemotingError(f"{namesrv.peer} names the brokers in another way: {exc}") from exc
        known = table.get(self.name, _Addresses()).broker_addrs.get(_MASTER, self.address)
        if known == self.address:
            return None
        try:
            async with self.peers.connected(known) as rival:
                settings = await settings_of(rival)
        except RemotingError:
            return None
        term = int(settings.get(TERM, "0"))
        is_master = settings.get("brokerId") == _MASTER and settings.get("brokerName") == self.name
        return known if is_master and term >= self.term + (not or_equal) else None
