"""The compiled file batch kernel does and answers what the reference does and answers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.store.disk import _file_batch, _file_batch_py, file_batch
from tests.support.file_batches import FILE_BYTES, NAMES, Piece, run_both

pieces = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(-2, FILE_BYTES + 2), st.binary(max_size=40)),
    max_size=8,
)
before = st.dictionaries(st.sampled_from(NAMES[:4]), st.binary(max_size=FILE_BYTES + 9))


def test_the_suite_runs_against_the_compiled_kernel() -> None:
    assert file_batch.write is _file_batch.write


@settings(max_examples=60, deadline=None)
@given(before=before, pieces=pieces)
def test_compiled_writes_do_what_the_reference_does(
    before: dict[str, bytes], pieces: list[Piece]
) -> None:
    compiled, reference = run_both(before, pieces)
    assert compiled == reference


@pytest.mark.parametrize("kernel", [_file_batch, _file_batch_py], ids=["compiled", "reference"])
def test_a_missing_file_is_made_with_its_size_and_its_directories(
    tmp_path: Path, kernel: object
) -> None:
    write, sync = kernel.write, kernel.sync  # type: ignore[attr-defined]  # either module
    path = str(tmp_path / "T" / "0" / "f")
    assert write([(path, 40, b"unit"), (path, 0, b"first")], 4096) == (2, 0)
    assert Path(path).read_bytes() == b"first".ljust(40, b"\0") + b"unit".ljust(4056, b"\0")
    assert os.listdir(tmp_path / "T" / "0") == ["f"]
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert sync([path, str(tmp_path / "T"), str(tmp_path)]) == (3, 0)
    assert sync([path, path + "x", path]) == (1, errno.ENOENT)
    assert write([(path, 0, b"1"), (f"{path}/x", 0, b"2"), (path, 0, b"3")], 4096)[0] == 1
    assert Path(path).read_bytes()[:5] == b"1irst"
    for bad in (("a\0b", 0, b""), ("a" * 5000, 0, b""), (path, 4096, b"x"), (path, -1, b"")):
        with pytest.raises(ValueError, match=r"path|piece"):
            write([(path, 0, b"not written"), bad], 4096)
    assert Path(path).read_bytes()[:5] == b"1irst"
