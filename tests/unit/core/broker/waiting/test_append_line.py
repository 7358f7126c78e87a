"""Batches that wait for the next CommitLog file: their order, their time, their bound."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.broker.waiting import append_line
from motelog.core.broker.waiting.append_line import AppendLine
from motelog.core.clock import ManualClock
from motelog.core.errors import (
    BusyError,
    NextFileError,
    StoreError,
    StoreFencedError,
    StoreFullError,
)
from motelog.core.records.append import AppendMessage

TIMEOUT_MS = 5_000
BUSY_MS = 1_000


class Stage:
    """A line before a log that has no next file until ``has_file``; ``error`` fails its appends."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.has_file = False
        self.error: Exception | None = None
        self.log: list[bytes] = []
        self.told: list[tuple[bytes, Any]] = []
        self.append_ms = 0
        self.line = AppendLine(
            self._append, clock=self.clock, timeout_ms=TIMEOUT_MS, busy_ms=BUSY_MS
        )

    def _append(
        self,
        messages: list[AppendMessage],
        placed: list[tuple[int, int]] | None,
        *,
        store_timestamp_ms: int | None,
    ) -> int:
        if not self.has_file:
            raise NextFileError("not there yet")
        if self.error is not None:
            raise self.error
        self.clock.advance(self.append_ms)
        self.log += [message[1] for message in messages]
        return len(self.log)

    def wait(self, *bodies: bytes, behind_ms_max: int | None = None) -> None:
        messages: Any = [(None, body) for body in bodies]
        name = b"+".join(bodies)
        self.line.wait(
            messages,
            behind_ms_max=behind_ms_max,
            appended=lambda end_offset: self.told.append((name, end_offset)),
            refused=lambda error: self.told.append((name, type(error))),
        )


def test_a_batch_is_appended_at_once_unless_no_file_is_there_or_others_wait() -> None:
    stage = Stage()
    tail: Any = None
    row = (tail, b"", b"", 0, 0, b"", 0, 0, 0, 0)
    assert stage.line.append([row]) is None
    assert not stage.line.is_waiting
    stage.wait(b"a")
    stage.has_file = True
    assert stage.line.append([row]) is None
    stage.line.go_on()
    assert (stage.log, stage.told) == ([b"a"], [(b"a", 1)])
    assert stage.line.append([row]) == 2
    stage.error = StoreFencedError("the disk is gone")
    with pytest.raises(StoreFencedError):
        stage.line.append([row])
    assert not stage.line.is_waiting


def test_batches_are_appended_in_their_order_once_the_file_is_there() -> None:
    stage = Stage()
    stage.wait(b"a", b"b")
    stage.wait(b"c")
    stage.line.go_on()
    assert (stage.told, stage.line.is_waiting) == ([], True)
    stage.has_file = True
    stage.line.go_on()
    assert stage.log == [b"a", b"b", b"c"]
    assert (stage.told, stage.line.is_waiting) == ([(b"a+b", 2), (b"c", 3)], False)
    stage.line.go_on()
    assert len(stage.told) == 2


def test_each_batch_is_refused_when_its_own_time_is_over() -> None:
    stage = Stage()
    stage.wait(b"early")
    stage.clock.advance(TIMEOUT_MS - 1)
    stage.wait(b"late")
    stage.line.go_on()
    assert stage.told == []
    stage.clock.advance(1)
    stage.line.go_on()
    assert stage.told == [(b"early", NextFileError)]
    stage.has_file = True
    stage.line.go_on()
    assert stage.told[1:] == [(b"late", 1)]


@pytest.mark.parametrize(
    ("error", "refused_with", "is_fault"),
    [
        pytest.param(StoreFencedError("no disk"), StoreFencedError, False, id="store error"),
        pytest.param(RuntimeError("a fault"), StoreError, True, id="unexpected error"),
    ],
)
def test_an_error_refuses_its_batch_and_no_other(
    caplog: pytest.LogCaptureFixture, error: Exception, refused_with: type, is_fault: bool
) -> None:
    stage = Stage()
    stage.wait(b"a")
    stage.has_file, stage.error = True, error
    stage.line.go_on()
    stage.error = None
    stage.wait(b"b")
    stage.line.go_on()
    assert stage.told == [(b"a", refused_with), (b"b", 1)]
    assert ("a fault of this server" in caplog.text) == is_fault


def test_what_is_above_the_bound_is_refused_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_line, "LINE_BYTES_MAX", 10)
    stage = Stage()
    stage.wait(b"12345")
    stage.wait(b"123456")
    stage.wait(b"1234")
    stage.line.go_on()
    assert stage.told == []
    stage.has_file = True
    stage.line.go_on()
    assert stage.told == [(b"12345", 1), (b"123456", StoreFullError), (b"1234", 2)]
    # The bytes of batches that have gone do not count any more.
    stage.wait(b"1234567890")
    stage.line.go_on()
    assert stage.told[3:] == [(b"1234567890", 3)]


def test_a_fault_in_an_answer_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.has_file = True

    def fail(end_offset: int) -> None:
        raise RuntimeError("a fault")

    stage.line.wait([], appended=fail, refused=lambda error: None)
    stage.wait(b"b")
    stage.line.go_on()
    assert stage.told == [(b"b", 1)]
    assert "a fault of this server" in caplog.text


def test_who_stands_behind_others_for_too_long_is_refused_and_the_first_waits_on() -> None:
    stage = Stage()
    stage.wait(b"first", behind_ms_max=200)
    stage.wait(b"patient")
    stage.wait(b"hasty", behind_ms_max=200)
    stage.clock.advance(199)
    stage.wait(b"later", behind_ms_max=200)
    stage.line.go_on()
    assert stage.told == []
    stage.clock.advance(1)
    stage.line.go_on()
    assert stage.told == [(b"hasty", BusyError)]
    assert (stage.line.overdue_count, len(stage.line.batches)) == (1, 3)
    stage.has_file = True
    stage.line.go_on()
    assert stage.log == [b"first", b"patient", b"later"]


def test_the_line_is_busy_while_its_first_batch_waits_too_long() -> None:
    stage = Stage()
    assert (stage.line.is_busy, stage.line.head_waited_ms) == (False, 0)
    stage.wait(b"first")
    stage.clock.advance(BUSY_MS)
    assert (stage.line.is_busy, stage.line.head_waited_ms) == (False, BUSY_MS)
    stage.clock.advance(1)
    assert stage.line.is_busy
    stage.has_file = True
    stage.line.go_on()
    assert not stage.line.is_busy


@pytest.mark.parametrize(("took_ms", "is_slow"), [(BUSY_MS, False), (BUSY_MS + 1, True)])
def test_the_end_of_an_append_that_took_too_long_is_known(took_ms: int, is_slow: bool) -> None:
    stage = Stage()
    stage.has_file, stage.append_ms = True, took_ms
    stage.line.append([])
    assert stage.line.slow_until_ms == (stage.clock.monotonic_ms() if is_slow else None)
