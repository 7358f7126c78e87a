"""Shared by the integration tests: what all tests of a process use ends with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.java import DRIVER


@pytest.fixture(autouse=True, scope="session")
def _end_of_java_drivers() -> Iterator[None]:
    yield
    DRIVER.close()
