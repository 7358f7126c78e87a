"""Failing calls in the default suite: a share of them, and stores that ignore them.

The full sweep is a command of its own: python -m tests.fault.failing_calls.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator

import pytest

from motelog.core.store.message_store import MessageStore
from tests.fault.failing_calls import FailingCallError, check, chosen
from tests.support.failing_os import Fault

SHARE = 0.004
SEED = 3


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep what the store logs about each fault out of the captured log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_share_of_the_failing_calls_is_answered_as_promised() -> None:
    outcomes = [check(flush, fault) for flush, fault in chosen(SHARE, SEED)]
    assert {"fenced", "a batch was refused", "open refused"} <= set(outcomes)


def test_a_store_that_is_not_fenced_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageStore, "_fence", lambda self, reason: None)
    with pytest.raises(FailingCallError, match="went on after"):
        check("async", Fault("syncfs", 0, errno.EIO))


def test_a_store_that_trusts_a_second_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_log = MessageStore._sync_log

    def twice(store: MessageStore, begin: int, end: int) -> None:
        try:
            sync_log(store, begin, end)
        except OSError:
            sync_log(store, begin, end)

    monkeypatch.setattr(MessageStore, "_sync_log", twice)
    with pytest.raises(FailingCallError):
        check("sync", Fault("fdatasync", 3, errno.EIO))


def test_a_store_that_keeps_its_lock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    release = MessageStore._release

    def half(store: MessageStore) -> None:
        store._lock = None
        release(store)

    monkeypatch.setattr(MessageStore, "_release", half)
    with pytest.raises(FailingCallError, match="another process"):
        check("sync", Fault("unlink", 0, errno.EIO))
