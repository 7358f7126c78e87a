"""How far a running query is, told on standard error: that it runs or waits, each batch it reads.

Owns: the wording. Must not touch: the query; its progress is handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

P = TypeVar("P", bound=Mapping[str, Any])
LOOKS_UNTIL_IT_WAITS: Final = 10


class Progress:
    """What has been told of one query; ``name`` begins each line, ``topic`` is what it reads."""

    def __init__(self, name: str, topic: str) -> None:
        self._name = name
        self._topic = topic
        self._told = -1
        self._messages = 0
        self._looks = 0

    def begin(self) -> None:
        """Tell that Spark has started and the query runs."""
        self._write(f"reads the topic {self._topic!r}; Ctrl-C stops it")

    def tell(self, recent: Sequence[P], *, reads: bool) -> list[P]:
        """Tell of the batches of pyspark's ``recentProgress`` that have read anything, each once.

        They are returned.

        The last one alone would not do: a batch without rows may follow at once, to move the
        watermark. ``reads`` is whether a batch is being read now. It is asked each second. When
        there was nothing to read for some time, that is told, too.
        """
        new = [one for one in recent if one["numInputRows"] and one["batchId"] > self._told]
        for one in new:
            self._told = one["batchId"]
            self._messages += one["numInputRows"]
            rate = one["processedRowsPerSecond"]
            self._write(
                f"batch {self._told}: {one['numInputRows']:,} messages"
                f" at {rate:,.0f} /s, {self._messages:,} so far"
            )
        # The first batch may take long, and has not been told of while it does.
        self._looks = 0 if reads or new else self._looks + 1
        if self._looks == LOOKS_UNTIL_IT_WAITS and self._told < 0:
            self._write(f"waits: {self._topic!r} has no new messages, or does not exist yet")
        return new

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()
