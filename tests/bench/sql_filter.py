"""What does a SQL92 filter cost per message, and how much of it would bitmaps save?

Usage: python -m tests.bench.sql_filter [MESSAGES]. One JSON line. A store in page cache holds
MESSAGES (100 000) of one queue among those of others; the filter compares a number and a text, each
message has eight properties. CPU time per message looked at, in nanoseconds, the best of five
rounds:

    pull       what the broker does (filtered_reads): the parts below and what binds them
    read       records of all messages out of the log, in batches
    decode     their values of the properties that the filter names
    evaluate   the filter on these values
    bitmap     the least that is left with a bitmap beside each unit that is never wrong: all units
               scanned, the records of those that match read. What fills the bitmap, that is decode
               and evaluate for each filter at the append, is not in it
    units      all units scanned, no record read

So bitmaps move decode and evaluate from the pull to the append, and save read of what does not
match: ``saved`` is that share of a message's whole cost (read + decode + evaluate) which is gone
with them. ``bytes`` is what is read per message, with the filter and with the bitmap: what
counts when it comes from a disk.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from motelog.core.broker.api import BrokerApi, ReadResult, ReadStatus
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.broker.waiting.filtered_reads import read_matching
from motelog.core.clock import SystemClock
from motelog.core.filter.sql_filter import SqlFilter, compile_sql
from motelog.core.message import encode_properties, tags_code
from motelog.core.records.decode import decode_values
from motelog.core.records.layout import UNIT_BYTES
from tests.bench.report import environment, say
from tests.support.stores import STORE_HOST, message, opened

ROUNDS = 5
BATCH_BYTES = 262_144
WANTED_CODE, OTHER_CODE, NO_CODE = (tags_code(tag) for tag in ("wanted", "other", "none"))
# Percent that match, bytes of a body, records of other queues between two of this one.
CASES = [(1, 100, 0), (1, 100, 3), (1, 1024, 3), (1, 16_384, 0), (50, 100, 0), (50, 1024, 3)]


class Bench:
    """One store, its queue, and a filter that ``percent`` of its messages match."""

    def __init__(
        self, api: BrokerApi, messages: int, percent: int, body: bytes, apart: int
    ) -> None:
        self.api = api
        self.clock = SystemClock()
        self.filter: SqlFilter = compile_sql(f"number < {percent} AND site = 'north'")
        self.end = messages
        mine, others = api.queue_tail("bench", 0), api.queue_tail("bench", 1)
        for first in range(0, messages, 100):
            rows = []
            for number in range(first, min(first + 100, messages)):
                is_wanted = number * 37 % 100 < percent
                text = properties(number * 37 % 100, number)
                code = WANTED_CODE if is_wanted else OTHER_CODE
                rows.append(message(mine, body, properties=text, tags_code=code))
                rows += [message(others, body, properties=text)] * apart
            api.append(rows)
        self._batches = [batch.records for batch in self.walk(self._read_all)]
        self._decoded = [decode_values(batch, self.filter.names) for batch in self._batches]
        # What is kept here for the parts is no garbage to look for while they are measured.
        gc.collect()
        gc.freeze()

    def walk(self, read: Callable[[int], ReadResult]) -> Iterator[ReadResult]:
        """Read the whole queue; keep nothing, so that memory is used again as in a broker."""
        offset = 0
        while offset < self.end:
            result = read(offset)
            assert result.status in (ReadStatus.FOUND, ReadStatus.NO_MATCH)
            offset = result.next_offset
            yield result

    def pull(self) -> None:
        def read(offset: int) -> ReadResult:
            return read_matching(
                self.api, self.clock, self.filter, "bench", 0, offset,
                count_max=512, bytes_max=BATCH_BYTES, may_wait=False,
            )  # fmt: skip

        use_up(self.walk(read))

    def read(self) -> None:
        use_up(self.walk(self._read_all))

    def decode(self) -> None:
        for batch in self._batches:
            decode_values(batch, self.filter.names)

    def evaluate(self) -> None:
        matches = self.filter.matches
        for batch in self._decoded:
            for _, _, values in batch:
                matches(values)

    def bitmap(self) -> None:
        use_up(self.walk(lambda offset: self._read(offset, frozenset([WANTED_CODE]), 512)))

    def units(self) -> None:
        use_up(self.walk(lambda offset: self._read(offset, frozenset([NO_CODE]), 512)))

    def _read_all(self, offset: int) -> ReadResult:
        return self._read(offset, None, 256)

    def _read(self, offset: int, codes: frozenset[int] | None, count: int) -> ReadResult:
        return self.api.read(
            "bench", 0, offset,
            count_max=count, bytes_max=BATCH_BYTES, tag_codes=codes, may_wait=False,
        )  # fmt: skip

    def bytes_read(self) -> dict[str, float]:
        record = sum(map(len, self._batches)) / self.end
        wanted = self.walk(lambda offset: self._read(offset, frozenset([WANTED_CODE]), 512))
        share = sum(result.count for result in wanted) / self.end
        return {"filter": UNIT_BYTES + record, "bitmap": UNIT_BYTES + share * record}


def use_up(results: Iterator[ReadResult]) -> None:
    for _ in results:
        pass


def properties(number: int, serial: int) -> bytes:
    """Return eight properties, three of them such as a broker adds."""
    return encode_properties(
        {
            "UNIQ_KEY": f"7F0000010A2B3C4D5E6F7A8B{serial:08X}",
            "KEYS": f"device{number}",
            "TAGS": "telemetry",
            "number": str(number),
            "site": "north",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
    )


def timed(work: Callable[[], None], messages: int) -> float:
    """Return nanoseconds of CPU time per message."""
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / messages


def measure(bench: Bench) -> dict[str, Any]:
    parts = (bench.pull, bench.read, bench.decode, bench.evaluate, bench.bitmap, bench.units)
    # Best of rounds that take turns, so that what else runs here hits all of them.
    rounds = [{part.__name__: timed(part, bench.end) for part in parts} for _ in range(ROUNDS)]
    best = {name: min(row[name] for row in rounds) for name in rounds[0]}
    whole = best["read"] + best["decode"] + best["evaluate"]
    saved = (best["read"] - best["bitmap"]) / whole
    figures: dict[str, Any] = {name: round(value) for name, value in best.items()}
    sizes = {name: round(value) for name, value in bench.bytes_read().items()}
    return {**figures, "saved": f"{saved:.0%}", "bytes": sizes}


def run_case(messages: int, percent: int, body_bytes: int, apart: int) -> dict[str, Any]:
    topics = TopicTable(
        broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=10
    )
    # A log of some hundred MB at most.
    messages = min(messages, 200_000_000 // ((body_bytes + 300) * (apart + 1)))
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(
            folder,
            commitlog_file_bytes=1 << 26,
            consume_queue_file_units=300_000,
            index_slots=500_000,
            index_entries=2_000_000,
            clock=SystemClock(),
        ) as store,
    ):
        api = BrokerApi(
            store,
            topics,
            clock=SystemClock(),
            store_host=STORE_HOST,
            cold_reads_max=10,
        )
        figures = measure(Bench(api, messages, percent, bytes(body_bytes), apart))
    gc.unfreeze()
    return figures


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    cases = {
        f"{percent} % match, {body_bytes} B bodies, {apart} apart": run_case(
            messages, percent, body_bytes, apart
        )
        for percent, body_bytes, apart in CASES
    }
    report = {"bench": "sql_filter", "unit": "ns of CPU per message", **environment()}
    say(json.dumps(report | {"cases": cases}))


if __name__ == "__main__":
    main()
