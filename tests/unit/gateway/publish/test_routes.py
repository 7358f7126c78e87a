"""Where publishes go: names that are refused, topics that are created, and the limit of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from motelog.core.errors import BrokerError
from motelog.core.message import MQTT_QOS, MQTT_TOPIC, TAGS, decode_properties, tags_code
from motelog.core.records.append import QueueTail
from motelog.gateway.log.log_port import QueueHandle, choose_queue
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.errors import TopicNameError
from motelog.gateway.publish import routes as module
from motelog.gateway.publish.router import Route
from motelog.gateway.publish.routes import QOS_TEXTS, RouteCache, Routes
from tests.support.fake_log import FakeLog

DEFAULT = "mqtt_default"
QUEUES = 4
TOPIC_BYTES_MAX = 32


def make(
    log: FakeLog, *rules: TopicRule, create_topics: bool = True, topics_max: int = 2
) -> Routes:
    return Routes(
        TopicMapping(rules, default_topic=DEFAULT),
        log,
        create_topics=create_topics,
        topics_max=topics_max,
        topic_queue_count=QUEUES,
        topic_bytes_max=TOPIC_BYTES_MAX,
    )


def resolve(routes: Routes, topic: bytes, client_id: str = "client") -> Route:
    return routes.resolve(topic, client_id=client_id, user_name="user")


def message_of(routes: Routes, topic: bytes) -> tuple[Any, ...] | None:
    """Return what the hot path makes of a QoS 1 publish."""
    return routes.message(topic, b"body", QOS_TEXTS[1], b"clientId\x01c\x02", 7, b"host")


def queue_of(routes: Routes, topic: bytes, client_id: str = "client") -> QueueTail:
    """Return the queue of a publish, and see that a later one goes there without ``resolve``."""
    message = message_of(routes, topic)
    queue = resolve(routes, topic, client_id).queue if message is None else message[0]
    again = message_of(routes, topic)
    assert again is None or again[0] == queue == resolve(routes, topic, client_id).queue
    assert isinstance(queue, QueueTail), "what the tests' log has for a topic that is there"
    return queue


def queue_topic(routes: Routes, topic: bytes, client_id: str = "client") -> str:
    return queue_of(routes, topic, client_id).topic.decode()


@pytest.mark.parametrize(
    "topic",
    [b"", b"a/+", b"a/#", b"a\0b", b"$SYS/load", b"$share/g/a", b"x" * (TOPIC_BYTES_MAX + 1)],
)
def test_nobody_may_publish_to_these(topic: bytes) -> None:
    log = FakeLog()
    routes = make(log)
    with pytest.raises(TopicNameError):
        resolve(routes, topic)
    assert message_of(routes, topic) is None
    assert log.queue_counts == {}


@pytest.mark.parametrize(
    ("topic", "created"),
    [
        (b"plant/line/1", "plant"),
        (b"plant", "plant"),
        (b"x" * TOPIC_BYTES_MAX, "x" * TOPIC_BYTES_MAX),
        (b"no good/line", DEFAULT),
        (b"/plant", DEFAULT),
        (b"%RETRY%G/a", DEFAULT),
        (b"TBW102/a", DEFAULT),
    ],
)
def test_the_first_level_is_the_queue_topic_if_it_can_be(topic: bytes, created: str) -> None:
    log = FakeLog()
    assert queue_topic(make(log), topic) == created
    assert log.queue_counts == {created: QUEUES}


@pytest.mark.parametrize(
    ("topic", "tag"),
    [
        (b"plant/line/1", "line"),
        (b"plant/line", "line"),
        (b"plant", ""),
        (b"plant//x", ""),
        (b"plant/", ""),
        ("plant/gerät/é".encode(), "gerät"),
        ("plant/\U0001f321/x".encode(), "\U0001f321"),
    ],
)
def test_a_message_has_all_that_its_topic_name_decides(topic: bytes, tag: str) -> None:
    routes = make(FakeLog())
    assert message_of(routes, topic) is None
    route = resolve(routes, topic)
    found = message_of(routes, topic)
    assert found is not None
    _, body, text, code, born_ms, host, *rest = found
    assert text == route.text + b"qosLevel\x011\x02clientId\x01c\x02"
    pairs = {MQTT_TOPIC: topic.decode()} | ({TAGS: tag} if tag else {})
    assert decode_properties(text) == pairs | {MQTT_QOS: "1", "clientId": "c"}
    assert code == route.tags_code == tags_code(tag)
    assert found[0] is route.queue
    assert queue_of(routes, topic).queue_id == choose_queue(tag or topic.decode(), QUEUES)
    assert (body, born_ms, host, rest) == (b"body", 7, b"host", [0, 0, 0, 0])


def test_nothing_is_kept_by_name_where_no_rule_may_match() -> None:
    rule = TopicRule(filter="site/+", queue_topic="sites")
    routes = make(FakeLog(), rule, topics_max=3)
    resolve(routes, b"plant/a")
    assert message_of(routes, b"plant/b") is not None
    assert message_of(routes, b"site/b") is None
    assert routes._by_name.routes == {}


@pytest.mark.parametrize("level", [b"", b"no good", b"AA:BB", b"x" * 128, "\xfc".encode()])
def test_first_levels_that_cannot_be_topics_need_no_look_each(level: bytes) -> None:
    routes = Routes(
        TopicMapping((), default_topic=DEFAULT),
        FakeLog(),
        create_topics=True,
        topics_max=1,
        topic_queue_count=QUEUES,
        topic_bytes_max=200,
    )
    assert message_of(routes, b"no good/a") is None  # the default topic is not there yet
    assert queue_topic(routes, b"no good/a") == DEFAULT
    message = message_of(routes, level + b"/a")
    assert message is not None
    assert message[0].topic == DEFAULT.encode()
    assert level not in routes._levels


def test_names_of_the_default_topic_itself_go_there() -> None:
    assert queue_topic(make(FakeLog()), DEFAULT.encode() + b"/a") == DEFAULT


def test_a_topic_that_is_there_keeps_its_queues_and_costs_nothing() -> None:
    log = FakeLog()
    log.create_topic("plant", 1)
    routes = make(log, topics_max=0)
    assert (queue_topic(routes, b"plant/a"), queue_topic(routes, b"other/a")) == ("plant", DEFAULT)
    assert queue_of(routes, b"plant/b").queue_id == 0


def test_no_more_topics_are_created_than_allowed() -> None:
    log = FakeLog()
    routes = make(log, topics_max=2)
    found = [queue_topic(routes, topic) for topic in (b"a", b"b/1", b"c", b"b/2", b"d")]
    assert found == ["a", "b", DEFAULT, "b", DEFAULT]


def test_without_leave_none_is_created_but_the_default() -> None:
    log = FakeLog()
    assert queue_topic(make(log, create_topics=False), b"plant/a") == DEFAULT
    assert list(log.queue_counts) == [DEFAULT]


def test_a_topic_that_the_broker_refuses_goes_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FakeLog()
    create = log.create_topic

    def refuse(topic: str, queue_count: int) -> None:
        if topic != DEFAULT:
            raise BrokerError(1, "too many topics")
        create(topic, queue_count)

    monkeypatch.setattr(log, "create_topic", refuse)
    routes = make(log, topics_max=1)
    assert queue_topic(routes, b"plant/a") == DEFAULT
    # It is not counted: the next may be taken.
    monkeypatch.setattr(log, "create_topic", create)
    assert queue_topic(routes, b"other/a") == "other"


def test_a_topic_that_cannot_be_written_to_is_no_place_for_publishes() -> None:
    class ClosedLog(FakeLog):
        closed = True

        def has_topic(self, topic: str) -> bool:
            return super().has_topic(topic) and not (topic == "plant" and self.closed)

        def append_queues(self, topic: str) -> Sequence[QueueHandle]:
            return super().append_queues(topic) if self.has_topic(topic) else []

    log = ClosedLog()
    log.create_topic("plant", QUEUES)
    routes = make(log)
    assert queue_topic(routes, b"plant/a") == DEFAULT
    assert message_of(routes, b"plant/b") is not None
    log.closed = False
    routes._on_topic_created("plant")
    assert queue_topic(routes, b"plant/a") == "plant"


def test_a_topic_that_gets_more_queues_is_used_as_a_whole() -> None:
    log = FakeLog()
    routes = make(log)
    names = [b"plant/%d" % number for number in range(99)]
    for name in names:
        queue_of(routes, name)
    log.creating["plant"] = 2 * QUEUES
    log.created("plant")
    assert {queue_of(routes, name).queue_id for name in names} == set(range(2 * QUEUES))


def test_a_log_that_refuses_topics_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AskedLog(FakeLog):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        def create_topic(self, topic: str, queue_count: int) -> None:
            if topic != DEFAULT and not self.has_topic(topic):
                self.asked.append(topic)
            super().create_topic(topic, queue_count)

    monkeypatch.setattr(module, "REFUSALS_MAX", 3)
    log = AskedLog()
    log.refused_topics = {f"t{number}": BrokerError(1, "no") for number in range(5)}
    routes = make(log, topics_max=10)
    for number in range(5):
        for _ in range(2):
            assert queue_topic(routes, b"t%d/a" % number) == DEFAULT
    assert set(routes._levels) == {b"t0", b"t1", b"t2", DEFAULT.encode()}
    assert queue_topic(routes, b"other/a") == DEFAULT
    assert log.asked == ["t0", "t1", "t2"]
    log.refused_topics.clear()
    log.create_topic("t0", QUEUES)  # by somebody else
    assert queue_topic(routes, b"t0/a") == "t0"
    assert queue_topic(routes, b"other/a") == "other"


def test_messages_of_a_topic_that_is_being_created_wait_for_it() -> None:
    log = FakeLog()
    log.creates_at_once = False
    log.create_topic(DEFAULT, QUEUES)
    log.created(DEFAULT)
    routes = make(log, topics_max=1)
    waiting = resolve(routes, b"slow/a").queue
    assert message_of(routes, b"slow/b") is None  # though no more topics may be created
    assert resolve(routes, b"slow/a").queue == waiting
    log.created("slow")
    assert queue_topic(routes, b"slow/a") == "slow"
    assert message_of(routes, b"slow/a") is not None


def test_a_refused_topic_leads_to_the_default_and_makes_room_for_another() -> None:
    log = FakeLog()
    log.creates_at_once = False
    log.create_topic(DEFAULT, QUEUES)
    log.created(DEFAULT)
    routes = make(log, topics_max=1)
    resolve(routes, b"slow/a")
    log.created("slow", BrokerError(1, "no"))
    assert queue_topic(routes, b"slow/a") == DEFAULT
    log.creates_at_once = True
    assert queue_topic(routes, b"other/a") == "other"


def test_a_route_of_a_rule_is_made_once_and_by_publisher_only_where_it_asks_for_that() -> None:
    rule = TopicRule(filter="+/b", queue_topic="rest", keys="{1}")
    routes = make(FakeLog(), rule, topics_max=10)
    route = resolve(routes, b"a/b", "first")
    assert resolve(routes, b"a/b", "second") is route
    assert not route.is_used
    message = message_of(routes, b"a/b")
    assert message is not None
    assert route.is_used
    assert message[2] == route.text + b"qosLevel\x011\x02clientId\x01c\x02"
    assert decode_properties(route.text)["KEYS"] == "a"
    assert message_of(routes, b"a/c") is None
    assert queue_topic(routes, b"a/c") == "a"
    rule = TopicRule(filter="a/#", queue_topic="of_{client_id}")
    routes = make(FakeLog(), rule, topics_max=10)
    assert queue_topic(routes, b"a/b", "first") == "of_first"
    assert queue_topic(routes, b"a/b", "second") == "of_second"
    assert resolve(routes, b"a/b", "first") is resolve(routes, b"a/b", "first")
    assert message_of(routes, b"a/b") is None


def test_a_full_cache_forgets_the_oldest_that_was_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 4)
    cache: RouteCache[int] = RouteCache()
    for number in range(4):
        cache.add(number, Route(None, b"", 0))
    cache.routes[0].is_used = cache.routes[2].is_used = True
    for number in range(4, 7):
        cache.add(number, Route(None, b"", 0))
    assert set(cache.routes) == {2, 4, 5, 6}  # 1 and 3 went, and 0 when its second chance was over
    cache.clear()
    cache.add(7, Route(None, b"", 0))
    assert set(cache.routes) == {7}


def test_a_cache_of_used_routes_makes_room_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 100)
    cache: RouteCache[int] = RouteCache()
    for number in range(150):
        cache.add(number, Route(None, b"", 0))
        cache.routes[number].is_used = True
    assert len(cache.routes) == 100
    assert 149 in cache.routes


def test_a_refused_default_topic_refuses_the_publish_and_no_more() -> None:
    log = FakeLog()
    routes = make(log)
    log.refused_topics[DEFAULT] = BrokerError(16, "not allowed")
    with pytest.raises(TopicNameError, match="not allowed") as caught:
        resolve(routes, b"no topic!/x")
    assert caught.value.reason_code == 0x83
    del log.refused_topics[DEFAULT]
    assert queue_topic(routes, b"no topic!/x") == DEFAULT
