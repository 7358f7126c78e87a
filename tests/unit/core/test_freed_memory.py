"""Freed memory is there for the next turn."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# A process of its own, since any other may have freed large blocks before.
TURNS = """
import resource
from motelog.core.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [bytes(9000) for _ in range(256)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a rule of glibc")
def test_a_turns_answers_take_no_page_faults_once_freed_memory_is_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TURNS], check=True, capture_output=True, text=True, timeout=60
    )
    # A turn has 2.3 MB: 562 pages.
    assert int(done.stdout) < 20 * 5
