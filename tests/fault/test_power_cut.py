"""Power cuts in the default suite: two rounds. More: python -m tests.fault.power_cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.power_cut import rounds
from tests.support.loop_disk import NotPermittedError

ROUNDS = 2
SEED = 4


def test_a_power_cut_loses_nothing_that_was_synced_and_otherwise_the_end_only(
    tmp_path: Path,
) -> None:
    try:
        done = list(rounds(tmp_path, SEED, ROUNDS))
    except NotPermittedError as exc:
        pytest.skip(f"no loop-mounted ext4 here: {exc}")
    assert [one.kind for one in done] == ["sync", "async"]
    assert all(one.acknowledged > 0 for one in done)
