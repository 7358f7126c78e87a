"""Rules of RocketMQ 5 for one user: its rights to topics and groups, by address.

Owns: the grammar of a rule, which of a user's rules decides. Must not touch: where users are kept
(users), requests; pure functions and values. Spec: RocketMQ 5.3 PolicyEntry, Resource,
AclAuthorizationHandler.

    resource    Topic:NAME  Topic:PREFIX*  Topic:*  Group:...  *
    actions     Pub, Sub, All        decision    Allow, Deny
    source IPs  addresses and networks (10.0.0.0/8); without any it applies everywhere

A rule matches if resource, action and address do. The first matching rule in this order decides:
rules before default rules, then by resource, a name before a prefix, a longer prefix before a
shorter one, both before all topics or groups, and these before ``*``. If no rule matches, the
answer is no.
As with accounts, only a rule that has their name applies to the system's topics.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from motelog.core.acl.accounts import Kind, Need, Right, is_only_by_name
from motelog.core.acl.addresses import NO_ADDRESSES, Addresses, plain_address
from motelog.core.topic_names import shown

NAME_CHARACTERS_MAX: Final = 255

_KINDS: Final = {"topic": Kind.TOPIC, "group": Kind.GROUP}
_ACTIONS: Final = {"pub": ("Pub", Right.PUB), "sub": ("Sub", Right.SUB), "all": ("All", Right(3))}
_DECISIONS: Final = {"allow": True, "deny": False}
_SINGLE: Final = (Right.PUB, Right.SUB)

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Match(Enum):
    """How a rule's resource names topics or groups; in the order in which they decide."""

    NAME = 0
    PREFIX = 1
    EACH = 2


@dataclass(frozen=True, slots=True)
class Resource:
    """The topics or groups of a rule; ``kind`` None means both."""

    kind: Kind | None
    match: Match
    name: str = ""

    def holds(self, need: Need) -> bool:
        """Return whether the need refers to one of these."""
        if self.kind is not None and self.kind is not need.kind:
            return False
        if self.match is Match.NAME:
            return need.name == self.name
        if need.kind is Kind.TOPIC and is_only_by_name(need.name):
            return False
        return self.match is Match.EACH or need.name.startswith(self.name)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Its place in the order of resources that hold the same need; the lowest decides."""
        return self.kind is None, self.match.value, -len(self.name)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        return f"{self.kind.value.title()}:{self.name}{'' if self.match is Match.NAME else '*'}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule; ``is_default``: it counts only if no other rule of the user matches."""

    resource: Resource
    actions: tuple[str, ...]
    right: Right
    is_allowed: bool
    source_ips: tuple[str, ...] = ()
    networks: tuple[_Network, ...] = ()
    is_default: bool = False

    def matches(self, need: Need, right: Right, host: str) -> bool:
        return bool(right & self.right) and self.resource.holds(need) and self._is_for(host)

    def _is_for(self, host: str) -> bool:
        if not self.networks:
            return True
        try:
            address = ipaddress.ip_address(plain_address(host.partition("%")[0]))
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    @property
    def decision(self) -> str:
        return "Allow" if self.is_allowed else "Deny"


@dataclass(frozen=True, slots=True)
class User:
    """One user and its rules, in the order of ``in_order``; an administrator needs none."""

    access_key: str
    secret: bytes = field(repr=False)
    is_admin: bool = False
    entries: tuple[Entry, ...] = ()
    white: Addresses = NO_ADDRESSES

    def may(self, need: Need, host: str) -> bool:
        """Return whether requests from the address have the right."""
        if self.is_admin:
            return True
        if need.kind is Kind.ADMIN:
            return False
        return any(self._is_allowed(need, right, host) for right in _SINGLE if right & need.right)

    def _is_allowed(self, need: Need, right: Right, host: str) -> bool:
        for entry in self.entries:
            if entry.matches(need, right, host):
                return entry.is_allowed
        return False


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return rules so that the first one that matches decides."""
    return tuple(sorted(entries, key=lambda each: (each.is_default, *each.resource.rank)))


def parse_resource(text: str) -> Resource:
    """Return the resource of a rule; ValueError if the text is invalid."""
    if text == "*":
        return Resource(None, Match.EACH)
    kind, sign, name = text.partition(":")
    found = _KINDS.get(kind.lower())
    if not sign or found is None:
        fault = "is not Topic:NAME, Group:NAME or *; what tools do takes a user of type Super"
        raise ValueError(f"the resource {shown(text)} {fault}")
    if name == "*":
        return Resource(found, Match.EACH)
    match = Match.PREFIX if name.endswith("*") else Match.NAME
    name = name.removesuffix("*")
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or "*" in name:
        raise ValueError(f"the resource {shown(text)} has no name, or an invalid one")
    return Resource(found, match, name)


def parse_entry(
    resource: str,
    actions: Sequence[str],
    decision: str,
    source_ips: Sequence[str] = (),
    *,
    is_default: bool = False,
) -> Entry:
    """Return a rule; ValueError names its fault."""
    found = [_ACTIONS.get(action.lower()) for action in actions]
    if not found or None in found:
        text = f"the actions are {shown(','.join(actions))}: a rule here has some of Pub, Sub, All"
        raise ValueError(f"{text}; what tools do takes a user of type Super")
    named = [each for each in found if each is not None]
    is_allowed = _DECISIONS.get(decision.lower())
    if is_allowed is None:
        raise ValueError(f"the decision {shown(decision)} is neither Allow nor Deny")
    right = Right.NONE
    for _, each in named:
        right |= each
    return Entry(
        parse_resource(resource),
        tuple(dict.fromkeys(name for name, _ in named)),
        right,
        is_allowed,
        tuple(source_ips),
        tuple(map(_network, source_ips)),
        is_default,
    )


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        fault = "is neither an address nor a network such as 10.0.0.0/8"
        raise ValueError(f"the source IP {shown(text)} {fault}") from None
