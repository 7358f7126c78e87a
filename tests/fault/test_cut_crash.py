"""The power is cut while a store's log is cut: what it leaves."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from motelog.core.store.message_store import MessageStore
from motelog.core.store.tools.cut import cut
from tests.support.followers import answers, fill
from tests.support.simulated_disk import ROOT, CrashModel, Image, SimulatedDisk
from tests.support.stores import make_store

DIRECTORY = f"{ROOT}/store"


@pytest.fixture
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def on_disk(image: Image) -> tuple[MessageStore, SimulatedDisk]:
    disk = SimulatedDisk(image)
    return make_store(DIRECTORY, storage=disk), disk


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_moment_leaves_a_store_that_opens(seed: int) -> None:
    """Its log ends where a record does, not before the cut; cut again, it ends there."""
    chance = random.Random(seed)
    store, disk = on_disk(Image())
    store.open()
    fill(store, random.Random(1), chance.randint(1, 40))
    fork, common = store.end_offset, answers(store)
    fill(store, random.Random(2), 40)
    store.close()
    model = CrashModel.of(Image())
    disk.take_notes()
    begun = len(disk.events)
    for event in disk.events:
        model.apply(event)
    planned = cut(DIRECTORY, fork, storage=disk)
    assert planned.end_offset > fork
    disk.take_notes()
    ends = set()
    for at in range(begun, len(disk.events) + 1):
        for _ in range(3):
            image = model.after_power_cut(chance)
            again, crashed = on_disk(image)
            report = again.open()
            assert report.damage == []
            assert fork <= report.end_offset <= planned.end_offset
            ends.add(report.end_offset)
            found = answers(again)
            for key, bodies in common["bodies"].items():
                assert found["bodies"][key][: len(bodies)] == bodies
            again.close()
            cut(DIRECTORY, report.end_offset, storage=crashed)  # a place between records
            cut(DIRECTORY, fork, storage=crashed)
            whole = make_store(DIRECTORY, storage=crashed)
            whole.open()
            assert answers(whole) == common
            whole.close()
        if at < len(disk.events):
            model.apply(disk.events[at])
    assert {fork, planned.end_offset} <= ends
