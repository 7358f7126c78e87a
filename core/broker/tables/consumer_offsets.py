"""Consume offsets: each group's progress in each queue.

Owns: the offset table, its version and its limit. Must not touch: files, sockets, the store.
Spec: RocketMQ ConsumerOffsetManager, LmqConsumerOffsetManager.

    consumerOffset.json      {"dataVersion": {...},
                              "offsetTable": {"TOPIC@GROUP": {"QUEUE ID": OFFSET}}}
    lmqConsumerOffset.json   the same, and "lmqOffsetTable": {"TOPIC@%LMQ%GROUP": OFFSET}

The second is the file of a broker with light queues. There the offsets of light groups in light
queues have a table of their own, because each has only queue 0.
RocketMQ writes the queue ids without quotes. It reads both forms, and so does this module. Its
releases before 5.0 write no version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from motelog.core.clock import Clock
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.fields import Int32, Int64
from motelog.core.remoting.topic_config import DataVersion
from motelog.core.topic_names import LMQ_PREFIX, is_lmq, shown

_SEPARATOR: Final = "@"
_LIGHT_GROUP: Final = _SEPARATOR + LMQ_PREFIX


class ConsumerOffsets:
    """The offsets of every group of one broker."""

    def __init__(self, *, entries_max: int, clock: Clock, has_lmq: bool = False) -> None:
        self._entries_max = entries_max
        self._clock = clock
        self._has_lmq = has_lmq
        self._entries_count = 0
        self._table: dict[str, dict[int, int]] = {}
        self._version = DataVersion()
        self._is_newer = False  # changed since the version
        self.is_dirty = False
        #: (group, topic, queue id) -> offset: resets that a running group has not received yet.
        self.resets: dict[tuple[str, str, int], int] = {}
        # The same -> the offset after the last messages that the group received.
        self._pulled: dict[tuple[str, str, int], int] = {}

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note a group's progress, which may go back, to read again.

        No effect while the group has not received a reset: its offset is from before the reset.
        BrokerError if the table is full and this would be a new entry.
        """
        if self.resets and self.awaits_reset(group, topic, queue_id):
            return
        key = f"{topic}{_SEPARATOR}{group}"
        queues = self._table.get(key)
        if queues is None or queue_id not in queues:
            if self._entries_count >= self._entries_max:
                text = f"the broker already keeps {self._entries_max} consume offsets"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
            self._entries_count += 1
            queues = self._table.setdefault(key, {})
        elif queues[queue_id] == queue_offset:
            return
        queues[queue_id] = queue_offset
        self._changed()

    def reset(
        self, group: str, topic: str, queue_id: int, queue_offset: int, *, is_running: bool
    ) -> None:
        """Set a group's next offset; a running group gets it through ``take_reset``."""
        self.resets.pop((group, topic, queue_id), None)
        self.commit(group, topic, queue_id, queue_offset)
        if is_running:
            self.resets[group, topic, queue_id] = queue_offset

    def awaits_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether there is a reset that the group has not received yet."""
        return (group, topic, queue_id) in self.resets

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return, once, the offset of a reset that the group has not received yet."""
        if not self.resets:
            return None
        return self.resets.pop((group, topic, queue_id), None)

    def note_pulled(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note up to which offset a group has received messages."""
        key = (group, topic, queue_id)
        if key in self._pulled or len(self._pulled) < self._entries_max:
            self._pulled[key] = queue_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset after the last message that the group received; 0 if none yet."""
        return self._pulled.get((group, topic, queue_id), 0)

    def lower_to(self, max_offset: Callable[[str, int], int]) -> int:
        """Lower each offset beyond its queue's end to that end; return how many were lowered.

        A crash may lose the end of a queue. Its offsets are then assigned again, and a group beyond
        them would miss the messages that get them.
        """
        lowered = 0
        for _group, topic, queues in self._entries():
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    lowered += 1
        if lowered:
            self._changed()
        return lowered

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset, or None if it never committed."""
        queues = self._table.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def topics_of(self, group: str) -> Iterator[tuple[str, Mapping[int, int]]]:
        """Yield each topic in which ``group`` has offsets, and these by queue id."""
        for owner, topic, queues in self.entries():
            if owner == group:
                yield topic, queues

    def entries(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Yield each group with a topic in which it has offsets, and these by queue id."""
        yield from self._entries()

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in ``topic``."""
        begin = topic + _SEPARATOR
        found = [_split(key) for key in self._table if key.startswith(begin)]
        return [group for its_topic, group in found if its_topic == topic]

    def forget_group(self, group: str) -> None:
        for topic, queues in list(self.topics_of(group)):
            self._entries_count -= len(queues)
            del self._table[f"{topic}{_SEPARATOR}{group}"]
            self._changed()
        self._forget_places(lambda key: key[0] == group)

    def forget_topic(self, topic: str) -> None:
        for group in self.groups_of(topic):
            queues = self._table.pop(f"{topic}{_SEPARATOR}{group}")
            self._entries_count -= len(queues)
            self._changed()
        self._forget_places(lambda key: key[1] == topic)

    def forget_below(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Forget the offsets in a queue from before it was deleted."""
        for group in self.groups_of(topic):
            queues = self._table[f"{topic}{_SEPARATOR}{group}"]
            if queues.get(queue_id, queue_offset) < queue_offset:
                del queues[queue_id]
                self._entries_count -= 1
                self._changed()

    def _forget_places(self, is_gone: Callable[[tuple[str, str, int]], bool]) -> None:
        for places in (self.resets, self._pulled):
            for key in [key for key in places if is_gone(key)]:
                del places[key]

    def snapshot(self) -> dict[str, Any]:
        """Return the content of the file; a copy, which a thread may encode.

        Its version differs from the previous one's if anything has changed since.
        """
        if self._is_newer:
            self._version = self._version.next(self._clock.now_ms())
            self._is_newer = False
        table: dict[str, dict[int, int]] = {}
        light: dict[str, int] = {}
        for group, topic, queues in self._entries():
            key = f"{topic}{_SEPARATOR}{group}"
            if self._has_lmq and is_lmq(group) and is_lmq(topic) and list(queues) == [0]:
                light[key] = queues[0]
            else:
                table[key] = dict(queues)
        content: dict[str, Any] = {"dataVersion": self._version, "offsetTable": table}
        return content | {"lmqOffsetTable": light} if self._has_lmq else content

    def load(self, content: Mapping[str, Any]) -> None:
        """Replace the table by the content of either file; msgspec.ValidationError if invalid."""
        version = msgspec.convert(content.get("dataVersion") or {}, DataVersion)
        table = msgspec.convert(
            content.get("offsetTable", {}), dict[str, dict[Int32, Int64]], strict=False
        )
        light = msgspec.convert(content.get("lmqOffsetTable", {}), dict[str, Int64])
        for key in table.keys() | light.keys():
            if _SEPARATOR not in key:
                raise ValueError(f"the key {shown(key)} does not consist of a topic and a group")
        self._table = table | {key: {0: offset} for key, offset in light.items()}
        self._version = version
        self._is_newer = False
        self._entries_count = sum(map(len, self._table.values()))

    def load_newer(self, content: Mapping[str, Any]) -> None:
        """Load the content of the other file if it was saved after the loaded one."""
        version = msgspec.convert(content.get("dataVersion") or {}, DataVersion)
        if not self._table or version.timestamp > self._version.timestamp:
            self.load(content)
            self.is_dirty = True

    def _changed(self) -> None:
        self.is_dirty = self._is_newer = True

    def _entries(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        for key, queues in self._table.items():
            topic, group = _split(key)
            yield group, topic, queues

    def _check(self) -> None:
        assert self._entries_count == sum(map(len, self._table.values()))
        assert all(_SEPARATOR in key for key in self._table)


def _split(key: str) -> tuple[str, str]:
    """Return topic and group. Those of light queues may have the separator in their names."""
    topic, found, group = key.rpartition(_LIGHT_GROUP)
    if found and is_lmq(topic):
        return topic, LMQ_PREFIX + group
    topic, _, group = key.rpartition(_SEPARATOR)
    return topic, group
