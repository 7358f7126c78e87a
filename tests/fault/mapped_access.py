"""The process that test_mapped_access watches: it accesses mapped files that were cut meanwhile.

Usage: python mapped_access.py kernels|records|store|unguarded FOLDER [faulthandler]. Prints a JSON
object of what each access came to; ``unguarded`` is to die of SIGBUS.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from motelog.core.errors import StoreError, StoreFencedError  # needs the path
from motelog.core.records.append import QueueTail, copy_in, encode_batch, encode_blank
from motelog.core.records.read import copy_out, gather
from motelog.core.records.scan import collect, find_record, scan, zeros_from
from motelog.core.store.index.index import put, put_records, relink, select
from tests.support.stores import STORE_HOST, make_store, message, read_queue

PAGES = 8
SIZE = PAGES * mmap.PAGESIZE


def cut_map(folder: str) -> memoryview:
    """Return a mapped file of which only the first page is still there."""
    path = f"{folder}/cut"
    Path(path).write_bytes(bytes(SIZE))
    with open(path, "r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), SIZE))
    os.truncate(path, mmap.PAGESIZE)
    return view


def outcome(access: Callable[[], object]) -> str:
    try:
        access()
    except OSError as exc:
        return f"errno {exc.errno}"
    except (StoreError, StoreFencedError) as exc:
        return type(exc).__name__
    return "done"


def kernels(folder: str) -> dict[str, str]:
    """Each kernel function that is given mapped files, beyond the end and before it."""
    view = cut_map(folder)
    there = mmap.PAGESIZE
    tail = QueueTail(b"T", 0, 0)
    whole = bytearray(SIZE)
    batch = [message(tail, b"x" * 6000, properties=b"KEYS\x01k\x02")]
    _, end = encode_batch(whole, 0, SIZE, 0, batch, 0, 1, STORE_HOST, [], None)
    unit = tail.units(tail.first_offset, tail.pending)
    # One record that begins in the page that is there and ends in one that is not.
    view[:there] = whole[:there]
    slots, entries = 8000, 10
    calls: dict[str, Callable[[], object]] = {
        "copy_out": lambda: copy_out(view, there - 1, there + 1),
        "copy_in": lambda: copy_in(view, there - 1, b"ab"),
        "encode_batch": lambda: encode_batch(
            view, there, SIZE, 0, batch, 0, 1, STORE_HOST, [], None
        ),
        "encode_blank": lambda: encode_blank(view, there, SIZE),
        "scan": lambda: scan(view, 0, SIZE, 0, 10),
        "collect": lambda: collect(view, 0, SIZE, 0, 10, (), lambda text, ms: 0),
        "find_record": lambda: find_record(view, 1, SIZE, SIZE, 0),
        "zeros_from": lambda: zeros_from(view, 0, SIZE),
        "gather": lambda: gather(view, 0, unit, 0, 1),
        "gather verifying": lambda: gather(view, 0, unit, 0, 1, True),
        "put_records": lambda: put_records(bytearray(84), 1, 2, view, 0, SIZE, 0, 0, 10),
        # The slot of the key is in a page that is gone.
        "put": lambda: put(
            index_of(view, slots), slots, entries, [(0, 0, b"T", b"KEYS\x01a\x02")], 0, 0
        ),
        "put_records into": lambda: put_records(
            index_of(view, slots), slots, entries, whole, 0, end, 0, 0, 10
        ),
        "select": lambda: select(index_of(view, slots), slots, entries, 5000, 0, 0, 1, 9),
        "relink": lambda: relink(index_of(view, slots), slots, entries, 5, 1 << 40),
    }
    found = {name: outcome(call) for name, call in calls.items()}
    found["before the end"] = outcome(lambda: copy_out(view, 0, there))
    assert end > there
    return found


def index_of(view: memoryview, slots: int) -> memoryview:
    """The same bytes as an index file without entries, whose slots reach behind the end."""
    copy_in(view, 0, bytes(36) + (1).to_bytes(4, "big"))
    return view


def records(folder: str) -> dict[str, Any]:
    """Keys of a log whose second record ends in a page that is gone, put twice."""
    view = cut_map(folder)
    whole = bytearray(SIZE)
    tail = QueueTail(b"T", 0, 0)
    batch = [
        message(tail, b"x" * size, properties=b"KEYS\x01k%d\x02" % size) for size in (10, 6000)
    ]
    end = encode_batch(whole, 0, SIZE, 0, batch, 0, 1, STORE_HOST, [], None)[1]
    view[: mmap.PAGESIZE] = whole[: mmap.PAGESIZE]
    index = bytearray(40 + 4 + 20 * 9)
    index[39] = 1
    at, key, stop = put_records(index, 1, 9, view, 0, end, 0, 0, 10)
    second = int.from_bytes(whole[:4], "big")
    return {
        "first": [at == second, key, stop and stop.name],
        "again": outcome(lambda: put_records(index, 1, 9, view, at, end, 0, key, 10)),
        "next entry": index[39],
    }


def store(folder: str) -> dict[str, Any]:
    """A store some of whose files are cut while it is open."""
    opened = make_store(f"{folder}/store", commitlog_files_mapped_max=2, message_bytes_max=5000)
    opened.open()
    for topic in ("old", "new"):
        tail = opened.queue_tail(topic, 0)
        for number in range(6):
            body, keys = b"%d" % number * 4000, b"KEYS\x01k\x02"
            opened.append([message(tail, body, properties=keys)])
    opened.reader.query("new", "k", begin_ms=0, end_ms=1 << 60)
    os.truncate(opened._log.queue.files[0].path, mmap.PAGESIZE)
    found: dict[str, Any] = {
        "cut": outcome(lambda: opened.reader.read("old", 0, 0)),
        "record_at": outcome(lambda: opened.reader.record_at(4092)),
        "again": outcome(lambda: opened.reader.read("old", 0, 0)),
        "other file": len(read_queue(opened, "new", 0)),
        "append": outcome(lambda: opened.append([message(opened.queue_tail("new", 0))])),
    }
    index = f"{folder}/store/index/{os.listdir(f'{folder}/store/index')[0]}"
    os.truncate(index, 0)
    found["query"] = outcome(lambda: opened.reader.query("new", "k", begin_ms=0, end_ms=1 << 60))
    os.truncate(opened._log.queue.files[-1].path, 0)
    found["append to a cut file"] = outcome(
        lambda: opened.append([message(opened.queue_tail("new", 0), b"x" * 4000)])
    )
    found["append after it"] = outcome(
        lambda: opened.append([message(opened.queue_tail("new", 0))])
    )
    found["fence"] = opened.fence_reason
    return found


def unguarded(folder: str) -> dict[str, str]:
    view = cut_map(folder)
    found = {"guarded": outcome(lambda: copy_out(view, 0, SIZE))}
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    return {"read": str(view[-1])}


if __name__ == "__main__":
    if sys.argv[3:]:
        faulthandler.enable()
    work: dict[str, Callable[[str], dict[str, Any]]] = {
        "kernels": kernels, "records": records, "store": store, "unguarded": unguarded,
    }  # fmt: skip
    sys.stdout.write(json.dumps(work[sys.argv[1]](sys.argv[2])))
