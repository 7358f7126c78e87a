"""The key to a store's folder: who can read the folder has it, on this machine alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from motelog.core import reader_key
from motelog.core.reader_key import NAME, read_key, write_key


def test_each_start_makes_another_key_for_its_own_user_alone(tmp_path: Path) -> None:
    first = write_key(str(tmp_path))
    assert len(first) == 32
    assert read_key(str(tmp_path)) == first
    second = write_key(str(tmp_path))
    assert read_key(str(tmp_path)) == second != first
    assert os.stat(tmp_path / NAME).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [NAME]


def test_what_a_crash_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.tmp").write_text("half a k")
    assert read_key(str(tmp_path)) is None
    assert write_key(str(tmp_path)) == read_key(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\n", b"what is this", b"\xff\n\xff", b"\0" * 9999])
def test_another_file_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert read_key(str(tmp_path)) is None


def test_the_key_of_another_machine_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    assert write_key(str(tmp_path))
    monkeypatch.setattr(reader_key, "_BOOT", boot)
    assert read_key(str(tmp_path)) is None
