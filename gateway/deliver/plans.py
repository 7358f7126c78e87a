"""Delivery plans: who receives a topic name, grouped by what is sent to them.

Owns: Plan, the bounded table of plans, a record as an MQTT message.
Must not touch: outputs (a plan names them), queues, cursors.
Invariants: a plan holds only receivers that are connected. So ``replan`` is called for each filter
whose subscribers or options change, and for each filter of a session that gets or loses its
connection.
Spec: MQTT 5.0 sections 3.3 and 4.3.
"""

from __future__ import annotations

from typing import Final

from motelog.core.message import MQTT_PROPERTIES, MQTT_QOS, MQTT_TOPIC, TAGS, decode_properties
from motelog.gateway.errors import MalformedPacketError, TopicNameError
from motelog.gateway.mapping.message_properties import client_id_property, delivery_properties
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.topics import check_topic_name, has_wildcard
from motelog.gateway.output import Output
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, QOS_MASK, SubscriptionTree

PLANS_MAX: Final = 100_000
#: A native producer's compressed body is inflated to at most this size for an MQTT client.
INFLATED_BYTES_MAX: Final = 4_194_304

TOPIC_PROPERTY: Final = MQTT_TOPIC.encode()
AT_MOST_ONCE: Final = f"{MQTT_QOS}\x010\x02".encode()
V5_PROPERTIES: Final = f"{MQTT_PROPERTIES}\x01".encode()

#: (queue offset, MQTT topic or None, queue topic, properties, body, sys flag, store time ms, bytes)
BriefRecord = tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]


class Plan:
    """Who receives a topic name, in groups that take one encoding and one call each."""

    __slots__ = ("direct", "matches", "particular", "windowed")

    def __init__(self, matches: dict[Session, int]) -> None:
        self.matches = matches
        direct: dict[tuple[Output, int], list[int]] = {}
        windowed: dict[tuple[Output, int], tuple[list[Session], list[int]]] = {}
        #: Sessions for which each message is checked: No Local, Maximum Packet Size.
        self.particular: list[Session] = []
        for session, options in matches.items():
            connection = session.connection
            if connection is None:
                continue
            variant = (connection.output, connection.version)
            if options & NO_LOCAL or connection.packet_bytes_max < PACKET_BYTES_LIMIT:
                self.particular.append(session)
            elif options & QOS_MASK:
                sessions, numbers = windowed.setdefault(variant, ([], []))
                sessions.append(session)
                numbers.append(connection.number)
            else:
                direct.setdefault(variant, []).append(connection.number)
        #: (output, MQTT version, connections with a QoS 0 subscription)
        self.direct = [(*variant, numbers) for variant, numbers in direct.items()]
        #: (output, MQTT version, sessions with a QoS 1 subscription, their connections)
        self.windowed = [(*variant, *receivers) for variant, receivers in windowed.items()]


class Plans:
    """Topic name -> Plan, None where nobody receives it; made when a message of that name comes."""

    def __init__(self, subscriptions: SubscriptionTree[Session], metrics: GatewayMetrics) -> None:
        self._subscriptions = subscriptions
        self._metrics = metrics
        #: Read by the live path; ``make`` answers a miss.
        self.by_name: dict[bytes, Plan | None] = {}

    def make(self, name: bytes) -> Plan | None:
        """Return the plan of a name that has none yet, and keep it."""
        plan = None
        try:
            check_topic_name(name)
            matches = self._subscriptions.match(name.decode())
            plan = Plan(matches) if matches else None
        except (TopicNameError, MalformedPacketError):
            # A native producer's name; devices' names were checked before they were stored.
            self._metrics.messages_undeliverable += 1
        if len(self.by_name) >= PLANS_MAX:
            self.by_name.clear()
        self.by_name[name] = plan
        return plan

    def replan(self, topic_filter: str) -> None:
        """Drop the plans that a change of this filter's subscribers or options may touch."""
        if has_wildcard(topic_filter):
            self.by_name.clear()
        else:
            # An exact filter matches one name, so all other plans survive a storm of connects.
            self.by_name.pop(topic_filter.encode(), None)


class OutgoingMessage:
    """One record as a message, for receivers that are served one by one."""

    __slots__ = ("body", "client_id", "expiry", "name", "properties", "qos")

    def __init__(self, record: BriefRecord, name: bytes, body: bytes, now_ms: int) -> None:
        properties = record[3]
        self.name = name
        self.body = body
        self.qos = 0 if properties.find(AT_MOST_ONCE) >= 0 else 1
        self.properties: bytes | None = None
        self.expiry = False
        if properties.find(V5_PROPERTIES) >= 0:
            block = delivery_properties(properties, store_ms=record[6], now_ms=now_ms)
            self.expiry = block is None
            self.properties = block or None
        self.client_id = client_id_property(properties)


def encode(
    name: bytes, body: bytes, first_byte: int, version: int, block: bytes | None
) -> tuple[bytes, int]:
    """Return a PUBLISH and where its packet identifier is; only MQTT 5 has properties."""
    return encode_publish(name, body, first_byte, version, block if version == 5 else None)


def native_topic_name(record: BriefRecord) -> bytes:
    """Return the topic name of a native producer's message: its queue topic and tag."""
    tag = decode_properties(record[3]).get(TAGS)
    return record[2] + b"/" + tag.encode() if tag else record[2]
