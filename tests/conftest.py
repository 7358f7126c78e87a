"""Shared by all tests: the checkout comes first on the path, so that tests.support is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Examples run beside other processes on few cores, so a slow one is no fault.
settings.register_profile("motelog", deadline=None, max_examples=100)
settings.load_profile("motelog")

# Also there when the checkout is on the path but its plugin is not registered.
from motelog.pytest_plugin import motelog_stack as motelog_stack  # noqa: E402  # needs the path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--java-all", action="store_true", help="run the tests marked java_all too")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark_session" in getattr(item, "fixturenames", ()):
            # One worker runs all of these, so that Spark is started once.
            item.add_marker(pytest.mark.xdist_group("spark"))
    if config.getoption("--java-all"):
        return
    for item in items:
        if item.get_closest_marker("java_all"):
            item.add_marker(pytest.mark.skip(reason="a further pairing: runs with --java-all"))
