"""Where publishes go, cached per topic name: queue, property text and tag hash.

Owns: Route and the bounded cache of routes; creates queue topics within the configured limit.
Must not touch: sockets, sessions.
"""

from __future__ import annotations

import logging
from typing import Final, TypeVar

from motelog.core.errors import BrokerError
from motelog.core.message import KEYS, MQTT_QOS, MQTT_TOPIC, TAGS, encode_properties, tags_code
from motelog.gateway.errors import TopicNameError
from motelog.gateway.log.log_port import LogPort, QueueHandle
from motelog.gateway.mapping.topic_mapping import MappedName, TopicMapping
from motelog.gateway.mqtt.topics import check_topic_name

logger = logging.getLogger(__name__)

ROUTES_MAX: Final = 100_000

_Key = TypeVar("_Key")


class Route:
    """Everything about a publish that its topic name decides."""

    __slots__ = ("at_least_once", "at_most_once", "exactly_once", "queue", "tags_code")

    def __init__(self, queue: QueueHandle, properties: dict[str, str], tag: str) -> None:
        self.queue = queue
        self.tags_code = tags_code(tag)
        #: Property text of a publish at QoS 0, 1 and 2, without the publisher's part.
        self.at_most_once = encode_properties({**properties, MQTT_QOS: "0"})
        self.at_least_once = encode_properties({**properties, MQTT_QOS: "1"})
        self.exactly_once = encode_properties({**properties, MQTT_QOS: "2"})

    def text(self, qos: int) -> bytes:
        """Return the property text of a publish, without the publisher's part."""
        return (self.at_most_once, self.at_least_once, self.exactly_once)[qos]


class Routes:
    """Topic name -> Route, for one gateway."""

    def __init__(
        self,
        mapping: TopicMapping,
        log: LogPort,
        *,
        create_topics: bool,
        topics_max: int,
        topic_queue_count: int,
        topic_bytes_max: int,
    ) -> None:
        self._mapping = mapping
        self._log_port = log
        self._create_topics = create_topics
        self._topics_max = self._topics_left = topics_max
        self._topic_queue_count = topic_queue_count
        self._topic_bytes_max = topic_bytes_max
        #: Read by the hot path; ``resolve`` answers a miss.
        self.by_topic: dict[bytes, Route] = {}
        self._by_publisher: dict[tuple[bytes, str, str], Route] = {}
        self.depends_on_publisher = mapping.depends_on_publisher
        log.on_topic_refused(self._on_topic_refused)

    def resolve(self, topic: bytes, *, client_id: str, user_name: str) -> Route:
        """Return the route of a topic name; TopicNameError if nobody may publish to it."""
        if not self.depends_on_publisher:
            route = self.by_topic.get(topic)
            if route is None:
                route = self._make(topic, client_id, user_name)
                _remember(self.by_topic, topic, route)
            return route
        key = (topic, client_id, user_name)
        route = self._by_publisher.get(key)
        if route is None:
            route = self._make(topic, client_id, user_name)
            _remember(self._by_publisher, key, route)
        return route

    def _make(self, topic: bytes, client_id: str, user_name: str) -> Route:
        if len(topic) > self._topic_bytes_max:
            raise TopicNameError(
                f"topic name of {len(topic)} bytes, at most {self._topic_bytes_max} are allowed"
            )
        check_topic_name(topic)
        if topic.startswith(b"$"):
            raise TopicNameError("topic names that begin with '$' are the server's")
        name = topic.decode()
        mapped = self._mapping.map_name(name, client_id=client_id, user_name=user_name)
        properties = {MQTT_TOPIC: name}
        if mapped.tag:
            properties[TAGS] = mapped.tag
        if mapped.keys:
            properties[KEYS] = mapped.keys
        queue = self._log_port.queue_of(self._queue_topic(mapped), mapped.selector)
        return Route(queue, properties, mapped.tag)

    def _queue_topic(self, mapped: MappedName) -> str:
        topic = mapped.queue_topic
        if topic is not None and (self._log_port.has_topic(topic) or self._create(topic)):
            return topic
        topic = self._mapping.default_topic
        self._log_port.create_topic(topic, self._topic_queue_count)
        return topic

    def _create(self, topic: str) -> bool:
        """Create a queue topic if that is allowed; return whether it can be used."""
        if not self._create_topics or self._topics_left == 0:
            return False
        try:
            self._log_port.create_topic(topic, self._topic_queue_count)
        except BrokerError as exc:
            logger.warning(
                "the log refuses a queue topic, its publishes go to the default topic"
                " topic=%s default_topic=%s remark=%r",
                topic, self._mapping.default_topic, exc.remark,
            )  # fmt: skip
            return False
        self._topics_left -= 1
        if self._topics_left == 0:
            logger.warning(
                "as many queue topics exist as gateway.topics_max allows: publishes with a new"
                " first level go to the default topic default_topic=%s",
                self._mapping.default_topic,
            )
        return True

    def _on_topic_refused(self, topic: str) -> None:
        """Forget all routes, so that those to ``topic`` lead to the default topic; this is rare."""
        logger.warning(
            "the log could not create a queue topic, its publishes go to the default topic"
            " topic=%s default_topic=%s",
            topic, self._mapping.default_topic,
        )  # fmt: skip
        self._topics_left = min(self._topics_left + 1, self._topics_max)
        # In place, as the hot loop keeps using the same dict.
        self.by_topic.clear()
        self._by_publisher.clear()


def _remember(cache: dict[_Key, Route], key: _Key, route: Route) -> None:
    """Keep ``route``; a full cache first forgets its oldest quarter."""
    if len(cache) >= ROUTES_MAX:
        for old in list(cache)[: ROUTES_MAX // 4]:
            del cache[old]
    cache[key] = route
