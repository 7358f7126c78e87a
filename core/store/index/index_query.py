"""A query by key: the index says where records may be, and the records say if they have the key.

Owns: Query, QueryResult, the limits of a query. Must not touch: bytes of an index file (index,
index_file), which files there are (index_service), the log (it reads there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from motelog.core.errors import RecordError
from motelog.core.message import KEYS, UNIQ_KEY, decode_properties
from motelog.core.records.decode import decode
from motelog.core.store.index.index import key_hash
from motelog.core.store.index.index_file import IndexFile
from motelog.core.store.log.commitlog import CommitLog

QUERY_COUNT_MAX: Final = 64
QUERY_BYTES_MAX: Final = 8_388_608
# Records read for one query, so that keys made to share one hash cannot block other queries.
CANDIDATES_MAX: Final = 4096
OFFSETS_PER_STEP: Final = 64
TIME_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Records that have a key, newest first, and the last record that the index has."""

    records: list[bytes]
    index_last_ms: int
    index_last_offset: int


class Query:
    """One key of one topic and a time [begin_ms, end_ms].

    A key is the record's UNIQ_KEY or, unless ``only_unique``, a word of its KEYS.
    """

    __slots__ = ("_begin_ms", "_end_ms", "_key", "_only_unique", "_topic", "hashed")

    def __init__(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, only_unique: bool
    ) -> None:
        self._topic = topic.encode(errors="replace")
        self._key = key
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._only_unique = only_unique
        self.hashed = key_hash(self._topic, key.encode(errors="replace"))

    def places(self, files: list[IndexFile]) -> Iterator[int]:
        """Yield the places of records that may match, newest first, each once.

        OSError if a file cannot be mapped.
        """
        begin_ms = min(max(self._begin_ms, -TIME_MAX), TIME_MAX)
        end_ms = min(max(self._end_ms, -TIME_MAX), TIME_MAX)
        last: int | None = None
        for file in reversed(files):
            if file.count == 1 or file.begin_ms > end_ms:
                continue
            if file.end_ms < begin_ms:
                return
            number = 0
            while True:
                offsets, number = file.select(
                    self.hashed, number, begin_ms, end_ms, OFFSETS_PER_STEP
                )
                for offset in offsets:
                    if offset != last:
                        yield offset
                    last = offset
                if number == 0:
                    break

    def records(
        self, log: CommitLog, places: Iterable[int], *, end_offset: int, count_max: int
    ) -> list[bytes]:
        """Return the first records at ``places`` that match and lie below ``end_offset``.

        At most ``count_max`` of them (and never more than 64, or 8 MiB). Raises OSError.
        """
        found: list[bytes] = []
        count_max = min(count_max, QUERY_COUNT_MAX)
        room = QUERY_BYTES_MAX
        for _, place in zip(range(CANDIDATES_MAX), places, strict=False):
            if len(found) >= count_max:
                break
            if place >= end_offset:
                continue
            try:
                record = log.record_at(place)
            except RecordError:
                continue  # it has been removed or is damaged
            if not self._is_wanted(record):
                continue
            room -= len(record)
            if found and room < 0:
                break
            found.append(record)
        return found

    def _is_wanted(self, record: bytes) -> bool:
        fields = decode(record)[0]
        if fields[0] != self._topic or not self._begin_ms <= fields[8] <= self._end_ms:
            return False
        properties = decode_properties(fields[12])
        if properties.get(UNIQ_KEY) == self._key:
            return True
        if self._only_unique or self._key == "":
            return False
        return self._key in properties.get(KEYS, "").split(" ")
