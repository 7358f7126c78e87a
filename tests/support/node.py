"""Packages from npm for tests with real JavaScript clients.

Owns: a folder below ``build/node`` for each package, filled once. Skips the test visibly, with the
reason, where Node.js or the package is not available.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.lock_file import file_lock

ROOT = Path(__file__).resolve().parent.parent.parent
ALI_ONS = "ali-ons@3.12.0"
INSTALLED_WITHIN_S = 120


def node_modules(*packages: str) -> Path:
    """Return the ``node_modules`` folder that holds ``packages`` (``name@version``)."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    folder = ROOT / "build" / "node" / re.sub(r"[^a-z0-9.-]+", "_", " ".join(packages))
    stamp = folder / "installed"
    with file_lock(folder / "lock"):
        if not stamp.exists():
            (folder / "package.json").write_text('{"private": true}\n')
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", *packages]
            installed = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S
            )
            if installed.returncode:
                pytest.skip(f"{' '.join(command)} failed: {installed.stderr.strip()[-300:]}")
            stamp.touch()
    return folder / "node_modules"
