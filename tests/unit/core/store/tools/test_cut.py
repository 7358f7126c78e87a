"""A closed store's log is cut at an offset: what goes, and what stays."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from motelog.core.errors import StoreCutError, StoreHalfRestoredError, StoreLockedError
from motelog.core.records.scan import scan
from motelog.core.store.tools.cut import cut, plan
from motelog.core.store.tools.inspection import StoreFolder, verify
from tests.support.followers import answers, feed, fill, log_bytes, make_follower
from tests.support.stores import abandon, make_store, opened

FILE_BYTES = 16_384


class Forked:
    """A log that went on in two ways: the folder ``old`` has records that ``new`` has not."""

    def __init__(self, root: Path, *, common: int = 60, longer: int = 60) -> None:
        self.old, self.new = root / "old", root / "new"
        with opened(self.old, lmq=True) as store:
            fill(store, random.Random(1), common)
            self.fork = store.end_offset
            self.common = answers(store)
        shutil.copytree(self.old, self.new)
        with opened(self.old, lmq=True) as store:
            fill(store, random.Random(2), longer)
            self.end = store.end_offset
            _, self.tail = log_bytes(store, self.fork)
        with opened(self.new, lmq=True) as store:
            fill(store, random.Random(3), 40)
            self.expected = answers(store)
            _, self.more = log_bytes(store, self.fork)

    def check(self, **config: Any) -> None:
        """The cut folder opens without its tail, and takes the other log."""
        store = make_follower(self.old, **config)
        report = store.open()
        assert (report.damage, report.given_up_records) == ([], 0)
        assert store.end_offset == store.received_offset == self.fork
        assert answers(store) == self.common
        feed(store, self.fork, self.more)
        assert answers(store) == self.expected
        store.close()
        folder = StoreFolder(str(self.old))
        assert verify(folder).faults == []
        folder.close()
        with opened(self.old, is_follower=True) as again:
            assert answers(again) == self.expected


@pytest.fixture
def forked(tmp_path: Path) -> Forked:
    return Forked(tmp_path)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_cut_store_follows_another_log_from_there(forked: Forked, was_killed: bool) -> None:
    if was_killed:
        store = make_store(forked.old)
        store.open()
        abandon(store)
    assert forked.end > forked.fork + 2 * FILE_BYTES
    found = cut(str(forked.old), forked.fork)
    assert (found.offset, found.end_offset, found.records) == (forked.fork, forked.end, 60)
    assert sum(found.topics.values()) == 60
    assert found.topics["a"] > 0
    forked.check()


def test_the_tail_is_kept_byte_for_byte(forked: Forked) -> None:
    found = cut(str(forked.old), forked.fork)
    assert {Path(path).parent for path in found.kept_in} == {forked.old / "damaged"}
    first, *later = found.kept_in
    kept = [first, *sorted(later)]
    data = b"".join(Path(path).read_bytes() for path in kept)
    behind = FILE_BYTES - forked.fork % FILE_BYTES
    assert Path(first).read_bytes() == forked.tail[:behind].rstrip(b"\0")
    assert data[len(Path(first).read_bytes()) :].startswith(forked.tail[behind:])


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_log_is_cut_where_a_file_begins(forked: Forked, number: int) -> None:
    folder = StoreFolder(str(forked.old))
    begin = folder.log.files[number].begin
    folder.close()
    cut(str(forked.old), begin)
    with opened(forked.old, is_follower=True) as store:
        assert (store.begin_offset, store.end_offset) == (0, begin)
        if begin == 0:
            assert answers(store)["bodies"] == {}


def test_each_place_between_records_can_be_cut_and_no_other(tmp_path: Path) -> None:
    with opened(tmp_path, lmq=True) as store:
        fill(store, random.Random(1), 40)
        assert store.end_offset > FILE_BYTES
        end = store.end_offset
        places = {end}
        for file in store._log.queue.files:
            for fields in scan(file.view, 0, file.size, file.begin, 99)[0]:
                places |= {fields[3], fields[3] + fields[4]}
    folder = StoreFolder(str(tmp_path))
    for offset in range(0, end + 1, 7):
        if offset not in places:
            before = max(place for place in places if place < offset)
            after = min(place for place in places if place > offset)
            with pytest.raises(StoreCutError, match=f"places are {before} and {after}$"):
                plan(folder, offset)
    for offset in places:
        assert plan(folder, offset).offset == offset
    with pytest.raises(StoreCutError, match=f"ends at {end}"):
        plan(folder, end + 1)
    folder.close()


def test_a_cut_at_the_end_changes_nothing(forked: Forked) -> None:
    before = {path: path.read_bytes() for path in forked.old.rglob("*") if path.is_file()}
    found = cut(str(forked.old), forked.end)
    assert (found.records, found.kept_in) == (0, [])
    assert {path: path.read_bytes() for path in before} == before


def test_an_open_store_is_not_cut(forked: Forked) -> None:
    with opened(forked.old), pytest.raises(StoreLockedError):
        cut(str(forked.old), forked.fork)


def test_a_half_restored_backup_is_not_cut(forked: Forked) -> None:
    (forked.old / "restoring").touch()
    with pytest.raises(StoreHalfRestoredError):
        cut(str(forked.old), forked.fork)


def test_a_log_that_begins_later_is_cut_only_behind_its_begin(forked: Forked) -> None:
    (forked.old / "commitlog" / "0".zfill(20)).unlink()
    with pytest.raises(StoreCutError, match=f"begins at {FILE_BYTES}"):
        cut(str(forked.old), 0)


def test_without_small_files_the_cut_holds_as_well(forked: Forked) -> None:
    for name in ("checkpoint", "queues.json", "index.json", "durable"):
        (forked.old / name).unlink()
        (forked.old / f"{name}.bak").unlink(missing_ok=True)
    cut(str(forked.old), forked.fork)
    forked.check()


def test_the_predecessors_of_small_files_claim_no_more_than_they_do(forked: Forked) -> None:
    cut(str(forked.old), forked.fork)
    for name in ("checkpoint", "queues.json", "index.json"):
        (forked.old / name).unlink()
    forked.check()
