"""HOST:PORT as text and as values."""

from __future__ import annotations

import pytest

from motelog.core.addresses import format_address, parse_address, without_logins


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@pytest.mark.parametrize(
    "text", ["", "1883", ":1883", "a:", "a:b", "a:-1", "a:65536", "::1:1883", "a:²"]
)
def test_bad_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets|at most"):
        parse_address(text)


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":1", "host:0", "host:70000", "host:x", "a b:1", "a;b:1", "[::1:1"],
)
def test_an_address_that_nobody_can_connect_to_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        parse_address(address, port_min=1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://user:pw@host/path", "http://[removed]@host/path"),
        ("https://token@[::1]:8080", "https://[removed]@[::1]:8080"),
        ("http://user:p@w?#@host", "http://[removed]@host"),
        (
            ["a://b@c d://e@f", {"x": ("g://h@i",)}],
            ["a://[removed]@c d://[removed]@f", {"x": ("g://[removed]@i",)}],
        ),
        ("http://host/a@b", "http://host/a@b"),
        ("a@b", "a@b"),
        (8, 8),
    ],
)
def test_urls_are_shown_without_their_logins(value: object, shown: object) -> None:
    assert without_logins(value) == shown


def test_a_url_in_place_of_an_address_is_refused_without_its_login() -> None:
    with pytest.raises(ValueError, match="remove the part before") as refused:
        parse_address("http://user:hunter2@host:1")
    assert "hunter2" not in str(refused.value)


def test_an_address_to_connect_to_is_split() -> None:
    assert parse_address("[::1]:9876", port_min=1) == ("::1", 9876)
