"""A leader's log as bytes, a follower that receives them, and whether both are alike.

Owns: what several tests of a follower's store need. Must not touch: sockets.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from motelog.core.message import tags_code
from motelog.core.records.append import AppendMessage
from motelog.core.records.dispatch import dispatched
from motelog.core.store.message_store import MessageStore
from tests.support.stores import make_store, message, read_bodies

QUEUES = (("a", 0), ("a", 1), ("b", 0), ("SCHEDULE_TOPIC_XXXX", 2), ("%RETRY%c", 0))
PREPARED, ROLLED_BACK = 0x4, 0xC


def some_message(store: MessageStore, chance: random.Random) -> AppendMessage:
    """Return a message of one of the kinds that differ in their units and keys."""
    topic, queue_id = chance.choice(QUEUES)
    size = chance.choice((0, 1, 300, 900, 3_000))
    properties = b"UNIQ_KEY\x01%08x\x02" % chance.getrandbits(32)
    code, sys_flag = 0, 0
    match chance.randrange(5):
        case 0:
            properties += b"TAGS\x01red\x02KEYS\x01k1 k2\x02"
            code = tags_code("red")
        case 1:
            names = ",".join(f"%LMQ%{name}" for name in chance.sample("xyz", 2))
            properties += b"INNER_MULTI_DISPATCH\x01" + names.encode() + b"\x02"
        case 2:
            sys_flag = chance.choice((PREPARED, ROLLED_BACK))
    if topic == "SCHEDULE_TOPIC_XXXX":
        properties += b"DELAY\x013\x02"
        code = store.now_ms() + store.due_times.delay_ms(3)
    tail = store.queue_tail(topic, queue_id)
    body = chance.randbytes(size)
    made = message(tail, body, properties=properties, tags_code=code, sys_flag=sys_flag)
    return dispatched(made)


def fill(store: MessageStore, chance: random.Random, count: int) -> None:
    """Append messages of all kinds, in batches."""
    while count > 0:
        batch = min(chance.randint(1, 6), count)
        store.append([some_message(store, chance) for _ in range(batch)])
        count -= batch


def log_bytes(store: MessageStore, begin: int | None = None) -> tuple[int, bytes]:
    """Return the log from ``begin`` on: where it begins, and its bytes up to the end."""
    begin = store.begin_offset if begin is None else begin
    parts = []
    for file in store._log.queue.between(begin, store.end_offset):
        here = max(begin - file.begin, 0)
        parts.append(bytes(file.view[here : min(store.end_offset - file.begin, file.size)]))
    return begin, b"".join(parts)


def pieces(begin: int, data: bytes, cuts: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Cut bytes of a log; yield the offset of each piece, and the piece."""
    ends = sorted({cut for cut in cuts if 0 < cut < len(data)} | {len(data)})
    at = 0
    for end in ends:
        yield begin + at, data[at:end]
        at = end


def make_follower(directory: Path | str, **config: Any) -> MessageStore:
    return make_store(directory, is_follower=True, **config)


def feed(store: MessageStore, begin: int, data: bytes, piece_bytes: int = 700) -> None:
    """Let a follower receive bytes of a log in pieces of one size."""
    for offset, piece in pieces(begin, data, range(0, len(data), piece_bytes)):
        store.append_raw(offset, piece)


def log_files(directory: Path) -> dict[str, bytes]:
    """Return the CommitLog files that hold anything."""
    files = {path.name: path.read_bytes() for path in (directory / "commitlog").iterdir()}
    return {name: data for name, data in files.items() if data.strip(b"\0")}


def answers(store: MessageStore) -> dict[str, Any]:
    """Return what readers get: the units of each queue, and the records of some keys."""
    units = {}
    for key in sorted(store.queues()):
        low, high = store.reader.min_offset(*key), store.reader.max_offset(*key)
        if low < high:
            units[key] = low, high, store.reader.units(*key, low, high - low)
    found = {
        topic: store.reader.query(topic, "k1", begin_ms=0, end_ms=1 << 62, count_max=64).records
        for topic in ("a", "b")
    }
    return {"units": units, "bodies": read_bodies(store), "keys": found}
