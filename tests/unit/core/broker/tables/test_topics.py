"""The topic table: creation by hand, at the first message, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from motelog.core.broker.tables.topics import TopicTable
from motelog.core.errors import BrokerError, ConfigError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.topic_config import TopicConfig

NOW_MS = 1_700_000_000_000


def make_table(
    *, auto_create: bool = True, topics_max: int = 100, is_copied: bool = False
) -> TopicTable:
    return TopicTable(
        broker_name="broker-a",
        cluster="C",
        default_queue_count=8,
        auto_create=auto_create,
        topics_max=topics_max,
        is_copied=is_copied,
    )


def test_the_template_is_there_to_be_registered() -> None:
    template = make_table().get("TBW102")
    assert template is not None
    assert (template.read_queue_nums, template.write_queue_nums, template.perm) == (8, 8, 7)


@pytest.mark.parametrize(("wanted", "count"), [(4, 4), (8, 8), (100, 8), (0, 1), (-5, 1)])
def test_auto_created_topic_takes_the_smaller_queue_count(wanted: int, count: int) -> None:
    table = make_table()
    config = table.create_for_message("T", "TBW102", wanted, NOW_MS)
    assert (config.read_queue_nums, config.write_queue_nums) == (count, count)
    # Inheritance is not inherited: no topic becomes a template by being written to.
    assert config.perm == 6
    assert table.create_for_message("T", "TBW102", 2, NOW_MS) is config
    assert (table.version.counter, table.version.timestamp) == (1, NOW_MS)


@pytest.mark.parametrize("template", ["missing", "SELF_TEST_TOPIC", ""])
def test_a_topic_needs_a_template_that_allows_it(template: str) -> None:
    with pytest.raises(BrokerError) as refused:
        make_table().create_for_message("T", template, 4, NOW_MS)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_without_auto_creation_there_is_no_template() -> None:
    table = make_table(auto_create=False)
    assert table.get("TBW102") is None
    with pytest.raises(BrokerError):
        table.create_for_message("T", "TBW102", 4, NOW_MS)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "..", "ü", "x" * 128, "a\n", "%RETRY%" + "g" * 249]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(BrokerError):
        make_table().create_for_message(name, "TBW102", 4, NOW_MS)


def test_names_at_the_limit_are_taken() -> None:
    table = make_table()
    assert table.create_for_message("x" * 127, "TBW102", 4, NOW_MS).write_queue_nums == 4
    assert table.create_for_message("a%|-_Z9", "TBW102", 4, NOW_MS).perm == 6


def test_retry_topics_have_one_queue_and_need_no_template() -> None:
    table = make_table(auto_create=False)
    config = table.create_for_message("%RETRY%G", "TBW102", 4, NOW_MS)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert table.create_retry_topic("G", NOW_MS) is config
    with pytest.raises(BrokerError):
        table.create_for_message("%DLQ%G", "TBW102", 4, NOW_MS)


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_put_checks_queue_counts(count: int) -> None:
    config = TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=1)
    with pytest.raises(BrokerError, match="queues"):
        make_table().put(config, NOW_MS)


def test_system_topics_cannot_be_replaced() -> None:
    config = TopicConfig(topic_name="TBW102", read_queue_nums=1, write_queue_nums=1)
    with pytest.raises(BrokerError, match="system"):
        make_table().put(config, NOW_MS)


def test_listeners_hear_of_changes_only() -> None:
    table = make_table()
    heard: list[str] = []
    table.listeners.append(heard.append)
    config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    table.put(config, NOW_MS)
    table.put(config, NOW_MS)
    assert heard == ["T"]
    assert table.version.counter == 1


@pytest.mark.parametrize("name", ["MQTT_SESSION", "MQTT_RETAINED"])
def test_topics_of_gateways_are_theirs_alone(name: str) -> None:
    table = make_table()
    with pytest.raises(BrokerError, match="belongs to the system"):
        table.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4), NOW_MS)
    config = table.create_gateway_topic(name, 1, NOW_MS)
    assert (config.read_queue_nums, config.write_queue_nums) == (1, 1)
    assert table.create_gateway_topic(name, 8, NOW_MS) is config
    assert table.user_topics() == []
    other = make_table()
    other.load(msgspec.json.decode(msgspec.json.encode(table.snapshot())))
    assert other.get(name) == config


def test_the_number_of_topics_is_bounded() -> None:
    system = len(make_table())
    table = make_table(topics_max=system + 1)
    table.create_for_message("T", "TBW102", 4, NOW_MS)
    with pytest.raises(BrokerError, match="the configured maximum"):
        table.create_for_message("U", "TBW102", 4, NOW_MS)
    assert table.user_topics() == ["T"]


def test_saved_topics_come_back_and_system_topics_follow_the_configuration() -> None:
    table = make_table()
    table.create_for_message("T", "TBW102", 4, NOW_MS)
    table.create_retry_topic("G", NOW_MS)
    saved = msgspec.json.decode(msgspec.json.encode(table.snapshot()))
    assert saved["topicConfigTable"]["T"]["readQueueNums"] == 4
    other = TopicTable(
        broker_name="broker-a", cluster="C", default_queue_count=16, auto_create=True, topics_max=99
    )
    other.load(saved)
    assert other.user_topics() == ["T"]
    assert other.get("%RETRY%G") == table.get("%RETRY%G")
    assert other.version == table.version
    template = other.get("TBW102")
    assert template is not None
    assert template.write_queue_nums == 16


@pytest.mark.parametrize(
    "table", [{"T": {"topicName": "U", "readQueueNums": 1, "writeQueueNums": 1}}, {"T": 7}]
)
def test_wrong_saved_topics_are_an_error(table: object) -> None:
    with pytest.raises((msgspec.ValidationError, ValueError)):
        make_table().load({"topicConfigTable": table})


def test_queues_of_the_store_bring_back_topics_that_the_file_lacks() -> None:
    table = make_table(topics_max=1)
    known = TopicConfig(topic_name="known", read_queue_nums=4, write_queue_nums=4)
    table.load({"topicConfigTable": {"known": msgspec.to_builtins(known)}})
    queues = [
        ("known", 9),
        ("lost", 2),
        ("lost", 11),
        ("small", 0),
        ("bad name", 0),
        ("%RETRY%g", 0),
        ("MQTT_SESSION", 0),
    ]
    table.restore(queues, 8, NOW_MS)
    counts = {name: config.write_queue_nums for name, config in table.table().items()}
    assert (counts["known"], counts["lost"], counts["small"]) == (4, 12, 8)
    assert counts["%RETRY%g"] == counts["MQTT_SESSION"] == 1
    assert "bad name" not in counts
    assert table.is_dirty


LONG_GROUP = "g" * 121  # its retry topic has 128 bytes


def test_a_topic_that_slaves_of_rocketmq_4_cannot_read_is_not_made_while_they_may_copy() -> None:
    alone, copied = make_table(), make_table(is_copied=True)
    alone.create_retry_topic(LONG_GROUP, NOW_MS)
    for make in (copied.create_retry_topic, copied.create_dead_letter_topic):
        make(LONG_GROUP[2:], NOW_MS)
        with pytest.raises(BrokerError, match="RocketMQ 4"):
            make(LONG_GROUP + "gg", NOW_MS)
    name = f"%RETRY%{LONG_GROUP}"
    with pytest.raises(BrokerError, match="RocketMQ 4"):
        copied.create_for_message(name, "TBW102", 1, NOW_MS)
    with pytest.raises(BrokerError, match="RocketMQ 4"):
        copied.put(alone.table()[name], NOW_MS)
    assert name in alone.table()
    assert name not in copied.table()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_nor_is_there_one_after_a_start(is_deleted: bool) -> None:
    alone, copied = make_table(), make_table(is_copied=True)
    name = alone.create_retry_topic(LONG_GROUP, NOW_MS).topic_name
    if is_deleted:
        alone.delete(name, {0: 3}, NOW_MS)
    content = alone.snapshot()
    for table in (alone, copied):
        table.load(msgspec.json.decode(msgspec.json.encode(content)))
    alone.restore([], 4, NOW_MS)
    with pytest.raises(ConfigError, match='or set replicate = "off"'):
        copied.restore([], 4, NOW_MS)
