"""How far a running query is, told on standard error: a line for each batch that has read anything.

Owns: the wording. Must not touch: the query; its progress is handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


class Progress:
    """What has been told of one query; ``name`` begins each line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: int | None = None
        self._messages = 0

    def tell(self, progress: Mapping[str, Any] | None) -> None:
        """Tell of a batch (pyspark's ``lastProgress``, None before the first), once."""
        if progress is None or progress["batchId"] == self._told or not progress["numInputRows"]:
            return
        self._told = progress["batchId"]
        self._messages += progress["numInputRows"]
        rate = progress["processedRowsPerSecond"]
        sys.stderr.write(
            f"{self._name}: batch {self._told}: {progress['numInputRows']:,} messages"
            f" at {rate:,.0f} /s, {self._messages:,} so far\n"
        )
        sys.stderr.flush()
