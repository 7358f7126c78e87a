"""Templates of queue topics, tags and keys, and of a client's own topic.

Owns: placeholders, checks of the operator's rules. Must not touch: which rule applies to a topic
name (``topic_mapping``).

    {1} {2} ...    a level of the topic name; empty if the name has fewer
    {client_id}    the publisher's client identifier
    {user_name}    the publisher's user name
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from motelog.core.topic_names import is_device_topic
from motelog.gateway.mqtt.errors import TopicFilterError, TopicNameError
from motelog.gateway.mqtt.topics import check_topic_filter, check_topic_name, is_level

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
        yield f"{template!r} has an unmatched brace"


def client_topic_fault(template: str) -> str | None:
    """Return what is wrong with the template of a client's own topic name, or None.

    Only ``{client_id}`` is allowed in it. An empty template means no topic.
    """
    plain = template.replace("{client_id}", "x")
    if "{" in plain or "}" in plain:
        return f"{template!r} has a brace that does not belong to {{client_id}}"
    if plain.startswith("$"):
        return f"{template!r} begins with '$', which is reserved for the server"
    try:
        if plain:
            check_topic_name(plain)
    except TopicNameError as exc:
        return f"{template!r}: {exc}"
    return None


def client_topic(template: str, client_id: str) -> str | None:
    """Return a client's own topic name; None if its identifier is not valid as a level."""
    if "{client_id}" not in template:
        return template
    if not is_level(client_id) or (template.startswith("{") and client_id.startswith("$")):
        return None
    return template.replace("{client_id}", client_id)


def queue_topic_fault(template: str) -> str | None:
    """Return what is wrong with the text around the placeholders of a queue topic, or None."""
    if is_device_topic(PLACEHOLDER.sub("x", template)):
        return None
    return f"{template!r} is not a legal queue topic ({LEGAL})"
