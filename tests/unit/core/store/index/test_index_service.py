"""What is appended with keys is found by them, newest first; what a start makes of index files."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.core.clock import ManualClock
from motelog.core.errors import StoreError
from motelog.core.records.append import AppendMessage
from motelog.core.records.decode import decode
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.index.index_file import IndexFile, file_bytes
from motelog.core.store.index.index_files import IndexFiles
from motelog.core.store.index.index_service import PENDING_MAX
from motelog.core.store.message_store import MessageStore
from tests.support.stores import RecordingStorage, abandon, make_store, message, opened

SHAPE: dict[str, Any] = {"index_slots": 5, "index_entries": 12}
FOREVER = (1 << 63) - 1


def keyed_message(
    store: MessageStore, number: int, keys: str = "", unique: str = ""
) -> AppendMessage:
    text = (f"KEYS\x01{keys}\x02" if keys else "") + (f"UNIQ_KEY\x01{unique}\x02" if unique else "")
    return message(store.queue_tail("T", 0), b"%d" % number, properties=text.encode())


def bodies(
    store: MessageStore, key: str, begin_ms: int = 0, end_ms: int = FOREVER, **options: Any
) -> list[int]:
    found = store.reader.query("T", key, begin_ms=begin_ms, end_ms=end_ms, **options)
    store.index._check()
    return [int(decode(record)[0][13]) for record in found.records]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "index").iterdir())


def test_records_are_found_by_each_key_newest_first(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        store.append([keyed_message(store, 1, "a b", "u1"), keyed_message(store, 2, "b  c")])
        store.append([message(store.queue_tail("T", 0), b"3"), keyed_message(store, 4, "b")])
        assert [bodies(store, key) for key in ("a", "b", "c", "u1", "d", "")] == [
            [1], [4, 2, 1], [2], [1], [], []
        ]  # fmt: skip
        assert bodies(store, "b", count_max=2) == [4, 2]
        assert bodies(store, "a", only_unique=True) == []
        assert bodies(store, "u1", only_unique=True) == [1]
        assert store.reader.query("Other", "b", begin_ms=0, end_ms=FOREVER).records == []


def test_a_query_names_the_last_record_with_a_key(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        result = store.reader.query("T", "a", begin_ms=0, end_ms=FOREVER)
        assert (result.index_last_ms, result.index_last_offset) == (0, 0)
        placed: list[tuple[int, int]] = []
        store.append([keyed_message(store, 1, "a"), keyed_message(store, 2, "b")], placed)
        result = store.reader.query("T", "a", begin_ms=0, end_ms=FOREVER)
        last = store.reader.query("T", "b", begin_ms=0, end_ms=FOREVER).records[0]
        assert (result.index_last_ms, result.index_last_offset) == (
            decode(last)[0][8], placed[1][0]
        )  # fmt: skip


def test_both_ends_of_the_time_range_belong_to_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock, **SHAPE) as store:
        begin = store.now_ms()
        for number in range(20):
            store.append([keyed_message(store, number, "k")])
            clock.step_wall(300)
        assert bodies(store, "k", begin + 300, begin + 900) == [3, 2, 1]
        assert bodies(store, "k", begin + 301, begin + 899) == [2]
        assert bodies(store, "k", begin + 5_700, 1 << 70) == [19]
        assert bodies(store, "k", -(1 << 70), begin) == [0]
        assert bodies(store, "k", begin + 900, begin) == []


def test_a_rolled_back_record_is_not_found_and_a_prepared_one_is(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        tail = store.queue_tail("T", 0)
        for flag in (0x4, 0x8, 0xC):
            text = b"KEYS\x01k\x02"
            store.append([message(tail, b"%d" % flag, properties=text, sys_flag=flag)])
        assert bodies(store, "k") == [8, 4]


def test_keys_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        # "Aa" and "BB" have the same hash in Java.
        store.append([keyed_message(store, i, ("Aa", "BB")[i % 2]) for i in range(8)])
        assert bodies(store, "Aa") == [6, 4, 2, 0]
        assert bodies(store, "BB", count_max=3) == [7, 5, 3]


def test_never_more_than_64_records_and_8_mib(tmp_path: Path) -> None:
    with opened(tmp_path, commitlog_file_bytes=1 << 24) as store:
        store.append([keyed_message(store, i, "k") for i in range(100)])
        assert bodies(store, "k", count_max=1000) == list(range(99, 35, -1))
        tail = store.queue_tail("T", 0)
        store.append([message(tail, b"1" * (1 << 22), properties=b"KEYS\x01big\x02")] * 3)
        assert len(store.reader.query("T", "big", begin_ms=0, end_ms=FOREVER).records) == 1


def test_full_files_are_followed_by_new_ones_even_within_a_message(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        for number in range(10):
            store.append([keyed_message(store, number, f"k x{number} k", f"u{number}")])
        assert bodies(store, "k") == list(range(9, -1, -1))
        assert [bodies(store, f"u{n}") + bodies(store, f"x{n}") for n in range(10)] == [
            [n, n] for n in range(10)
        ]
        assert len(names(tmp_path)) == 4
    assert {path.stat().st_size for path in (tmp_path / "index").iterdir()} == {file_bytes(5, 12)}


def test_a_message_with_more_keys_than_a_file_has_entries(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        words = [f"w{i}" for i in range(50)]
        store.append([keyed_message(store, 1, " ".join(words))])
        assert all(bodies(store, word) == [1] for word in words)


def test_no_index_file_is_made_for_messages_without_keys(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        store.append([message(store.queue_tail("T", 0), properties=b"TAGS\x01a\x02")] * 5)
    assert names(tmp_path) == []


def test_what_is_pending_is_bounded(tmp_path: Path) -> None:
    may_make = threading.Event()

    class Held(OsStorage):
        def create_file(self, path: str, size: int, *, sparse: bool) -> None:
            if "/index/" in path:
                assert may_make.wait(30)
            super().create_file(path, size, sparse=sparse)

    with opened(tmp_path, storage=Held()) as store:
        store.append([keyed_message(store, i, "k") for i in range(PENDING_MAX - 1)])
        assert store.index.indexed_offset == 0
        assert store.index._files._making is None
        store.append([keyed_message(store, 0, "k")])
        # The append has not waited for the first file, which is made by another thread.
        making = store.index._files._making
        assert making is not None
        assert store.index.indexed_offset == 0
        may_make.set()
        making.result()
        store.append([keyed_message(store, 0, "k")])
        assert store.index.indexed_offset == store.end_offset


def test_what_waits_for_a_file_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexFiles, "is_ready", lambda self: False)
    monkeypatch.setattr("motelog.core.store.index.index_service.WAITING_MAX", 2 * PENDING_MAX)
    with opened(tmp_path) as store:
        store.append([keyed_message(store, i, "k") for i in range(2 * PENDING_MAX - 1)])
        assert store.index.indexed_offset == 0
        store.append([keyed_message(store, 0, "k")])
        assert store.index.indexed_offset == store.end_offset


def test_the_next_file_is_made_ahead_by_another_thread(tmp_path: Path) -> None:
    makers: list[str] = []

    class Watching(OsStorage):
        def create_file(self, path: str, size: int, *, sparse: bool) -> None:
            if "/index/" in path:
                makers.append(threading.current_thread().name.rpartition("_")[0])
            super().create_file(path, size, sparse=sparse)

    with opened(tmp_path, storage=Watching(), index_slots=64, index_entries=400) as store:
        for number in range(4):
            store.append([keyed_message(store, number, "k") for _ in range(99)])
            bodies(store, "k")
        assert len(store.index._files.kept) == 1
        making = store.index._files._making
        assert making is not None
        making.result()
        store.append([keyed_message(store, 9, "k") for _ in range(99)])
        assert bodies(store, "k")[0] == 9
        assert len(store.index._files.kept) == 2
        # The first one was waited for by a query, the second one by nobody.
        assert makers == ["", "index-file"]


def test_a_file_made_ahead_and_never_used_goes(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        store.append([keyed_message(store, number, "k") for number in range(9)])
        bodies(store, "k")
        assert store.index._files._making is not None
    assert len(names(tmp_path)) == 1
    store = make_store(tmp_path, **SHAPE)
    store.open()
    store.append([keyed_message(store, 9, "k")])
    bodies(store, "k")
    # A killed process leaves it behind; the next start knows nothing of it.
    store.index._files._making = None
    abandon(store)
    assert len(names(tmp_path)) == 2
    with opened(tmp_path, **SHAPE) as store:
        assert bodies(store, "k") == [*range(9, -1, -1)]


def fill(store: MessageStore) -> None:
    for number in range(20):
        store.append([keyed_message(store, number, f"k k{number}")])


def is_whole(store: MessageStore) -> None:
    assert bodies(store, "k") == list(range(19, -1, -1))
    assert [bodies(store, f"k{n}") for n in range(20)] == [[n] for n in range(20)]


def test_a_clean_start_reads_no_log_for_the_index(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        fill(store)
    before = {name: (tmp_path / "index" / name).read_bytes() for name in names(tmp_path)}
    with opened(tmp_path, **SHAPE) as store:
        is_whole(store)
    assert before == {name: (tmp_path / "index" / name).read_bytes() for name in names(tmp_path)}


@pytest.mark.parametrize("with_checkpoint", [False, True])
async def test_a_crash_loses_no_key(tmp_path: Path, with_checkpoint: bool) -> None:
    store = make_store(tmp_path, **SHAPE)
    store.open()
    fill(store)
    if with_checkpoint:
        await store.checkpoint()
    for number in range(20, 24):
        store.append([keyed_message(store, number, f"late{number}")])
    store.index.dispatch()
    abandon(store)
    with opened(tmp_path, **SHAPE) as store:
        is_whole(store)
        assert [bodies(store, f"late{n}") for n in range(20, 24)] == [[20], [21], [22], [23]]


def remove_first(folder: Path) -> None:
    sorted(folder.iterdir())[0].unlink()


def remove_last(folder: Path) -> None:
    sorted(folder.iterdir())[-1].unlink()


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def shorten(folder: Path) -> None:
    path = sorted(folder.iterdir())[1]
    path.write_bytes(path.read_bytes()[:-20])


def zero(folder: Path) -> None:
    path = sorted(folder.iterdir())[2]
    path.write_bytes(bytes(path.stat().st_size))


def tear_the_end(folder: Path) -> None:
    path = sorted(folder.iterdir())[-1]
    data = path.read_bytes()
    path.write_bytes(data[:80] + bytes(len(data) - 80))


def add_a_file(folder: Path) -> None:
    (folder / "99990101000000000").write_bytes(bytes(file_bytes(5, 12)))


def forget_the_table(folder: Path) -> None:
    (folder.parent / "index.json").unlink()


def forget_all(folder: Path) -> None:
    forget_the_table(folder)
    remove_all(folder)


def damage_the_table(folder: Path) -> None:
    path = folder.parent / "index.json"
    path.write_bytes(path.read_bytes().replace(b"12", b"13"))


DAMAGES: list[Callable[[Path], None]] = [
    remove_first, remove_last, remove_all, shorten, zero, tear_the_end, add_a_file,
    forget_the_table, forget_all, damage_the_table,
]  # fmt: skip


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_index_files_cost_nothing(
    tmp_path: Path, damage: Callable[[Path], None], is_clean: bool
) -> None:
    store = make_store(tmp_path, **SHAPE)
    store.open()
    fill(store)
    store.close()
    if not is_clean:
        (tmp_path / "abort").touch()
    damage(tmp_path / "index")
    with opened(tmp_path, **SHAPE) as store:
        is_whole(store)
        store.append([keyed_message(store, 20, "after")])
        assert bodies(store, "after") == [20]
    with opened(tmp_path, **SHAPE) as store:
        is_whole(store)
        assert bodies(store, "after") == [20]


@pytest.mark.parametrize("number", [0, 1])
def test_an_index_file_that_cannot_be_read_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with opened(tmp_path, **SHAPE) as store:
        fill(store)
    bad = names(tmp_path)[number]
    is_bad = True
    plain = IndexFile.read_header

    def read_header(file: IndexFile) -> None:
        nonlocal is_bad
        if file.name == bad and is_bad:
            is_bad = False
            raise OSError(errno.EIO, "a page is not there")
        plain(file)

    monkeypatch.setattr(IndexFile, "read_header", read_header)
    with opened(tmp_path, **SHAPE) as store:
        assert not is_bad
        is_whole(store)


def test_files_of_another_shape_are_read_as_they_are(tmp_path: Path) -> None:
    with opened(tmp_path, index_slots=9, index_entries=36) as store:
        fill(store)
    before = names(tmp_path)
    (tmp_path / "index.json").unlink()
    with opened(tmp_path, **SHAPE) as store:
        is_whole(store)
        assert names(tmp_path)[: len(before)] == before


def test_keys_of_records_that_the_log_has_lost_are_dropped(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        placed: list[tuple[int, int]] = []
        for number in range(20):
            store.append([keyed_message(store, number, "k")], placed)
    log = tmp_path / "commitlog" / "0".zfill(20)
    data = log.read_bytes()
    log.write_bytes(data[: placed[7][0]] + bytes(len(data) - placed[7][0]))
    with opened(tmp_path, **SHAPE) as store:
        assert bodies(store, "k") == list(range(6, -1, -1))
        store.append([keyed_message(store, 70, "k")])
        assert bodies(store, "k") == [70, *range(6, -1, -1)]


def test_damage_in_the_log_hides_no_later_key(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        placed: list[tuple[int, int]] = []
        for number in range(20):
            store.append([keyed_message(store, number, "k")], placed)
    log = tmp_path / "commitlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[placed[7][0] + 3] ^= 0x40
    data[placed[11][0] + 89] ^= 0x40
    log.write_bytes(data)
    forget_all(tmp_path / "index")
    (tmp_path / "abort").touch()
    with opened(tmp_path, **SHAPE) as store:
        assert bodies(store, "k") == [n for n in range(19, -1, -1) if n not in (7, 11)]


def test_files_wholly_below_the_log_go_and_the_newest_stays(tmp_path: Path) -> None:
    with opened(tmp_path, **SHAPE) as store:
        fill(store)
        bodies(store, "k")
        oldest, second = store.index._files.kept[:2]
        assert store.index.remove_below(1 << 60) == []  # not yet on disk
        store.index.plan()
        assert store.index.remove_below(1 << 60) == []  # a checkpoint may be syncing them
        store.index.plan()
        assert store.index.remove_below(oldest.end_physical) == []
        assert store.index.remove_below(second.end_physical) == [oldest.path]
        assert store.index._files.kept[0] is second
        store.index.remove_below(1 << 60)
        assert len(store.index._files.kept) == 1
        assert bodies(store, "k19") == [19]
        assert bodies(store, "k0") == []


def test_names_ascend_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock, **SHAPE) as store:
        for number in range(20):
            store.append([keyed_message(store, number, "k k k")])
            store.index.dispatch()
            clock.step_wall(-86_400_000)
        made = [file.name for file in store.index._files.kept]
        assert made == sorted(set(made))
        assert bodies(store, "k") == list(range(19, -1, -1))


class FullForTheIndex(RecordingStorage):
    """Fails only what concerns index files."""

    def note(self, call: str, path: str) -> None:
        if "/index/" in path:
            super().note(call, path)


@pytest.mark.parametrize("call", ["create_file", "map_file", "reserve"])
def test_no_room_for_the_index_refuses_no_append_and_is_made_up_for(
    tmp_path: Path, call: str
) -> None:
    storage = FullForTheIndex()
    with opened(tmp_path, storage=storage, **SHAPE) as store:
        store.append([message(store.queue_tail("T", 0), b"0")])
        for number in range(20):
            if number % 6 == 3:
                storage.fail_at[call] = (0, OSError(errno.ENOSPC, "no space"))
            store.append([keyed_message(store, number, f"k k{number}")])
            store.index.dispatch()
        storage.fail_at.clear()
        is_whole(store)
        assert store.index.indexed_offset == store.end_offset


def test_a_closed_store_answers_no_query(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(StoreError):
        store.reader.query("T", "k", begin_ms=0, end_ms=1)
