"""What belongs to this repository, for the tests that read its files.

Owns: the root, the lists of source and tracked files, what a source file says of itself. Must not
touch: any file.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
#: Folder -> the name under which it is imported.
PACKAGES = {"src/motelog": "motelog"} | {
    folder: f"motelog.{folder}" for folder in ("gateway", "core", "bridge", "spark", "loadtest")
}


def source_files() -> list[Path]:
    """Return every Python file of the packages and the tests."""
    found = [*ROOT.glob("*.py"), *(ROOT / "src").glob("*.py")]
    for folder in (*PACKAGES, "tests"):
        found += (ROOT / folder).rglob("*.py")
    return sorted(found)


def is_in_package(path: Path) -> bool:
    """Tell a file that is installed from one of the tests, the benches or the build."""
    if path.is_relative_to(ROOT / "loadtest" / "bench"):
        return False
    return any(path.is_relative_to(ROOT / folder) for folder in PACKAGES)


def module_name(path: Path) -> str:
    """Return the name under which a package's file or folder is imported."""
    for folder, package in PACKAGES.items():
        if path.is_relative_to(ROOT / folder):
            return ".".join((package, *path.with_suffix("").relative_to(ROOT / folder).parts))
    raise ValueError(f"{path} is in no package")


class Source(NamedTuple):
    """What the tests ask of a Python file."""

    docstring: str
    statements: int
    #: (line, module, how many dots stand before it), wherever an import stands.
    imports: list[tuple[int, str, int]]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what stands in blocks at any depth; expressions, most of a tree, hold no statement."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, ())
            if isinstance(inner, list):
                left += inner


@cache
def source(path: Path) -> Source:
    """Return a Python file's facts; it is parsed once for all tests of a process."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements, imports = 0, []
    for node in _statements(tree):
        statements += isinstance(node, ast.stmt)
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.lineno, node.module or "", node.level))
    return Source(ast.get_docstring(tree) or "", statements, imports)


@cache
def project_settings() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_files() -> list[Path] | None:
    """Return the files under version control, or None where that cannot be asked."""
    try:
        result = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    names = result.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]
