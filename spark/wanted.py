"""Which messages of a range a query selects: by tag, SQL92 filter or MQTT topic filter.

Owns: Wanted, the regular expression of a topic filter. Must not touch: pyspark, pyarrow, sockets.
Brokers compare only hashes of tags and know nothing of MQTT, so both are checked in the rows too.
Spec: MQTT 5.0 section 4.7; RocketMQ MessageSelector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from motelog.spark.columns import Column

#: The same as in bridge.selector, which is imported only for a filter, since it loads a parser.
TAGS_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query's filters, each None or TAGS_ALL if it is not used."""

    tags: str = TAGS_ALL
    sql: str | None = None
    mqtt_filter: str | None = None

    @property
    def by_broker(self) -> bool:
        """Whether brokers filter messages: then missing offsets are not lost."""
        return self.tags != TAGS_ALL or self.sql is not None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns needed to decide whether a row is selected."""
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
        """The regular expression (RE2 and Python) that must match the whole name."""
        return None if self.mqtt_filter is None else topic_pattern(self.mqtt_filter)


WANT_ALL: Final = Wanted()
_ANY_LEVEL: Final = "[^/]*"


def topic_pattern(topic_filter: str) -> str:
    """Return the regular expression of a topic filter; ValueError names its fault."""
    if not topic_filter or len(topic_filter.encode()) > 65535 or "\0" in topic_filter:
        raise ValueError("a filter has 1 to 65535 bytes, none of them zero")
    *levels, last = topic_filter.split("/")
    parts = [_level(level) for level in levels]
    if last != "#":
        parts.append(_level(last))
    if parts and parts[0] == _ANY_LEVEL:
        # "#" does not match the server's own topics.  # [MQTT-4.7.2-1]
        parts[0] = "(?:[^/$][^/]*)?"
    if last != "#":
        return "/".join(parts)
    # "a/#" also matches "a".  # [MQTT-4.7.1-2]
    return "/".join(parts) + "(?s:/.*)?" if parts else "(?s:[^$].*)?"


def _level(level: str) -> str:
    if level == "+":
        return _ANY_LEVEL
    if "+" in level or "#" in level:
        raise ValueError("'+' stands for a whole level, '#' for all from the last level on")
    return re.escape(level)
