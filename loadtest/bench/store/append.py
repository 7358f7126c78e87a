"""How many records a second does the store append from Python, in batches, on one core?

Batches of 100 records over 8 queues, ConsumeQueue units included, every page fresh. The floor: the
same bytes, encoded beforehand, copied into a mapped file of the same kind with the CRC of their
bodies computed by the same kernel. Rates are per second of the appending thread's CPU time; the
best round of each counts, as other load on the machine can only slow one down.
"""

from __future__ import annotations

from motelog.core.records.append import QueueTail, crc32_31, encode_batch
from motelog.core.store.disk.files import OsStorage
from motelog.loadtest.bench.store.figures import (
    BATCH,
    HOST,
    MQTT,
    TOPIC,
    Figure,
    Message,
    Options,
    Spent,
    message,
    one_processor,
    open_store,
    store_folder,
    timed,
)

QUEUES = 8
LOG_BYTES = 200_000_000
GOAL = 3_000_000
SHAPES = {
    "100 B records": (b"", b""),
    "100 B bodies": (bytes(range(100)), b""),
    "100 B bodies with properties": (bytes(range(100)), MQTT),
    "1 KiB bodies with properties": (bytes(range(256)) * 4, MQTT),
}


def run(options: Options) -> list[Figure]:
    return [_figure(name, body, properties, options) for name, (body, properties) in SHAPES.items()]


def _figure(name: str, body: bytes, properties: bytes, options: Options) -> Figure:
    log_bytes = LOG_BYTES // 100 if options.quick else LOG_BYTES
    ours: list[tuple[int, Spent]] = []
    floor: list[tuple[int, Spent]] = []
    for _ in range(options.rounds):
        with one_processor(), store_folder(options) as folder:
            ours.append(_append(folder, body, properties, log_bytes))
        with one_processor(), store_folder(options) as folder:
            floor.append(_copy(folder, body, properties, log_bytes))
    return Figure(
        f"append, {name}",
        max(count / spent.cpu_s for count, spent in ours),
        "records per CPU second",
        floor=max(count / spent.cpu_s for count, spent in floor),
        floor_name="copy and CRC",
        goal=GOAL if name == "100 B records" else None,
        details={
            "records_per_s": max(count / spent.wall_s for count, spent in ours),
            "floor_records_per_s": max(count / spent.wall_s for count, spent in floor),
        },
    )


def _batch(tails: list[QueueTail], body: bytes, properties: bytes) -> list[Message]:
    return [message(tails[i % QUEUES], body, properties) for i in range(BATCH)]


def _append(folder: str, body: bytes, properties: bytes, log_bytes: int) -> tuple[int, Spent]:
    store = open_store(folder)
    tails = [store.queue_tail(TOPIC, i) for i in range(QUEUES)]
    batch = _batch(tails, body, properties)
    batches = log_bytes // store.append(batch)
    spent = timed(lambda: store.append(batch), batches)
    store.close()
    return batches * BATCH, spent


def _copy(folder: str, body: bytes, properties: bytes, log_bytes: int) -> tuple[int, Spent]:
    tails = [QueueTail(TOPIC.encode(), i, 0) for i in range(QUEUES)]
    target = bytearray(1 << 20)
    batch = _batch(tails, body, properties)
    _, size = encode_batch(target, 0, len(target), 0, batch, 0, 1, HOST, [], None)
    data, bodies = bytes(target[:size]), body * BATCH
    storage = OsStorage()
    storage.create_file(f"{folder}/floor", log_bytes + size, sparse=False)
    region = storage.map_file(f"{folder}/floor", log_bytes + size)
    position = 0

    def copy() -> None:
        nonlocal position
        crc32_31(bodies)
        region.view[position : position + size] = data
        position += size

    batches = log_bytes // size
    spent = timed(copy, batches)
    region.close()
    return batches * BATCH, spent
