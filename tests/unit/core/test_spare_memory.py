"""The spare goes with the first MemoryError that is told, and comes back when there is memory."""

from __future__ import annotations

import builtins
import logging

import pytest

from motelog.core import spare_memory
from motelog.core.limited_log import LimitedLog


def test_the_spare_is_given_up_at_a_memory_error_and_kept_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = LimitedLog(logging.getLogger(__name__))
    assert spare_memory.keep()
    with faults.boundary("another error"):
        raise ValueError
    assert spare_memory._spare is not None
    with faults.boundary("no memory"):
        raise MemoryError
    assert spare_memory._spare is None
    with monkeypatch.context() as patched:

        def fail(_: int) -> bytes:
            raise MemoryError

        patched.setattr(builtins, "bytes", fail)
        assert not spare_memory.keep()
    assert spare_memory.keep()
