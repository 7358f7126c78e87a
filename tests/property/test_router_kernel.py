"""The compiled router kernel answers like the reference, whatever it is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.publish import _router, _router_py

OCTETS = bytes(chr(octet).isalnum() and octet < 128 for octet in range(256))
LEVELS = st.sampled_from(
    [b"a", b"b", b"ru", b"no good", b"", b"$x", b"\xc3\xa4", b"\xff", b"e" * 9]
)
NAMES = st.lists(LEVELS | st.binary(max_size=4), max_size=4).map(b"/".join) | st.binary(max_size=30)
TEXTS = st.sampled_from([b"", b"qosLevel\x011\x02", b"x" * 16_380])
PLACES = st.none() | st.integers(0, 4) | st.just("routes")


def router(kernel: Any, places: dict[bytes, Any], others: Any, unnameable: Any) -> Any:
    def place(what: Any) -> Any:
        if what == "routes":
            return {
                name: kernel.Route(f"by {name!r}", b"text of " + name, 5)
                for name in (b"a", b"a/b", b"ru/a", b"no good")
            }
        return what if what is None else [f"queue {number}" for number in range(what)]

    made = kernel.Router(OCTETS, level_bytes_max=8, topic_bytes_max=24)
    made.levels.update((level, place(what)) for level, what in places.items() if what is not None)
    made.others, made.unnameable = place(others), place(unnameable)
    return made


@settings(max_examples=400)
@given(
    places=st.dictionaries(LEVELS, PLACES, max_size=4),
    others=PLACES,
    unnameable=PLACES,
    publishes=st.lists(st.tuples(NAMES, st.binary(max_size=3), TEXTS, TEXTS), max_size=8),
)
def test_compiled_router_answers_like_the_reference(
    places: dict[bytes, Any], others: Any, unnameable: Any, publishes: list[Any]
) -> None:
    compiled = router(_router, places, others, unnameable)
    reference = router(_router_py, places, others, unnameable)
    for topic, payload, text, origin in publishes:
        arguments = (topic, payload, text, origin, 17, b"host")
        assert compiled.message(*arguments) == reference.message(*arguments)
    for level, place in compiled.levels.items():
        if isinstance(place, dict):
            used = {name: route.is_used for name, route in place.items()}
            also = {name: route.is_used for name, route in reference.levels[level].items()}
            assert used == also


@pytest.mark.parametrize("kernel", [_router, _router_py])
def test_octets_are_one_table(kernel: Any) -> None:
    with pytest.raises(ValueError, match="256"):
        kernel.Router(b"", level_bytes_max=1, topic_bytes_max=1)
