"""Each configuration key says what it is in a docstring directly below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.repository import PACKAGES, ROOT

SECTIONS = sorted(
    path
    for folder in PACKAGES
    for path in (ROOT / folder).rglob("config.py")
    if "(msgspec.Struct" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_configuration_key_says_what_it_is(path: Path) -> None:
    missing = []
    for section in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(section, ast.ClassDef):
            continue
        for key, below in zip(section.body, [*section.body[1:], None], strict=True):
            is_said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(key, ast.AnnAssign) and not is_said:
                missing.append(f"{section.name}.{ast.unparse(key.target)}")
    assert missing == []


def test_all_sections_are_found() -> None:
    assert len(SECTIONS) >= 5
