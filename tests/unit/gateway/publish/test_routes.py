"""Where publishes go: names that are refused, topics that are created, and the limit of both."""

from __future__ import annotations

import pytest

from motelog.core.errors import BrokerError
from motelog.core.message import MQTT_QOS, MQTT_TOPIC, TAGS, decode_properties, tags_code
from motelog.core.records.append import QueueTail
from motelog.gateway.config import TopicRule
from motelog.gateway.errors import TopicNameError
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.publish import routes as module
from motelog.gateway.publish.routes import Route, Routes
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


def queue_of(routes: Routes, topic: bytes, client_id: str = "client") -> QueueTail:
    queue = resolve(routes, topic, client_id).queue
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
    assert (routes.by_topic, log.queue_counts) == ({}, {})


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


def test_a_route_says_all_that_its_topic_name_decides() -> None:
    route = resolve(make(FakeLog()), b"plant/line/1")
    for text, qos in ((route.at_most_once, "0"), (route.at_least_once, "1")):
        pairs = decode_properties(text)
        assert pairs == {MQTT_TOPIC: "plant/line/1", TAGS: "line", MQTT_QOS: qos}
    assert route.tags_code == tags_code("line")
    assert isinstance(route.queue, QueueTail)
    assert 0 <= route.queue.queue_id < QUEUES


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


def test_a_route_is_made_once_and_by_publisher_only_where_a_rule_asks_for_it() -> None:
    routes = make(FakeLog())
    assert resolve(routes, b"a/b", "first") is resolve(routes, b"a/b", "second")
    rule = TopicRule(filter="a/#", queue_topic="of_{client_id}")
    routes = make(FakeLog(), rule, topics_max=10)
    assert queue_topic(routes, b"a/b", "first") == "of_first"
    assert queue_topic(routes, b"a/b", "second") == "of_second"
    assert resolve(routes, b"a/b", "first") is resolve(routes, b"a/b", "first")
    assert routes.by_topic == {}


def test_a_full_cache_forgets_its_oldest_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 8)
    routes = make(FakeLog())
    for number in range(9):
        resolve(routes, b"a/%d" % number)
    assert list(routes.by_topic) == [b"a/%d" % number for number in range(2, 9)]
