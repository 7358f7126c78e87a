"""The command that installs what is missing, from a checkout and elsewhere."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from motelog.cli.tools import install_command


@pytest.fixture(autouse=True)
def _own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pip of this Python be the one that a shell finds."""
    pip = str(Path(sys.executable).parent / "pip")
    monkeypatch.setattr(shutil, "which", lambda name: pip)


def test_a_checkout_installs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "motelog"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert install_command("spark", package=package) == "pip install -e '.[spark]'"
    assert install_command(package=package) == "pip install -e ."
    monkeypatch.chdir("/")
    expected = f"pip install -e '{tmp_path}[spark]'"
    assert install_command("spark", package=package) == expected


def test_an_installed_package_comes_from_the_index(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "motelog"
    assert install_command("spark", package=package) == "pip install 'motelog[spark]'"


def test_another_python_in_the_path_is_not_installed_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/pip")
    command = install_command("spark", package=tmp_path / "site-packages" / "motelog")
    assert command == f"{sys.executable} -m pip install 'motelog[spark]'"
