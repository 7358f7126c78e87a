"""Which queues are read for which filters, and until when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.records.append import QueueTail
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.log.log_port import choose_queue
from motelog.gateway.mapping.topic_mapping import TopicMapping
from tests.support.fake_log import FakeLog

DEFAULT = "MQTT_DEFAULT"


def make(queue_count: int = 8) -> tuple[FakeLog, WatchedQueues]:
    log = FakeLog()
    log.create_topic(DEFAULT, queue_count)
    mapping = TopicMapping((), default_topic=DEFAULT)
    return log, WatchedQueues(log, mapping)


def watched(queues: WatchedQueues) -> set[tuple[str, int]]:
    found = set()
    for handle, queue in queues.by_handle.items():
        assert isinstance(handle, QueueTail)
        assert handle.topic.decode() == queue.topic
        found.add((queue.topic, handle.queue_id))
    return found


def all_of(topic: str, queue_count: int) -> set[tuple[str, int]]:
    return {(topic, queue_id) for queue_id in range(queue_count)}


def test_all_queues_of_the_named_topic_and_one_of_the_default_topic() -> None:
    log, queues = make()
    log.create_topic("t", 4)
    queues.subscribe("t/dev7/#")
    assert watched(queues) == all_of("t", 4) | {(DEFAULT, choose_queue("dev7", 8))}


@pytest.mark.parametrize("queue_count", [1, 2, 8, 64])
def test_the_queue_is_that_of_a_publish(queue_count: int) -> None:
    for number in range(50):
        log, queues = make(queue_count)
        queues.subscribe(f"t/dev{number}")
        assert log.queue_of(DEFAULT, f"dev{number}") in queues.by_handle
        assert len(queues.by_handle) == 1


def test_of_an_odd_number_of_queues_all_are_read() -> None:
    _, queues = make(6)
    queues.subscribe("t/dev7")
    assert watched(queues) == all_of(DEFAULT, 6)


def test_a_topic_that_gets_more_queues_is_read_as_a_whole() -> None:
    log, queues = make()
    queues.subscribe("t/dev7")
    log.creating[DEFAULT] = 16
    log.created(DEFAULT)
    assert watched(queues) == all_of(DEFAULT, 16)
    queues.unsubscribe("t/dev7")
    assert watched(queues) == set()
    queues.subscribe("t/dev7")
    assert watched(queues) == all_of(DEFAULT, 16)
    assert {queue.handle for queue in queues.needed("t/dev7")} == set(queues.by_handle)
    queues.unsubscribe("t/dev7")
    assert watched(queues) == set()


def test_the_topic_of_a_strange_queue_is_read_as_a_whole() -> None:
    log, queues = make()
    queues.subscribe("t/dev7")
    [queue] = queues.needed("t/dev7")
    queues.read_whole(f"{DEFAULT}/99")  # no such queue
    queues.read_whole("nothing/0")
    assert list(queues.needed("t/dev7")) == [queue]
    other = next(handle for handle in log.queues(DEFAULT) if handle != queue.handle)
    queues.read_whole(log.describe(other))
    assert len(list(queues.needed("t/dev7"))) == 8
    assert queue in queues.by_handle.values()


@pytest.mark.parametrize("topic_filter", ["t/dev7", "t/+", "u/a", "no good/x"])
def test_needed_is_what_is_watched_for_a_filter(topic_filter: str) -> None:
    log, queues = make()
    queues.subscribe(topic_filter)
    log.create_topic("t", 4)
    assert set(queues.needed(topic_filter)) == set(queues.by_handle.values())
    queues.subscribe("#")
    needed = {(queue.topic, queue.name) for queue in queues.needed(topic_filter)}
    queues.unsubscribe("#")
    assert needed == {(queue.topic, queue.name) for queue in queues.by_handle.values()}


FILTERS = st.sampled_from(["t/a", "t/b", "t/b/#", "t/+", "u/a", "u/c/+", "no good/a", "#", "+/a"])


@settings(max_examples=100)
@given(
    filters=st.lists(FILTERS, max_size=12),
    left=st.lists(st.integers(0, 11), max_size=12, unique=True),
    queue_count=st.sampled_from([1, 4, 6, 8]),
)
def test_after_unsubscribing_what_is_left_is_read_and_no_more(
    filters: list[str], left: list[int], queue_count: int
) -> None:
    log, queues = make(queue_count)
    log.create_topic("t", 2)
    for topic_filter in filters:
        queues.subscribe(topic_filter)
    log.create_topic("u", 2)
    kept = []
    for position, topic_filter in enumerate(filters):
        if position in left:
            kept.append(topic_filter)
        else:
            queues.unsubscribe(topic_filter)
    fresh = WatchedQueues(log, TopicMapping((), default_topic=DEFAULT))
    for topic_filter in kept:
        fresh.subscribe(topic_filter)
    assert watched(queues) == watched(fresh)


@pytest.mark.parametrize("topic_filter", ["#", "t/+", "t/dev7"])
def test_who_comes_back_soon_finds_its_queues_as_they_were(topic_filter: str) -> None:
    log, queues = make()
    log.create_topic("t", 4)
    queues.subscribe(topic_filter)
    before = dict(queues.by_handle)
    queues.leave(topic_filter)
    queues.subscribe(topic_filter)
    queues.let_go()
    assert queues.by_handle == before  # no queue was begun anew
    assert queues.left == set()
    queues.leave(topic_filter)
    assert queues.by_handle == before
    queues.let_go()
    assert watched(queues) == set()
    assert queues.left == {queue.name for queue in before.values()}
