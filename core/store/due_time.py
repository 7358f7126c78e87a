"""When a delayed message is due: delay levels, and times in milliseconds.

Owns: the topics that hold messages until they are due, the properties with the time, the levels.
Must not touch: files, clocks; delivery (core.broker.delay.schedule).
Spec: RocketMQ MessageStoreConfig.messageDelayLevel, ScheduleMessageService, TimerMessageStore.

    topic                   queue                 property       due
    SCHEDULE_TOPIC_XXXX     level - 1             DELAY          store timestamp + its level's delay
    rmq_sys_motelog_timer   slot of ten minutes   TIMER_OUT_MS   its value

A unit of the timer topic with a negative due time is a recall of a message due at that time.
Invariant: no message is appended to the timer topic with a time before the store's: delivery may
already be past that time, and never goes back (``in_time``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from motelog.core.message import (
    DELAY,
    NAME_END,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    decode_properties,
)
from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.topic_names import SCHEDULE_TOPIC, TIMER_TOPIC

WAITING_TOPICS: Final = (SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode())
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 64
# One queue of the timer topic holds the messages due in one slot; the slots form a ring, longer
# than the longest delay.
TIMER_SLOT_MS: Final = 600_000
TIMER_SLOTS: Final = 8192
TIMER_MS_MAX: Final = 40 * 86_400_000
_TIMER: Final = TIMER_TOPIC.encode()
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])")
TIME_DIGITS_MAX: Final = 18  # so that a time fits into 63 bits


class DueTimes:
    """The delay of each level, and the due time of a stored message."""

    def __init__(self, levels: str = DEFAULT_DELAY_LEVELS) -> None:
        """Parse levels such as "1s 5s 1m"; ValueError if malformed."""
        self.levels_ms = tuple(map(_delay_ms, levels.split()))
        if not 1 <= len(self.levels_ms) <= LEVELS_MAX:
            raise ValueError(
                f"there must be 1 to {LEVELS_MAX} delay levels, not {len(self.levels_ms)}"
            )

    def level(self, text: str) -> int:
        """Return the level of a DELAY property, 0 for none, at most the last level."""
        if not text.isdecimal() or not text.isascii() or len(text) > 9:
            return 0
        return min(int(text), len(self.levels_ms))

    def delay_ms(self, level: int) -> int:
        return self.levels_ms[level - 1]

    def due_ms(self, properties: bytes, store_timestamp_ms: int) -> int:
        """Return when a record of a delay topic is due; 0 if its properties do not say so.

        The time of a recall (TIMER_DEL_UNIQKEY) is negative.
        """
        pairs = decode_properties(properties)
        out = number(pairs.get(TIMER_OUT_MS, ""))
        if out is not None:
            return -out if TIMER_DEL_UNIQKEY in pairs else out
        level = self.level(pairs.get(DELAY, ""))
        return store_timestamp_ms + self.delay_ms(level) if level else 0


def timer_queue(due_ms: int) -> int:
    """Return the queue of the timer topic for messages due at that time."""
    return due_ms // TIMER_SLOT_MS % TIMER_SLOTS


def in_time(
    message: AppendMessage, now_ms: int, queue_tail: Callable[[str, int], QueueTail]
) -> AppendMessage:
    """Return a message that waited to be appended, due at ``now_ms`` if its time has passed."""
    due_ms = message[3]
    if message[0].topic != _TIMER or not 0 < due_ms < now_ms:
        return message
    old, new = (f"{TIMER_OUT_MS}{NAME_END}{time_ms}".encode() for time_ms in (due_ms, now_ms))
    tail = queue_tail(TIMER_TOPIC, timer_queue(now_ms))
    return (tail, message[1], message[2].replace(old, new), now_ms, *message[4:])


def number(text: str) -> int | None:
    """Return a property's value as a number, None unless decimal digits that fit into 63 bits."""
    if not text.isdecimal() or not text.isascii() or len(text) > TIME_DIGITS_MAX:
        return None
    return int(text)


def _delay_ms(text: str) -> int:
    found = _DELAY.fullmatch(text)
    if found is None:
        raise ValueError(f"delay level {text!r} is not a number followed by s, m, h or d")
    return int(found[1]) * _UNITS_MS[found[2]]
