"""Maps MQTT topic names to the log, and filters to the queues that can hold matches.

Owns: the rules: configured ones first, then the built-in ones.
Must not touch: the log, sessions, clocks. Invariant: a message mapped by ``map_name`` is in one of
the topics that ``queue_choices`` returns for every filter that matches its topic name, and in the
queue of the selector returned with it.

Built-in rules: the first level is the queue topic and the second level is the tag. A message goes
to the default topic if its first level is not a legal queue topic, or is one that must not be
created.

A native producer may send a message for devices to any queue of the queue topic to which the rules
map its name. So a filter needs all queues of such a topic. Only if the default topic replaces
another one is every message published by a client, so that the selector determines its queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from motelog.core.topic_names import is_device_topic
from motelog.gateway.mapping.templates import PLACEHOLDER
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.topics import matches


@dataclass(frozen=True, slots=True)
class MappedName:
    """The mapping of one topic name; ``queue_topic`` None means the default topic."""

    queue_topic: str | None
    tag: str
    keys: str
    selector: str


_BUILT_IN = TopicRule(filter="#", queue_topic="{1}")

#: A queue topic, and the selector of one of its queues, or None for all.
QueueChoice: TypeAlias = tuple[str, str | None]


class _Template:
    """A text with placeholders, parsed once."""

    __slots__ = ("_is_of_levels", "_parts")

    def __init__(self, text: str) -> None:
        #: Literal text, the number of a level, or the name of another value in a list.
        self._parts: list[str | int | list[str]] = []
        for position, part in enumerate(PLACEHOLDER.split(text)):
            if position % 2:
                self._parts.append(int(part) if part.isdigit() else [part])
            elif part:
                self._parts.append(part)
        self._is_of_levels = not any(isinstance(part, list) for part in self._parts)

    def fill(self, levels: Sequence[str], values: Mapping[str, str]) -> str:
        """Return the text for one topic name; missing levels are empty."""
        filled = []
        for part in self._parts:
            if isinstance(part, int):
                filled.append(levels[part - 1] if part <= len(levels) else "")
            else:
                filled.append(values[part[0]] if isinstance(part, list) else part)
        return "".join(filled)

    def fill_from_filter(self, levels: Sequence[str]) -> str | None:
        """Return the common text of all names that a filter matches, None if they differ."""
        if not self._is_of_levels:
            return None
        for part in self._parts:
            if isinstance(part, int):
                # A level after the end of a filter without "#" is empty in all names.
                before = levels[:part]
                if "#" in before or (len(before) == part and before[-1] == "+"):
                    return None
        return self.fill(levels, {})


class _Rule:
    """One rule, compiled."""

    __slots__ = ("filter", "keys", "levels", "queue_by", "queue_topic", "tag")

    def __init__(self, rule: TopicRule) -> None:
        self.filter = rule.filter
        self.levels = rule.filter.split("/")
        self.queue_topic = _Template(rule.queue_topic)
        self.tag = _Template(rule.tag)
        self.keys = _Template(rule.keys)
        self.queue_by = rule.queue_by


class TopicMapping:
    """The rules of one gateway, compiled."""

    def __init__(self, rules: Sequence[TopicRule], *, default_topic: str) -> None:
        self.default_topic = default_topic
        self._rules = tuple(map(_Rule, rules))
        self._all_rules = (*self._rules, _Rule(_BUILT_IN))
        #: Whether the same topic name may map differently for different publishers.
        self.depends_on_publisher = any(
            "{client_id}" in text or "{user_name}" in text or rule.queue_by == "client_id"
            for rule in rules
            for text in (rule.queue_topic, rule.tag, rule.keys)
        )
        first_levels = frozenset(rule.filter.partition("/")[0] for rule in rules)
        #: First levels of the names that rules can match; None if a rule can match any first level.
        self.rule_levels = None if first_levels & {"+", "#"} else first_levels

    def map_name(self, topic_name: str, *, client_id: str, user_name: str) -> MappedName:
        """Return the mapping of a message published under ``topic_name``."""
        levels = topic_name.split("/")
        for rule in self._rules:
            if not matches(rule.filter, topic_name):
                continue
            values = {"client_id": client_id, "user_name": user_name}
            queue_topic = rule.queue_topic.fill(levels, values)
            tag = rule.tag.fill(levels, values)
            selector = {"tag": tag, "topic": topic_name, "client_id": client_id}[rule.queue_by]
            return MappedName(
                queue_topic if is_device_topic(queue_topic) else None,
                tag,
                rule.keys.fill(levels, values),
                selector or topic_name,
            )
        tag = levels[1] if len(levels) > 1 else ""
        first_level = levels[0] if is_device_topic(levels[0]) else None
        return MappedName(first_level, tag, "", tag or topic_name)

    def queue_choices(self, topic_filter: str) -> Set[QueueChoice] | None:
        """Return the queues that can hold matches of ``topic_filter``; None means any topic."""
        choices: set[QueueChoice] = set()
        if topic_filter.startswith("$"):
            return frozenset()  # such names belong to the server and are not in the log
        levels = topic_filter.split("/")
        for rule in self._rules:
            if not _may_overlap(rule.levels, levels):
                continue
            queue_topic = rule.queue_topic.fill_from_filter(levels)
            if queue_topic is None:
                return None
            self._choose(choices, queue_topic, _selector(rule, levels))
        # The built-in rule, without templates, since each CONNECT and SUBSCRIBE uses it.
        if levels[0] == "+" or levels[0] == "#":
            return None
        tag = levels[1] if len(levels) > 1 else ""
        if tag == "+" or tag == "#":
            selector = None
        else:
            selector = tag or (topic_filter if _is_exact(levels) else None)
        self._choose(choices, levels[0], selector)
        return choices

    def _choose(self, choices: set[QueueChoice], queue_topic: str, selector: str | None) -> None:
        if is_device_topic(queue_topic) and queue_topic != self.default_topic:
            choices.add((queue_topic, None))
            choices.add((self.default_topic, selector))
        else:
            choices.add((self.default_topic, None))

    def tags(self, topic_filter: str) -> Set[str] | None:
        """Return the tags that matches of ``topic_filter`` can have; None means any."""
        levels = topic_filter.split("/")
        found = set()
        for rule in self._all_rules:
            if _may_overlap(rule.levels, levels):
                tag = rule.tag.fill_from_filter(levels)
                if tag is None:
                    return None
                found.add(tag)
        return frozenset(found)


def _selector(rule: _Rule, levels: Sequence[str]) -> str | None:
    """Return the common selector of all names that the filter matches, None if they differ."""
    if rule.queue_by == "client_id":
        return None
    if rule.queue_by == "tag":
        tag = rule.tag.fill_from_filter(levels)
        if tag is None or tag:
            return tag
    return "/".join(levels) if _is_exact(levels) else None


def _is_exact(levels: Sequence[str]) -> bool:
    return "+" not in levels and "#" not in levels


def _may_overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether some topic name matches both filters."""
    for position in range(max(len(one), len(other)) + 1):
        first = one[position] if position < len(one) else None
        second = other[position] if position < len(other) else None
        if first == "#" or second == "#":
            return True
        if first is None or second is None:
            return first is second
        if "+" not in (first, second) and first != second:
            return False
    raise AssertionError("the last position is past the end of both filters")
