"""POP's appends: all of a turn in one batch.

Owns: what a turn has staged. Must not touch: the content of records (records), the answers: callers
pass callbacks when they stage. Spec: none; RocketMQ appends each record alone.

    stage, stage, ... flush -> one append -> appended, with each one's places
                                          -> refused, all of them
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from motelog.core.broker.waiting.append_line import AppendLine
from motelog.core.errors import StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.records.append import AppendMessage

logger = logging.getLogger(__name__)

#: (physical offset, queue offset) of each message, and the end of the append in the log.
Appended = Callable[[list[tuple[int, int]], int], None]
Refused = Callable[[StoreError], None]


@dataclass(frozen=True, slots=True)
class _Staged:
    count: int
    appended: Appended
    refused: Refused


class PopLog:
    """The records that POP appends; state changes only within a turn."""

    def __init__(self, line: AppendLine) -> None:
        self._line = line
        self._messages: list[AppendMessage] = []
        self.staged: list[_Staged] = []
        self._faults = LimitedLog(logger)

    def stage(self, messages: list[AppendMessage], *, appended: Appended, refused: Refused) -> None:
        """Append ``messages`` with the others of this turn, then call one of the callbacks."""
        self._messages += messages
        self.staged.append(_Staged(len(messages), appended, refused))

    def flush(self) -> None:
        """Append what was staged; called after each turn, and after work outside of turns."""
        # A callback may stage again: an answered pop wakes the next.
        while self.staged:
            messages, self._messages = self._messages, []
            staged, self.staged = self.staged, []
            placed: list[tuple[int, int]] = []

            def appended(
                end_offset: int,
                staged: list[_Staged] = staged,
                placed: list[tuple[int, int]] = placed,
            ) -> None:
                self._tell_appended(staged, placed, end_offset)

            def refused(exc: StoreError, staged: list[_Staged] = staged) -> None:
                for one in staged:
                    with self._faults.boundary("refusing a pop failed, a fault of this server"):
                        one.refused(exc)

            try:
                end_offset = self._line.append(messages, placed)
            except StoreError as exc:
                refused(exc)
                continue
            if end_offset is None:
                self._line.wait(messages, placed, appended=appended, refused=refused)
            else:
                appended(end_offset)

    def _tell_appended(
        self, staged: list[_Staged], placed: list[tuple[int, int]], end_offset: int
    ) -> None:
        begin = 0
        for one in staged:
            places = placed[begin : begin + one.count]
            begin += one.count
            with self._faults.boundary("answering a pop failed, a fault of this server"):
                one.appended(places, end_offset)
