"""The index that Apache RocketMQ 4.9.8 wrote is read; ours of the same log is the same."""

from __future__ import annotations

import shutil
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest

from motelog.core.records.decode import decode
from motelog.core.records.scan import scan
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.index.index import keys_of
from motelog.core.store.index.index_file import IndexFile, shape_of
from motelog.core.store.message_store import MessageStore
from tests.support.stores import opened, vector_archive

FOREVER = (1 << 63) - 1
# The folder's own: 50,000 slots, 200,000 entries.
SHAPE = {"index_slots": 50_000, "index_entries": 200_000}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(vector_archive()) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def index_file(folder: Path) -> IndexFile:
    (path,) = (folder / "index").iterdir()
    shape = shape_of(path.stat().st_size, 5_000_000, 20_000_000)
    assert shape == (50_000, 200_000)
    file = IndexFile(OsStorage(), str(path), *shape)
    file.read_header()
    return file


def keys_in_log(folder: Path) -> dict[tuple[bytes, bytes], list[int]]:
    """Every key and where its records are, newest first, from a scan of the whole log."""
    log = (folder / "commitlog" / "0".zfill(20)).read_bytes()
    places: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    for record in scan(log, 0, len(log), 0, 10_000)[0]:
        topic, place, sys_flag, properties = record[0], record[3], record[6], record[8]
        if sys_flag & 0xC != 0xC:
            for key in dict.fromkeys(keys_of(properties)):
                places[topic, key].insert(0, place)
    return places


def query_all(store: MessageStore, keys: dict[tuple[bytes, bytes], list[int]]) -> None:
    assert len(keys) > 200
    for (topic, key), places in keys.items():
        result = store.reader.query(
            topic.decode(), key.decode(), begin_ms=0, end_ms=FOREVER, count_max=64
        )
        assert [decode(record)[0][3] for record in result.records] == places[:64]


@pytest.mark.parametrize("is_clean", [True, False])
def test_every_key_is_found_through_its_index_and_through_ours(
    folder: Path, is_clean: bool
) -> None:
    keys = keys_in_log(folder)
    before = (folder / "index" / index_file(folder).name).read_bytes()
    if is_clean:
        # Its checkpoint covers no index entry: as a killed broker's, the file would go.
        (folder / "abort").unlink()
    with opened(folder, consume_queue_file_units=300_000, **SHAPE) as store:
        query_all(store, keys)
        (path,) = (folder / "index").iterdir()
    if is_clean:
        assert path.read_bytes() == before
    with opened(folder, consume_queue_file_units=300_000) as store:
        query_all(store, keys)


def test_an_index_made_from_its_log_equals_its_own(folder: Path) -> None:
    theirs = index_file(folder)
    entries = [theirs.entry(number) for number in range(1, theirs.count)]
    header = (theirs.begin_ms, theirs.end_ms, theirs.begin_physical, theirs.end_physical)
    data = (folder / "index" / theirs.name).read_bytes()
    theirs.close()
    shutil.rmtree(folder / "index")
    with opened(folder, consume_queue_file_units=300_000, **SHAPE):
        pass
    ours = index_file(folder)
    assert [ours.entry(number) for number in range(1, ours.count)] == entries
    assert (ours.begin_ms, ours.end_ms, ours.begin_physical, ours.end_physical) == header
    assert (folder / "index" / ours.name).read_bytes() == data
    ours.close()
