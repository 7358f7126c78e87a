"""Topic names and topic filters: what is legal, and which filter matches which name.

Owns: the rules of section 4.7. Must not touch: subscriptions (gateway.sessions.subscriptions).
Control characters (U+0001..U+001F, U+007F..U+009F) are refused too, as section 1.5.4 allows: topics
end up in log lines and in the log's property text, whose separators are control characters.
Spec: MQTT 5.0 sections 4.7 and 4.8.2.
"""

from __future__ import annotations

import re
from typing import Final

from motelog.gateway.mqtt.errors import MalformedPacketError, TopicFilterError, TopicNameError
from motelog.gateway.mqtt.fields import STRING_BYTES_MAX

SHARED_PREFIX: Final = "$share/"
# More levels than any fleet uses, and few enough that matching one topic name stays cheap. A filter
# of more levels is legal; SUBACK refuses it.
FILTER_LEVELS_MAX: Final = 128

_CONTROL: Final = "\x00-\x1f\x7f-\x9f"
_NOT_IN_NAME: Final = re.compile(f"[{_CONTROL}+#]")
_NOT_IN_LEVEL: Final = re.compile(f"[{_CONTROL}+#/]")
_NOT_IN_FILTER: Final = re.compile(f"[{_CONTROL}]")


def check_topic_name(name: str | bytes) -> None:
    """Raise TopicNameError unless ``name`` is legal, MalformedPacketError if it is not UTF-8."""
    if isinstance(name, bytes):
        try:
            name = name.decode()  # [MQTT-1.5.4-1]
        except UnicodeDecodeError as exc:
            raise MalformedPacketError("topic is not UTF-8", offset_bytes=exc.start) from exc
    if not name:  # [MQTT-4.7.3-1]
        raise TopicNameError("topic name is empty")
    found = _NOT_IN_NAME.search(name)
    if found:  # [MQTT-4.7.0-1] [MQTT-4.7.3-2]
        raise TopicNameError(f"topic name contains {found.group()!r}")
    if len(name) * 4 > STRING_BYTES_MAX and len(name.encode()) > STRING_BYTES_MAX:  # [MQTT-4.7.3-3]
        raise TopicNameError("topic name is longer than 65,535 bytes")


def is_level(value: str) -> bool:
    """Return whether ``value`` may be filled into one level of a name or filter, and stay one."""
    return bool(value) and not _NOT_IN_LEVEL.search(value)


def check_topic_filter(topic_filter: str) -> None:
    """Raise TopicFilterError unless ``topic_filter`` is legal, shared or not."""
    if not topic_filter:  # [MQTT-4.7.3-1]
        raise TopicFilterError("topic filter is empty")
    # Nearly every filter is printable; checking that costs a tenth of the search.
    found = None if topic_filter.isprintable() else _NOT_IN_FILTER.search(topic_filter)
    if found:  # [MQTT-4.7.3-2]
        raise TopicFilterError(f"topic filter contains {found.group()!r}")
    if len(topic_filter) * 4 > STRING_BYTES_MAX and len(topic_filter.encode()) > STRING_BYTES_MAX:
        raise TopicFilterError("topic filter is longer than 65,535 bytes")  # [MQTT-4.7.3-3]
    shared = parse_shared(topic_filter)
    if shared is not None:
        topic_filter = shared[1]
    hash_at = topic_filter.find("#")
    if hash_at >= 0 and (
        hash_at != len(topic_filter) - 1 or topic_filter[hash_at - 1 : hash_at] not in ("", "/")
    ):  # [MQTT-4.7.1-1]
        raise TopicFilterError("'#' must be the whole last level of a topic filter")
    if "+" in topic_filter:
        for level in topic_filter.split("/"):
            if "+" in level and level != "+":  # [MQTT-4.7.1-2]
                raise TopicFilterError("'+' must be a whole level of a topic filter")


def parse_shared(topic_filter: str) -> tuple[str, str] | None:
    """Return (group, topic filter) of a shared subscription, None if it is not one.

    TopicFilterError if it begins with ``$share/`` and is not complete (section 4.8.2).
    """
    if not topic_filter.startswith(SHARED_PREFIX):
        return None
    group, separator, inner = topic_filter[len(SHARED_PREFIX) :].partition("/")
    if not group or "+" in group or "#" in group:  # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
        raise TopicFilterError("shared subscription without a legal group name")
    if not separator or not inner:  # [MQTT-4.8.2-2]
        raise TopicFilterError("shared subscription without a topic filter")
    return group, inner


def matched_filter(topic_filter: str) -> str:
    """Return the filter that topic names are matched against: a shared subscription's inner one."""
    shared = parse_shared(topic_filter)
    return topic_filter if shared is None else shared[1]


def has_wildcard(topic_filter: str) -> bool:
    """Whether a legal topic filter matches more than the name it spells."""
    return "+" in topic_filter or "#" in topic_filter


def matches(topic_filter: str, name: str) -> bool:
    """Whether a legal, not shared topic filter matches a legal topic name (section 4.7)."""
    filter_levels = topic_filter.split("/")
    name_levels = name.split("/")
    if name.startswith("$") and filter_levels[0] in ("+", "#"):  # [MQTT-4.7.2-1]
        return False
    for i, level in enumerate(filter_levels):
        if level == "#":
            return True  # section 4.7.1.2: the parent level and all below it
        if i == len(name_levels) or level not in ("+", name_levels[i]):
            return False
    return len(filter_levels) == len(name_levels)


def name_pattern(topic_filter: str) -> re.Pattern[bytes]:
    """Return a pattern whose full matches are the topic names in UTF-8 that a filter ``matches``.

    For many names: making it costs as much as ``matches`` for a hundred.
    """
    levels = topic_filter.split("/")
    # [MQTT-4.7.2-1]
    pattern = rb"(?!\$)" if levels[0] in ("+", "#") else b""
    for i, level in enumerate(levels):
        if level == "#":
            pattern += b"(?:/.*)?" if i else b".*"
        else:
            pattern += (b"/" if i else b"") + (
                b"[^/]*" if level == "+" else re.escape(level.encode())
            )
    return re.compile(pattern, re.DOTALL)


def is_shared(topic_filter: str) -> bool:
    """Whether a legal topic filter is that of a shared subscription."""
    return topic_filter.startswith(SHARED_PREFIX)
