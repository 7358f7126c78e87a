"""Topic mapping: rules, templates, built-in rules; filters find what names are mapped to."""

from __future__ import annotations

from typing import Literal

import pytest

from motelog.gateway.mapping.topic_mapping import MappedName, TopicMapping
from motelog.gateway.mapping.topic_rule import TopicRule

RULES = (
    TopicRule(filter="site/+/meter/#", queue_topic="meters", tag="{2}", keys="{4} {client_id}"),
    TopicRule(filter="fleet/+/+", queue_topic="fleet_{2}", tag="{3}", queue_by="topic"),
)


def mapping(*rules: TopicRule) -> TopicMapping:
    return TopicMapping(rules, default_topic="MQTT_DEFAULT")


def test_first_level_is_queue_topic_and_second_is_tag() -> None:
    mapped = mapping().map_name("telemetry/dev42/temp", client_id="c", user_name="")
    assert mapped == MappedName("telemetry", "dev42", "", "dev42")


def test_topic_without_second_level_has_no_tag_and_hashes_its_name() -> None:
    mapped = mapping().map_name("alarms", client_id="c", user_name="")
    assert mapped == MappedName("alarms", "", "", "alarms")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "MQTT_SESSION/x",
        "MQTT_RETAINED",
        "sp ace/x",
        "%RETRY%g/x",
        "TBW102/x",
        "RMQ_SYS_TRANS_HALF_TOPIC/x",
        "ü/x",
        "a.b",
    ],
)
def test_illegal_first_level_goes_to_the_default_topic(name: str) -> None:
    assert mapping().map_name(name, client_id="c", user_name="").queue_topic is None


def test_first_matching_rule_fills_its_templates() -> None:
    mapped = mapping(*RULES).map_name("site/north/meter/77", client_id="gw1", user_name="")
    assert mapped == MappedName("meters", "north", "77 gw1", "north")


def test_template_may_name_the_queue_topic() -> None:
    mapped = mapping(*RULES).map_name("fleet/eu/truck9", client_id="c", user_name="")
    assert mapped == MappedName("fleet_eu", "truck9", "", "fleet/eu/truck9")


def test_template_cannot_reach_a_system_topic() -> None:
    rule = TopicRule(filter="x/#", queue_topic="{2}")
    assert mapping(rule).map_name("x/TBW102", client_id="", user_name="").queue_topic is None


def test_filter_with_literal_first_level_needs_its_topic_and_the_default() -> None:
    assert mapping().queue_choices("telemetry/+/temp") == {
        ("telemetry", None),
        ("MQTT_DEFAULT", None),
    }


@pytest.mark.parametrize(
    ("topic_filter", "selector"),
    [
        ("t/dev", "dev"),
        ("t/dev/#", "dev"),
        ("t/dev/+/set", "dev"),
        ("t", "t"),
        ("t//x", "t//x"),
        ("t//#", None),
        ("t/#", None),
        ("t/+/x", None),
    ],
)
def test_a_literal_tag_decides_the_queue_of_publishes_that_went_to_the_default_topic(
    topic_filter: str, selector: str | None
) -> None:
    assert mapping().queue_choices(topic_filter) == {("t", None), ("MQTT_DEFAULT", selector)}


@pytest.mark.parametrize("topic_filter", ["no good/x", "/x", "MQTT_DEFAULT/x"])
def test_names_that_belong_into_the_default_topic_may_be_in_all_its_queues(
    topic_filter: str,
) -> None:
    assert mapping().queue_choices(topic_filter) == {("MQTT_DEFAULT", None)}


@pytest.mark.parametrize(
    ("queue_by", "selector"), [("tag", "x"), ("topic", "r/x"), ("client_id", None)]
)
def test_a_rule_says_what_decides_the_queue(
    queue_by: Literal["tag", "topic", "client_id"], selector: str | None
) -> None:
    rule = TopicRule(filter="r/#", queue_topic="rest", queue_by=queue_by)
    choices = {("rest", None), ("r", None), ("MQTT_DEFAULT", "x"), ("MQTT_DEFAULT", selector)}
    assert mapping(rule).queue_choices("r/x") == choices


@pytest.mark.parametrize("topic_filter", ["#", "+/a", "+"])
def test_filter_with_wildcard_first_level_needs_any(topic_filter: str) -> None:
    assert mapping().queue_choices(topic_filter) is None


def test_filter_that_leaves_a_template_level_open_needs_any() -> None:
    assert mapping(*RULES).queue_choices("fleet/+/truck9") is None
    assert mapping(*RULES).queue_choices("fleet/eu/#") == {
        ("fleet", None),
        ("fleet_eu", None),
        ("MQTT_DEFAULT", "eu"),
        ("MQTT_DEFAULT", None),
    }
