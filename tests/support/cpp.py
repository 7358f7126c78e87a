"""RocketMQ's C++ client from PyPI's ``rocketmq``, whose wheel brings the library with it.

Owns: the folder build/cpp, filled once. Skips the test visibly, with the reason, where the package
is not available.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.java import ROOT
from tests.support.lock_file import file_lock

PACKAGE = "rocketmq==0.4.4"
BUILD = ROOT / "build" / "cpp"
INSTALLED_WITHIN_S = 120


def cpp_packages() -> Path:
    """Return a folder with the package alone: PyPI has another of the same name to import."""
    folder = BUILD / PACKAGE
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # There is no source: only a wheel, for Linux on x86-64.
    command += ["--no-deps", "--only-binary=:all:", "--target", str(folder), PACKAGE]
    with file_lock(BUILD / "lock"):
        if not (folder / "built").exists():
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S
            )
            if done.returncode:
                pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
            (folder / "built").touch()
    return folder
