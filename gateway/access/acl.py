"""The ACL file: rules that say which users may publish and subscribe to which topics.

Owns: the file's format, which rules apply to a client, what they allow together.
Must not touch: where rights are checked.
Invariants: what no rule allows is refused. A deny rule overrides all allow rules, in any order. A
subscription is allowed if an allow rule contains it, and no deny rule could match a message of it.

    [[rule]]
    users = ["alice", "bob"]             omitted: all users who have logged in
    allow = ["publish", "subscribe"]     or deny; "retain" is a right of its own
    topics = ["plant7/{user_name}/#"]    topic filters
    qos_max = 1                          of what is allowed; 2 if omitted

``{user_name}``, ``{client_id}`` and ``{certificate_name}`` are the client's own. A value that is
empty or contains a wildcard, a "/" or a control character is never filled in: for that client an
allow rule then has no effect, and a deny rule denies the whole branch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import msgspec

from motelog.core.toml_lines import find_lines
from motelog.gateway.access.password_file import AccessFileError, check_user_name, read_text
from motelog.gateway.access.rights import NONE, Who, contains, meets
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.topics import SHARED_PREFIX, check_topic_filter, is_level, matches

Action = Literal["publish", "subscribe", "retain"]

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
#: The most rules that a login may carry.
LOGIN_RULES_MAX: Final = 100
#: Users whose rules are cached.
USERS_MAX: Final = 10_000

_PLACEHOLDER: Final = re.compile(r"\{(\w*)\}")
_NAMES: Final = ("user_name", "client_id", "certificate_name")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[rule]]`` of the file; ``number`` is its position, from 1."""

    topics: tuple[str, ...]
    allow: tuple[Action, ...] = ()
    deny: tuple[Action, ...] = ()
    users: tuple[str, ...] | None = None
    anonymous: bool = False
    qos_max: int = 2
    number: int = 0

    def __post_init__(self) -> None:
        if bool(self.allow) == bool(self.deny):
            raise ValueError("a rule must have either allow or deny")
        if not self.topics:
            raise ValueError("topics is empty")
        if self.users is not None and self.anonymous:
            raise ValueError("users and anonymous cannot be combined")
        if not 0 <= self.qos_max <= 2:
            raise ValueError("qos_max must be 0, 1 or 2")
        if self.deny and self.qos_max != 2:
            raise ValueError("qos_max is only for allow rules")
        for name in self.users or ():
            check_user_name(name)
        for topic in self.topics:
            _check_topic(topic)

    def is_for(self, user_name: str) -> bool:
        """Whether it applies to a user; an empty name means an anonymous client."""
        if not user_name:
            return self.anonymous
        return not self.anonymous and (self.users is None or user_name in self.users)


_KEYS: Final = tuple(name for name in Rule.__struct_fields__ if name != "number")
_AT: Final = re.compile(r" - at `\$\.(\w+)[^`]*`$")
NO_TABLE: Final = "there is no key {name!r}: the file has [[rule]] tables and nothing else"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[dict[str, Any], ...] = ()


