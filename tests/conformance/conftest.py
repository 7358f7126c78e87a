"""Shared by the conformance tests: a gateway of its own for each."""

from __future__ import annotations

import pytest

from tests.conformance.peers import Gateway


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()
