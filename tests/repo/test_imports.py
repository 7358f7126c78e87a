"""Outside names in their corners; what import-linter checks is in pyproject.toml (make lint)."""

from __future__ import annotations

import pytest

from tests.support.repository import ROOT, is_in_package, source, source_files

# Foreign package -> the only folders that may import it (docs/architecture.md).
CORNERS = {
    "pyspark": ("spark", "loadtest/bench", "tests", "src/pyspark_motelog.py"),
    "pyarrow": ("spark", "loadtest/bench", "tests"),
    "locust": ("loadtest", "tests"),
    "gevent": ("loadtest", "tests"),
    "paho": ("loadtest", "tests"),
    "amqtt": ("tests",),
    "h11": ("src/motelog/console", "tests"),
    "jinja2": ("src/motelog/console", "tests"),
    "starlette": ("src/motelog/console", "tests"),
    "typer": ("src/motelog/cli", "tests"),
    "pytest": ("tests", "src/motelog/pytest_plugin.py"),
    "asyncio": ("bridge/asyncio_base.py", "tests"),
    "prometheus_client": ("core/metrics.py", "tests"),
    "jwt": ("gateway/access/tokens.py", "tests"),
    "lark": ("core/filter/sql_compiler.py", "tests"),
    "yaml": ("core/acl/files.py", "tests"),
    "opentelemetry": ("src/motelog/otel.py", "tests"),
    "mmap": ("core/store/disk/files.py", "bridge/mapped_log.py", "loadtest/bench", "tests"),
}


@pytest.mark.parametrize("name", sorted(CORNERS))
def test_outside_package_stays_in_its_corner(name: str) -> None:
    allowed = tuple(str(ROOT / corner) for corner in CORNERS[name])
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        if not str(path).startswith(allowed)
        for line, module, _ in source(path).imports
        if module.partition(".")[0] == name
    ]
    assert found == []


def test_imports_inside_the_project_are_absolute() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        for line, _, dots in source(path).imports
        if dots
    ]
    assert found == []


def test_nothing_imports_the_tests() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if is_in_package(path)
        for _, module, _ in source(path).imports
        if module.partition(".")[0] == "tests"
    ]
    assert found == []
