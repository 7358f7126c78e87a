"""Reads the delay that a message asks for, and returns the queue where it waits.

Owns: the properties that ask for a delay, and how such a message is stored while it waits.
Must not touch: the store, clocks, delivery (schedule).
Spec: RocketMQ HookUtils.transformDelayLevelMessage, transformTimerMessage.

    DELAY=3                       -> SCHEDULE_TOPIC_XXXX, queue 2, REAL_TOPIC, REAL_QID
    TIMER_DELAY_SEC, else
    TIMER_DELAY_MS, else
    TIMER_DELIVER_MS (a time)     -> rmq_sys_motelog_timer, queue of its slot, REAL_*, TIMER_OUT_MS

A level takes precedence over a time. A time that has passed, and level 0, mean at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from motelog.core.errors import BrokerError
from motelog.core.message import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from motelog.core.remoting.codes import ResponseCode
from motelog.core.store.due_time import TIMER_MS_MAX, DueTimes, number, timer_queue
from motelog.core.topic_names import SCHEDULE_TOPIC, TIMER_TOPIC

DELAY_PROPERTIES: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})

# Properties of a waiting message that only the broker sets.
_BROKERS: Final = frozenset({TIMER_OUT_MS, TIMER_DEL_UNIQKEY})


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """Where a message waits, until when, and its properties while it waits."""

    topic: str
    queue_id: int
    due_ms: int
    pairs: dict[str, str]


def find_waiting_place(
    pairs: Mapping[str, str], topic: str, queue_id: int, due_times: DueTimes, now_ms: int
) -> WaitingPlace | None:
    """Return where a message for this queue has to wait; None if it does not wait.

    BrokerError(MESSAGE_ILLEGAL) for a delay that is not a number or too long.
    """
    # The sender's own values of these must not decide where the message ends up.
    stored = {k: v for k, v in pairs.items() if k not in _BROKERS}
    stored[REAL_TOPIC] = topic
    stored[REAL_QID] = str(queue_id)
    level = due_times.level(pairs.get(DELAY, ""))
    if level:
        due_ms = now_ms + due_times.delay_ms(level)
        return WaitingPlace(SCHEDULE_TOPIC, level - 1, due_ms, stored)
    due_ms = _due_ms(pairs, now_ms)
    if due_ms <= now_ms:
        return None
    if due_ms - now_ms > TIMER_MS_MAX:
        days = TIMER_MS_MAX // 86_400_000
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"a message waits at most {days} days")
    stored[TIMER_OUT_MS] = str(due_ms)
    return WaitingPlace(TIMER_TOPIC, timer_queue(due_ms), due_ms, stored)


def _due_ms(pairs: Mapping[str, str], now_ms: int) -> int:
    for name, unit_ms, begin_ms in (
        (TIMER_DELAY_SEC, 1_000, now_ms),
        (TIMER_DELAY_MS, 1, now_ms),
        (TIMER_DELIVER_MS, 1, 0),
    ):
        text = pairs.get(name)
        if text is not None:
            value = number(text)
            if value is None:
                raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a number")
            return begin_ms + value * unit_ms
    return 0
