"""Where a message waits that asks for a delay."""

from __future__ import annotations

import pytest

from motelog.core.broker.delay.delays import WaitingPlace, find_waiting_place
from motelog.core.errors import BrokerError
from motelog.core.store.due_time import TIMER_MS_MAX, TIMER_SLOTS, DueTimes, timer_queue

NOW = 1_700_000_000_000


def place(**pairs: str) -> WaitingPlace | None:
    return find_waiting_place(pairs, "T", 3, DueTimes(), NOW)


def test_a_level_is_a_queue_of_the_schedule_topic() -> None:
    found = place(DELAY="3", KEYS="k", TIMER_DELAY_MS="5")
    assert found is not None
    assert (found.topic, found.queue_id, found.due_ms) == ("SCHEDULE_TOPIC_XXXX", 2, NOW + 10_000)
    assert found.pairs["REAL_TOPIC"] == "T"
    assert found.pairs["REAL_QID"] == "3"
    assert found.pairs["KEYS"] == "k"
    last = place(DELAY="999")
    assert last is not None
    assert last.queue_id == 17


@pytest.mark.parametrize(
    ("pairs", "due_ms"),
    [
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1"}, NOW + 7_000),
        ({"TIMER_DELAY_MS": "7"}, NOW + 7),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELAY_MS": str(TIMER_MS_MAX), "DELAY": "0"}, NOW + TIMER_MS_MAX),
    ],
)
def test_a_time_is_a_slot_of_the_timer_topic(pairs: dict[str, str], due_ms: int) -> None:
    found = place(**pairs)
    assert found is not None
    assert (found.topic, found.due_ms) == ("rmq_sys_motelog_timer", due_ms)
    assert found.queue_id == timer_queue(due_ms) < TIMER_SLOTS
    assert found.pairs["TIMER_OUT_MS"] == str(due_ms)
    assert DueTimes().due_ms(f"TIMER_OUT_MS\x01{due_ms}\x02".encode(), 0) == due_ms


@pytest.mark.parametrize(
    "pairs", [{}, {"DELAY": "0"}, {"TIMER_DELIVER_MS": str(NOW)}, {"TIMER_DELAY_MS": "0"}]
)
def test_what_is_due_already_does_not_wait(pairs: dict[str, str]) -> None:
    assert place(**pairs) is None


@pytest.mark.parametrize(
    "pairs",
    [
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELAY_MS": "-1"},
        {"TIMER_DELAY_MS": str(TIMER_MS_MAX + 1)},
        {"TIMER_DELIVER_MS": "9" * 18},
        {"TIMER_DELAY_SEC": "9" * 30},
    ],
)
def test_a_delay_that_cannot_be_kept_is_refused(pairs: dict[str, str]) -> None:
    with pytest.raises(BrokerError):
        place(**pairs)


def test_the_sender_does_not_decide_where_it_ends_up() -> None:
    found = place(DELAY="1", REAL_TOPIC="%DLQ%x", REAL_QID="9", TIMER_OUT_MS="1")
    assert found is not None
    assert found.pairs == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3"}
