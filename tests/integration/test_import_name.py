"""Motelog takes one import name, whatever folders a user's own project has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SCRIPT = """
import core, spark, gateway, bridge
assert core.OWNER == "the user's", core.__file__
from motelog import Message, SyncProducer, SyncPullConsumer
import motelog.core.broker.server, motelog.gateway.server, motelog.bridge.client
from importlib.machinery import PathFinder
assert PathFinder.find_spec("pyspark_motelog"), "Spark would not find the source"
print("imported")
"""


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_project_with_folders_of_the_same_names_imports_motelog(tmp_path: Path) -> None:
    for name in ("core", "spark", "gateway", "bridge"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OWNER = "the user\'s"\n')
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run(tmp_path / "script.py") == "imported\n"


@pytest.mark.parametrize("folder", [".", "motelog"], ids=["beside the clone", "in the clone"])
def test_a_script_beside_a_clone_imports_what_is_installed(tmp_path: Path, folder: str) -> None:
    # The interpreter puts the script's folder first on its path, and there a folder "motelog" that
    # is no package: the clone.
    (tmp_path / "motelog").mkdir()
    for entry in ROOT.iterdir():
        if entry.suffix != ".egg-info":
            (tmp_path / "motelog" / entry.name).symlink_to(entry)
    script = tmp_path / folder / "script.py"
    script.write_text(
        "from motelog import Producer; import motelog.spark.options; print('found')\n"
    )
    assert run(script) == "found\n"
