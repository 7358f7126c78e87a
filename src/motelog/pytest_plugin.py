"""pytest plugin: the fixture ``motelog_stack``, one Motelog process for the whole test session.

Owns: the fixture. Must not touch: how the process is run (motelog.testing).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from motelog.testing import MotelogProcess


@pytest.fixture(scope="session")
def motelog_stack() -> Iterator[MotelogProcess]:
    """A running stack with an initially empty store; tests that share it use their own topics."""
    with MotelogProcess() as motelog:
        yield motelog
