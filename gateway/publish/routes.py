"""Where publishes go: the routes of topic names, and the queue topics that are created for them.

Owns: which queues the router uses for a first level, the bounded cache of routes by topic name that
rules of an operator need, the creation of queue topics within the configured limit.
Must not touch: sockets, sessions.
Invariants: nothing is kept by topic name if the built-in rule alone decides. What is kept by first
level is bounded by the log's topics and ``REFUSALS_MAX``.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, Generic, TypeVar

from motelog.core.errors import BrokerError
from motelog.core.message import KEYS, MQTT_QOS, MQTT_TOPIC, TAGS, encode_properties, tags_code
from motelog.core.topic_names import TOPIC_BYTES_MAX, is_device_topic
from motelog.gateway.log.log_port import LogPort, QueueHandle
from motelog.gateway.mapping.topic_mapping import MappedName, TopicMapping
from motelog.gateway.mqtt.errors import TopicNameError
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.mqtt.topics import check_topic_name
from motelog.gateway.publish.router import Route, Router
from motelog.gateway.turn import Message

logger = logging.getLogger(__name__)

#: Most routes that are kept by topic name, for names that a rule of the operator may match.
ROUTES_MAX: Final = 100_000
#: How many recently used routes a new route may skip in its search for one to drop.
SECOND_CHANCES_MAX: Final = 8
#: After the log has refused this many topics, it is not asked to create more.
REFUSALS_MAX: Final = 1000

#: By QoS: the part of a property text that depends on it.
QOS_TEXTS: Final = tuple(encode_properties({MQTT_QOS: str(qos)}) for qos in range(3))

_QOS_NAME: Final = QOS_TEXTS[0][: QOS_TEXTS[0].index(b"0")]

_Key = TypeVar("_Key")


class Routes:
    """The routes of one gateway. ``message`` uses them, ``resolve`` finds new ones."""

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
        #: Topics that the log has refused to create, or to which it does not allow writing.
        self._refused: set[str] = set()
        self._topic_queue_count = topic_queue_count
        self._topic_bytes_max = topic_bytes_max
        self._by_name: RouteCache[bytes] = RouteCache()
        self._by_publisher: RouteCache[tuple[bytes, str, str]] = RouteCache()
        #: One list for all names that go to the default topic, changed in place.
        self._default_queues: list[QueueHandle] = []
        self._router = Router(
            bytes(is_device_topic("t" + chr(octet)) for octet in range(256)),
            level_bytes_max=TOPIC_BYTES_MAX,
            topic_bytes_max=topic_bytes_max,
        )
        self._levels = self._router.levels
        #: The hot path. If it returns None, ``resolve`` finds the route.
        self.message = self._router.message
        # Where the log puts a message that it delays, and whether it refuses messages for a queue
        # at the moment, also decide where a publish goes.
        self.delayed = log.delayed
        self.refusal = log.refusal
        self._begin()
        log.on_topic_created(self._on_topic_created)
        log.on_topic_refused(self._on_topic_refused)

    def _begin(self) -> None:
        rule_levels = self._mapping.rule_levels
        if rule_levels is None:
            self._router.others = self._router.unnameable = self._by_name.routes
            return
        self._levels.update((level.encode(), self._by_name.routes) for level in rule_levels)
        self._router.unnameable = self._default_queues
        self._decide_others()
        for topic in self._log_port.topics():
            self._on_topic_created(topic)

    def resolve(self, topic: bytes, *, client_id: str, user_name: str) -> Route:
        """Return the route of a topic name; TopicNameError if no client may publish to it."""
        if len(topic) > self._topic_bytes_max:
            raise TopicNameError(
                f"topic name of {len(topic)} bytes, at most {self._topic_bytes_max} are allowed"
            )
        if topic.startswith(b"$"):
            raise TopicNameError("topic names that begin with '$' are reserved for the server")
        level = topic.partition(b"/")[0]
        if self._levels.get(level, self._router.others) is not self._by_name.routes:
            return self._make(topic, client_id, user_name)
        if not self._mapping.depends_on_publisher:
            route = self._by_name.routes.get(topic)
            if route is None:
                route = self._make(topic, client_id, user_name)
                self._by_name.add(topic, route)
            return route
        key = (topic, client_id, user_name)
        route = self._by_publisher.routes.get(key)
        if route is None:
            route = self._make(topic, client_id, user_name)
            self._by_publisher.add(key, route)
        route.is_used = True
        return route

    def _make(self, topic: bytes, client_id: str, user_name: str) -> Route:
        check_topic_name(topic)
        name = topic.decode()
        mapped = self._mapping.map_name(name, client_id=client_id, user_name=user_name)
        properties = {MQTT_TOPIC: name}
        if mapped.tag:
            properties[TAGS] = mapped.tag
        if mapped.keys:
            properties[KEYS] = mapped.keys
        queue = self._log_port.queue_of(self._queue_topic(mapped), mapped.selector)
        return Route(queue, encode_properties(properties), tags_code(mapped.tag))

    def _queue_topic(self, mapped: MappedName) -> str:
        topic = mapped.queue_topic
        if topic is not None and (self._log_port.has_topic(topic) or self._create(topic)):
            return topic
        topic = self._mapping.default_topic
        try:
            self._log_port.create_topic(topic, self._topic_queue_count)
        except BrokerError as exc:  # a remote log can refuse it, or be unreachable for too long
            raise TopicNameError(
                f"the log refuses the default topic: {exc.remark}",
                reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
            ) from exc
        return topic

    def _create(self, topic: str) -> bool:
        """Create a queue topic if that is allowed; return whether it can be used."""
        if not self._may_create or topic in self._refused:
            return False
        try:
            self._log_port.create_topic(topic, self._topic_queue_count)
        except BrokerError as exc:
            logger.warning(
                "the log refuses a queue topic; its publishes go to the default topic"
                " topic=%s default_topic=%s remark=%r",
                topic, self._mapping.default_topic, exc.remark,
            )  # fmt: skip
            self._use_default(topic)
            return False
        if not self._log_port.has_topic(topic):  # it exists and cannot be written to
            self._use_default(topic)
            return False
        if topic.encode() not in self._levels:  # it is being created
            self._learn(topic, [])
        self._topics_left -= 1
        if self._topics_left == 0:
            logger.warning(
                "as many queue topics exist as gateway.topics_max allows: publishes with a new"
                " first level go to the default topic default_topic=%s",
                self._mapping.default_topic,
            )
            self._decide_others()
        return True

    # --- what the router knows -----------------------------------------------------------

    @property
    def _may_create(self) -> bool:
        return self._create_topics and self._topics_left > 0 and len(self._refused) < REFUSALS_MAX

    def _decide_others(self) -> None:
        """Set the route of first levels without a topic: the default topic if none is created."""
        if self._mapping.rule_levels is not None:
            self._router.others = None if self._may_create else self._default_queues

    def _learn(self, topic: str, queues: list[QueueHandle]) -> None:
        """Send the names whose first level is ``topic`` to ``queues`` unless rules may match."""
        level = topic.encode()
        if self._mapping.rule_levels is not None and topic not in self._mapping.rule_levels:
            self._levels[level] = queues

    def _use_default(self, topic: str) -> None:
        """Send the names of a topic to the default topic, and do not try to create it again."""
        self._learn(topic, self._default_queues)
        self._refused.add(topic)
        if len(self._refused) == REFUSALS_MAX:
            logger.warning(
                "the log has refused so many queue topics that no more are requested:"
                " publishes with a new first level go to the default topic"
                " count=%d default_topic=%s",
                len(self._refused), self._mapping.default_topic,
            )  # fmt: skip
        self._decide_others()

    def _on_topic_created(self, topic: str) -> None:
        """Use the queues of a topic that is new or whose number of queues has changed."""
        queues = list(self._log_port.append_queues(topic))
        if topic == self._mapping.default_topic:
            self._default_queues[:] = queues
            queues = self._default_queues
        if is_device_topic(topic):
            self._learn(topic, queues)
        self._refused.discard(topic)
        self._decide_others()
        self._by_name.clear()
        self._by_publisher.clear()

    def _on_topic_refused(self, topic: str) -> None:
        """Send names for ``topic``, which could not be created, to the default topic."""
        logger.warning(
            "the log could not create a queue topic; its publishes go to the default topic"
            " topic=%s default_topic=%s",
            topic, self._mapping.default_topic,
        )  # fmt: skip
        self._topics_left = min(self._topics_left + 1, self._topics_max)
        self._use_default(topic)
        self._by_name.clear()
        self._by_publisher.clear()


class RouteCache(Generic[_Key]):
    """At most ROUTES_MAX routes. The oldest is dropped first, unless it was used recently."""

    def __init__(self) -> None:
        #: The router refers to this dict, so it is changed only in place.
        self.routes: dict[_Key, Route] = {}
        self._ring: deque[_Key] = deque()

    def add(self, key: _Key, route: Route) -> None:
        """Add a route that is not in the cache yet."""
        ring = self._ring
        if len(ring) >= ROUTES_MAX:
            for _ in range(SECOND_CHANCES_MAX):
                oldest = self.routes[ring[0]]
                if not oldest.is_used:
                    break
                oldest.is_used = False
                ring.rotate(-1)
            del self.routes[ring.popleft()]
        self.routes[key] = route
        ring.append(key)

    def clear(self) -> None:
        self.routes.clear()
        self._ring.clear()


def qos_of(message: Message) -> int:
    """Return the QoS of a message that was made here."""
    text: bytes = message[2]  # no value has a separator, so nothing else looks like this name
    return text[text.index(_QOS_NAME) + len(_QOS_NAME)] - ord("0")
