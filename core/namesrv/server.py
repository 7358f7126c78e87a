"""The name server: brokers register, clients ask for the route of a topic.

Owns: the request codes of the name server, its sockets and its scan for silent brokers.
Must not touch: how routes are kept (route_table), the key-value table (kv_requests).
Spec: RocketMQ DefaultRequestProcessor.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import trio

from motelog.core.acl.gate import AclGate
from motelog.core.errors import BrokerError
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.metrics import gauge
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.kv_config import ORDER_TOPIC_NAMESPACE
from motelog.core.namesrv.kv_requests import KvRequests
from motelog.core.namesrv.needs import NEEDS
from motelog.core.namesrv.registration_body import (
    decode_registration,
    decode_topic_queues,
    decode_version,
)
from motelog.core.namesrv.route_table import BrokerData, BrokerIdentity, RouteTable, TopicRoute
from motelog.core.net.config import ListenerConfig, first_listener
from motelog.core.net.listeners import (
    CertificateFile,
    OpenListener,
    open_listeners,
    reload_certificates,
)
from motelog.core.net.stalls import sleep_unstalled
from motelog.core.remoting.fields import bool_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, ConnectionLimits, Processor, RemotingServer
from motelog.core.state_file import StateFile
from motelog.core.threads import run_in_thread
from motelog.core.topic_names import shown

logger = logging.getLogger(__name__)

IDENTITY_CHARACTERS_MAX: Final = 255

#: How /metrics shows the values of ``NameServer.sample``.
NAMESRV_METRICS: Final = {
    "brokers_now": gauge("brokers", "Registered brokers."),
    "topics_now": gauge("topics", "Topics with a route."),
}


class NameServer:
    """One name server; brokers register all their topics again every 30 s.

    It listens on the address of ``config`` and on those of ``listeners``. ``kv_file`` stores the
    key-value table, which no broker would send again; without the file it is lost when the process
    ends.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        *,
        listeners: Sequence[ListenerConfig] = (),
        kv_file: StateFile | None = None,
    ) -> None:
        self._config = config
        self._listener_configs = listeners
        #: Addresses of the further listeners by name, once started.
        self.listeners: dict[str, str] = {}
        self._opened: list[OpenListener] = []
        self._address: tuple[str, int] | None = None
        self._kv = KvRequests(config, kv_file)
        self._faults = LimitedLog(logger)
        self.routes = RouteTable(
            silence_ms_max=config.broker_silence_s_max * 1000,
            brokers_max=config.brokers_max,
            topics_max=config.topics_max,
        )

    @property
    def address(self) -> tuple[str, int]:
        """The (host, port) that clients connect to; known once ``run`` has started."""
        assert self._address is not None, "the name server has not started"
        return self._address

    def sample(self) -> dict[str, int]:
        """Return the gauges of this name server by name."""
        return {
            "brokers_now": self.routes.live_count,
            "topics_now": len(self.routes.topics()),
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        OSError if the address cannot be bound, ListenerError for that of a further listener;
        ConfigError or StoreDamagedError if the file of the key-value table, of the accounts or of a
        certificate cannot be used.
        """
        acl: AclGate | None = None
        if self._config.acl_file:
            files = self._config.acl_file, NEEDS, self._config.users_file
            acl = await run_in_thread(AclGate, *files)
        await run_in_thread(self._kv.load)
        first = first_listener("namesrv", self._config.listen, self._config)
        opened = self._opened = open_listeners(first, self._listener_configs)
        self._address = opened[0].address
        self.listeners = {one.config.name: one.text for one in opened[1:]}
        processors = self.processors()
        server = RemotingServer(
            processors if acl is None else acl.guard(processors),
            ConnectionLimits(
                connections_max=self._config.connections_max,
                frame_bytes_max=self._config.frame_bytes_max,
                idle_s_max=self._config.idle_s_max,
            ),
            on_closed=self._connection_closed,
        )
        for one in opened:
            server.listen(one)
        logger.info("name server listens address=%s:%d", *self.address)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            nursery.start_soon(self._scan)
            if acl is not None:
                nursery.start_soon(run_again, acl.run, server)
            nursery.start_soon(run_again, self._kv.run, server)
            task_status.started()

    async def reload_certificates(self) -> list[CertificateFile]:
        """Reload the certificates of the listeners; return the result for each file."""
        return reload_certificates(self._opened)

    async def _scan(self) -> None:
        while True:
            await sleep_unstalled(self._config.scan_interval_s)
            with self._faults.boundary("finding silent brokers failed, a fault of this server"):
                _log_dropped("was silent", self.routes.expire(_now_ms()))

    def _connection_closed(self, connection: Connection) -> None:
        _log_dropped("closed its connection", self.routes.close_owner(connection))

    def processors(self) -> dict[int, Processor]:
        """Return request code -> processor."""
        return self._kv.processors() | {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
            RequestCode.GET_NAMESRV_CONFIG: self._shown_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            # Topics of RocketMQ's units (several sites), which do not exist here.
            RequestCode.GET_UNIT_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._no_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._no_topics,
        }

    def _register(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        ext = request.ext
        crc = int_field(ext, "bodyCrc32", 0)
        if crc and crc != zlib.crc32(request.body) & 0x7FFFFFFF:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "bodyCrc32 does not match the body")
        identity = _identity(ext)
        body = decode_registration(request.body, is_compressed=bool_field(ext, "compressed"))
        silence_ms = int_field(ext, "heartbeatTimeoutMillis", 0)
        is_new = self.routes.query_version(identity, now_ms=_now_ms()) is None
        master, ha_address = self.routes.register(
            identity,
            body.topics,
            body.version,
            owner=connection,
            now_ms=_now_ms(),
            ha_address=ext.get("haServerAddr", ""),
            silence_ms_max=silence_ms if silence_ms > 0 else None,
        )
        if is_new:
            logger.info(
                f"broker registered {_IDENTITY} topics=%d", *_shown(identity), len(body.topics)
            )
        answer = {"masterAddr": master, "haServerAddr": ha_address}
        # While its master is down a slave keeps the addresses it has; "" is not an address.
        answer = {name: address for name, address in answer.items() if address}
        order_topics = {"table": self._kv.table.namespace(ORDER_TOPIC_NAMESPACE) or {}}
        return request.answer(ext=answer, body=msgspec.json.encode(order_topics))

    def _unregister(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        identity = _identity(request.ext)
        self.routes.unregister(identity)
        logger.info(f"broker unregistered {_IDENTITY}", *_shown(identity))
        return request.answer()

    def _heartbeat(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Count the sign of life of a broker that announced them (heartbeatTimeoutMillis)."""
        cluster = text_field(request.ext, "clusterName")
        self.routes.heartbeat(cluster, text_field(request.ext, "brokerAddr"), now_ms=_now_ms())
        return request.answer()

    def _register_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Register a topic that a broker has created since its registration."""
        topic = text_field(request.ext, "topic")
        self.routes.register_topic(topic, decode_topic_queues(topic, request.body))
        return request.answer()

    def _query_version(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        known = self.routes.query_version(_identity(request.ext), now_ms=_now_ms())
        is_changed = known is None or known != decode_version(request.body)
        body = b"" if known is None else msgspec.json.encode(known)
        return request.answer(ext={"changed": "true" if is_changed else "false"}, body=body)

    def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        topic = text_field(request.ext, "topic")
        route = self.routes.route(topic)
        if route is None:
            text = f"No topic route info in name server for the topic: {ascii(topic)[1:-1]}"
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, text)
        order = self._kv.table.get(ORDER_TOPIC_NAMESPACE, topic)
        return request.answer(body=encode_route(route, order))

    def _clusters(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        brokers = self.routes.brokers()
        value = {
            "brokerAddrTable": {name: _broker_json(data) for name, data in brokers.items()},
            "clusterAddrTable": {name: sorted(s) for name, s in self.routes.clusters().items()},
        }
        return request.answer(body=msgspec.json.encode(value))

    def _topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """List all topics, or those of one broker, whose name is then in the answer.

        RocketMQ's name servers ignore the field and list all of them.
        """
        broker = request.ext.get("brokerName")
        if not broker:
            return request.answer(body=_topic_list(self.routes.topics()))
        found = self.routes.topics_of_broker(broker)
        if found is None:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND, f"no live broker is named {shown(broker)}"
            )
        return request.answer(ext={"brokerName": broker}, body=_topic_list(found))

    def _topics_of_cluster(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        cluster = text_field(request.ext, "cluster")
        return request.answer(body=_topic_list(self.routes.topics_of_cluster(cluster)))

    def _system_topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Answer with the names of clusters and brokers, whose topics are the system's."""
        brokers = self.routes.brokers()
        names = brokers.keys() | self.routes.clusters().keys()
        address = next((a for data in brokers.values() for a in data.addresses.values()), None)
        value: dict[str, Any] = {"topicList": sorted(names)}
        if address is not None:
            value["brokerAddr"] = address
        return request.answer(body=msgspec.json.encode(value))

    def _members(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        cluster = text_field(request.ext, "clusterName")
        name = text_field(request.ext, "brokerName")
        data = self.routes.brokers().get(name)
        found = data.addresses if data is not None and data.cluster == cluster else {}
        group = {
            "cluster": cluster,
            "brokerName": name,
            "brokerAddrs": {str(number): address for number, address in sorted(found.items())},
        }
        return request.answer(body=msgspec.json.encode({"brokerMemberGroup": group}))

    def _shown_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        shown = {
            "listenPort": self.address[1],
            "scanNotActiveBrokerInterval": round(self._config.scan_interval_s * 1000),
            "orderMessageEnable": "true",
            "clusterTest": "false",
        }
        text = "".join(f"{name}={value}\n" for name, value in shown.items())
        return request.answer(body=text.encode())

    def _update_config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        # Its settings name files, addresses and limits, which tools must not change.
        text = "the name server's settings can only be changed in its configuration file"
        return request.answer(ResponseCode.NO_PERMISSION, text)

    def _no_topics(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=_topic_list(()))

    def _delete_topic(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self.routes.delete_topic(
            text_field(request.ext, "topic"), request.ext.get("clusterName") or None
        )
        return request.answer()

    def _wipe_write_permission(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "brokerName")
        count = self.routes.set_write_permission(name, is_allowed=False)
        return request.answer(ext={"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = text_field(request.ext, "brokerName")
        count = self.routes.set_write_permission(name, is_allowed=True)
        return request.answer(ext={"addTopicCount": str(count)})


def encode_route(route: TopicRoute, order_config: str | None) -> bytes:
    """Return TopicRouteData as standard JSON.

    RocketMQ writes it for clients before 4.9.4 with unquoted broker ids (``{0:"..."}``). Every
    known client of those versions also reads quoted ones, so there is only one form here.
    """
    value: dict[str, Any] = {
        "brokerDatas": [_broker_json(data) for data in route.brokers],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": queue.broker_name,
                "perm": queue.perm,
                "readQueueNums": queue.read_queue_nums,
                # The flag's name up to 4.8, and its name since.
                "topicSynFlag": queue.topic_sys_flag,
                "topicSysFlag": queue.topic_sys_flag,
                "writeQueueNums": queue.write_queue_nums,
            }
            for queue in route.queues
        ],
    }
    if order_config is not None:
        value["orderTopicConf"] = order_config
    return msgspec.json.encode(value)


def _broker_json(data: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": {str(number): address for number, address in sorted(data.addresses.items())},
        "brokerName": data.name,
        "cluster": data.cluster,
        "enableActingMaster": False,
    }


def _topic_list(topics: Iterable[str]) -> bytes:
    return msgspec.json.encode({"topicList": sorted(topics)})


def _identity(ext: dict[str, str]) -> BrokerIdentity:
    for name in ("clusterName", "brokerName", "brokerAddr"):
        if not 1 <= len(text_field(ext, name)) <= IDENTITY_CHARACTERS_MAX:
            text = f"the field {name} has {len(ext[name])} characters"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
    return BrokerIdentity(
        cluster=text_field(ext, "clusterName"),
        name=text_field(ext, "brokerName"),
        address=text_field(ext, "brokerAddr"),
        broker_id=int_field(ext, "brokerId"),
    )


_IDENTITY: Final = "cluster=%a name=%a address=%a id=%d"


def _shown(identity: BrokerIdentity) -> tuple[str, str, str, int]:
    """Return the fields for ``_IDENTITY``; the texts come from a peer."""
    return identity.cluster, identity.name, identity.address, identity.broker_id


def _log_dropped(reason: str, identities: Iterable[BrokerIdentity]) -> None:
    for identity in identities:
        logger.warning(
            "a broker %s and is dropped: clients find its queues again after it registers "
            f"{_IDENTITY}",
            reason,
            *_shown(identity),
        )


def _now_ms() -> int:
    # Monotonic: a step of the wall clock must neither keep a dead broker nor drop a live one.
    return int(trio.current_time() * 1000)
