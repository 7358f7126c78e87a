"""Addresses of whitelists; what RocketMQ matches is in test_decisions."""

from __future__ import annotations

import pytest

from motelog.core.acl.addresses import NO_ADDRESSES, parse_addresses


@pytest.mark.parametrize(
    ("text", "held", "not_held"),
    [
        ("*", ["1.2.3.4", "::1", "no address"], []),
        ("", [], ["1.2.3.4", "", "::1"]),
        ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.30", "10.1.2", "110.1.2.3"]),
        ("10.1.*.{1,5-7}", ["10.1.9.1", "10.1.0.6"], ["10.1.9.2", "10.2.9.1", "10.1.9.51"]),
        ("10.1.2.{3,4},fe80::7", ["10.1.2.4", "fe80:0::7", "fe80::7%eth0"], ["fe80::8"]),
    ],
)
def test_holds(text: str, held: list[str], not_held: list[str]) -> None:
    addresses = parse_addresses([text])
    assert [host for host in held if not addresses.holds(host)] == []
    assert [host for host in not_held if addresses.holds(host)] == []


def test_no_addresses_hold_nobody() -> None:
    assert parse_addresses([""]) == NO_ADDRESSES
    assert not NO_ADDRESSES.holds("127.0.0.1")


@pytest.mark.parametrize(
    "text", ["10.1.2", "10.1.2.256", "10.1.2.9-3", "10.1.2.a-b", "10.1.2.{x}", "host", "fe80::*"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_addresses([text])
