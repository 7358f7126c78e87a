"""Which messages of a range a query wants: by tag, by SQL92 filter, by MQTT topic filter.

Owns: Wanted, the regular expression of a topic filter. Must not touch: pyspark, pyarrow, sockets.
Brokers compare hashes of tags only, and know nothing of MQTT: both are compared in the rows.
Spec: MQTT 5.0 section 4.7; RocketMQ MessageSelector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from motelog.spark.columns import Column

#: As bridge.selector has it. That is imported where a filter is given: it brings a parser along.
TAGS_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for, each None or TAGS_ALL where it asks for nothing."""

    tags: str = TAGS_ALL
    sql: str | None = None
    mqtt_filter: str | None = None

    @property
    def by_broker(self) -> bool:
        """Whether brokers leave messages out: then offsets that do not come are not lost."""
        return self.tags != TAGS_ALL or self.sql is not None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that tell whether a row is wanted."""
        by_tag = (Column.DEVICE,) if self.tags_wanted else ()
        return by_tag if self.mqtt_filter is None else (*by_tag, Column.TOPIC)

    @property
    def tags_wanted(self) -> tuple[str, ...]:
        if self.tags == TAGS_ALL:
            return ()
        from motelog.bridge.selector import parse_tags

        return parse_tags(self.tags)

    @property
    def topic_pattern(self) -> str | None:
        """The regular expression, RE2's and Python's, that the whole of a wanted name matches."""
        return None if self.mqtt_filter is None else topic_pattern(self.mqtt_filter)


WANT_ALL: Final = Wanted()
_ANY_LEVEL: Final = "[^/]*"


def topic_pattern(topic_filter: str) -> str:
    """Return the regular expression of a topic filter; ValueError says what is wrong with it."""
    if not topic_filter or len(topic_filter.encode()) > 65535 or "\0" in topic_filter:
        raise ValueError("a filter has 1 to 65535 bytes, none of them zero")
    *levels, last = topic_filter.split("/")
    parts = [_level(level) for level in levels]
    if last != "#":
        parts.append(_level(last))
    if parts and parts[0] == _ANY_LEVEL:
        # Nor does "#" alone match the server's own topics.  # [MQTT-4.7.2-1]
        parts[0] = "(?:[^/$][^/]*)?"
    if last != "#":
        return "/".join(parts)
    # "a/#" has "a" as well.  # [MQTT-4.7.1-2]
    return "/".join(parts) + "(?s:/.*)?" if parts else "(?s:[^$].*)?"


def _level(level: str) -> str:
    if level == "+":
        return _ANY_LEVEL
    if "+" in level or "#" in level:
        raise ValueError("'+' stands for a whole level, '#' for all from the last level on")
    return re.escape(level)
