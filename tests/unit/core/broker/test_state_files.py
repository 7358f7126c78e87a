"""State files: what a crash or damage leaves to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.broker.state_files import StateFile
from core.errors import StoreDamagedError
from core.store.files import OsStorage


def test_a_file_that_never_was_is_empty(tmp_path: Path) -> None:
    assert StateFile(str(tmp_path), "x.json").load() == {}


def test_the_last_content_is_read_and_the_one_before_kept(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), "x.json")
    file.save({"n": 1})
    file.save({"n": 2})
    assert file.load() == {"n": 2}
    assert json.loads((tmp_path / "config/x.json.bak").read_text()) == {"n": 1}
    assert sorted(p.name for p in (tmp_path / "config").iterdir()) == ["x.json", "x.json.bak"]


@pytest.mark.parametrize("damage", [b"", b'{"n"', b"[1]", b"\x00" * 10])
def test_a_damaged_file_falls_back_to_the_one_before(tmp_path: Path, damage: bytes) -> None:
    file = StateFile(str(tmp_path), "x.json")
    file.save({"n": 1})
    file.save({"n": 2})
    Path(file.path).write_bytes(damage)
    assert file.load() == {"n": 1}
    # The damaged one must not take the place of the good backup.
    file.save({"n": 3})
    assert file.load() == {"n": 3}
    assert json.loads((tmp_path / "config/x.json.bak").read_text()) == {"n": 1}


def test_a_stop_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), "x.json")
    file.save({"n": 1})
    Path(file.path).rename(file.path + ".bak")
    Path(file.path + ".tmp").write_bytes(b'{"n": 2')
    assert file.load() == {"n": 1}
    file.save({"n": 3})
    assert file.load() == {"n": 3}


def test_damage_of_both_is_named_not_overwritten(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), "x.json")
    file.save({"n": 1})
    Path(file.path).write_bytes(b"{")
    with pytest.raises(StoreDamagedError) as damaged:
        file.load()
    assert damaged.value.path == file.path


def test_a_full_disk_leaves_what_was_saved(tmp_path: Path) -> None:
    class FullStorage(OsStorage):
        def replace_file(self, path: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    StateFile(str(tmp_path), "x.json").save({"n": 1})
    file = StateFile(str(tmp_path), "x.json", storage=FullStorage())
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.save({"n": 2})
    assert file.load() == {"n": 1}
