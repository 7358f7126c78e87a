"""One attempt of the sink at one partition, as a process that can be killed; without Spark.

python -m tests.support.sink_process NAMESRV TOPIC COUNT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from motelog.spark.sink.clients import open_clients
from motelog.spark.sink.ledger import Part
from motelog.spark.sink.options import SinkOptions
from motelog.spark.sink.partition import PartitionWriter
from motelog.spark.sink.rows import OutgoingRow

LEASE_S = 2
#: So that there is a middle that a kill can meet.
PACE_S = 0.0005


def rows(topic: str, count: int) -> Iterator[OutgoingRow]:
    for n in range(count):
        time.sleep(PACE_S)
        yield OutgoingRow(topic, b"%d" % n, f"dev{n % 7}", (), {"n": str(n)}, f"dev{n % 7}")


def main(namesrv: str, topic: str, count: str) -> None:
    options = SinkOptions(endpoint=(namesrv, "sink", None, None), lease_s=LEASE_S)
    clients = open_clients("killed-query", options)
    try:
        writer = PartitionWriter(
            Part("killed-query", 3, 0),
            clients.producer,
            clients.reader,
            clients.ledger,
            lease_s=LEASE_S,
            outage_seconds_max=60,
        )
        written = writer.write(rows(topic, int(count)))
    finally:
        clients.close()
    sys.stdout.write(f"{written.sent} {written.found} {written.strange}\n")


if __name__ == "__main__":
    # Small ones, for the same.
    sys.modules["motelog.spark.sink.partition"].__dict__["CHUNK_ROWS"] = 20
    main(*sys.argv[1:])
