"""Log lines at a bounded rate, and what the boundary lets through."""

from __future__ import annotations

import logging

import pytest
import trio

from motelog.core.limited_log import VALUE_CHARACTERS_MAX, LimitedByKey, LimitedLog


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_above_the_rate_are_held_back_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    seconds = Seconds()
    log = LimitedLog(logging.getLogger("x"), lines_max=2, period_s=10, monotonic_s=seconds)
    for number in range(5):
        log.warning("line %d", number)
    seconds.now = 9.9
    log.warning("line 5")
    assert caplog.messages == ["line 0", "line 1"]
    seconds.now = 10.0
    log.warning("line 6")
    assert caplog.messages[2:] == ["log lines of one kind held back count=4", "line 6"]


def test_a_long_text_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = LimitedLog(logging.getLogger("x"))
    cut = f"{'a' * VALUE_CHARACTERS_MAX}... (65535 characters)"
    log.info("refused client_id=%r bytes=%d", "a" * 65535, 7)
    log.warning("refused why=%s", ValueError("a" * 65535))
    log.fault("failed name=%s", "a" * 65535, exc=ValueError("x"))
    kept = "b" * VALUE_CHARACTERS_MAX
    LimitedByKey(logging.getLogger("x")).warning("k", "name=%s times=%d", kept)
    assert caplog.messages == [
        f"refused client_id='{cut}' bytes=7",
        f"refused why={cut}",
        f"failed name={cut}",
        f"name={kept} times=1",
    ]


def test_a_key_has_one_line_in_a_period_with_the_events_since(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = Seconds()
    log = LimitedByKey(logging.getLogger("x"), period_s=10, keys_max=2, monotonic_s=seconds)

    def refuse(client_id: str, count: int) -> None:
        log.warning(client_id, "refused client_id=%s publishes=%d", client_id, count=count)

    for _ in range(500):
        refuse("a", 2)
    refuse("b", 1)
    seconds.now = 10.0
    refuse("a", 1)
    refuse("c", 1)
    assert caplog.messages == [
        "refused client_id=a publishes=2",
        "refused client_id=b publishes=1",
        "refused client_id=a publishes=999",
        "refused client_id=c publishes=1",
    ]


def test_the_boundary_logs_a_fault_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("x"))
    with log.boundary("it failed peer=%s", "p"):
        raise KeyError("why")
    (record,) = caplog.records
    assert record.getMessage() == "it failed peer=p"
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


def test_a_boundary_is_kept_for_many_times(caplog: pytest.LogCaptureFixture) -> None:
    boundary = LimitedLog(logging.getLogger("x")).boundary("it failed peer=%s", "p")
    for number in range(3):
        with boundary:
            if number:
                raise KeyError(number)
    assert caplog.messages == ["it failed peer=p"] * 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), LimitedLog(logging.getLogger("x")).boundary("it failed"):
        raise kind


async def test_cancellation_passes(caplog: pytest.LogCaptureFixture) -> None:
    with trio.move_on_after(0) as scope, LimitedLog(logging.getLogger("x")).boundary("it failed"):
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not caplog.records


async def test_of_tasks_that_failed_and_were_cancelled_the_cancellation_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("why")

    with trio.move_on_after(0) as scope, LimitedLog(logging.getLogger("x")).boundary("it failed"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_at_the_end)
            nursery.start_soon(trio.sleep_forever)
    assert scope.cancelled_caught
    assert caplog.messages == ["it failed"]
