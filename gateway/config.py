"""The ``[gateway]`` section: addresses, limits and topic mapping of one MQTT gateway.

Owns: GatewayConfig, its defaults and the reasons for these.
Must not touch: files, the environment; ``core.config`` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault, refuse
from motelog.core.topic_names import is_device_topic
from motelog.gateway.mapping.templates import LEGAL, client_topic_fault
from motelog.gateway.mapping.topic_rule import TopicRule

NAME_MAX: Final = 64
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
#: Keys that take effect while a gateway runs. Values announced to clients at CONNECT, sizes of
#: existing structures and the location of messages are not among them.
LIVE: Final = frozenset(
    {
        "client_id_bytes_max", "keep_alive_max_s", "inflight_max", "subscriptions_max",
        "session_expiry_max_s", "will_bytes_max",
        "publish_rate_max", "publish_bytes_per_s_max", "connect_rate_max",
        "session_messages_max", "session_bytes_max", "session_age_max_s", "offline_qos_0",
        "retained_count_max", "retained_client_count_max", "retained_bytes_max",
        "memory_bytes_max", "state_rewrite_hours",
    }
)  # fmt: skip


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One MQTT gateway; sizes in bytes, times in seconds."""

    listen: str = "127.0.0.1:1883"
    """HOST:PORT of the plain TCP listener; port 0 takes any free port."""

    namesrv: tuple[str, ...] = ()
    """HOST:PORT of each name server of the brokers that store the messages, ours or Apache's.
    Empty: the broker of this process."""

    credentials_file: str = ""
    """File with accessKey and secretKey, like RocketMQ's tools.yml, of an administrator at name
    servers and brokers. Empty: requests are not signed."""

    tls_file: str = ""
    """File of trusted authorities (PEM), or a file like RocketMQ's tls.properties. With it the
    gateway uses TLS to name servers and brokers. Empty: no TLS."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)] = "gateway"
    """Name in the records of its sessions; gateways of the same brokers need different names."""

    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Processes that share the address and serve as one gateway; about one for each core. 1: this
    process. More: processes NAME-1 to NAME-N, which find their brokers through a name server.
    Limits and rates apply to each."""

    append_wait_s: Annotated[float, msgspec.Meta(gt=0, le=300)] = 10.0
    """How long publishes wait for a remote broker that cannot be reached; then they are refused."""

    append_wait_bytes_max: PositiveInt = 67_108_864
    """Most bytes of publishes that wait for remote brokers; further ones are refused. Brokers have
    equal shares."""

    connections_max: PositiveInt = 1_000_000
    """Most clients connected at once; others are refused. The process's descriptor limit applies
    too. With ``workers``, for each worker."""

    connect_timeout_s: PositiveInt = 10
    """How long a new connection may take to complete its CONNECT."""

    connect_bytes_max: PositiveInt = 69_632
    """Largest CONNECT: room for the largest password (a token) or will payload, and 4 KiB more. An
    unknown peer takes no more memory than this, or than it has sent."""

    packet_bytes_max: Annotated[int, msgspec.Meta(ge=64, le=4_000_000)] = 1_114_112
    """Largest MQTT packet, announced to clients as Maximum Packet Size: 1 MiB of payload, and
    64 KiB for topic name and properties."""

    client_id_bytes_max: PositiveInt = 256
    """Longest client identifier in bytes."""

    topic_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=16_000)] = 1024
    """Longest topic name or filter in bytes; the name is stored with every message."""

    keep_alive_max_s: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 3600
    """Largest keep alive of an MQTT 5 client, also of one that asks for none (0). MQTT 3 clients
    get what they ask for."""

    receive_maximum: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1024
    """Most unacknowledged QoS 1 and 2 messages from one client (Receive Maximum)."""

    inflight_max: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 64
    """Most messages in flight to one client, even if its Receive Maximum is larger."""

    topic_alias_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 32
    """Most topic aliases that a client may set on one connection; 0 turns them off."""

    subscriptions_max: PositiveInt = 1000
    """Most subscriptions of one session."""

    session_expiry_max_s: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_295)] = 2_592_000
    """Longest time that a session outlives its connection, announced to MQTT 5 clients; MQTT 3
    clients get it. 4294967295: no limit; 0: no persistent sessions."""

    response_information: str = ""
    """Topic name below which a client receives answers, such as ``reply/{client_id}``; sent to MQTT
    5 clients that ask for Response Information. Empty: none."""

    publish_rate_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Messages a second that one connection may publish; a faster client is read more slowly. 0: no
    limit."""

    publish_bytes_per_s_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes a second of one connection's PUBLISH packets; a faster client is read more slowly. 0:
    no limit."""

    connect_rate_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """New connections a second; beyond that their CONNECTs are read later. 0: no limit."""

    session_messages_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most messages of one queue that wait for a session that is disconnected or lags; the oldest
    are dropped and counted. 0: the log's retention is the limit."""

    session_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The same limit in bytes in the log, estimated from the messages of the queue that were read
    last. 0: no limit."""

    session_age_max_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Age at which a message that waits for such a session is dropped and counted. 0: no limit."""

    offline_qos_0: bool = True
    """Whether QoS 0 messages also wait for a disconnected session. If not, they are dropped and
    counted when the client reconnects, as in mosquitto without ``queue_qos0_messages``. Messages of
    shared subscriptions always wait."""

    will_bytes_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 16_384
    """Largest payload of a will, which is kept as long as the session. 0: wills must have no
    payload."""

    retained_count_max: PositiveInt = 1_000_000
    """Most retained messages of all clients together."""

    retained_client_count_max: PositiveInt = 100_000
    """Most retained messages of one client. A replaced message counts for the client that replaced
    it."""

    retained_bytes_max: PositiveInt = 1_073_741_824
    """Most bytes of topic names, payloads and properties of retained messages."""

    output_bytes_high: PositiveInt = 262_144
    """Output queued for one connection at which it counts as slow: it gets no QoS 0 messages, and
    QoS 1 messages later from the log."""

    output_bytes_max: PositiveInt = 1_048_576
    """Output queued for one connection at which it is closed."""

    memory_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 1_073_741_824
    """Bytes that all connections together may hold: queued output (counted once if it is for
    several) and incomplete packets. Each second the connections that hold the most are closed until
    the rest fits. 0: no limit."""

    default_topic: str = "MQTT_DEFAULT"
    """Queue topic of messages to which no rule gives another one."""

    create_topics: bool = True
    """Whether a topic name's first level may become a new queue topic."""

    topics_max: PositiveInt = 1000
    """Most queue topics that publishes may create; beyond that messages go to the default topic."""

    topic_queue_count: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """Queues of a queue topic that a publish creates."""

    view_path: str = ""
    """SQLite file of the sessions' state, derived from the log; it may be deleted while the gateway
    is stopped. Empty: gateway/view.db in the folder of the broker's store."""

    state_rewrite_hours: PositiveInt = 24
    """Age at which the record of a session or retained message is appended again, before the log
    deletes it. At most half of the store's retention_hours, if the broker is in this process."""

    topic_map: tuple[TopicRule, ...] = ()
    """The operator's rules that map topic names to queue topics; the built-in rules follow them."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        if not is_device_topic(self.default_topic):
            text = f"{self.default_topic!r} is not a legal queue topic ({LEGAL})"
            yield SectionFault(text, ("default_topic",))
        fault = client_topic_fault(self.response_information)
        if fault is not None:
            yield SectionFault(fault, ("response_information",))
        for address in self.namesrv:
            try:
                parse_address(address, port_min=1)
            except ValueError as exc:
                yield SectionFault(str(exc), ("namesrv",))
        longest = self.name_of(self.workers)
        if self.workers > 1 and len(longest) > NAME_MAX:
            text = f"name is too long for {self.workers} workers: {longest}"
            yield SectionFault(text, ("name", "workers"))

    def name_of(self, worker: int) -> str:
        """Return the name of one of several workers."""
        return f"{self.name}-{worker}"
