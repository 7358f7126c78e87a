"""The ``[gateway]`` section: what one MQTT gateway listens on, allows and maps.

Owns: GatewayConfig and TopicRule, their defaults and why they are what they are.
Must not touch: files, the environment; ``core.config`` reads those.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class TopicRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[gateway.topic_map]]`` entry; the first whose filter matches a topic name wins.

    ``queue_topic``, ``tag`` and ``keys`` are templates: ``{1}``, ``{2}``... stand for the levels of
    the topic name, ``{client_id}`` and ``{user_name}`` for the publisher. ``queue_by`` says what is
    hashed to choose the queue, so what keeps its order.
    """

    filter: str
    queue_topic: str
    tag: str = "{2}"
    keys: str = ""
    queue_by: Literal["tag", "topic", "client_id"] = "tag"


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One MQTT gateway; sizes in bytes, times in seconds."""

    #: HOST:PORT of the plain TCP listener; port 0 takes any free one.
    listen: str = "127.0.0.1:1883"
    #: Connections at once; the process's descriptor limit bounds it as well.
    connections_max: PositiveInt = 1_000_000
    #: How long a new connection may take until its CONNECT is complete.
    connect_timeout_s: PositiveInt = 10
    #: Largest CONNECT; all a peer can make us hold before it is known (docs: threat 1).
    connect_bytes_max: PositiveInt = 4096
    #: Largest MQTT packet, told to clients as Maximum Packet Size; EMQX uses the same 1 MiB.
    packet_bytes_max: Annotated[int, msgspec.Meta(ge=64, le=4_000_000)] = 1_048_576
    #: Longest client identifier in bytes.
    client_id_bytes_max: PositiveInt = 256
    #: Longest topic name or filter in bytes; it is stored with every message.
    topic_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=16_000)] = 1024
    #: Largest keep alive; also what a client that asks for none (0) is held to.
    keep_alive_max_s: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 3600
    #: QoS 1 messages a client may have unacknowledged towards us (MQTT 5 Receive Maximum).
    receive_maximum: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1024
    #: QoS 1 messages in flight to one client at most, whatever Receive Maximum it gives.
    inflight_max: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 64
    #: Topic aliases a client may set on one connection; 0 turns them off.
    topic_alias_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 32
    #: Subscriptions of one session.
    subscriptions_max: PositiveInt = 1000
    #: Output queued for one connection before it counts as slow: QoS 0 is dropped, QoS 1 read
    #: later.
    output_bytes_high: PositiveInt = 262_144
    #: Output queued for one connection before it is closed.
    output_bytes_max: PositiveInt = 1_048_576
    #: Queue topic of everything that no rule gives a queue topic of its own.
    default_topic: str = "MQTT_DEFAULT"
    #: Whether a topic name's first level may become a new queue topic.
    create_topics: bool = True
    #: Queue topics that publishes may create; then the default topic takes the rest.
    topics_max: PositiveInt = 1000
    #: Queues of a queue topic that a publish creates.
    topic_queue_count: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    topic_map: tuple[TopicRule, ...] = ()
