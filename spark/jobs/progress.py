"""Prints a query's progress on standard error: when it runs or waits, and each batch.

Owns: the text. Must not touch: the query; its progress is an argument.
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
    """The printed progress of one query; lines begin with ``name``; it reads ``topic``."""

    def __init__(self, name: str, topic: str) -> None:
        self._name = name
        self._topic = topic
        self._told = -1
        self._messages = 0
        self._looks = 0

    def begin(self) -> None:
        """Print that Spark has started and the query is running."""
        self._write(f"reading topic {self._topic!r}; Ctrl-C stops it")

    def tell(self, recent: Sequence[P], *, reads: bool) -> list[P]:
        """Print the batches of pyspark's ``recentProgress`` that have read messages, each once.

        Return these batches.

        The last batch alone is not enough: a batch without rows may follow at once, to advance the
        watermark. ``reads`` says whether a batch is being read now. Called each second. If there
        was nothing to read for some time, that is printed too.
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
        # The first batch may take long, and is not printed before it ends.
        self._looks = 0 if reads or new else self._looks + 1
        if self._looks == LOOKS_UNTIL_IT_WAITS and self._told < 0:
            self._write(f"waiting: {self._topic!r} has no new messages, or does not exist yet")
        return new

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()


def _behind(batch: Batch) -> str:
    """Return how many messages a batch left, and the age of its oldest message at its end."""
    left = batch.lag - batch.messages if batch.lag is not None else 0
    waiting = f"; {left:,} more are waiting" if left else ""
    return waiting if batch.delay_s is None else f"{waiting}; {batch.delay_s:,.1f} s behind"
