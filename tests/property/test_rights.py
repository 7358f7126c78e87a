"""Which topic filters contain and meet each other: a million pairs, by every name there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from motelog.gateway.access.rights import contains, meets
from motelog.gateway.mqtt.topics import matches

TEXTS = ("a", "b", "", "$s")
#: So many levels of these, and one less with one text more: 1,052 filters.
DEEPEST = 4
MORE = (*TEXTS, "c")
#: A text that no filter says, so that names tell filters apart.
OTHER = "other"


def filters(texts: Sequence[str], deepest: int) -> Iterator[str]:
    for count in range(deepest + 1):
        for levels in itertools.product((*texts, "+"), repeat=count):
            for end in ((), ("#",)):
                if 0 < count + len(end) <= deepest and (levels, end) != (("",), ()):
                    yield "/".join((*levels, *end))


def names(texts: Sequence[str], deepest: int) -> Iterator[str]:
    """Yield what has one level more than filters have at most."""
    for count in range(1, deepest + 2):
        for levels in itertools.product((*texts, OTHER), repeat=count):
            yield "/".join(levels)


def test_contains_and_meets_say_what_all_names_say() -> None:
    """For each pair of filters; a filter's names are the bits of a number."""
    places = dict.fromkeys((*names(TEXTS, DEEPEST), *names(MORE, DEEPEST - 1)))
    every = dict.fromkeys((*filters(TEXTS, DEEPEST), *filters(MORE, DEEPEST - 1)))
    assert len(every) ** 2 > 1_000_000
    sets = {
        one: sum(1 << place for place, name in enumerate(places) if matches(one, name))
        for one in every
    }
    for outer, inner in itertools.product(every, repeat=2):
        is_contained = not sets[inner] & ~sets[outer]
        assert contains(outer, inner) == is_contained, (outer, inner)
        assert meets(outer, inner) == bool(sets[inner] & sets[outer]), (outer, inner)
