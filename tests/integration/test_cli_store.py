"""``motelog store`` as a user runs it: what it prints and its exit statuses."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from motelog.cli.output import CliError
from motelog.cli.store import verify
from tests.support.cli import motelog_here
from tests.support.stores import message, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with opened(tmp_path / "store") as store:
        for number in range(20):
            store.append([message(store.queue_tail("T", 0), b"body %d \x1b[2J" % number)])
    return tmp_path / "store"


def test_a_sound_store_is_shown_verified_dumped_and_counted(folder: Path) -> None:
    shown = motelog_here("store", "inspect", str(folder))
    assert shown.returncode == 0
    assert "stopped cleanly" in shown.stdout
    assert "ignored" not in shown.stdout
    assert f"flushed: on disk up to physical offset {10 * 103 + 10 * 104}" in shown.stdout
    verified = motelog_here("store", "verify", str(folder), "--json")
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["records"] == 20
    dumped = motelog_here("store", "dump", str(folder), "--count", "3")
    assert [line.split()[2] for line in dumped.stdout.splitlines()] == ["0", "1", "2"]
    # A message must not be able to write to the terminal.
    assert "\x1b" not in dumped.stdout
    counted = motelog_here("store", "stats", str(folder), "--json")
    assert json.loads(counted.stdout)["topics"]["T"]["records"] == 20


def test_a_reader_of_a_dump_that_has_seen_enough_is_no_fault_of_the_disk(folder: Path) -> None:
    command = [sys.executable, "-m", "motelog", "store", "dump", str(folder)]
    ours, its = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(command, stdout=its, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(its)
    assert (done.returncode, done.stderr) == (1, b"")


def test_damage_ends_with_status_1_and_says_what_it_costs(folder: Path) -> None:
    path = folder / "commitlog" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    verified = motelog_here("store", "verify", str(folder))
    assert verified.returncode == 1
    assert f"{path}, byte 0: not a record, bad crc" in verified.stdout
    assert "are lost" in verified.stdout
    planned = motelog_here("store", "repair", str(folder), "--dry-run", "--json")
    assert planned.returncode == 1
    assert len(json.loads(planned.stdout)["damage"]) == 1
    assert path.read_bytes() == data


def test_a_file_that_cannot_be_read_is_said_to_be_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(view: memoryview, *more: object) -> None:
        raise OSError(errno.EIO, "a page of a mapped file is not there or cannot be read")

    monkeypatch.setattr("motelog.core.store.tools.inspection.collect", collect)
    with pytest.raises(CliError, match="a page of a mapped file") as caught:
        verify(folder)
    assert (caught.value.status, "dmesg" in str(caught.value.remedy)) == (1, True)


def test_a_folder_without_a_store_ends_with_status_3(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    wrong = motelog_here("store", "verify", str(tmp_path / "empty"))
    assert (wrong.returncode, "is not a store" in wrong.stderr) == (3, True)


def test_wrong_use_ends_with_status_2(folder: Path) -> None:
    assert motelog_here("store", "repair", str(folder)).returncode == 2
    assert motelog_here("store").returncode == 2


def test_a_log_is_cut_where_a_record_begins(folder: Path) -> None:
    end, at = 10 * 103 + 10 * 104, 10 * 103 + 4 * 104
    asked = motelog_here("store", "cut", str(folder), "--at", str(at + 1), "--dry-run")
    assert asked.returncode == 2
    assert f"the nearest places are {at} and {at + 104}" in asked.stderr
    planned = motelog_here("store", "cut", str(folder), "--at", str(at), "--dry-run")
    assert planned.returncode == 0
    assert f"would cut 6 records, {end - at} bytes, stored from 20" in planned.stdout
    assert motelog_here("store", "cut", str(folder), "--at", str(at)).returncode == 2
    assert not (folder / "damaged").exists()
    done = motelog_here("store", "cut", str(folder), "--at", str(at), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["is_done"], found["records"], found["bytes"]) == (True, 6, end - at)
    assert found["topics"] == {"T": 6}
    assert [Path(path).parent.name for path in found["kept_in"]] == ["damaged"]
    again = motelog_here("store", "cut", str(folder), "--at", str(at), "--yes")
    assert "nothing to cut" in again.stdout
    with opened(folder) as store:
        assert store.reader.max_offset("T", 0) == 14
        busy = motelog_here("store", "cut", str(folder), "--at", "0", "--yes")
        assert (busy.returncode, "open in another process" in busy.stderr) == (1, True)
        assert store.end_offset == at


def test_a_folder_without_a_store_is_not_cut(tmp_path: Path) -> None:
    assert motelog_here("store", "cut", str(tmp_path), "--at", "0", "--yes").returncode == 3
    assert list(tmp_path.iterdir()) == []
