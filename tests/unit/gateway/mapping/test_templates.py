"""What a rule's templates may say."""

from __future__ import annotations

import pytest

from motelog.gateway.mapping.templates import (
    client_topic_fault,
    filter_fault,
    queue_topic_fault,
    template_faults,
)


@pytest.mark.parametrize(
    ("template", "topic_filter"),
    [
        ("", "a"),
        ("fixed", "a"),
        ("{1}_{2}", "a/+"),
        ("{7}", "a/#"),
        ("{7}", "#"),
        ("{client_id}-{user_name}", "a"),
    ],
)
def test_template_that_can_be_filled(template: str, topic_filter: str) -> None:
    assert list(template_faults(template, topic_filter)) == []


@pytest.mark.parametrize(
    ("template", "topic_filter", "texts"),
    [
        ("{0}", "a", ["unknown placeholder {0}"]),
        ("{}{nobody}", "#", ["unknown placeholder {}", "unknown placeholder {nobody}"]),
        ("{\N{ARABIC-INDIC DIGIT ONE}}", "a", ["unknown placeholder"]),
        ("{3}", "a/+", ["{3} is always empty: names that match 'a/+' have no level 3"]),
        ("{1", "a", ["has an unmatched brace"]),
        ("1}{1}", "a", ["has an unmatched brace"]),
    ],
)
def test_template_that_cannot(template: str, topic_filter: str, texts: list[str]) -> None:
    faults = list(template_faults(template, topic_filter))
    assert len(faults) == len(texts)
    assert all(text in fault for text, fault in zip(texts, faults, strict=True))


@pytest.mark.parametrize("template", ["{1}", "t_{2}", "{1}_{client_id}"])
def test_queue_topic_that_some_name_makes_legal(template: str) -> None:
    assert queue_topic_fault(template) is None


@pytest.mark.parametrize("template", ["", "TBW102", "a.{1}", "RMQ_SYS_{1}", "%{1}", "x" * 128])
def test_queue_topic_that_no_name_makes_legal(template: str) -> None:
    assert "not a legal queue topic" in (queue_topic_fault(template) or "")


def test_filters() -> None:
    assert filter_fault("a/+/#") is None
    assert filter_fault("a/#/b") is not None


@pytest.mark.parametrize("template", ["", "r", "r/{client_id}", "{client_id}/r/{client_id}"])
def test_topic_of_a_client(template: str) -> None:
    assert client_topic_fault(template) is None


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("reply/{user_name}", "brace"),
        ("reply/{client_id", "brace"),
        ("$SYS/{client_id}", "begins with '$'"),
        ("reply/+", "contains '+'"),
        ("reply/{client_id}/#", "contains '#'"),
        ("a\0b", "contains"),
    ],
)
def test_topic_that_no_client_may_have(template: str, text: str) -> None:
    assert text in (client_topic_fault(template) or "")
