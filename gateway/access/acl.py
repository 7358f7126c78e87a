"""The ACL file: rules that say which users may publish and subscribe to which topics.

Owns: the file's shape, which rules are a client's, what they allow together.
Must not touch: where rights are asked for.
Invariants: what no rule allows is refused. A rule that denies goes before all that allow, wherever
it stands. A subscription is allowed if one rule that allows contains it, and none that denies could
match a message of it.

    [[rule]]
    users = ["alice", "bob"]             who; left out: whoever has logged in
    allow = ["publish", "subscribe"]     or deny; "retain" is a right of its own
    topics = ["plant7/{user_name}/#"]    topic filters
    qos_max = 1                          of what is allowed; 2 if left out

``{user_name}``, ``{client_id}`` and ``{certificate_name}`` stand for the client's own. A value with
a wildcard, a "/" or a control character in it, or an empty one, is never filled in: a rule that
allows is none for that client, and one that denies does so for the whole branch.
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
from motelog.gateway.errors import GatewayError
from motelog.gateway.mqtt.topics import SHARED_PREFIX, check_topic_filter, is_level, matches

Action = Literal["publish", "subscribe", "retain"]

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
#: What one login may bring.
TOLD_RULES_MAX: Final = 100
#: Users whose rules are kept at hand.
USERS_MAX: Final = 10_000

_PLACEHOLDER: Final = re.compile(r"\{(\w*)\}")
_NAMES: Final = ("user_name", "client_id", "certificate_name")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[rule]]`` of the file; ``number`` is its place there, from 1."""

    topics: tuple[str, ...]
    allow: tuple[Action, ...] = ()
    deny: tuple[Action, ...] = ()
    users: tuple[str, ...] | None = None
    anonymous: bool = False
    qos_max: int = 2
    number: int = 0

    def __post_init__(self) -> None:
        if bool(self.allow) == bool(self.deny):
            raise ValueError("a rule has either allow or deny")
        if not self.topics:
            raise ValueError("topics is empty")
        if self.users is not None and self.anonymous:
            raise ValueError("users and anonymous exclude each other")
        if not 0 <= self.qos_max <= 2:
            raise ValueError("qos_max is 0, 1 or 2")
        if self.deny and self.qos_max != 2:
            raise ValueError("qos_max is for rules that allow")
        for name in self.users or ():
            check_user_name(name)
        for topic in self.topics:
            _check_topic(topic)

    def is_for(self, user_name: str) -> bool:
        """Whether it is about a user; an empty name is an anonymous client's."""
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
        #: Those about one user, who may have thousands of clients.
        self._of_user = lru_cache(USERS_MAX)(self._rules_of)

    def rules_of(self, user_name: str) -> tuple[Rule, ...]:
        """Return the rules that are about a user; the rights of all its clients follow from them.

        What is equal before and after a change of the file has not changed.
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
        """Return the highest QoS allowed, NONE if nothing is, and the rule that decides.

        ``topic`` is a topic name, to subscribe a topic filter. The rule is None if none allows it.
        """
        is_filter = action == "subscribe"
        best, decided_by = NONE, None
        rules = self._of_user(who.user_name)
        for rule in (*rules, *who.rules) if who.rules else rules:
            if action in rule.deny:
                for template in rule.topics:
                    denied = _fill(template, who, denies=True)
                    assert denied is not None, "a branch stands for what cannot be filled in"
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
        told = msgspec.convert(table, _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as exc:
        raise AccessFileError(f"{path}: {exc}") from None
    rules = []
    for number, one in enumerate(told.rule, 1):
        try:
            rules.append(_rule(one, number))
        except (msgspec.ValidationError, ValueError, GatewayError) as exc:
            raise AccessFileError(_fault(text, path, number, one, exc)) from None
    return Acl(rules)


def _fault(text: str, path: str, number: int, table: Mapping[str, Any], exc: Exception) -> str:
    """Return what is wrong with a rule: where, what, and what it may be."""
    lines = find_lines(text)
    told = str(exc)
    unknown = sorted(table.keys() - set(_KEYS))
    at = _AT.search(told)
    key = unknown[0] if unknown else at[1] if at else None
    if unknown:
        told = f"there is no key {key!r}; a rule has {', '.join(_KEYS)}"
    elif at:
        told = f"{key}: {told[: at.start()]}"
        if key in ("allow", "deny") and isinstance(table[key], list):
            told += f"; there are {', '.join(get_args(Action))}"
    # Its first line, where no key is to blame alone, or the rule is in a form without one.
    line = lines.get(("rule", number - 1, key or ""), lines.get(("rule", number - 1)))
    place = path if line is None else f"{path}:{line}"
    return f"{place}: rule {number}: {told}"


def told_rules(told: Any) -> tuple[Rule, ...]:
    """Return the rules that came with a login, each as in the file; ValueError says the fault.

    They are about this login, so that they name no users.
    """
    if not isinstance(told, list) or len(told) > TOLD_RULES_MAX:
        raise ValueError(f"its rules are no list of at most {TOLD_RULES_MAX}")
    try:
        rules = tuple(msgspec.convert(told, tuple[Rule, ...]))
    except (msgspec.ValidationError, GatewayError, RecursionError):
        raise ValueError("its rules cannot be read") from None
    if any(rule.users is not None or rule.anonymous or rule.number for rule in rules):
        raise ValueError("its rules are about others")
    return rules


def _rule(table: Mapping[str, Any], number: int) -> Rule:
    if "number" in table:
        raise ValueError("number is no key of a file")
    return msgspec.convert({**table, "number": number}, Rule)


def _check_topic(topic: str) -> None:
    if topic.startswith(SHARED_PREFIX):
        raise ValueError(
            f"{topic!r}: a shared subscription is judged by the filter behind its group"
        )
    for name in _PLACEHOLDER.findall(topic):
        if name not in _NAMES:
            raise ValueError(f"{topic!r}: there is no {{{name}}}; there are {', '.join(_NAMES)}")
    plain = _PLACEHOLDER.sub("x", topic)
    if "{" in plain or "}" in plain:
        raise ValueError(f"{topic!r}: a brace without its other one")
    check_topic_filter(plain)


def _fill(template: str, who: Who, *, denies: bool) -> str | None:
    """Return the filter of a template for one client.

    Where a value cannot be filled in, None, or in a rule that denies the branch that has the place.
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
    # A client does not choose its way into the server's own topics.
    if levels[0].startswith("$") and not template.startswith("$"):
        return "#" if denies else None
    return "/".join(levels)
