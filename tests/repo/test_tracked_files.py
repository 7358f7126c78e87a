"""What must not be in the repository: paths of one machine, registries, build output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.repository import ROOT, tracked_files

# Written in pieces, so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w/.])/(?:wo" r"rk|ro" r"ot|ho" r"me/\w+|Us" r"ers/\w+)/\w")
REGISTRY = re.compile(
    r"https?://[\w.:@-]*(?:pypi|npmjs|registry|nexus|artifactory|mirror)"
    r"|--(?:extra-)?index-url|_authTo"
    r"ken",
    re.IGNORECASE,
)
BUILD_OUTPUT = re.compile(
    r"\.(?:so|o|pyc|whl|egg-info|class|log)$|(?:^|/)(?:__pycache__|build|dist|node_modules)/"
)
BYTES_MAX = 2_000_000


def files() -> list[Path]:
    found = tracked_files()
    if found is None:
        pytest.skip("not a git checkout")
    return found


def text_of(path: Path) -> str | None:
    data = path.read_bytes()
    return None if b"\0" in data else data.decode(errors="replace")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_no_file_names_a_machine_or_a_registry(pattern: re.Pattern[str]) -> None:
    found = []
    for path in files():
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1):
            if pattern.search(line) and path.name != "package-lock.json":
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_no_build_output_is_tracked() -> None:
    names = [path.relative_to(ROOT).as_posix() for path in files()]
    assert [name for name in names if BUILD_OUTPUT.search(name)] == []


def test_no_file_is_huge() -> None:
    assert [path.name for path in files() if path.stat().st_size > BYTES_MAX] == []
