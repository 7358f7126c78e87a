"""Which topic filters contain each other: examples (tests/property/test_rights.py has all)."""

from __future__ import annotations

import pytest

from motelog.gateway.access.rights import contains


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
