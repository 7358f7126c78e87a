"""Users and rules of RocketMQ 5's access control: the values of Admin, and their encoding.

Owns: User, Rule, UserRules, the bodies of requests and answers. Must not touch: sockets, access
decisions (core.acl). Spec: RocketMQ 5.3 UserInfo, AclInfo.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.frames import dumps

T = TypeVar("T")

Action = Literal["Pub", "Sub", "All"]

_SUBJECT: Final = "User:"
_TYPES: Final = {True: "Super", False: "Normal"}
_STATUSES: Final = {True: "enable", False: "disable"}
_POLICIES: Final = {False: "Custom", True: "Default"}
_DECISIONS: Final = {True: "Allow", False: "Deny"}


@dataclass(frozen=True, slots=True)
class User:
    """A user at one broker; clients sign with its name and password."""

    broker_name: str
    name: str
    password: str = field(repr=False)
    is_admin: bool
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """What a user may or may not do with a resource.

    ``resource`` is "Topic:NAME", "Topic:PREFIX*", "Topic:*", the same with "Group:", or "*".
    ``actions`` are "Pub", "Sub" and "All"; Apache's brokers have more. The rule applies to clients
    at ``source_ips`` (addresses and networks), or to all if that is empty. A rule with
    ``is_default`` applies only if no other rule does.
    """

    resource: str
    actions: tuple[Action | str, ...] = ("All",)
    is_allowed: bool = True
    source_ips: tuple[str, ...] = ()
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class UserRules:
    """A user's rules at one broker."""

    broker_name: str
    user: str
    rules: tuple[Rule, ...]


def subject(user: str) -> str:
    """Return the name of a user in requests about rules."""
    return _SUBJECT + user


def policy_type(is_default: bool) -> str:
    return _POLICIES[is_default]


def user_body(
    name: str, password: str | None, is_admin: bool | None, is_enabled: bool | None
) -> bytes:
    """Return the body for creating or changing a user; None leaves a value unchanged."""
    info: dict[str, Any] = {"username": name}
    if password is not None:
        info["password"] = password
    if is_admin is not None:
        info["userType"] = _TYPES[is_admin]
    if is_enabled is not None:
        info["userStatus"] = _STATUSES[is_enabled]
    return dumps(info)


def rules_body(user: str, rules: Iterable[Rule]) -> bytes:
    """Return the body for creating or changing rules; TypeError if they are not rules."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"rules must be Rule objects, not {type(rule).__name__}")
        if isinstance(rule.actions, str) or isinstance(rule.source_ips, str):
            raise TypeError("actions and source_ips of a Rule must be tuples of str, not a str")
        entry: dict[str, Any] = {
            "resource": rule.resource,
            "actions": list(rule.actions),
            "decision": _DECISIONS[rule.is_allowed],
        }
        if rule.source_ips:
            entry["sourceIps"] = list(rule.source_ips)
        by_type.setdefault(policy_type(rule.is_default), []).append(entry)
    policies = [{"policyType": name, "entries": entries} for name, entries in by_type.items()]
    return dumps({"subject": subject(user), "policies": policies})


def decode_users(broker_name: str, body: bytes) -> list[User]:
    """Return the users in an answer, which has one, a list, or none."""
    return [
        User(
            broker_name,
            one.username,
            one.password or "",
            _is(one.user_type, _TYPES[True]),
            not _is(one.user_status, _STATUSES[False]),
        )
        for one in _decode(body, _UserInfo)
    ]


def decode_rules(broker_name: str, body: bytes) -> list[UserRules]:
    """Return the rules in an answer, which has those of one user, a list, or none."""
    return [
        UserRules(
            broker_name,
            one.subject.removeprefix(_SUBJECT),
            tuple(
                Rule(
                    entry.resource,
                    tuple(entry.actions or ()),
                    _is(entry.decision, _DECISIONS[True]),
                    tuple(entry.source_ips or ()),
                    _is(policy.policy_type, _POLICIES[True]),
                )
                for policy in one.policies or ()
                for entry in policy.entries or ()
            ),
        )
        for one in _decode(body, _AclInfo)
    ]


class _UserInfo(msgspec.Struct, rename="camel"):
    username: str
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class _EntryInfo(msgspec.Struct, rename="camel"):
    resource: str
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class _PolicyInfo(msgspec.Struct, rename="camel"):
    policy_type: str | None = None
    entries: list[_EntryInfo] | None = None


class _AclInfo(msgspec.Struct, rename="camel"):
    subject: str
    policies: list[_PolicyInfo] | None = None


def _is(found: str | None, word: str) -> bool:
    return found is not None and found.lower() == word.lower()


def _decode(body: bytes, kind: type[T]) -> list[T]:
    if not body:
        return []
    try:
        found: T | list[T] = msgspec.json.decode(body, type=kind | list[kind])  # type: ignore[valid-type]  # a type in a variable
    except msgspec.DecodeError as exc:
        raise RemotingDecodeError(f"the answer's body is malformed: {exc}") from exc
    return found if isinstance(found, list) else [found]
