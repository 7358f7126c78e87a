"""The kernels of records: each interface is whole."""

from __future__ import annotations

from importlib import import_module

import pytest

kernels = pytest.mark.parametrize("name", ["append", "decode", "read", "scan"])


@kernels
def test_every_name_of_the_interface_is_there(name: str) -> None:
    chooser = import_module(f"motelog.core.records.{name}")
    assert [name for name in chooser.__all__ if not hasattr(chooser, name)] == []
