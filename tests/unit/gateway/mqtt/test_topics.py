"""Topic names and filters: the standard's own examples, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from motelog.gateway.mqtt.errors import (
    GatewayError,
    MalformedPacketError,
    TopicFilterError,
    TopicNameError,
)
from motelog.gateway.mqtt.topics import (
    check_topic_filter,
    check_topic_name,
    has_wildcard,
    matches,
    name_pattern,
    parse_shared,
)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "any/thing", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+/tennis/#", "sport/tennis", True),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/#", "a/$x", True),
        ("ACCOUNTS", "Accounts", False),
        ("a", "a/", False),
        ("a/b", "a", False),
        ("/a", "a", False),
    ],
)
def test_matching_of_the_standards_examples(topic_filter: str, name: str, expected: bool) -> None:
    check_topic_filter(topic_filter)
    check_topic_name(name)
    assert matches(topic_filter, name) == expected
    assert bool(name_pattern(topic_filter).fullmatch(name.encode())) == expected


LEVELS = st.sampled_from(["a", "b.", "$s", "(*)", "å", ""])


@drawn(
    levels=st.lists(LEVELS | st.just("+"), max_size=4),
    is_open=st.booleans(),
    name=st.lists(LEVELS, min_size=1, max_size=4).map("/".join),
)
def test_pattern_fits_what_the_filter_matches(levels: list[str], is_open: bool, name: str) -> None:
    topic_filter = "/".join([*levels, *(["#"] if is_open or not levels else [])])
    fits = name_pattern(topic_filter).fullmatch
    assert bool(fits(name.encode())) == matches(topic_filter, name)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "+",
        "/",
        "a//b",
        "+/a/+",
        "a/#",
        "$share/g/#",
        "$share/g//",
        "$shared/+",
        "ä",
        "/" * 200,
    ],
)
def test_legal_filters(topic_filter: str) -> None:
    check_topic_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a#",
        "#/a",
        "a/#/b",
        "a+",
        "+a/b",
        "a/b+/c",
        "a\0",
        "a\x01",
        "a\n",
        "a\x7f",
        "a\x85",
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/g#/a",
        "$share/g/a#",
        "x" * 65536,
        "ä" * 32768,
    ],
)
def test_illegal_filters(topic_filter: str) -> None:
    with pytest.raises(TopicFilterError) as caught:
        check_topic_filter(topic_filter)
    assert caught.value.reason_code == 0x8F


@pytest.mark.parametrize(
    "name", ["a", "/", "//", "$SYS/a", " ", "a/\N{BYTE ORDER MARK}", "x" * 65535]
)
def test_legal_names(name: str) -> None:
    check_topic_name(name)
    check_topic_name(name.encode())


@pytest.mark.parametrize(
    "name", ["", "+", "a/#", "a\0", "a\x1f", "a\x7f", "a\x80", "a\x9f", "x" * 65536, "ä" * 32768]
)
def test_illegal_names(name: str) -> None:
    for given in (name, name.encode()):
        with pytest.raises(TopicNameError) as caught:
            check_topic_name(given)
        assert caught.value.reason_code == 0x90


def test_name_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedPacketError) as caught:
        check_topic_name(b"a/\xff")
    assert caught.value.offset_bytes == 2


def test_shared_filter_is_taken_apart() -> None:
    assert parse_shared("$share/group/a/+/#") == ("group", "a/+/#")
    assert parse_shared("$share/group//") == ("group", "/")
    assert parse_shared("$sharegroup/a") is None
    assert parse_shared("a/$share/b") is None
    with pytest.raises(GatewayError):
        parse_shared("$share/group")


def test_wildcards_are_seen() -> None:
    assert has_wildcard("a/+")
    assert has_wildcard("#")
    assert not has_wildcard("a/b")
