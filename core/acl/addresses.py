"""Addresses from which requests pass, as RocketMQ's whitelists write them.

Owns: their grammar. Must not touch: which requests pass; pure functions.
Spec: RocketMQ RemoteAddressStrategyFactory.

    *            every address            10.1.2.3,10.1.2.9    these two
    10.1.2.*     the last part is any     10.1.2.{3,9}         the same
    10.1.2.3-40  from 3 to 40             fe80::7              one IPv6 address
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_ALL: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
# A comma between braces separates the values of one part.
_COMMA: Final = re.compile(r",(?![^{]*\})")
_PARTS: Final = 4
_PART_MAX: Final = 255

_Parts = tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class Addresses:
    """A set of addresses; by default empty."""

    is_all: bool = False
    single: frozenset[str] = frozenset()
    ranges: tuple[_Parts, ...] = ()

    def holds(self, host: str) -> bool:
        """Return whether a peer's address is one of these."""
        if self.is_all:
            return True
        if not self.single and not self.ranges:
            return False
        try:
            known = plain_address(host.partition("%")[0])
        except ValueError:
            return False
        if known in self.single:
            return True
        if ":" in known:
            return False
        parts = [int(part) for part in known.split(".")]
        return any(
            all(part in allowed for part, allowed in zip(parts, each, strict=True))
            for each in self.ranges
        )


NO_ADDRESSES: Final = Addresses()


def parse_addresses(texts: Iterable[str]) -> Addresses:
    """Return the addresses in the texts; ValueError if a text is invalid."""
    single: set[str] = set()
    ranges: list[_Parts] = []
    is_all = False
    for text in (part.strip() for whole in texts for part in _COMMA.split(whole)):
        if text in _ALL:
            is_all = True
        elif not text:
            continue
        elif any(mark in text for mark in "*-{"):
            ranges.append(_range(text))
        else:
            single.add(plain_address(text))
    return Addresses(is_all, frozenset(single), tuple(ranges))


def plain_address(text: str) -> str:
    """Return an address in the form in which addresses are compared; ValueError if invalid."""
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _range(text: str) -> _Parts:
    parts = text.split(".")
    if len(parts) != _PARTS:
        raise ValueError(f"{text!r} is neither an address nor four parts of one")
    return tuple(_values(part.strip(), text) for part in parts)


def _values(part: str, text: str) -> frozenset[int]:
    if part == "*":
        return frozenset(range(_PART_MAX + 1))
    if part.startswith("{") and part.endswith("}"):
        return frozenset(value for each in part[1:-1].split(",") for value in _values(each, text))
    low, _, high = part.partition("-")
    try:
        first, last = int(low), int(high or low)
    except ValueError:
        raise ValueError(f"{part!r} is no part of an address in {text!r}") from None
    if not 0 <= first <= last <= _PART_MAX:
        raise ValueError(f"{part!r} is no part of an address in {text!r}")
    return frozenset(range(first, last + 1))


#: This machine's own.
LOOPBACK: Final = parse_addresses(("127.*.*.*", "::1"))
