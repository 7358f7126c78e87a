"""Flips: each byte of a small store changed in turn; nothing changed is delivered, nothing hangs.

Usage: python -m tests.fault.flips [--step 1] [--masks 01,80,ff]

Promised for a folder in which one byte differs, and checked, after a clean stop and after a crash:
- the store opens; no body is delivered that was not appended, or under another queue offset;
- in the small files, the index and the ConsumeQueues it costs no message, neither to those who read
  all nor to those who filter by tag;
- in the CommitLog it costs at most the record that the byte is in. No CRC covers queue id, queue
  offset and topic; if they come to name the place of another record, it costs that one as well.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import trio

from motelog.core.message import tags_code
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.simulated_disk import ROOT, CrashModel, Image, SimulatedDisk
from tests.support.stores import make_store, message, when_back

DIRECTORY = f"{ROOT}/store"
QUEUES = (("a", 0), ("a", 1), ("%RETRY%b", 0))
RECORDS = 24
TAGS_CODE = tags_code("dev")
MASKS = (0x01, 0x80, 0xFF)
CONFIG: dict[str, Any] = {"commitlog_file_bytes": 4096, "consume_queue_file_units": 8}
READS_MAX = 200

# (topic, queue id, queue offset) -> (physical offset, body)
Records = dict[tuple[str, int, int], tuple[int, bytes]]


class FlipError(AssertionError):
    """A flipped byte did more than it may."""


def build(*, was_clean: bool) -> tuple[Image, Records]:
    """Return a folder with records in several files, and what they are."""
    disk = SimulatedDisk()
    store = make_store(DIRECTORY, storage=disk, **CONFIG)
    store.open()
    expected: Records = {}

    async def fill() -> None:
        for number in range(RECORDS):
            topic, queue_id = QUEUES[number % 3]
            body = b"%04d" % number + b"x" * (number % 7 * 60)
            properties = b"TAGS\x01dev\x02UNIQ_KEY\x01%08d\x02" % number
            placed: list[tuple[int, int]] = []
            tail = store.queue_tail(topic, queue_id)
            store.append([message(tail, body, properties=properties, tags_code=TAGS_CODE)], placed)
            ((physical_offset, queue_offset),) = placed
            expected[(topic, queue_id, queue_offset)] = (physical_offset, body)
        await store.checkpoint()

    trio.run(fill)
    if was_clean:
        store.close()
    disk.take_notes()
    model = CrashModel.of(Image())
    for event in disk.events:
        model.apply(event)
    return model.after_kill(), expected


def flipped(image: Image, path: str, at: int, mask: int) -> Image:
    files: list[tuple[str, tuple[bytes, ...]]] = []
    for name, pages in image.files:
        if name == path:
            content = bytearray(b"".join(pages))
            content[at] ^= mask
            files.append((name, (bytes(content),)))
        else:
            files.append((name, pages))
    return Image(image.directories, tuple(files))


def places(image: Image) -> Iterator[tuple[str, int]]:
    """Yield every byte of every file; of the zeros at the end of one only the first few."""
    for path, pages in image.files:
        content = b"".join(pages)
        for at in range(min(len(content), len(content.rstrip(b"\0")) + 64)):
            yield path, at


def check(image: Image, expected: Records, path: str, at: int) -> None:
    """Open a folder with one changed byte and compare what is read with what was appended."""
    store = make_store(DIRECTORY, storage=SimulatedDisk(image), **CONFIG)
    store.open()
    # The first reader finds a unit as it is on the disk; it asks by tag, or for all.
    ways = (None, frozenset({TAGS_CODE}))
    for codes in ways if at % 2 else ways[::-1]:
        found = {}
        for topic, queue_id in sorted(store.queues()):
            found.update(_read(store, topic, queue_id, codes))
        _compare(expected, found, path, at)


def _read(store: MessageStore, topic: str, queue_id: int, codes: frozenset[int] | None) -> Records:
    """Read a queue to its end, all of it or the messages with a tag."""
    found: Records = {}
    offset = store.reader.min_offset(topic, queue_id)
    for _ in range(READS_MAX):
        read = partial(store.reader.read, topic, queue_id, offset, tag_codes=codes)
        result = when_back(store, read)
        if result.status not in (
            ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVED, ReadStatus.NO_MATCH
        ):  # fmt: skip
            break
        for fields in decode(result.records):
            found[(topic, queue_id, fields[2])] = (fields[3], fields[13])
        if result.next_offset <= offset:
            raise FlipError(f"reading {topic} {queue_id} stops at {offset}")
        offset = result.next_offset
    if offset < store.reader.max_offset(topic, queue_id):
        raise FlipError(f"reading {topic} {queue_id} ends at {offset}")
    return found


def _compare(expected: Records, found: Records, path: str, at: int) -> None:
    own = _record_at(expected, path, at) if "/commitlog/" in path else None
    # No CRC covers queue id, queue offset and topic: the record may be found in another place.
    wrong = [key for key, record in found.items() if expected.get(key) != record]
    if any(own is None or found[key] != expected[own] for key in wrong):
        raise FlipError(f"something else is delivered: {wrong[0]}")
    # It may then stand where another one belongs.
    missing = [key for key in expected if key not in found and key != own]
    if own is None and missing:
        raise FlipError(f"costs {len(missing)} messages, among them {missing[0]}")
    if len(missing) > len(wrong):
        raise FlipError(f"costs other messages than its own: {missing[:3]}")


def _record_at(expected: Records, path: str, at: int) -> tuple[str, int, int]:
    """Return the record that a byte of the log is in, or behind."""
    place = int(path.rpartition("/")[2]) + at
    return max((r[0], key) for key, r in expected.items() if r[0] <= place)[1]


def explore(step: int, masks: Sequence[int]) -> Iterator[str]:
    """Check every ``step``-th byte with each mask; yield the name of each flip."""
    for was_clean in (True, False):
        image, expected = build(was_clean=was_clean)
        for number, (path, at) in enumerate(places(image)):
            if number % step:
                continue
            for mask in masks:
                name = f"{'clean' if was_clean else 'crashed'} {path} byte {at} ^ {mask:02x}"
                try:
                    check(flipped(image, path, at, mask), expected, path, at)
                except Exception as exc:
                    raise FlipError(f"{name}: {exc!r}") from exc
                yield name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.flips")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--masks", default=",".join(f"{mask:02x}" for mask in MASKS))
    args = parser.parse_args()
    # Recovery logs each fault; here only the result counts.
    logging.disable(logging.CRITICAL)
    begun = time.monotonic()
    try:
        count = sum(1 for _ in explore(args.step, [int(m, 16) for m in args.masks.split(",")]))
    except FlipError as exc:
        sys.stdout.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{count} flips did no more than they may, {time.monotonic() - begun:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
