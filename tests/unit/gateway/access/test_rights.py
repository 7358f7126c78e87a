"""Which topic filters contain and meet each other, against every name that there is."""

from __future__ import annotations

import itertools

import pytest

from motelog.gateway.access.rights import contains, meets
from motelog.gateway.mqtt.topics import matches

# One level more than filters have, and one text that no filter says: so names tell them apart.
DEEPEST = 3
TEXTS = ("a", "b", "", "$s")
NAMES = [
    "/".join(levels)
    for n in range(1, DEEPEST + 2)
    for levels in itertools.product((*TEXTS, "other"), repeat=n)
]
FILTERS = [
    "/".join((*levels, *end))
    for n in range(DEEPEST + 1)
    for levels in itertools.product((*TEXTS, "+"), repeat=n)
    for end in ((), ("#",))
    if 0 < n + len(end) <= DEEPEST and (levels, end) != (("",), ())
]


def test_contains_and_meets_say_what_all_names_say() -> None:
    """For each pair of filters; a filter's names are the bits of a number."""
    names = {
        one: sum(1 << place for place, name in enumerate(NAMES) if matches(one, name))
        for one in FILTERS
    }
    for outer, inner in itertools.product(FILTERS, repeat=2):
        is_contained = not names[inner] & ~names[outer]
        assert contains(outer, inner) == is_contained, (outer, inner)
        assert meets(outer, inner) == bool(names[inner] & names[outer]), (outer, inner)


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
