"""Which topic filters contain and meet each other, against every name that there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.gateway.access.rights import contains, meets
from motelog.gateway.errors import TopicFilterError
from motelog.gateway.mqtt.topics import check_topic_filter, matches

# One level more than filters have, and one text that no filter says: so names tell them apart.
LEVELS = ("a", "b", "", "$s", "other")
NAMES = ["/".join(levels) for n in range(1, 5) for levels in itertools.product(LEVELS, repeat=n)]


def filters() -> st.SearchStrategy[str]:
    level = st.sampled_from(("a", "b", "", "$s", "+"))
    listed = st.tuples(st.lists(level, max_size=3), st.sampled_from(([], ["#"])))
    return listed.map(lambda parts: "/".join(parts[0][: 3 - len(parts[1])] + parts[1])).filter(
        _is_legal
    )


def _is_legal(topic_filter: str) -> bool:
    try:
        check_topic_filter(topic_filter)
    except TopicFilterError:
        return False
    return True


@given(filters(), filters())
def test_contains_and_meets_say_what_all_names_say(outer: str, inner: str) -> None:
    both = [(matches(outer, name), matches(inner, name)) for name in NAMES]
    assert contains(outer, inner) == all(one for one, other in both if other)
    assert meets(outer, inner) == any(one and other for one, other in both)
    assert meets(outer, inner) == meets(inner, outer)


@pytest.mark.parametrize(
    ("outer", "inner", "is_contained"),
    [
        ("#", "a/b", True),
        ("#", "$SYS/#", False),
        ("+/#", "#", True),
        ("#", "+/#", True),
        ("a/+/#", "a/#", False),
        ("a/#", "a", True),
        ("a/#", "a/+/b", True),
        ("a/+", "a/#", False),
        ("a/+", "a/+", True),
        ("+", "$s", False),
        ("$s/#", "$s/a", True),
    ],
)
def test_examples(outer: str, inner: str, is_contained: bool) -> None:
    assert contains(outer, inner) is is_contained