class Acl:
    """The rules of one file, as an ``Authoriser``."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        #: Cached rules of a user, who may have thousands of clients.
        self._of_user = lru_cache(USERS_MAX)(self._rules_of)

    def rules_of(self, user_name: str) -> tuple[Rule, ...]:
        """Return the rules that apply to a user and determine the rights of all its clients.

        If they are equal before and after a change of the file, the rights have not changed.
        """
        return self._of_user(user_name)

    def _rules_of(self, user_name: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._rules if rule.is_for(user_name))

    # --- an Authoriser -------------------------------------------------------------------

    def publish_qos(self, who: Who, topic: str) -> int:
        return self.decide(who, "publish", topic)[0]

    def may_retain(self, who: Who, topic: str) -> bool:
        return self.decide(who, "retain", topic)[0] != NONE

    def subscribe_qos(self, who: Who, topic_filter: str) -> int:
        return self.decide(who, "subscribe", topic_filter)[0]

    def decide(self, who: Who, action: Action, topic: str) -> tuple[int, Rule | None]:
        """Return the highest allowed QoS, NONE if denied, and the rule that decides.

        ``topic`` is a topic name, or to subscribe a topic filter. The rule is None if none allows
        it.
        """
        is_filter = action == "subscribe"
        best, decided_by = NONE, None
        rules = self._of_user(who.user_name)
        for rule in (*rules, *who.rules) if who.rules else rules:
            if action in rule.deny:
                for template in rule.topics:
                    denied = _fill(template, who, denies=True)
                    assert denied is not None, "a branch replaces what cannot be filled in"
                    if meets(denied, topic) if is_filter else matches(denied, topic):
                        return NONE, rule
            elif action in rule.allow and rule.qos_max > best:
                for template in rule.topics:
                    allowed = _fill(template, who, denies=False)
                    if allowed is None:
                        continue
                    if contains(allowed, topic) if is_filter else matches(allowed, topic):
                        best, decided_by = rule.qos_max, rule
                        break
        return best, decided_by


def read_acl(path: str) -> Acl:
    """Return the rules of a file; AccessFileError."""
    return parse_acl(read_text(path, FILE_BYTES_MAX), path)


def parse_acl(text: str, path: str) -> Acl:
    """Return the rules of a file's text; AccessFileError names ``path``, line and rule."""
    try:
        table = tomllib.loads(text)
        if unknown := sorted(table.keys() - {"rule"}):
            raise AccessFileError(f"{path}: {NO_TABLE.format(name=unknown[0])}")
        file = msgspec.convert(table, _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as exc:
        raise AccessFileError(f"{path}: {exc}") from None
    rules = []
    for number, one in enumerate(file.rule, 1):
        try:
            rules.append(_rule(one, number))
        except (msgspec.ValidationError, ValueError, GatewayError) as exc:
            raise AccessFileError(_fault(text, path, number, one, exc)) from None
    return Acl(rules)


def _fault(text: str, path: str, number: int, table: Mapping[str, Any], exc: Exception) -> str:
    """Return what is wrong with a rule: where, what, and the allowed values."""
    lines = find_lines(text)
    fault = str(exc)
    unknown = sorted(table.keys() - set(_KEYS))
    at = _AT.search(fault)
    key = unknown[0] if unknown else at[1] if at else None
    if unknown:
        fault = f"there is no key {key!r}; a rule has {', '.join(_KEYS)}"
    elif at:
        fault = f"{key}: {fault[: at.start()]}"
        if key in ("allow", "deny") and isinstance(table[key], list):
            fault += f"; the values are {', '.join(get_args(Action))}"
    # The rule's first line, if the fault is not of one key, or the rule has no line for it.
    line = lines.get(("rule", number - 1, key or ""), lines.get(("rule", number - 1)))
    place = path if line is None else f"{path}:{line}"
    return f"{place}: rule {number}: {fault}"


def login_rules(found: Any) -> tuple[Rule, ...]:
    """Return the rules carried by a login, each as in the file; ValueError says what is wrong.

    They apply to this login, so they must not name users.
    """
    if not isinstance(found, list) or len(found) > LOGIN_RULES_MAX:
        raise ValueError(f"its rules are not a list of at most {LOGIN_RULES_MAX}")
    try:
        rules = tuple(msgspec.convert(found, tuple[Rule, ...]))
    except (msgspec.ValidationError, GatewayError, RecursionError):
        raise ValueError("its rules cannot be read") from None
    if any(rule.users is not None or rule.anonymous or rule.number for rule in rules):
        raise ValueError("its rules are for other users")
    return rules


def _rule(table: Mapping[str, Any], number: int) -> Rule:
    if "number" in table:
        raise ValueError("number is not a key of the file")
    return msgspec.convert({**table, "number": number}, Rule)


def _check_topic(topic: str) -> None:
    if topic.startswith(SHARED_PREFIX):
        raise ValueError(f"{topic!r}: for a shared subscription give the filter after its group")
    for name in _PLACEHOLDER.findall(topic):
        if name not in _NAMES:
            raise ValueError(f"{topic!r}: there is no {{{name}}}, only {', '.join(_NAMES)}")
    plain = _PLACEHOLDER.sub("x", topic)
    if "{" in plain or "}" in plain:
        raise ValueError(f"{topic!r}: a brace is not closed or opened")
    check_topic_filter(plain)


def _fill(template: str, who: Who, *, denies: bool) -> str | None:
    """Return the filter of a template for one client.

    If a value cannot be filled in: None, or for a deny rule the branch above it.
    """
    if "{" not in template:
        return template
    levels = template.split("/")
    for i, level in enumerate(levels):
        if "{" not in level:
            continue
        filled = level
        for name in _PLACEHOLDER.findall(level):
            value: str = getattr(who, name)
            if not is_level(value):
                return "/".join([*levels[:i], "#"]) if denies else None
            filled = filled.replace("{" + name + "}", value, 1)
        levels[i] = filled
    # A client must not reach the server's own topics by its name.
    if levels[0].startswith("$") and not template.startswith("$"):
        return "#" if denies else None
    return "/".join(levels)
