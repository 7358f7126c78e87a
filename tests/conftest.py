"""Shared by all tests: the checkout comes first on the path, so that tests.support is found."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Their tests share one start: of Spark, of the drivers of RocketMQ's client, reading all sources.
SHARED_STARTS = (
    "tests/integration/spark/",
    "tests/integration/test_java_client.py",
    "tests/repo/",
)

# Examples run beside other processes on few cores, so a slow one is no fault.
settings.register_profile("motelog", deadline=None, max_examples=100)
settings.load_profile("motelog")

# Also there when the checkout is on the path but its plugin is not registered.
from motelog.pytest_plugin import motelog_stack as motelog_stack  # noqa: E402  # needs the path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--java-all", action="store_true", help="run the tests marked java_all too")


class SharedStarts(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Each test by itself to whichever worker is free, but all that share a start to one worker.

    Unit tests go by module: each is so short that giving it out costs as much as running it.
    pytest-xdist's own groups write into the node id, which pytest 9 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/unit/"):
            return nodeid.partition("::")[0]
        return next((group for group in SHARED_STARTS if nodeid.startswith(group)), nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget what is done: each choice of work for a worker counts all that it was given."""
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(given[scope].values()):
            del given[scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SharedStarts(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage; what is collected stays, and is never looked through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--java-all"):
        return
    for item in items:
        if item.get_closest_marker("java_all"):
            item.add_marker(pytest.mark.skip(reason="a further pairing: runs with --java-all"))
