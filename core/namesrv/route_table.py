"""Routes: which brokers have which queues of a topic, and which brokers are alive.

Owns: the tables of brokers, clusters, queues and liveness, and their limits. Must not touch:
sockets, clocks, the wire format; time enters as ``now_ms`` of a monotonic clock, answers leave as
values.

Invariants: a topic maps only to broker names that have an address; each address has one liveness
entry, which says how to remove it; there is no empty topic, broker or cluster.

A registration may contain only the changed topics (RocketMQ's incremental registration), so topics
that are missing from it are kept. Spec: RocketMQ RouteInfoManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import Permission, ResponseCode
from motelog.core.remoting.topic_config import DataVersion, TopicConfig
from motelog.core.topic_names import topic_name_fault

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """A broker's identity; ``broker_id`` 0 is the master of its name."""

    cluster: str
    name: str
    address: str
    broker_id: int = MASTER_ID


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on the brokers of one name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int


@dataclass(slots=True)
class BrokerData:
    """The addresses of one broker name by broker id."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is: its queues, and the brokers that hold them."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]


@dataclass(slots=True)
class _LiveBroker:
    identity: BrokerIdentity
    owner: Hashable
    version: DataVersion
    ha_address: str
    silence_ms_max: int
    last_seen_ms: int


class RouteTable:
    """The routes of one name server.

    ``owner`` is the connection on which a broker registered: closing it removes the registration.
    """

    def __init__(self, *, silence_ms_max: int, brokers_max: int, topics_max: int) -> None:
        self._silence_ms_max = silence_ms_max
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], _LiveBroker] = {}

    def register(
        self,
        identity: BrokerIdentity,
        topics: Mapping[str, TopicConfig],
        version: DataVersion,
        *,
        owner: Hashable,
        now_ms: int,
        ha_address: str = "",
        silence_ms_max: int | None = None,
    ) -> tuple[str, str]:
        """Register a broker; return (master address, master's HA address), empty for a master.

        BrokerError if a limit is reached; then nothing changed.
        """
        self._check_limits(identity, topics)
        if silence_ms_max is None:
            silence_ms_max = self._silence_ms_max
        known = self._live.get((identity.cluster, identity.address))
        # A broker that returns under another name or id is first removed from its old place.
        if known is not None and known.identity != identity:
            self._remove(known.identity)
            known = None
        self._place(identity)
        is_changed = known is None or known.version != version
        self._live[identity.cluster, identity.address] = _LiveBroker(
            identity, owner, version, ha_address, silence_ms_max, now_ms
        )
        if identity.broker_id == MASTER_ID:
            if is_changed:
                self._take_topics(identity.name, topics)
            return "", ""
        master = self._brokers[identity.name].addresses.get(MASTER_ID, "")
        live = self._live.get((identity.cluster, master))
        return master, live.ha_address if live is not None else ""

    def register_topic(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Register one topic of registered brokers; no effect if one of them is not registered.

        BrokerError if a limit is reached; then nothing changed.
        """
        if not configs or not configs.keys() <= self._brokers.keys():
            return
        if topic not in self._queues and len(self._queues) >= self._topics_max:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"more than {self._topics_max} topics")
        for broker_name, config in configs.items():
            self._take_topics(broker_name, {topic: config})

    def unregister(self, identity: BrokerIdentity) -> None:
        """Remove a broker; no effect if it is not registered under this identity."""
        known = self._live.get((identity.cluster, identity.address))
        if known is not None and known.identity == identity:
            self._remove(identity)

    def query_version(self, identity: BrokerIdentity, *, now_ms: int) -> DataVersion | None:
        """Return the last registered version, and count the query as a sign of life."""
        known = self._live.get((identity.cluster, identity.address))
        if known is None or known.identity != identity:
            return None
        known.last_seen_ms = now_ms
        return known.version

    def heartbeat(self, cluster: str, address: str, *, now_ms: int) -> None:
        """Count a sign of life; no effect if no such broker is registered."""
        known = self._live.get((cluster, address))
        if known is not None:
            known.last_seen_ms = now_ms

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Remove the brokers that were silent for too long; return them."""
        return self._remove_where(lambda live: now_ms - live.last_seen_ms > live.silence_ms_max)

    def close_owner(self, owner: Hashable) -> list[BrokerIdentity]:
        """Remove the brokers that registered on a closed connection; return them."""
        return self._remove_where(lambda live: live.owner == owner)

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of ``topic``, or None."""
        queues = self._queues.get(topic)
        if queues is None:
            return None
        return TopicRoute(tuple(queues.values()), tuple(self._brokers[name] for name in queues))

    @property
    def live_count(self) -> int:
        """The number of registered broker addresses."""
        return len(self._live)

    def topics(self) -> list[str]:
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._queues.items() if not names.isdisjoint(queues)]

    def topics_of_broker(self, broker_name: str) -> list[str] | None:
        """Return the topics with queues at a broker; None if no live broker has the name."""
        if broker_name not in self._brokers:
            return None
        return [topic for topic, queues in self._queues.items() if broker_name in queues]

    def brokers(self) -> Mapping[str, BrokerData]:
        """Return the broker names with their addresses; a view, not to be changed."""
        return self._brokers

    def clusters(self) -> Mapping[str, set[str]]:
        """Return the clusters with their broker names; a view, not to be changed."""
        return self._clusters

    def set_write_permission(self, broker_name: str, *, is_allowed: bool) -> int:
        """Allow or forbid writing to all topics of a broker; return how many topics it has."""
        count = 0
        for queues in self._queues.values():
            data = queues.get(broker_name)
            if data is not None:
                perm = data.perm | Permission.WRITE if is_allowed else data.perm & ~Permission.WRITE
                queues[broker_name] = QueueData(
                    broker_name,
                    data.read_queue_nums,
                    data.write_queue_nums,
                    int(perm),
                    data.topic_sys_flag,
                )
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues on the brokers of ``cluster``."""
        queues = self._queues.get(topic)
        if queues is None:
            return
        for name in self._clusters.get(cluster, set()) if cluster else list(queues):
            queues.pop(name, None)
        if not queues:
            del self._queues[topic]

    def _check_limits(self, identity: BrokerIdentity, topics: Mapping[str, TopicConfig]) -> None:
        is_new = (identity.cluster, identity.address) not in self._live
        if is_new and len(self._live) >= self._brokers_max:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{self._brokers_max} brokers are already registered"
            )
        holder = self._brokers.get(identity.name)
        # Two clusters with the same broker name would overwrite each other's routes.
        if holder is not None and holder.cluster != identity.cluster:
            text = f"broker name {identity.name!a} belongs to cluster {holder.cluster!a}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        if len(self._queues) + len(topics) > self._topics_max:
            added = sum(topic not in self._queues for topic in topics)
            if len(self._queues) + added > self._topics_max:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, f"more than {self._topics_max} topics")

    def _place(self, identity: BrokerIdentity) -> None:
        self._clusters.setdefault(identity.cluster, set()).add(identity.name)
        data = self._brokers.setdefault(identity.name, BrokerData(identity.cluster, identity.name))
        replaced = data.addresses.get(identity.broker_id)
        if replaced is not None and replaced != identity.address:
            self._live.pop((identity.cluster, replaced), None)
        data.addresses[identity.broker_id] = identity.address

    def _take_topics(self, broker_name: str, topics: Mapping[str, TopicConfig]) -> None:
        for topic, config in topics.items():
            if topic_name_fault(topic) is not None:
                continue
            self._queues.setdefault(topic, {})[broker_name] = QueueData(
                broker_name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.topic_sys_flag,
            )

    def _remove_where(self, is_gone: Callable[[_LiveBroker], bool]) -> list[BrokerIdentity]:
        gone = [live.identity for live in self._live.values() if is_gone(live)]
        for identity in gone:
            self._remove(identity)
        return gone

    def _remove(self, identity: BrokerIdentity) -> None:
        self._live.pop((identity.cluster, identity.address), None)
        data = self._brokers[identity.name]
        if data.addresses.get(identity.broker_id) == identity.address:
            del data.addresses[identity.broker_id]
        if data.addresses:
            return
        del self._brokers[identity.name]
        names = self._clusters[identity.cluster]
        names.discard(identity.name)
        if not names:
            del self._clusters[identity.cluster]
        for topic in [topic for topic, queues in self._queues.items() if identity.name in queues]:
            self._delete_queues(topic, identity.name)

    def _delete_queues(self, topic: str, broker_name: str) -> None:
        queues = self._queues[topic]
        del queues[broker_name]
        if not queues:
            del self._queues[topic]

    def _check(self) -> None:
        """Assert the invariants of the module docstring."""
        for queues in self._queues.values():
            assert queues
            assert all(name in self._brokers for name in queues)
        addresses = {
            (data.cluster, address)
            for data in self._brokers.values()
            for address in data.addresses.values()
        }
        assert addresses == set(self._live)
        for (cluster, address), live in self._live.items():
            assert (live.identity.cluster, live.identity.address) == (cluster, address)
            assert live.identity.name in self._clusters[cluster]
        names = {name for names in self._clusters.values() for name in names}
        assert names == set(self._brokers)
        assert all(data.addresses for data in self._brokers.values())
