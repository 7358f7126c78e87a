"""Names of topics and groups."""

from __future__ import annotations

import pytest

from motelog.core.topic_names import (
    group_name_fault,
    is_device_topic,
    is_group_topic,
    is_topic_name,
)


@pytest.mark.parametrize(
    "name", ["T", "a" * 127, "%RETRY%" + "g" * 248, "%DLQ%g", "a-b_c|d%e", "SCHEDULE_TOPIC_XXXX"]
)
def test_a_topic_name_may_be_a_directory(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\0", "a\n", "\u00e4", "a b", "a" * 128, "%RETRY%" + "g" * 249,
     "%RETRY%../x", "a+b"],
)  # fmt: skip
def test_any_other_name_may_not(name: str) -> None:
    assert not is_topic_name(name)


@pytest.mark.parametrize(
    ("name", "is_good"), [("g" * 248, True), ("g" * 249, False), ("", False), ("a b", False)]
)
def test_a_group_name_leaves_room_for_its_retry_topic(name: str, *, is_good: bool) -> None:
    assert (group_name_fault(name) is None) is is_good
    assert not is_good or is_topic_name(f"%RETRY%{name}")


def test_topics_of_groups_are_told_by_their_beginning() -> None:
    assert is_group_topic("%RETRY%g")
    assert is_group_topic("%DLQ%g")
    assert not is_group_topic("g%RETRY%")


def test_device_topics_are_what_devices_may_name() -> None:
    assert is_device_topic("telemetry")
    assert not is_device_topic("%DLQ%x")
    assert not is_device_topic("MQTT_SESSION")
    assert not is_device_topic("x" * 128)
