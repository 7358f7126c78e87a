"""Which topics a query reads: named ones, all that match a pattern, or those of an MQTT filter.

Owns: Topics. Must not touch: pyspark, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from motelog.core.topic_names import is_device_topic

#: The gateways' default topic, for MQTT topic names whose first level is not a queue topic.
MQTT_DEFAULT: Final = "MQTT_DEFAULT"


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, or all whose whole name matches a regular expression.

    ``mqtt_filter`` is the filter from which the expression was made, if it is not the user's.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    mqtt_filter: str | None = None

    @classmethod
    def of_filter(cls, mqtt_filter: str) -> Topics:
        """Return the topics that may contain messages that an MQTT topic filter matches.

        By default gateways map names by their first level.
        """
        first = mqtt_filter.partition("/")[0]
        if first in ("+", "#"):
            return cls(pattern=".*", mqtt_filter=mqtt_filter)
        own = f"{re.escape(first)}|" if is_device_topic(first) else ""
        return cls(pattern=own + MQTT_DEFAULT, mqtt_filter=mqtt_filter)

    @property
    def asked(self) -> tuple[str, str]:
        """The option that selects the topics, and its text."""
        if self.mqtt_filter is not None:
            return "mqttFilter", self.mqtt_filter
        if self.pattern is not None:
            return "topicPattern", self.pattern
        return "topic", ",".join(self.names)

    def __contains__(self, topic: str) -> bool:
        return topic in self.names or bool(self.among((topic,)))

    def __str__(self) -> str:
        if self.mqtt_filter is not None:
            return f"topics of the MQTT filter {self.mqtt_filter!r}"
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        names = ", ".join(map(repr, self.names))
        return f"topic {names}" if len(self.names) == 1 else f"topics {names}"

    def among(self, known: Iterable[str]) -> list[str]:
        """Return the existing topics that match."""
        if self.pattern is None:
            return []
        return [topic for topic in known if re.fullmatch(self.pattern, topic)]
