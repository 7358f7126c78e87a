"""Errors of the Spark source and sink.

Owns: SourceError and its subclasses, finding them in Spark's reports. Must not touch: pyspark,
since the pure parts raise these too.
"""

from __future__ import annotations

import re
from typing import Final

from motelog.core.errors import MotelogError

# An error of ours as Spark reports it: the last line of a traceback inside a longer text.
_OURS: Final = re.compile(r"^motelog\.[\w.]+Error: (.+)$", re.MULTILINE)


def our_sentence(exc: BaseException) -> str:
    """Return the text of our own error, even if Spark wrapped it; else the text of ``exc``."""
    found = _OURS.findall(str(exc))
    return found[-1] if found and not isinstance(exc, MotelogError) else str(exc)


class SourceError(MotelogError):
    """Root of the Spark source's errors."""


class JobUsageError(SourceError):
    """The options of a job are wrong."""


class OptionError(SourceError):
    """The value of an option cannot be used; carries the option's name."""

    def __init__(self, option: str, value: str, expected: str) -> None:
        super().__init__(f"option {option!r} is {value!r}, expected {expected}")
        self.option = option
        self.value = value
        self.expected = expected


class OffsetFormatError(SourceError):
    """JSON offsets (of a checkpoint or an option) do not have the format of this source."""


class DataLossError(SourceError):
    """The broker has deleted messages that the query had not read yet.

    ``queue`` is "broker/queue id"; the lost messages are [offset_begin, offset_end).
    """

    def __init__(
        self, topic: str, queue: str, *, offset_begin: int, offset_end: int, why: str
    ) -> None:
        super().__init__(
            f"topic {topic!r} queue {queue!r}: messages [{offset_begin}, {offset_end}) are lost:"
            f" {why}. With option 'failOnDataLoss' = 'false' the query continues with the rest."
        )
        self.topic = topic
        self.queue = queue
        self.offset_begin = offset_begin
        self.offset_end = offset_end


class OutageError(SourceError):
    """The broker or name server could not be reached for longer than option 'outageSecondsMax'."""


class RecordFormatError(SourceError):
    """A pulled body contains bytes that are not a record, or a payload that cannot be inflated."""


class ColumnError(SourceError):
    """The columns to write cannot be those of messages."""


class ModeError(SourceError):
    """The sink cannot write in this mode."""


class RowError(SourceError):
    """A row cannot become a message."""


class ReplacedError(SourceError):
    """Another attempt at the same rows has begun, because this one paused for too long."""


class LedgerGapError(SourceError):
    """The messages that show which rows of an earlier attempt are in the log are gone."""
