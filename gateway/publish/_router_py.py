"""Reference of the router kernel: the same results as _router.pyx, in plain Python.

Owns: how a topic name becomes a queue, a property text and a tag hash. Must not touch: the log,
sessions. router.py has the docstrings.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final
from zlib import crc32

from motelog.core.message import (
    MQTT_TOPIC,
    NAME_END,
    PROPERTIES_BYTES_MAX,
    TAGS,
    VALUE_END,
    tags_code,
)

TOPIC_NAME: Final = (MQTT_TOPIC + NAME_END).encode()
TAG_NAME: Final = (TAGS + NAME_END).encode()
END: Final = VALUE_END.encode()


class Route:
    __slots__ = ("is_used", "queue", "tags_code", "text")

    def __init__(self, queue: Hashable, text: bytes, tags_code: int) -> None:
        self.queue = queue
        self.text = text
        self.tags_code = tags_code
        self.is_used = False


class Router:
    __slots__ = (
        "_level_bytes_max",
        "_octets",
        "_topic_bytes_max",
        "levels",
        "others",
        "unnameable",
    )

    def __init__(self, octets: bytes, *, level_bytes_max: int, topic_bytes_max: int) -> None:
        if len(octets) != 256:
            raise ValueError("there are 256 octets")
        self._octets = octets
        self._level_bytes_max = level_bytes_max
        self._topic_bytes_max = topic_bytes_max
        self.levels: dict[bytes, Sequence[Hashable] | dict[bytes, Route]] = {}
        self.others: Sequence[Hashable] | dict[bytes, Route] | None = None
        self.unnameable: Sequence[Hashable] | dict[bytes, Route] | None = None

    def message(
        self, topic: bytes, payload: bytes, text: bytes, origin: bytes, born_ms: int, host: bytes
    ) -> tuple[Any, ...] | None:
        if not topic or len(topic) > self._topic_bytes_max or topic.startswith(b"$"):
            return None
        level, _, below = topic.partition(b"/")
        place = self.levels.get(level)
        if place is None:
            place = self.others if self._is_nameable(level) else self.unnameable
        if not place:
            return None
        if isinstance(place, dict):
            route = place.get(topic)
            if route is None:
                return None
            route.is_used = True
            queue, properties, code = route.queue, route.text, route.tags_code
        else:
            tag = below.partition(b"/")[0]
            queue = place[crc32(tag or topic) % len(place)]
            properties = TOPIC_NAME + topic + END
            if tag:
                properties += TAG_NAME + tag + END
            try:
                code = tags_code(tag.decode())
            except UnicodeDecodeError:
                return None
        properties += text + origin
        if len(properties) > PROPERTIES_BYTES_MAX:
            return None
        return (queue, payload, properties, code, born_ms, host, 0, 0, 0, 0)

    def _is_nameable(self, level: bytes) -> bool:
        octets = self._octets
        return 0 < len(level) <= self._level_bytes_max and all(octets[octet] for octet in level)
