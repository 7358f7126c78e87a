"""How far a running query is, told on standard error: that it runs or waits, each batch it reads.

Owns: the wording. Must not touch: the query; its progress is handed in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from motelog.spark.report import Batch, read_batch


class Event(Protocol):
    """pyspark's StreamingQueryProgress."""

    @property
    def json(self) -> str: ...

    def __getitem__(self, key: str, /) -> Any: ...


P = TypeVar("P", bound=Event)
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
            batch = read_batch(json.loads(one.json))
            self._told = batch.number
            self._messages += batch.messages
            self._write(
                f"batch {batch.number}: {batch.messages:,} messages"
                f" at {batch.messages_per_s:,.0f} /s, {self._messages:,} so far{_behind(batch)}"
            )
        # The first batch may take long, and has not been told of while it does.
        self._looks = 0 if reads or new else self._looks + 1
        if self._looks == LOOKS_UNTIL_IT_WAITS and self._told < 0:
            self._write(f"waits: {self._topic!r} has no new messages, or does not exist yet")
        return new

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()


def _behind(batch: Batch) -> str:
    """Say how much a batch has left, and how old the oldest of its messages was at its end."""
    left = batch.lag - batch.messages if batch.lag is not None else 0
    waiting = f"; {left:,} more wait" if left else ""
    return waiting if batch.delay_s is None else f"{waiting}; {batch.delay_s:,.1f} s behind"
