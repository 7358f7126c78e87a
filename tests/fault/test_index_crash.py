"""Whatever of an index file reached the disk before a crash: no key is lost, none is invented."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from motelog.core.records.decode import decode
from motelog.core.store.index import _index
from motelog.core.store.index.index import HEADER_BYTES, SLOT_BYTES, key_hash
from motelog.core.store.message_store import MessageStore
from tests.support.index_kernels import KERNELS
from tests.support.stores import abandon, make_store, message, opened

SLOTS, ENTRIES = 7, 40
SECTOR = 64  # far smaller than a disk's, so that small files tear in many ways
ROUNDS = 60
FOREVER = (1 << 63) - 1


@pytest.mark.parametrize("kernel", KERNELS, ids=["compiled", "reference"])
def test_every_state_between_two_writes_of_a_put_can_be_read(kernel: Any) -> None:
    data = bytearray(HEADER_BYTES + SLOTS * SLOT_BYTES + ENTRIES * 20)
    data[39] = 1
    states = [bytes(data)]
    keys = [b"k%d" % (i % 5) for i in range(20)]
    for place, key in enumerate(keys):
        _index.put(data, SLOTS, ENTRIES, [(place, 1_000, b"T", b"KEYS\x01%b\x02" % key)], 0, 0)
        states.append(bytes(data))
    slots_end = HEADER_BYTES + SLOTS * SLOT_BYTES
    for number, (before, after) in enumerate(pairwise(states)):
        # The order of a put: entry, slot, header; within the header the count comes last.
        entry_written = before[:slots_end] + after[slots_end:]
        slot_written = before[:HEADER_BYTES] + after[HEADER_BYTES:]
        count_missing = after[:36] + before[36:40] + after[40:]
        for state in (entry_written, slot_written, count_missing):
            for wanted in set(keys):
                arguments = (SLOTS, ENTRIES, key_hash(b"T", wanted), 0, 0, FOREVER, 99)
                found, _ = kernel.select(state, *arguments)
                expected = [p for p in range(number) if keys[p] == wanted][::-1]
                assert [p for p in found if p < number] == expected


def append(store: MessageStore, begin: int, end: int) -> None:
    for number in range(begin, end):
        text = f"KEYS\x01every n{number}\x02UNIQ_KEY\x01u{number}\x02".encode()
        store.append([message(store.queue_tail("T", 0), b"%d" % number, properties=text)])
        if number % 3 == 0:
            store.index.dispatch()
    store.index.dispatch()


def find(store: MessageStore, key: str) -> list[int]:
    records = store.reader.query("T", key, begin_ms=0, end_ms=FOREVER, count_max=64).records
    return [int(decode(record)[0][13]) for record in records]


def torn(chance: random.Random, before: bytes, after: bytes) -> bytes:
    """Some sectors as they were at the checkpoint, some as they were at the crash."""
    sectors = [
        (before[at : at + SECTOR], after[at : at + SECTOR]) for at in range(0, len(after), SECTOR)
    ]
    return b"".join(chance.choice(pair) for pair in sectors)


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_a_power_cut_may_keep_any_sector_written_since_the_checkpoint(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    shape: dict[str, Any] = {
        "index_slots": SLOTS,
        "index_entries": chance.choice((4, 17, ENTRIES)),
    }
    store = make_store(tmp_path, clock=None, storage=None, **shape)
    store.open()
    first, last = chance.randrange(14), chance.randrange(14, 30)
    append(store, 0, first)
    await store.checkpoint()
    index = tmp_path / "index"
    # The next file is made ahead, beside this: it may get its name at any moment.
    before = {one.name: one.read_bytes() for one in index.iterdir() if one.suffix != ".tmp"}
    append(store, first, last)
    abandon(store)
    for path in index.iterdir():
        after = path.read_bytes()
        synced = before.get(path.name)
        if synced is None and chance.random() < 0.3:
            path.unlink()
        else:
            path.write_bytes(torn(chance, synced or bytes(len(after)), after))
    for _ in range(2):
        with opened(tmp_path, clock=None, storage=None, **shape) as store:
            assert find(store, "every") == list(range(last - 1, -1, -1))
            for number in range(last):
                assert find(store, f"n{number}") == find(store, f"u{number}") == [number]
            store.index._check()
