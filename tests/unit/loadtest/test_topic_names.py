"""Topics are reported under the template they were built from."""

from __future__ import annotations

import pytest

from motelog.loadtest.topic_names import OTHER, TopicNames


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("telemetry/dev1/temp", "telemetry/{device}/temp"),
        ("telemetry/dev2/temp", "telemetry/{device}/temp"),
        ("telemetry/{device}/temp", "telemetry/{device}/temp"),
        ("telemetry/dev1/humidity", "telemetry/+/humidity"),
        ("telemetry/dev1", OTHER),
        ("telemetry/dev1/temp/x", OTHER),
        ("logs", "logs/#"),
        ("logs/a/b/c", "logs/#"),
        ("", OTHER),
    ],
)
def test_topic_is_named_by_its_template(topic: str, name: str) -> None:
    names = TopicNames(["telemetry/{device}/temp", "telemetry/+/humidity", "logs/#"])
    assert [names.name(topic) for _ in range(2)] == [name, name]
