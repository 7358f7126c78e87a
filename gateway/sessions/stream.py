"""``$stream/{filter}``: a subscription that begins in the past.

Owns: the syntax for where a replay begins. Must not touch: sessions, the log.

    SUBSCRIBE $stream/{filter}, user property stream-offset = earliest
                                                            2026-01-31T08:00:00Z    UTC by default
                                                            1769846400000           ms since 1970
                                                            offset:1234             in each queue
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from motelog.gateway.mqtt.packet_types import Properties

STREAM_PREFIX: Final = "$stream/"
#: The user property that says where to begin.
STREAM_OFFSET: Final = "stream-offset"

_OFFSET: Final = "offset:"
#: Times and offsets of the log have 63 bits.
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a replay begins in each queue: at the later of the two."""

    time_ms: int = 0
    queue_offset: int = 0


def unprefixed(topic_filter: str) -> str:
    """Return the filter that a session has after a SUBSCRIBE with ``topic_filter``."""
    return topic_filter.removeprefix(STREAM_PREFIX)


def stream_start(properties: Properties) -> StreamStart:
    """Return where the streams of a SUBSCRIBE begin; ValueError says what is wrong."""
    starts = [value for name, value in properties.user_properties if name == STREAM_OFFSET]
    if len(starts) != 1:
        raise ValueError(f"a stream needs one user property {STREAM_OFFSET}")
    return parse_start(starts[0])


def parse_start(text: str) -> StreamStart:
    """Return the parsed value of a ``stream-offset``; ValueError if it is malformed."""
    if text == "earliest":
        return StreamStart()
    if text.startswith(_OFFSET):
        queue_offset = _number(text.removeprefix(_OFFSET))
        if queue_offset is not None:
            return StreamStart(queue_offset=queue_offset)
    time_ms = _number(text)
    if time_ms is not None:
        return StreamStart(time_ms=time_ms)
    try:
        time = datetime.fromisoformat(text)
        time_ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{STREAM_OFFSET} must be 'earliest', a time in ISO 8601 or in ms since 1970, or"
            " 'offset:' and a number"
        ) from None
    return StreamStart(time_ms=max(0, time_ms))


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    return None
