"""What a consumer selects by: tags, or a SQL92 filter, and what brokers are told of it."""

from __future__ import annotations

import pytest

from motelog.bridge.errors import FilterError
from motelog.bridge.selector import SELECT_ALL, parse_tags, select
from motelog.core.message import string_hash


def test_tags_are_the_words_between_bars() -> None:
    assert parse_tags(" A||B || A") == ("A", "B", "A")
    assert parse_tags("") == parse_tags("*") == ()
    with pytest.raises(ValueError, match="has no tag"):
        select("||", None)


def test_a_heartbeat_says_tags_with_their_hashes() -> None:
    subscription = select("A || B", None).subscription("T", 7)
    assert subscription["expressionType"] == "TAG"
    assert (subscription["tagsSet"], subscription["subString"]) == (["A", "B"], "A || B")
    assert subscription["codeSet"] == [string_hash("A"), string_hash("B")]
    assert select("*", None) == SELECT_ALL


def test_a_heartbeat_says_a_filter_without_tags() -> None:
    selector = select("*", "a > 5")
    subscription = selector.subscription("T", 7)
    assert subscription["expressionType"] == "SQL92"
    assert (subscription["tagsSet"], subscription["codeSet"]) == ([], [])
    assert (subscription["subString"], subscription["subVersion"]) == ("a > 5", 7)
    assert selector.keep([]) == []


def test_a_bad_filter_is_refused_with_the_column() -> None:
    for _ in range(2):
        with pytest.raises(FilterError, match=r"column 7: '\|' is not part of it"):
            select("*", "a > 5 || b")
    with pytest.raises(ValueError, match="not both"):
        select("A", "a > 5")
