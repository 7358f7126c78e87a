"""How far a running query is, told on standard error: that it runs or waits, each batch it reads.

Owns: the wording. Must not touch: the query; its progress is handed in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

LOOKS_UNTIL_IT_WAITS: Final = 10


class Progress:
    """What has been told of one query; ``name`` begins each line, ``topic`` is what it reads."""

    def __init__(self, name: str, topic: str) -> None:
        self._name = name
        self._topic = topic
        self._told: int | None = None
        self._messages = 0
        self._looks = 0

    def begin(self) -> None:
        """Tell that Spark has started and the query runs."""
        self._write(f"reads the topic {self._topic!r}; Ctrl-C stops it")

    def tell(self, progress: Mapping[str, Any] | None, *, reads: bool) -> None:
        """Tell of a batch (pyspark's ``lastProgress``, None before the first), once.

        ``reads`` is whether a batch is being read now. It is asked each second. When there was
        nothing to read for some time, that is told, too.
        """
        if progress is None or not progress["numInputRows"]:
            # The first batch may take long, and has not been told of while it does.
            self._looks = 0 if reads else self._looks + 1
            if self._looks == LOOKS_UNTIL_IT_WAITS and self._told is None:
                self._write(f"waits: {self._topic!r} has no new messages, or does not exist yet")
            return
        if progress["batchId"] == self._told:
            return
        self._told = progress["batchId"]
        self._messages += progress["numInputRows"]
        rate = progress["processedRowsPerSecond"]
        self._write(
            f"batch {self._told}: {progress['numInputRows']:,} messages"
            f" at {rate:,.0f} /s, {self._messages:,} so far"
        )

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()
