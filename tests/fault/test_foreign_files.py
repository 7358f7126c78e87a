"""CommitLog files that are not what their place says: stale, exchanged, cut, gone.

Each record names its own place, so a whole record in another place is no message.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from motelog.core.errors import StoreDamagedError
from motelog.core.store.state.recovery_report import RecoveryReport
from tests.support.ledger import Ledger
from tests.support.stores import abandon, make_store

FILE_BYTES = 8192
FILES = 5


def log_path(folder: Path, number: int) -> Path:
    return folder / "commitlog" / f"{number * FILE_BYTES:020d}"


def crashed(folder: Path, *, is_durable: bool = False) -> Ledger:
    """A folder with messages in FILES files, as a killed process leaves it."""
    ledger = Ledger(random.Random(1))
    store = make_store(folder, commitlog_file_bytes=FILE_BYTES)
    store.open()
    while store.end_offset < (FILES - 1) * FILE_BYTES + 1_000:
        ledger.append(store, 5)
    if is_durable:
        store.close()
        (folder / "abort").touch()
    abandon(store)
    for number in range(FILES, FILES + 3):
        log_path(folder, number).unlink(missing_ok=True)
    # So that a start looks at every record.
    for path in folder.glob("checkpoint*"):
        path.unlink()
    return ledger


def check(folder: Path, ledger: Ledger, required: set[int]) -> RecoveryReport:
    """Start, look, append, start again; return what the first start said."""
    store = make_store(folder)
    report = store.open()
    found = ledger.check(store, required)
    ledger.adopt(store, found)
    ledger.append(store, 20)
    store.close()
    again = make_store(folder)
    again.open()
    assert ledger.check(again, ledger.appended) == ledger.appended
    again.close()
    return report


def test_the_rest_of_a_file_that_was_used_before_is_no_data(tmp_path: Path) -> None:
    """Blocks of an older file behind the end: whole records, with another offset of their own."""
    ledger = crashed(tmp_path)
    old = log_path(tmp_path, 0).read_bytes()
    last = log_path(tmp_path, FILES - 1)
    content = last.read_bytes()
    used = len(content.rstrip(b"\0"))
    last.write_bytes(content[:used] + old[used:])
    report = check(tmp_path, ledger, set(ledger.appended))
    assert report.damage == []
    assert report.cut_bytes > 0


def test_a_file_made_ahead_of_old_blocks_is_no_data(tmp_path: Path) -> None:
    ledger = crashed(tmp_path)
    log_path(tmp_path, FILES).write_bytes(log_path(tmp_path, 1).read_bytes())
    report = check(tmp_path, ledger, set(ledger.appended))
    assert report.damage == []
    assert len(report.moved_aside) == 1


def test_exchanged_files_cost_their_messages_and_no_others(tmp_path: Path) -> None:
    ledger = crashed(tmp_path, is_durable=True)
    one, two = log_path(tmp_path, 1), log_path(tmp_path, 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    elsewhere = {
        number
        for number in ledger.appended
        if FILE_BYTES <= (ledger.known[number].physical_offset or 0) < 3 * FILE_BYTES
    }
    report = check(tmp_path, ledger, ledger.appended - elsewhere)
    assert report.damage


def remove_one(folder: Path) -> None:
    log_path(folder, 2).unlink()


def cut_one(folder: Path) -> None:
    with log_path(folder, 2).open("r+b") as file:
        file.truncate(100)


def cut_last(folder: Path) -> None:
    with log_path(folder, FILES - 1).open("r+b") as file:
        file.truncate(4_000)


@pytest.mark.parametrize("change", [remove_one, cut_one, cut_last], ids=lambda c: c.__name__)
def test_a_gap_in_the_log_is_named_and_nothing_is_changed(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    crashed(tmp_path)
    change(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="commitlog/0"):
            make_store(tmp_path).open()
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before


def test_a_first_file_that_is_gone_costs_its_messages_only(tmp_path: Path) -> None:
    ledger = crashed(tmp_path)
    log_path(tmp_path, 0).unlink()
    ledger.forget_below(FILE_BYTES)
    check(tmp_path, ledger, set(ledger.appended))
