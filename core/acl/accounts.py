"""Accounts and their rights: whether an account has the rights that a request needs.

Owns: the rights and how RocketMQ's rules apply them. Must not touch: files, requests, clocks;
pure functions and values. Spec: RocketMQ 4.9 PlainPermissionManager.checkPerm, Permission.

An account has the stated right to each topic or group that it names, and its default right to all
others. A retry topic belongs to its group. An administrator may do what tools do; one that names no
topic and no group may use all of them.
The system's topics are an exception from RocketMQ's rules: defaults do not apply to them, so an
account must name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Final, Protocol

from motelog.core.acl.addresses import NO_ADDRESSES, Addresses
from motelog.core.topic_names import DEFAULT_TOPIC, RETRY_PREFIX, REVIVE_PREFIX, SYSTEM_TOPICS

_CLOSED_TO_DEFAULTS: Final = SYSTEM_TOPICS - {DEFAULT_TOPIC}


def is_only_by_name(topic: str) -> bool:
    """Return whether the topic is one of the system's, so that a right to it must name it."""
    return topic in _CLOSED_TO_DEFAULTS or topic.startswith(REVIVE_PREFIX)


class Right(IntFlag):
    """What an account may do with a topic or group; one of several is enough for a need."""

    NONE = 0
    PUB = 1
    SUB = 2
    EITHER = PUB | SUB


class Kind(Enum):
    """The kind of thing that a need refers to."""

    ADMIN = "administrator"
    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Need:
    """One right that a request needs."""

    kind: Kind
    name: str = ""
    right: Right = Right.NONE

    def __str__(self) -> str:
        match self.kind:
            case Kind.ADMIN:
                return "an administrator's account"
            case Kind.TOPIC | Kind.GROUP:
                right = "PUB or SUB" if self.right == Right.EITHER else self.right.name
                return f"{right} on the {self.kind.value} {self.name}"


ADMINISTRATOR: Final = Need(Kind.ADMIN)


def topic_need(name: str, right: Right) -> Need:
    """Return the need for a topic; a retry topic belongs to the consumers of its group."""
    if name.startswith(RETRY_PREFIX):
        return group_need(name.removeprefix(RETRY_PREFIX))
    return Need(Kind.TOPIC, name, right)


def group_need(name: str) -> Need:
    """Return the need of a consumer of the group."""
    return Need(Kind.GROUP, name, Right.SUB)


class Principal(Protocol):
    """A signer of requests; those from ``white`` need neither signature nor right."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret(self) -> bytes: ...
    @property
    def white(self) -> Addresses: ...
    def may(self, need: Need, host: str) -> bool:
        """Return whether requests from the address ``host`` have the right."""
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """One account of plain_acl.yml.

    Requests that name it and come from ``white`` need neither signature nor right.
    """

    access_key: str
    secret: bytes = field(repr=False)
    is_admin: bool = False
    topics: Mapping[str, Right] = field(default_factory=dict)
    groups: Mapping[str, Right] = field(default_factory=dict)
    default_topic: Right = Right.NONE
    default_group: Right = Right.NONE
    white: Addresses = NO_ADDRESSES

    def may(self, need: Need, host: str) -> bool:
        """Return whether the account has the right, whatever the address."""
        if need.kind is Kind.ADMIN:
            return self.is_admin
        if self.is_admin and not self.topics and not self.groups:
            return True
        if need.kind is Kind.GROUP:
            owned = self.groups.get(need.name, self.default_group)
        elif is_only_by_name(need.name):
            owned = self.topics.get(need.name, Right.NONE)
        else:
            owned = self.topics.get(need.name, self.default_topic)
        return bool(owned & need.right)


@dataclass(frozen=True, slots=True)
class Rules:
    """All accounts by access key, and the addresses whose requests all pass; by default none."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: Addresses = NO_ADDRESSES
