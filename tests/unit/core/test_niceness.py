"""Processes that stand back."""

from __future__ import annotations

import pytest

from motelog.core.niceness import NICENESS_MAX, niceness


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_processes_stand_back_when_they_are_more_than_enough(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    enough = max(cores, 3)
    for processes in (1, cores, enough):
        assert niceness(processes) == 0
    for processes in (2 * enough, 4 * enough, 28 * enough):
        weight = processes / 1.25 ** niceness(processes)
        assert enough / 1.25 < weight < enough * 1.25
    assert niceness(1_000_000) == NICENESS_MAX
