"""A mapped file that is cut, or cannot be read, is an error and not the end of the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mapped_access.py")


def run(folder: Path, what: str, *more: str) -> tuple[dict[str, Any], int]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(folder), *more],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout), done.returncode


def test_every_kernel_function_tells_of_a_page_that_is_gone(tmp_path: Path) -> None:
    found, status = run(tmp_path, "kernels")
    assert status == 0
    assert found.pop("before the end") == "done"
    assert found == dict.fromkeys(found, "errno 5")
    assert len(found) == 15


def test_keys_before_a_page_that_is_gone_are_put_once(tmp_path: Path) -> None:
    found, status = run(tmp_path, "records")
    assert status == 0
    assert found == {"first": [True, 0, "COUNT"], "again": "errno 5", "next entry": 2}


def test_a_store_whose_files_are_cut_tells_of_it_and_reads_the_others(tmp_path: Path) -> None:
    found, status = run(tmp_path, "store")
    assert status == 0
    fence = found.pop("fence")
    assert found == {
        "cut": "StoreError",
        "record_at": "StoreError",
        "again": "StoreError",
        "other file": 6,
        "append": "done",
        "query": "StoreError",
        "append to a cut file": "StoreFencedError",
        "append after it": "StoreFencedError",
    }
    assert "half way" in fence


@pytest.mark.parametrize("more", [(), ("faulthandler",)])
def test_a_fault_of_somebody_else_ends_the_process_as_it_always_did(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    found, status = run(tmp_path, "unguarded", *more)
    assert found == {"guarded": "errno 5"}
    assert status == -signal.SIGBUS


def test_a_signal_from_outside_is_no_fault(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from motelog.core.records.read import copy_out; copy_out(b'1', 0, 1)\n"
        "os.kill(os.getpid(), signal.SIGBUS)"
    )
    root = PROGRAM.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], cwd=tmp_path, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGBUS
