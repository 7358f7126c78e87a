"""The ``[gateway]`` section: what one MQTT gateway listens on, allows and maps.

Owns: GatewayConfig and TopicRule, their defaults and the reasons for them.
Must not touch: files, the environment; ``core.config`` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault, refuse
from motelog.core.topic_names import is_device_topic
from motelog.gateway.mapping.templates import (
    LEGAL,
    client_topic_fault,
    filter_fault,
    queue_topic_fault,
    template_faults,
)

NAME_MAX: Final = 64
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
#: Keys that a gateway takes while it runs. What clients were promised at CONNECT, what was made for
#: a size and what says where messages are is not among them.
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


class TopicRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[gateway.topic_map]]`` entry; the first whose filter matches a topic name wins.

    In templates ``{1}``, ``{2}``... stand for the levels of the topic name, ``{client_id}`` and
    ``{user_name}`` for the publisher.
    """

    filter: str
    """Topic filter; the rule is for the topic names that match it."""

    queue_topic: str
    """Template of the queue topic."""

    tag: str = "{2}"
    """Template of the tag; where the filter has no second level, the default is no tag."""

    keys: str = ""
    """Template of the keys by which a message can be found."""

    queue_by: Literal["tag", "topic", "client_id"] = "tag"
    """The text that is hashed to choose the queue; messages that share it keep their order."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        fault = filter_fault(self.filter)
        if fault is not None:
            yield SectionFault(fault, ("filter",))
            return
        for key in ("queue_topic", "tag", "keys"):
            template = getattr(self, key)
            if (key, template) == ("tag", "{2}"):
                continue
            yield from (SectionFault(f, (key,)) for f in template_faults(template, self.filter))
        fault = queue_topic_fault(self.queue_topic)
        if fault is not None:
            yield SectionFault(fault, ("queue_topic",))


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One MQTT gateway; sizes in bytes, times in seconds."""

    listen: str = "127.0.0.1:1883"
    """HOST:PORT of the plain TCP listener; port 0 takes any free one."""

    namesrv: tuple[str, ...] = ()
    """HOST:PORT of every name server whose brokers keep the messages: ours, or Apache RocketMQ's.
    Empty: the broker of this process keeps them."""

    credentials_file: str = ""
    """File with accessKey and secretKey, as RocketMQ's tools.yml, of an account that may use all
    topics, for name servers and brokers with access control. Empty: requests are not signed."""

    tls_file: str = ""
    """With it, the gateway speaks TLS to name servers and brokers: file of the authorities (PEM),
    or in the shape of RocketMQ's tls.properties. Empty: without TLS."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)] = "gateway"
    """Names this gateway in what it stores of its sessions; gateways of the same brokers have
    different ones."""

    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Processes that listen on the address and serve as one gateway; about one for each core. 1:
    the gateway is in this process. More: each is a process of its own, NAME-1 to NAME-N, and
    reaches its brokers through a name server. Limits and rates are for each of them."""

    append_wait_s: Annotated[float, msgspec.Meta(gt=0, le=300)] = 10.0
    """How long publishes wait for a broker elsewhere that is away; then they are refused."""

    append_wait_bytes_max: PositiveInt = 67_108_864
    """Most bytes of publishes that wait for brokers elsewhere; further ones are refused."""

    connections_max: PositiveInt = 1_000_000
    """Clients connected at once, others are refused; the process's descriptor limit bounds it as
    well. With ``workers``, of each: the system spreads connections by a hash, not evenly."""

    connect_timeout_s: PositiveInt = 10
    """How long a new connection may take until its CONNECT is complete."""

    connect_bytes_max: PositiveInt = 69_632
    """Largest CONNECT: room for the largest password (a token) or will payload, and 4 KiB more. An
    unknown peer can make us hold no more than this, and no more than it has sent (docs: threat
    1)."""

    packet_bytes_max: Annotated[int, msgspec.Meta(ge=64, le=4_000_000)] = 1_114_112
    """Largest MQTT packet, told to clients as Maximum Packet Size: 1 MiB of payload, and 64 KiB for
    topic name and properties."""

    client_id_bytes_max: PositiveInt = 256
    """Longest client identifier in bytes."""

    topic_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=16_000)] = 1024
    """Longest topic name or filter in bytes; it is stored with every message."""

    keep_alive_max_s: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 3600
    """Largest keep alive of an MQTT 5 client, also of one that asks for none (0). MQTT 3 cannot be
    told a limit: its clients get what they ask for."""

    receive_maximum: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1024
    """QoS 1 and 2 messages from one client that may be unacknowledged (Receive Maximum)."""

    inflight_max: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 64
    """Most messages in flight to one client, whatever Receive Maximum the client gives."""

    topic_alias_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 32
    """Topic aliases that a client may set on one connection; 0 turns them off."""

    subscriptions_max: PositiveInt = 1000
    """Subscriptions of one session."""

    session_expiry_max_s: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_295)] = 2_592_000
    """Longest time that a session outlives its connection, told to MQTT 5 clients; it also binds
    MQTT 3 clients, which ask for ever. 4294967295 sets no limit, 0 offers no persistent session."""

    response_information: str = ""
    """Topic name below which clients have answers to their requests sent, such as
    ``reply/{client_id}``: told to MQTT 5 clients that ask for Response Information. Empty: nothing
    is told."""

    publish_rate_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Messages a second that one connection may publish; who sends faster is read later. 0: no
    limit."""

    publish_bytes_per_s_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes a second of one connection's PUBLISH packets, likewise."""

    connect_rate_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """New connections a second; the CONNECT of one that comes faster is read later. 0: no limit."""

    session_messages_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most messages of one queue that wait for a session which is away or lags. Beyond, the oldest
    are passed over and counted. 0: the log's retention is the limit."""

    session_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Likewise by the bytes that the messages have in the log, as many as were of the size of those
    that were read of the queue last: so it is not exact. 0: the log's retention is the limit."""

    session_age_max_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Age at which a message that waits for such a session is passed over and counted. 0: the log's
    retention is the limit."""

    offline_qos_0: bool = True
    """Whether messages at QoS 0 wait for a session that is away, as others do: the log has them
    anyway. Without it they are passed over and counted when the client comes back, as in mosquitto
    without ``queue_qos0_messages``. The messages of shared subscriptions wait all the same."""

    will_bytes_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 16_384
    """Largest payload of a will, which is kept for as long as the session is. 0: wills have none.
    """

    retained_count_max: PositiveInt = 1_000_000
    """Retained messages of all clients together."""

    retained_client_count_max: PositiveInt = 100_000
    """Retained messages that one client has published: room for a bridge, and not for all. Whoever
    replaces a message of another client has it then."""

    retained_bytes_max: PositiveInt = 1_073_741_824
    """Bytes of their topic names, payloads and properties: they are in the view as well as in the
    log."""

    output_bytes_high: PositiveInt = 262_144
    """Output queued for one connection before it counts as slow. A slow connection gets no QoS 0
    messages; its QoS 1 messages are read later."""

    output_bytes_max: PositiveInt = 1_048_576
    """Output queued for one connection before it is closed."""

    memory_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 1_073_741_824
    """Bytes that all connections together may hold: output that waits (what waits for many counts
    once), packets that have not come whole. Above, those that hold the most are closed first; it is
    looked at each second. 0: no limit."""

    default_topic: str = "MQTT_DEFAULT"
    """Queue topic of the messages that no rule gives a queue topic of their own."""

    create_topics: bool = True
    """Whether a topic name's first level may become a new queue topic."""

    topics_max: PositiveInt = 1000
    """Queue topics that publishes may create; beyond that the default topic takes the messages."""

    topic_queue_count: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """Queues of a queue topic that a publish creates."""

    view_path: str = ""
    """SQLite file with the state that the log has of sessions; it may be deleted while nothing
    runs. Empty: gateway/view.db in the folder of the broker's store."""

    state_rewrite_hours: PositiveInt = 24
    """Age at which the record of a session or retained message is appended again, so that it is
    never in a part of the log that is deleted by age; at most half of the store's retention_hours,
    where the broker is in this process."""

    topic_map: tuple[TopicRule, ...] = ()
    """The operator's rules for where topic names go; the built-in rules come after them."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        if not is_device_topic(self.default_topic):
            text = f"{self.default_topic!r} is no legal queue topic ({LEGAL})"
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
        """Return the name of a gateway that is one of several workers."""
        return f"{self.name}-{worker}"
