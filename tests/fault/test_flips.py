"""Flipped bytes in the default suite: every so many bytes of a small store, and what it must find.

The full run is a command of its own: python -m tests.fault.flips.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from motelog.core.store.queues.consume_queue import ConsumeQueue
from motelog.core.store.start.queue_recovery import QueueRecovery
from tests.fault.flips import DIRECTORY, FlipError, build, check, explore, flipped


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep recovery's reports, thousands of them, out of the captured log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_flipped_byte_does_no_more_than_it_may() -> None:
    assert sum(1 for _ in explore(11, [0x01, 0x80])) > 2_000


@pytest.mark.parametrize("at", [13, 15, 23, 27, 138])
def test_a_changed_queue_id_or_offset_costs_no_other_queue(at: int) -> None:
    """A record that left its queue leaves a gap there; one that came takes a place."""
    image, expected = build(was_clean=False)
    path = f"{DIRECTORY}/commitlog/{0:020d}"
    check(flipped(image, path, at, 0x01), expected, path, at)


def test_a_store_that_trusts_its_units_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumeQueue, "check_files", lambda self, offset, count: None)
    with pytest.raises(FlipError, match="consumequeue"):
        for _ in explore(11, [0x80]):
            pass


def test_a_start_that_looks_at_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueRecovery, "_contradiction", lambda self, queue: None)
    monkeypatch.setattr(
        "motelog.core.store.start.recovery.Recovery._find_next", lambda self, file, at: None
    )
    with pytest.raises(FlipError):
        for _ in explore(11, [0x80]):
            pass
