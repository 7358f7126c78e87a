"""A process killed in the middle of its work loses nothing that it had acknowledged.

200 rounds are a command of their own: python -m tests.fault.kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.kills import KINDS, rounds
from tests.support.stores import abandon, make_store, message
from tests.support.written import Written, WrittenError, body_of, keys_of, queue_of

ROUNDS = 6
SEED = 11


def test_nothing_acknowledged_is_lost_when_a_store_is_killed(tmp_path: Path) -> None:
    done = list(rounds(tmp_path, SEED, ROUNDS))
    assert {one.kind for one in done} == set(KINDS)
    assert sum(one.acknowledged for one in done) > 0


def put(folder: Path, numbers: list[int]) -> None:
    """Append messages of round 1 as the writer does, and end as a killed process."""
    store = make_store(folder)
    store.open()
    for number in numbers:
        batch = [
            message(
                store.queue_tail(*queue_of(number)),
                body_of(1, number),
                properties=keys_of(1, number),
            )
        ]
        store.append(batch)
    abandon(store)


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        (list(range(9)), "has 9 messages of 10"),
        ([0, 1, 2, 4, 5, 6, 7, 8, 9], "has holes"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9], "has holes"),
        ([0, 2, 1, 3, 4, 5, 6, 7, 8, 9], "has holes"),
        ([4, 5, 6, 7, 8, 9], "begins with number 4"),
    ],
)
def test_a_loss_is_found(tmp_path: Path, numbers: list[int], fault: str) -> None:
    put(tmp_path, numbers)
    store = make_store(tmp_path)
    store.open()
    with pytest.raises(WrittenError, match=fault):
        Written().check(store, 1, 10)
    store.close()
