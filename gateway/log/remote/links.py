"""The brokers of a remote log: where they are, which are away, how many requests are under way.

Owns: BrokerLink, BrokerLinks: addresses by broker name, the watch for a broker's return.
Must not touch: the content of requests, topics.
Invariants: a broker counts as away from the first request that has failed, or had no answer, until
it answers a heartbeat. While it is away, one task asks for its address and tries it.

A broker here is the master of its name. While it is away, a slave may be read. A slave has nothing
that its master did not have, and perhaps not yet all of it. So what it gives is what the master
would have given, and what it lacks says nothing: a reader goes on where it was. Two masters have
less than a slave has shown: one that lost the end of its log with its machine, and another slave
that was promoted although it was behind. Readers then continue where that log ends, as after any
loss of a broker's log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError
from motelog.bridge.routes import MASTER_ID
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RemotingConnectError,
    RemotingConnectionError,
    RemotingDecodeError,
    RemotingError,
    RemotingTimeoutError,
)
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads

logger = logging.getLogger(__name__)

#: Maximum sends under way to one broker; messages that come meanwhile share the next ones.
WINDOW: Final = 64
TRY_AGAIN_S: Final = 0.2


class BrokerLink:
    """One broker as this process reaches it."""

    __slots__ = (
        "address", "away_since", "has_master", "is_back", "is_decided", "name", "reason", "slave",
        "window",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.address: str | None = None
        #: The address of a slave, and whether the name servers know a master.
        self.slave: str | None = None
        self.has_master = True
        self.window = trio.Semaphore(WINDOW)
        #: While it is away: when it went away, in trio's time, and why.
        self.away_since: float | None = None
        self.reason: MotelogError | None = None
        self.is_back = Flag()
        #: Set while it is there, and while the name servers know only its slaves.
        self.is_decided = Flag()

    def learn(self, members: Mapping[int, str]) -> None:
        """Note which brokers of the name there are: broker id -> address."""
        self.address = members.get(MASTER_ID, self.address)
        self.slave = min((at for at in members.items() if at[0] != MASTER_ID), default=(0, None))[1]
        self.has_master = MASTER_ID in members or self.slave is None
        self.decide()

    def decide(self) -> None:
        """Set ``is_decided``, or clear it."""
        if self.away_since is None or not self.has_master:
            self.is_decided.set()
        else:
            self.is_decided.clear()

    @property
    def is_at_slave(self) -> bool:
        """Whether reads go to the slave."""
        return self.away_since is not None and self.slave is not None

    def away_s(self) -> float:
        """Return how long the broker has been away; 0 while it is not."""
        return 0.0 if self.away_since is None else trio.current_time() - self.away_since


class BrokerLinks:
    """All brokers that the name servers have named."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._by_name: dict[str, BrokerLink] = {}
        #: How many brokers can be written to, those that are away included.
        self.count = 0
        #: Names that brokers and clusters register as topics.
        self.topic_names: frozenset[str] = frozenset()
        self._is_looking = False
        self._outages = LimitedLog(logger, lines_max=1, period_s=10, monotonic_s=trio.current_time)

    def of(self, name: str) -> BrokerLink:
        """Return the link of a broker, known or not."""
        link = self._by_name.get(name)
        if link is None:
            link = self._by_name[name] = BrokerLink(name)
        return link

    def masters(self) -> list[BrokerLink]:
        """Return the brokers that can be written to, those that are away included."""
        return [link for link in self._by_name.values() if link.address is not None]

    @property
    def names(self) -> frozenset[str]:
        """The names of the brokers whose masters are known."""
        return frozenset(link.name for link in self.masters())

    def away(self) -> list[BrokerLink]:
        """Return the brokers that are away."""
        return [link for link in self._by_name.values() if link.away_since is not None]

    def learn(self, addresses: Mapping[str, Mapping[int, str]]) -> None:
        """Note where brokers are: broker name -> broker id -> address."""
        for name, members in addresses.items():
            self.of(name).learn(members)
        self.count = len(self.masters())

    async def find(self) -> None:
        """Ask a name server which brokers there are; NoNameServerError, BrokerError."""
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = check(await self._client.request_namesrv(command))
        try:
            info = msgspec.convert(loads(answer.body), _ClusterInfo, strict=False)
        except msgspec.ValidationError as exc:
            raise RemotingDecodeError(f"the name server's list of brokers: {exc}") from exc
        brokers = info.brokerAddrTable
        self.learn({name: {} for name in self._by_name.keys() - brokers.keys()})
        self.learn({name: broker.brokerAddrs for name, broker in brokers.items()})
        clusters = info.clusterAddrTable
        replies = (f"{cluster}_REPLY_TOPIC" for cluster in clusters)
        self.topic_names = frozenset((*brokers, *clusters, *replies))

    async def request(
        self,
        link: BrokerLink,
        command: RemotingCommand,
        *,
        timeout_s: float,
        is_at_slave: bool = False,
    ) -> RemotingCommand:
        """Return a broker's answer, whatever its code; RemotingError as Client.request.

        RemotingConnectError says that nothing was sent.
        """
        if is_at_slave and link.slave is not None:
            return await self._client.request(link.slave, command, timeout_s=timeout_s)
        if link.address is None:
            exc = RemotingConnectError(f"broker {link.name!r} has no master")
            self._note_away(link, exc)
            raise exc
        try:
            answer = await self._client.request(link.address, command, timeout_s=timeout_s)
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and not self._is_looking:
                # Perhaps another one is the master now.
                self._is_looking = True
                self._client.start_soon(self._look_again, link)
            return answer
        except (RemotingConnectionError, RemotingTimeoutError) as exc:
            self._note_away(link, exc)
            raise

    async def _look_again(self, link: BrokerLink) -> None:
        await self._find_master(link)
        await trio.sleep(TRY_AGAIN_S)
        self._is_looking = False

    async def _find_master(self, link: BrokerLink) -> None:
        try:
            await self.find()
        except (NoNameServerError, BrokerError, RemotingDecodeError) as exc:
            text = "no name server says where a broker is broker=%s %s"
            self._outages.info(text, link.name, exc)

    def _note_away(self, link: BrokerLink, reason: MotelogError) -> None:
        link.reason = reason
        if link.away_since is not None:
            return
        link.away_since = trio.current_time()
        link.is_back.clear()
        link.decide()
        logger.warning(
            "a broker is away: what is published to it waits, and is refused if it stays away"
            " broker=%s address=%s error=%s",
            link.name,
            link.address,
            reason,
        )
        self._client.start_soon(self._await_return, link)

    async def _await_return(self, link: BrokerLink) -> None:
        while True:
            # Another one may be the master now, even if the one before answers again.
            await self._find_master(link)
            try:
                if link.address is not None:
                    await self._client.send_heartbeat(link.address)
                    break
            except BrokerError:
                break  # it refuses heartbeats, so it is there
            except RemotingError as exc:
                link.reason = exc
            await trio.sleep(TRY_AGAIN_S)
        logger.warning("a broker is back broker=%s away_s=%.1f", link.name, link.away_s())
        link.away_since = None
        link.is_back.set()
        link.decide()


class _BrokerData(msgspec.Struct):
    brokerAddrs: dict[int, str]


class _ClusterInfo(msgspec.Struct):
    brokerAddrTable: dict[str, _BrokerData] = {}
    clusterAddrTable: dict[str, list[str]] = {}
