"""The offset store that docs/consumers.md shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from motelog.bridge.push.offsets import OffsetStore
from motelog.core.message import MessageQueue

PAGE = Path(__file__).parents[4] / "docs" / "consumers.md"


def test_offsets_in_sqlite_survive(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(import sqlite3\n.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    store: OffsetStore = names["SqliteOffsets"](str(tmp_path / "offsets.db"))
    first, second = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
    assert store.load("G", first) is None
    store.save("G", {first: 3, second: 4})
    store.save("G", {first: 5})
    store = names["SqliteOffsets"](str(tmp_path / "offsets.db"))
    assert (store.load("G", first), store.load("G", second), store.load("H", first)) == (5, 4, None)
