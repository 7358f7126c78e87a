"""The messages in work of groups that consume in order: one pop per queue at a time.

Owns: OrderTable: which messages a queue's last pop delivered, which of them are acknowledged, when
the queue may be popped again; consumerOrderInfo.json. Must not touch: clocks, files, the store;
time is an argument. Spec: RocketMQ ConsumerOrderInfoManager.

    popped -> blocked until all are acknowledged, or the invisible time of the others is over
           -> popped again from the first that is not acknowledged, in the same order

The same attempt may pop at any time, and gets the same messages: the first answer was lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from motelog.core.remoting.fields import Int32, Int64
from motelog.core.topic_names import shown

#: topic, group, queue id
QueueKey: TypeAlias = tuple[str, str, int]

_SEPARATOR: Final = "@"
# The state of a queue that was not popped for so long is forgotten, as in RocketMQ.
FORGET_MS: Final = 86_400_000
ATTEMPT_CHARACTERS_MAX: Final = 255


class OrderInfo(msgspec.Struct, omit_defaults=True):
    """The last pop of one queue, as the file has it."""

    pop_time: Int64 = msgspec.field(name="popTime")
    invisible_ms: Int64 = msgspec.field(name="i")
    # The first offset, and the distance of each other one from it.
    places: list[Int64] = msgspec.field(name="o")
    seen_ms: Int64 = msgspec.field(name="l")
    acked_bits: Int64 = msgspec.field(name="cm", default=0)
    visible_ms: dict[Int64, Int64] | None = msgspec.field(name="ot", default=None)
    counts: dict[Int64, Int64] | None = msgspec.field(name="oc", default=None)
    attempt: str | None = msgspec.field(name="a", default=None)

    @property
    def offsets(self) -> list[int]:
        first, *distances = self.places
        return [first, *(first + distance for distance in distances)]

    def open_offsets(self) -> list[int]:
        """Return the messages that are not acknowledged."""
        return [at for index, at in enumerate(self.offsets) if not self.acked_bits >> index & 1]

    def free_ms(self) -> int:
        """Return when all of its open messages are visible again."""
        due_ms = self.pop_time + self.invisible_ms
        visible_ms = self.visible_ms or {}
        return max((visible_ms.get(at, due_ms) for at in self.open_offsets()), default=0)


class OrderTable:
    """The last pop of each queue of each group that consumes in order."""

    def __init__(self) -> None:
        self._table: dict[QueueKey, OrderInfo] = {}
        self._free: list[tuple[int, QueueKey]] = []
        self.is_dirty = False

    def __len__(self) -> int:
        return len(self._table)

    def is_blocked(self, queue: QueueKey, attempt: str | None, now_ms: int) -> bool:
        """Return whether messages of the queue are in work, so that it must not be popped."""
        info = self._table.get(queue)
        if info is None or (attempt is not None and attempt == info.attempt):
            return False
        return now_ms < info.free_ms()

    def open_in(self, queue: QueueKey, pop_time_ms: int) -> list[int]:
        """Return the messages of one pop that are not acknowledged."""
        info = self._table.get(queue)
        return [] if info is None or info.pop_time != pop_time_ms else info.open_offsets()

    def pop(
        self,
        queue: QueueKey,
        offsets: list[int],
        *,
        attempt: str | None,
        now_ms: int,
        invisible_ms: int,
    ) -> tuple[list[tuple[int, int]], int]:
        """Note a pop; return how often each message was delivered before, and the least count."""
        before = self._table.get(queue)
        counts: dict[int, int] = {}
        if before is not None:
            known = before.counts or {}
            if attempt is not None and attempt == before.attempt:
                counts = {at: known[at] for at in offsets if at in known}
            else:
                again = set(before.offsets)
                counts = {at: known.get(at, 0) + 1 for at in offsets if at in again}
        first = offsets[0]
        info = OrderInfo(
            pop_time=now_ms,
            invisible_ms=invisible_ms,
            places=[first, *(at - first for at in offsets[1:])],
            seen_ms=now_ms,
            counts=counts or None,
            attempt=attempt,
        )
        self._table[queue] = info
        self._note_free(queue, info)
        least = min(counts.values()) if len(counts) == len(offsets) else 0
        return list(counts.items()), least

    def ack(self, queue: QueueKey, offset: int, pop_time_ms: int) -> int | None:
        """Note a message as acknowledged; return the group's next offset.

        None for the receipt of an earlier pop, whose messages were delivered again. ValueError if
        the pop did not deliver the message.
        """
        info = self._table.get(queue)
        if info is None:
            return offset + 1
        if info.pop_time != pop_time_ms:
            return None
        info.acked_bits |= 1 << info.offsets.index(offset)
        self.is_dirty = True
        still_open = info.open_offsets()
        if still_open:
            self._note_free(queue, info)
            return still_open[0]
        del self._table[queue]
        return info.offsets[-1] + 1

    def change(self, queue: QueueKey, offset: int, pop_time_ms: int, visible_ms: int) -> bool:
        """Set when a message may be delivered again; False for an earlier pop's receipt."""
        info = self._table.get(queue)
        if info is None or info.pop_time != pop_time_ms or offset not in info.offsets:
            return False
        info.visible_ms = (info.visible_ms or {}) | {offset: visible_ms}
        self._note_free(queue, info)
        return True

    def forget(self, queue: QueueKey) -> None:
        """Forget a group's last pop of a queue: the group continues elsewhere."""
        if self._table.pop(queue, None) is not None:
            self.is_dirty = True

    def next_free_ms(self) -> int | None:
        """Return when a queue may become free; None while no queue is in work."""
        return self._free[0][0] if self._free else None

    def take_freed(self, now_ms: int) -> list[QueueKey]:
        """Return queues that are now free because their messages' invisible time is over."""
        freed = []
        while self._free and self._free[0][0] <= now_ms:
            free_ms, queue = heapq.heappop(self._free)
            info = self._table.get(queue)
            if info is not None and info.free_ms() == free_ms:
                freed.append(queue)
        return freed

    def clean(self, is_known: Callable[[QueueKey], bool], now_ms: int) -> None:
        """Forget removed queues, and those that were not popped for a day."""
        for queue, info in list(self._table.items()):
            if not is_known(queue) or now_ms - info.seen_ms > FORGET_MS:
                self.forget(queue)

    def snapshot(self) -> dict[str, Any]:
        """Return the content of consumerOrderInfo.json; a copy, which a thread may encode."""
        table: dict[str, dict[int, Any]] = {}
        for (topic, group, queue_id), info in self._table.items():
            queues = table.setdefault(f"{topic}{_SEPARATOR}{group}", {})
            queues[queue_id] = msgspec.to_builtins(info)
        return {"table": table}

    def load(self, content: Mapping[str, Any]) -> None:
        """Load the content of consumerOrderInfo.json; msgspec.ValidationError if it is invalid."""
        table = msgspec.convert(
            content.get("table", {}), dict[str, dict[Int32, OrderInfo]], strict=False
        )
        self._table = {
            (*_names(key), queue_id): info
            for key, queues in table.items()
            for queue_id, info in queues.items()
            if info.places and info.open_offsets()
        }
        self._free = []
        for queue, info in self._table.items():
            self._note_free(queue, info)

    def _note_free(self, queue: QueueKey, info: OrderInfo) -> None:
        self.is_dirty = True
        heapq.heappush(self._free, (info.free_ms(), queue))
        # Changes leave old entries; the bound allows some for each queue in work.
        if len(self._free) > 4 * len(self._table) + 64:
            self._free = [(one.free_ms(), key) for key, one in self._table.items()]
            heapq.heapify(self._free)

    def _check(self) -> None:
        """Assert that the time at which each queue becomes free is noted."""
        assert all(info.open_offsets() for info in self._table.values())
        assert {queue for _, queue in self._free} >= set(self._table)


def _names(key: str) -> tuple[str, str]:
    """Return topic and group; ValueError if the key does not consist of these."""
    topic, found, group = key.partition(_SEPARATOR)
    if not found:
        raise ValueError(f"the key {shown(key)} does not consist of a topic and a group")
    return topic, group
