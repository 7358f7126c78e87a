"""Recalls among the messages that are due: the messages that they name are not delivered.

Owns: which of the due records were recalled. Must not touch: the order of due times (timer_queue,
which returns the recalls of a time before its messages), deliveries, the store.

    TIMER_DEL_UNIQKEY  unique key     of the message that the recall names
    REAL_TOPIC         topic          of that message
"""

from __future__ import annotations

from collections.abc import Sequence

from motelog.core.broker.delay.timer_queue import Unit, is_recall
from motelog.core.errors import RecordError
from motelog.core.message import REAL_TOPIC, TIMER_DEL_UNIQKEY, UNIQ_KEY, decode_properties
from motelog.core.records.decode import decode


class Recalls:
    """The recalls of one due time; they come before the messages of that time."""

    def __init__(self) -> None:
        self._due_ms = 0
        self._named: set[tuple[str, str]] = set()

    def left(self, units: Sequence[Unit], records: Sequence[bytes]) -> list[bytes]:
        """Return the records to deliver, without recalls and recalled messages.

        The units of one call come after those of the previous call, or are the same again.
        """
        left = []
        for unit, record in zip(units, records, strict=True):
            if unit[0] != self._due_ms:
                self._due_ms = unit[0]
                self._named.clear()
            if is_recall(unit):
                self._named |= _named(record, TIMER_DEL_UNIQKEY)
            elif not self._named or self._named.isdisjoint(_named(record, UNIQ_KEY)):
                left.append(record)
        return left


def _named(record: bytes, key: str) -> set[tuple[str, str]]:
    """Return (topic, unique key) of a record; empty for one that the disk has lost."""
    try:
        properties = [fields[12] for fields in decode(record, verify=True)]
    except RecordError:
        return set()
    pairs = map(decode_properties, properties)
    return {(one[REAL_TOPIC], one[key]) for one in pairs if REAL_TOPIC in one and key in one}
