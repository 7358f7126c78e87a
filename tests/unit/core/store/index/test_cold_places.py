"""Queries by offset and by key, on files that say they are not in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from motelog.core.errors import RecordError
from motelog.core.records.decode import decode
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.disk.page_cache import STEP_BYTES, NotInMemoryError, Pageable
from motelog.core.store.index import cold_places
from motelog.core.store.message_store import MessageStore
from tests.support.stores import make_store, message, opened

COUNT = 300
LATEST = 1 << 60


class ColdStorage(OsStorage):
    """Files of which nothing is in memory but what was loaded, which is noted."""

    def __init__(self) -> None:
        self.loaded: set[tuple[str, int]] = set()

    def is_cached(self, path: str, positions: Sequence[int]) -> bool:
        return all((path, at) in self.loaded for at in positions)

    def load(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        self.loaded.update((path, at) for begin, end in ranges for at in range(begin, end))

    def has(self, physical_offset: int, size: int) -> bool:
        return all(
            any(
                path.endswith(f"{at - at % 16_384:020d}") and place == at % 16_384
                for path, place in self.loaded
            )
            for at in (physical_offset, physical_offset + size - 1)
        )


def missing_of(read: Callable[..., object]) -> Sequence[Pageable]:
    """Return what a read that may not wait misses; nothing if it is answered."""
    try:
        read(may_wait=False)
    except NotInMemoryError as cold:
        return cold.missing
    return ()


def query(store: MessageStore, key: str, begin_ms: int = 0) -> Callable[..., object]:
    return partial(store.reader.query, "T", key, begin_ms=begin_ms, end_ms=LATEST)


@pytest.fixture
def storage() -> ColdStorage:
    return ColdStorage()


@pytest.fixture
def store(tmp_path: Path, storage: ColdStorage) -> Iterator[MessageStore]:
    with opened(tmp_path) as before:
        for number in range(COUNT):
            tail = before.queue_tail("T", number % 3)
            text = b"KEYS\x01key%d every%d\x02" % (number, number % 100)
            before.append([message(tail, b"%d" % number, properties=text)])
    store = make_store(tmp_path, storage=storage)
    store.open()
    yield store
    store.close()


def places(store: MessageStore, key: str) -> list[tuple[int, int]]:
    """Return where the records with a key are, and their sizes."""
    found = store.reader.query("T", key, begin_ms=0, end_ms=LATEST).records
    return [(decode(record)[0][3], len(record)) for record in found]


async def test_a_record_is_paged_in_as_a_whole(store: MessageStore, storage: ColdStorage) -> None:
    ((at, size),) = places(store, "key7")
    missing = missing_of(partial(store.reader.record_at, at))
    assert missing
    await store.reader.page_in(missing)
    assert storage.has(at, size)
    assert store.reader.record_at(at, may_wait=False) == store.reader.record_at(at)
    # Nothing begins there, and there is nothing to wait for.
    for wrong in (-1, store.end_offset, 1 << 60):
        with pytest.raises(RecordError):
            store.reader.record_at(wrong, may_wait=False)


async def test_a_record_of_which_only_the_head_is_in_memory_is_paged_in(tmp_path: Path) -> None:
    size: dict[str, Any] = {"commitlog_file_bytes": 1 << 18}
    with opened(tmp_path, **size) as before:
        end = before.append([message(before.queue_tail("T", 0), bytes(100_000))])
    storage = ColdStorage()
    store = make_store(tmp_path, storage=storage, **size)
    store.open()
    try:
        path = store._log.queue.files[0].path
        # The system reads ahead by this much: where one byte of a step is in memory, all are.
        storage.load(path, [(0, STEP_BYTES)])
        await store.reader.page_in(missing_of(partial(store.reader.record_at, 0)))
        assert {(path, at) for at in range(end)} <= storage.loaded
    finally:
        store.close()


async def test_a_query_pages_in_the_records_that_it_will_read(
    store: MessageStore, storage: ColdStorage
) -> None:
    wanted = places(store, "every42")
    assert len(wanted) == 3
    missing = missing_of(query(store, "every42"))
    assert not storage.loaded
    await store.reader.page_in(missing)
    assert all(storage.has(*place) for place in wanted)
    # And no others: a few records' bytes.
    assert len(storage.loaded) == sum(size for _, size in wanted)
    # The query that is tried again is answered; another one has to be asked for.
    assert not missing_of(query(store, "every42"))
    assert missing_of(query(store, "every42", begin_ms=1))
    assert missing_of(query(store, "every43"))


async def test_a_query_of_another_time_pages_in_nothing(
    store: MessageStore, storage: ColdStorage
) -> None:
    await store.reader.page_in(missing_of(query(store, "every42", begin_ms=LATEST)))
    await store.reader.page_in(missing_of(query(store, "no such key")))
    assert not storage.loaded


async def test_only_so_much_is_paged_in_for_one_query(
    store: MessageStore, storage: ColdStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_places, "RECORDS_MAX", 2)
    newest = places(store, "every42")[:2]
    await store.reader.page_in(missing_of(query(store, "every42")))
    assert len(storage.loaded) == sum(size for _, size in newest)


async def test_index_files_that_are_cut_or_gone_do_no_harm(
    store: MessageStore, storage: ColdStorage, tmp_path: Path
) -> None:
    missing = missing_of(query(store, "every42"))
    for number, path in enumerate(sorted((tmp_path / "index").iterdir())):
        # A file's size tells its shape, so all but the first keep it and lose their content.
        path.write_bytes(bytes(path.stat().st_size if number else 0))
    await store.reader.page_in(missing)
    assert not storage.loaded


def test_what_was_written_since_the_start_is_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path, storage=ColdStorage()) as fresh:
        fresh.append([message(fresh.queue_tail("T", 0), properties=b"KEYS\x01k\x02")])
        assert not missing_of(partial(fresh.reader.record_at, 0))
        assert not missing_of(query(fresh, "k"))


async def test_a_search_by_time_says_step_by_step_what_it_misses(
    store: MessageStore, storage: ColdStorage
) -> None:
    end = store.reader.max_offset("T", 0)
    for wanted_ms, expected in ((0, 0), (LATEST, end)):
        storage.loaded.clear()
        store.reader._page_cache._known.clear()
        search = partial(store.reader.offset_by_time, "T", 0, wanted_ms)
        steps = 0
        while missing := missing_of(search):
            await store.reader.page_in(missing)
            steps += 1
        # Each step halves what is left: a unit and its record, some of them in memory by then.
        assert 1 <= steps <= 2 * (end + 1).bit_length()
        assert search(may_wait=False) == search(may_wait=True) == expected
    assert not missing_of(partial(store.reader.offset_by_time, "no such topic", 0, 0))


async def test_a_search_by_time_is_not_ended_by_its_number_of_steps(
    store: MessageStore, storage: ColdStorage
) -> None:
    waits: list[bool] = []

    def search(*, may_wait: bool) -> int:
        waits.append(may_wait)
        return store.reader.offset_by_time("T", 0, LATEST, may_wait=may_wait)

    assert await store.reader.when_in_memory(search) == store.reader.max_offset("T", 0)
    assert len(waits) > 3
    assert not any(waits)
