"""How many bytes a second are read in sequence from the page cache, by queue?

One queue whose records are adjacent, and 8 queues that take turns record by record, read in pieces
of 256 KiB. The floors: read() of the same log in pieces of that size, as dd does,
and memcpy of it from a map. Per second of CPU time; the best round counts.
"""

from __future__ import annotations

from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from motelog.loadtest.bench.store.figures import (
    BATCH,
    MQTT,
    TOPIC,
    Figure,
    Options,
    Spent,
    log_files,
    message,
    one_processor,
    open_store,
    store_folder,
    timed,
)

LOG_BYTES = 400_000_000
CHUNK_BYTES = 262_144
GOAL = 2e9
SHAPES = {"1 KiB bodies": bytes(range(256)) * 4, "100 B bodies": bytes(range(100))}


def run(options: Options) -> list[Figure]:
    figures = []
    for name, body in SHAPES.items():
        for queues in (1, 8):
            with one_processor(), store_folder(options) as folder:
                figures.append(
                    _figure(
                        f"{queues} queue{'s' * (queues > 1)}, {name}", folder, queues, body, options
                    )
                )
    return figures


def _figure(name: str, folder: str, queues: int, body: bytes, options: Options) -> Figure:
    log_bytes = LOG_BYTES // 200 if options.quick else LOG_BYTES
    store = open_store(folder, commitlog_file_bytes=-(-log_bytes // 4096) * 4096)
    tails = [store.queue_tail(TOPIC, i) for i in range(queues)]
    batch = [message(tails[i % queues], body, MQTT) for i in range(BATCH)]
    per_batch = store.append(batch)
    while store.end_offset + per_batch < log_bytes - 1_000:
        store.append(batch)
    ours: list[Spent] = []
    floors: list[dict[str, float]] = []
    copies: list[dict[str, float]] = []
    for _ in range(options.rounds):
        ours.append(timed(lambda: _read_all(store, queues)))
        if options.floor is not None:
            path = log_files(folder)[0]
            floors.append(options.floor("read", path, CHUNK_BYTES))
            copies.append(options.floor("copy", path, CHUNK_BYTES))
    read_bytes = store.end_offset
    store.close()
    details = {"bytes_per_s": max(read_bytes / spent.wall_s for spent in ours)}
    if copies:
        details["memcpy_bytes_per_cpu_s"] = max(one["bytes"] / one["cpu_s"] for one in copies)
    return Figure(
        f"read, {name}",
        max(read_bytes / spent.cpu_s for spent in ours),
        "bytes per CPU second",
        floor=max(one["bytes"] / one["cpu_s"] for one in floors) if floors else None,
        floor_name="read()",
        goal=GOAL,
        details=details,
    )


def _read_all(store: MessageStore, queues: int) -> None:
    got_bytes = 0
    for queue_id in range(queues):
        at = 0
        while True:
            result = store.reader.read(TOPIC, queue_id, at, count_max=5_000, bytes_max=CHUNK_BYTES)
            if result.status is not ReadStatus.FOUND:
                break
            got_bytes += len(result.records)
            at = result.next_offset
    assert got_bytes == store.end_offset, (got_bytes, store.end_offset)
