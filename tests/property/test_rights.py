"""Which topic filters contain and meet each other: a million pairs, by every name there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from motelog.gateway.access.rights import contains, meets
from motelog.gateway.mqtt.topics import matches

TEXTS = ("a", "b", "", "$s")
#: Levels of filters of all shapes, and of more that are one deeper; names go one deeper than these.
DEPTH, DEEPER = 4, 5


def _names() -> Iterator[tuple[str, ...]]:
    """Yield names as levels; "other" is a text that no filter says, so names tell filters apart."""
    for n in range(1, DEEPER + 1):
        yield from itertools.product((*TEXTS, "other"), repeat=n)
    yield from itertools.product(("a", "$s", "other"), repeat=DEEPER + 1)


def _filters() -> Iterator[tuple[str, ...]]:
    for n in range(DEPTH + 1):
        for levels in itertools.product((*TEXTS, "+"), repeat=n):
            if levels:
                yield levels
            if n < DEPTH and levels != ("",):
                yield (*levels, "#")
    for first in ("a", "$s", "+"):
        for rest in itertools.product(("a", "+"), repeat=DEEPER - 2):
            yield (first, *rest, "#")
            yield from ((first, *rest, last) for last in ("a", "+"))


NAMES = list(_names())
FILTERS = {"/".join(levels): levels for levels in _filters()}


def _bits(places: Iterator[bool]) -> int:
    return sum(1 << place for place, is_there in enumerate(places) if is_there)


#: By number of levels, and by (place, text): the names that have it, as the bits of a number.
LONG = [_bits(len(name) == n for name in NAMES) for n in range(DEEPER + 2)]
AT = {
    (place, text): _bits(place < len(name) and name[place] == text for name in NAMES)
    for place in range(DEEPER)
    for text in TEXTS
}
OWN = _bits(name[0].startswith("$") for name in NAMES)
ALL = (1 << len(NAMES)) - 1


def names_of(levels: tuple[str, ...]) -> int:
    """Return the names that match a filter, by what the standard says of each of its levels.

    It shares nothing with ``matches``, which walks one name.
    """
    is_open = levels[-1] == "#"
    shown = levels[:-1] if is_open else levels
    found = sum(LONG[len(shown) :]) if is_open else LONG[len(shown)]
    for place, text in enumerate(shown):
        if text != "+":
            found &= AT[place, text]
    if levels[0] in ("+", "#"):
        found &= ALL ^ OWN  # [MQTT-4.7.2-1]
    return found


def test_contains_and_meets_say_what_all_names_say() -> None:
    """For each pair of a thousand filters."""
    assert len(FILTERS) ** 2 > 1_000_000
    found = [(one, names_of(levels)) for one, levels in FILTERS.items()]
    assert all(names for _, names in found)
    for outer, outside in found:
        rest = ALL ^ outside
        wrong = [
            inner
            for inner, inside in found
            if contains(outer, inner) is bool(inside & rest)
            or meets(outer, inner) is not bool(inside & outside)
        ]
        assert not wrong, outer


def test_a_name_matches_what_its_levels_say() -> None:
    for one, levels in itertools.islice(FILTERS.items(), 0, None, 11):
        names = names_of(levels)
        for place, name in enumerate(NAMES):
            assert matches(one, "/".join(name)) is bool(names >> place & 1), (one, name)
