"""State files: what a crash or damage leaves to read."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from motelog.core.errors import StoreDamagedError
from motelog.core.state_file import StateFile
from motelog.core.store.disk.files import OsStorage
from tests.support.simulated_disk import ROOT, CrashModel, Image, SimulatedDisk

KEPT = {"dataVersion": {"counter": 7}, "offsetTable": {"T@G": {"0": 41, "1": 9}}}
NEWEST = {"dataVersion": {"counter": 8}, "offsetTable": {"T@G": {"0": 42, "1": 9}}}


def state_file(directory: Path, storage: OsStorage | None = None) -> StateFile:
    return StateFile(str(directory / "config" / "x.json"), holds="offsets", storage=storage)


def loaded(file: StateFile) -> dict[str, Any] | None:
    return file.load(dict)


def content(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    del value["crc32c"]
    return value


def test_a_file_that_never_was_is_nothing(tmp_path: Path) -> None:
    assert loaded(state_file(tmp_path)) is None


def test_the_last_content_is_read_and_the_one_before_kept(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    file.save({"n": 2})
    assert loaded(file) == {"n": 2}
    assert content(tmp_path / "config/x.json.bak") == {"n": 1}
    assert sorted(p.name for p in (tmp_path / "config").iterdir()) == ["x.json", "x.json.bak"]


def test_a_file_without_a_checksum_is_taken_as_it_is(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    (tmp_path / "config").mkdir()
    Path(file.path).write_text('{"offsetTable":{"T@G":{0:1}}}')
    assert loaded(file) == {"offsetTable": {"T@G": {"0": 1}}}


@pytest.mark.parametrize("damage", [b"", b'{"n"', b"[1]", b"\x00" * 10, None])
def test_a_damaged_or_missing_file_falls_back_to_the_one_before(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    file.save({"n": 2})
    if damage is None:
        Path(file.path).unlink()
    else:
        Path(file.path).write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert loaded(file) == {"n": 1}
    (said,) = caplog.messages
    assert f"path={file.path}" in said
    assert "lost=newest offsets" in said
    # The damaged one must not take the place of the good one before.
    file.save({"n": 3})
    assert loaded(file) == {"n": 3}
    assert content(tmp_path / "config/x.json.bak") == {"n": 1}


@pytest.mark.parametrize("name", ["x.json", "x.json.bak"])
@pytest.mark.parametrize("mask", [0x01, 0x10, 0xFF])
def test_no_flipped_byte_changes_what_is_read(tmp_path: Path, name: str, mask: int) -> None:
    file = state_file(tmp_path)
    file.save(KEPT)
    file.save(NEWEST)
    path = tmp_path / "config" / name
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
        # A changed name of the checksum is a key that nobody reads.
        found = file.load(lambda value: {key: value[key] for key in NEWEST})
        assert found in ([NEWEST] if name.endswith(".bak") else [NEWEST, KEPT]), at
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert loaded(file) == (NEWEST if name.endswith(".bak") else KEPT), size


def test_content_that_is_not_taken_falls_back_too(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    file.save({"m": 2})
    assert file.load(lambda value: _required(value, "n")) == 1


def _required(value: dict[str, Any], name: str) -> Any:
    if name not in value:
        raise ValueError(f"no {name}")
    return value[name]


def test_one_save_is_enough_to_survive_damage(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    Path(file.path).write_bytes(b"{")
    assert loaded(file) == {"n": 1}


def test_a_stop_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    Path(file.path).rename(file.path + ".bak")
    Path(file.path + ".tmp").write_bytes(b'{"n": 2')
    assert loaded(file) == {"n": 1}
    file.save({"n": 3})
    assert loaded(file) == {"n": 3}


def test_damage_of_both_is_named_not_overwritten(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    file.save({"n": 1})
    for path in (tmp_path / "config").iterdir():
        path.write_bytes(b"{")
    with pytest.raises(StoreDamagedError) as damaged:
        loaded(file)
    assert damaged.value.path == file.path


def test_a_full_disk_leaves_what_was_saved(tmp_path: Path) -> None:
    class FullStorage(OsStorage):
        def replace_file(self, path: str, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    state_file(tmp_path).save({"n": 1})
    file = state_file(tmp_path, FullStorage())
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.save({"n": 2})
    assert loaded(file) == {"n": 1}


def test_a_power_cut_at_any_moment_leaves_what_a_finished_save_wrote() -> None:
    disk = SimulatedDisk()
    finished: list[int] = []  # how many events there were when each save returned
    file = StateFile(f"{ROOT}/config/x.json", holds="offsets", storage=disk)
    for number in range(4):
        file.save({"n": number, "filler": "f" * 6000})
        finished.append(len(disk.events))
    chance = random.Random(7)
    for end in range(len(disk.events) + 1):
        model = CrashModel.of(Image())
        for event in disk.events[:end]:
            model.apply(event)
        least = sum(events <= end for events in finished) - 1
        for image in [model.after_kill(), *(model.after_power_cut(chance) for _ in range(30))]:
            after = StateFile(
                f"{ROOT}/config/x.json", holds="offsets", storage=SimulatedDisk(image)
            )
            found = loaded(after)
            if found is None:
                assert least < 0
            else:
                assert found["n"] in (least, least + 1)
