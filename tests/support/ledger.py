"""What was appended to a store, and whether what is read back agrees with it.

Owns: Ledger: numbered messages, where each was put, which were acknowledged. Must not touch: how
the store came to be what it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from motelog.core.errors import StoreFullError
from motelog.core.message import tags_code
from motelog.core.records.append import AppendMessage
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from tests.support.stores import BORN_HOST

QUEUES = (("a", 0), ("a", 1), ("b", 0), ("%RETRY%c", 0))


class LedgerError(AssertionError):
    """The store does not show what was appended."""


class Known(NamedTuple):
    """A message; its places are None when its append has failed."""

    topic: bytes
    queue_id: int
    properties: bytes
    body: bytes
    queue_offset: int | None
    physical_offset: int | None


GONE = Known(b"gone", -1, b"", b"", -1, -1)


class Ledger:
    """Messages by number: the born timestamp in the record is the number."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.known: dict[int, Known] = {}
        self.appended: set[int] = set()
        self.durable: set[int] = set()
        self._ends: dict[int, int] = {}

    def append(self, store: MessageStore, count: int, body_bytes_max: int = 300) -> int:
        """Append a batch of new messages to queues by chance; return the offset behind it."""
        chance = self._chance
        first = len(self.known)
        messages: list[AppendMessage] = []
        for number in range(first, first + count):
            topic, queue_id = chance.choice(QUEUES)
            tail = store.queue_tail(topic, queue_id)
            body = chance.randbytes(chance.randint(0, body_bytes_max))
            properties = b"TAGS\x01dev\x02KEYS\x01key%d all\x02" % number
            code = tags_code("dev")
            self.known[number] = Known(tail.topic, queue_id, properties, body, None, None)
            messages.append((tail, body, properties, code, number, BORN_HOST, 0, 0, 0, 0))
        placed: list[tuple[int, int]] = []
        try:
            end = store.append(messages, placed)
        except StoreFullError:
            # Refused as a whole: none of it may come up later.
            self.known.update(dict.fromkeys(range(first, first + count), GONE))
            raise
        for number, (physical_offset, queue_offset) in enumerate(placed, first):
            self.known[number] = self.known[number]._replace(
                queue_offset=queue_offset, physical_offset=physical_offset
            )
            self.appended.add(number)
            self._ends[number] = end
        return end

    def note_durable(self, physical_offset: int) -> None:
        """Count everything below this offset as promised."""
        for number in self.appended - self.durable:
            if self._ends[number] <= physical_offset:
                self.durable.add(number)

    def below(self, physical_offset: int) -> set[int]:
        """Return the numbers of what was appended below this offset, batches as a whole."""
        return {number for number in self.appended if self._ends[number] <= physical_offset}

    def forget_below(self, physical_offset: int) -> None:
        """Expect no message below this offset any more: cleaning has removed them."""
        for number in list(self.appended):
            place = self.known[number].physical_offset
            if place is not None and place < physical_offset:
                self.appended.discard(number)
                self.durable.discard(number)

    def check(self, store: MessageStore, required: set[int]) -> set[int]:
        """Read everything; LedgerError unless it is as appended and ``required`` is all there."""
        found: set[int] = set()
        for number, fields in self._records(store):
            known = self.known.get(number)
            if known is None or number in found:
                raise LedgerError(f"record {number} is invented or doubled")
            place = known.queue_offset, known.physical_offset
            if place != (None, None) and place != (fields[2], fields[3]):
                raise LedgerError(f"record {number} is at {fields[2:4]}, was put at {place}")
            if (fields[0], fields[1], fields[12], fields[13]) != known[:4]:
                raise LedgerError(f"record {number} has changed")
            found.add(number)
        missing = sorted(required - found)
        if missing:
            raise LedgerError(f"{len(missing)} of {len(required)} are lost, first {missing[:5]}")
        return found

    def check_suffix(self, found: set[int]) -> None:
        """Raise LedgerError unless the missing messages are behind all that are found."""
        lost = self.appended - found
        last = max(self.appended & found, default=-1)
        if lost and min(lost) < last:
            raise LedgerError(f"record {min(lost)} is lost, but {last} behind it is not")

    def adopt(self, store: MessageStore, found: set[int]) -> None:
        """Take what a start has found as the content: none of it may go, nothing else may come."""
        for number, fields in self._records(store):
            self.known[number] = self.known[number]._replace(
                queue_offset=fields[2], physical_offset=fields[3]
            )
            self._ends[number] = store.end_offset
        for number in self.known.keys() - found:
            self.known[number] = GONE
        self.appended = set(found)
        self.durable = set(found)

    def check_keys(self, store: MessageStore, numbers: set[int]) -> None:
        """Find a few messages by their keys."""
        for number in self._chance.sample(sorted(numbers), min(5, len(numbers))):
            known = self.known[number]
            result = store.reader.query(
                known.topic.decode(), f"key{number}", begin_ms=0, end_ms=1 << 60, count_max=64
            )
            if [decode(record)[0][6] for record in result.records] != [number]:
                raise LedgerError(f"record {number} is not found by its key, or twice")

    def _records(self, store: MessageStore) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for topic, queue_id in sorted(store.queues()):
            offset = store.reader.min_offset(topic, queue_id)
            last = last_number = -1
            while offset < store.reader.max_offset(topic, queue_id):
                result = store.reader.read(topic, queue_id, offset, count_max=1000)
                for fields in decode(result.records, verify=True):
                    if (fields[0].decode(), fields[1]) != (topic, queue_id) or fields[2] <= last:
                        raise LedgerError(f"{fields[:4]} is out of place")
                    if fields[6] <= last_number:
                        raise LedgerError(f"record {fields[6]} comes behind {last_number}")
                    last, last_number = fields[2], fields[6]
                    yield fields[6], fields
                if result.next_offset <= offset:
                    raise LedgerError(f"reading {topic} {queue_id} stops at {offset}")
                offset = result.next_offset
