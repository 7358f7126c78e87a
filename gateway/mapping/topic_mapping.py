"""Where an MQTT topic name goes in the log, and which queues a filter can match.

Owns: the rules: configured ones first, then the built-in ones.
Must not touch: the log, sessions, clocks. Invariant: a message mapped by ``map_name`` lies in one
of the topics that ``queue_choices`` names for every filter that matches its topic name, and in the
queue of the selector that stands there with it.

Built-in rules: the first level is the queue topic and the second level is the tag. A message goes
to the default topic if its first level is no legal queue topic, or one that may not be created.

A native producer sends a message for devices to any queue of the queue topic that the rules give
its name. So a filter needs all queues of such a topic. Only where the default topic stands in for
another one is every message a publish, and the selector decides its queue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from motelog.gateway.config import TopicRule
from motelog.gateway.mapping.templates import PLACEHOLDER, is_device_topic
from motelog.gateway.mqtt.topics import matches


@dataclass(frozen=True, slots=True)
class MappedName:
    """What one topic name becomes; ``queue_topic`` None stands for the default topic."""

    queue_topic: str | None
    tag: str
    keys: str
    selector: str


_BUILT_IN = TopicRule(filter="#", queue_topic="{1}")

#: A queue topic, and the selector of the one queue that is meant, or None for all its queues.
QueueChoice: TypeAlias = tuple[str, str | None]


class TopicMapping:
    """The rules of one gateway, compiled."""

    def __init__(self, rules: Sequence[TopicRule], *, default_topic: str) -> None:
        self.default_topic = default_topic
        self._rules = tuple(rules)
        #: Whether the same topic name may map differently for different publishers.
        self.depends_on_publisher = any(
            "{client_id}" in text or "{user_name}" in text or rule.queue_by == "client_id"
            for rule in rules
            for text in (rule.queue_topic, rule.tag, rule.keys)
        )
        first_levels = frozenset(rule.filter.partition("/")[0] for rule in rules)
        #: First levels of the names that rules can match; None if these can be any.
        self.rule_levels = None if first_levels & {"+", "#"} else first_levels

    def map_name(self, topic_name: str, *, client_id: str, user_name: str) -> MappedName:
        """Return where a message published under ``topic_name`` goes."""
        levels = topic_name.split("/")
        for rule in self._rules:
            if not matches(rule.filter, topic_name):
                continue
            values = {"client_id": client_id, "user_name": user_name}
            queue_topic = _fill(rule.queue_topic, levels, values)
            tag = _fill(rule.tag, levels, values)
            selector = {"tag": tag, "topic": topic_name, "client_id": client_id}[rule.queue_by]
            return MappedName(
                queue_topic if is_device_topic(queue_topic) else None,
                tag,
                _fill(rule.keys, levels, values),
                selector or topic_name,
            )
        tag = levels[1] if len(levels) > 1 else ""
        first_level = levels[0] if is_device_topic(levels[0]) else None
        return MappedName(first_level, tag, "", tag or topic_name)

    def queue_choices(self, topic_filter: str) -> set[QueueChoice] | None:
        """Return where matches of ``topic_filter`` can lie; None means in any topic."""
        levels = topic_filter.split("/")
        choices: set[QueueChoice] = set()
        if topic_filter.startswith("$"):
            return choices  # such names are the server's, and not in the log
        for rule in (*self._rules, _BUILT_IN):
            if not _may_overlap(rule.filter.split("/"), levels):
                continue
            queue_topic = _fill_from_filter(rule.queue_topic, levels)
            if queue_topic is None:
                return None
            if is_device_topic(queue_topic) and queue_topic != self.default_topic:
                choices |= {(queue_topic, None), (self.default_topic, _selector(rule, levels))}
            else:
                choices.add((self.default_topic, None))
        return choices

    def tags(self, topic_filter: str) -> frozenset[str] | None:
        """Return the tags that matches of ``topic_filter`` can have; None means any."""
        levels = topic_filter.split("/")
        found = set()
        for rule in (*self._rules, _BUILT_IN):
            if _may_overlap(rule.filter.split("/"), levels):
                tag = _fill_from_filter(rule.tag, levels)
                if tag is None:
                    return None
                found.add(tag)
        return frozenset(found)


def _fill(template: str, levels: Sequence[str], values: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name.isdigit():
            level = int(name) - 1
            return levels[level] if level < len(levels) else ""
        return values[name]

    return PLACEHOLDER.sub(value, template)


def _selector(rule: TopicRule, levels: Sequence[str]) -> str | None:
    """Return the selector of all names that the filter matches, None if they differ in it."""
    if rule.queue_by == "client_id":
        return None
    if rule.queue_by == "tag":
        tag = _fill_from_filter(rule.tag, levels)
        if tag is None or tag:
            return tag
    return "/".join(levels) if _is_exact(levels) else None


def _fill_from_filter(template: str, levels: Sequence[str]) -> str | None:
    """Return the text that all names get which the filter matches, None if they differ in it."""
    for match in PLACEHOLDER.finditer(template):
        name = match.group(1)
        if not name.isdigit():
            return None
        # A level behind the end of a filter without "#" is empty in all names.
        before = levels[: int(name)]
        if "#" in before or (len(before) == int(name) and before[-1] == "+"):
            return None
    return _fill(template, levels, {})


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
