"""Templates of queue topics, tags and keys.

Owns: placeholders, what a rule of the operator must look like. Must not touch: which rule a topic
name falls under (``topic_mapping``).

    {1} {2} ...    a level of the topic name; empty if the name has fewer
    {client_id}    the publisher's client identifier
    {user_name}    the publisher's user name
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from motelog.core.topic_names import is_device_topic
from motelog.gateway.errors import TopicFilterError
from motelog.gateway.mqtt.topics import check_topic_filter

PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
LEGAL: Final = "letters, digits, '_' and '-', at most 127, no system topic"
_PUBLISHER: Final = frozenset({"client_id", "user_name"})


def filter_fault(topic_filter: str) -> str | None:
    """Return what is wrong with a rule's filter, or None."""
    try:
        check_topic_filter(topic_filter)
    except TopicFilterError as exc:
        return str(exc)
    return None


def template_faults(template: str, topic_filter: str) -> Iterator[str]:
    """Yield what is wrong with a template of a rule with this filter."""
    levels = topic_filter.split("/")
    for match in PLACEHOLDER.finditer(template):
        name = match.group(1)
        if name in _PUBLISHER:
            continue
        if not (name.isascii() and name.isdigit() and int(name) > 0):
            yield (
                f"unknown placeholder {{{name}}}; use {{1}}, {{2}}, ... for topic levels,"
                " {client_id} or {user_name}"
            )
        elif int(name) > len(levels) and levels[-1] != "#":
            yield (
                f"{{{name}}} is always empty: names that match {topic_filter!r} have no level"
                f" {name}"
            )
    if "{" in PLACEHOLDER.sub("", template) or "}" in PLACEHOLDER.sub("", template):
        yield f"{template!r} has a brace without its partner"


def queue_topic_fault(template: str) -> str | None:
    """Return what is wrong with what stands around the placeholders of a queue topic, or None."""
    # A letter in place of what a name brings: where that is illegal, every name's result is.
    if is_device_topic(PLACEHOLDER.sub("x", template)):
        return None
    return f"{template!r} is no legal queue topic ({LEGAL})"
