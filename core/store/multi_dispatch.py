"""Light queues: which messages of a batch are in them, and at which offsets.

Owns: the offsets of a batch's messages in further queues, the units that name their records.
Must not touch: the records' own queues, the log, files; when there is a batch (message_store).
A queue's offsets are assigned in the order of the log, so that a start can find them again in it.
Spec: RocketMQ LmqDispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from motelog.core.records.append import AppendMessage, QueueTail
from motelog.core.records.dispatch import LMQ_QUEUE_ID, Dispatched, offsets_property
from motelog.core.records.layout import UNIT
from motelog.core.topic_names import is_lmq

_PROPERTIES: Final = 2


class Indexed(NamedTuple):
    """A message of a batch, with its number, that is in further queues."""

    number: int
    tails: list[QueueTail]


class Placed(NamedTuple):
    """A batch with the places of its messages in further queues.

    ``units_count`` is how many units it has in all queues, those of the records included.
    """

    messages: list[AppendMessage]
    indexed: list[Indexed]
    units_count: int


def place(messages: list[AppendMessage], queue_tail: Callable[[str, int], QueueTail]) -> Placed:
    """Return the batch with the places of its marked messages; no queue has changed yet."""
    placed: list[AppendMessage] = []
    indexed: list[Indexed] = []
    ends: dict[QueueTail, int] = {}
    for number, message in enumerate(messages):
        names = message.names if isinstance(message, Dispatched) else []
        # A malformed list, in a folder written by other software, must not lose a message.
        if not names or len(set(names)) < len(names) or not all(map(is_lmq, names)):
            placed.append(message)
            continue
        tails = [queue_tail(name, LMQ_QUEUE_ID) for name in names]
        offsets = [ends.get(tail, tail.next_offset) for tail in tails]
        ends.update((tail, at + 1) for tail, at in zip(tails, offsets, strict=True))
        properties = message[_PROPERTIES] + offsets_property(offsets)
        placed.append((*message[:_PROPERTIES], properties, *message[_PROPERTIES + 1 :]))  # type: ignore[arg-type]  # mypy does not count slices
        indexed.append(Indexed(number, tails))
    return Placed(placed, indexed, len(placed) + sum(len(one.tails) for one in indexed))


def add_units(
    indexed: list[Indexed],
    messages: list[AppendMessage],
    physical_offsets: list[tuple[int, int]],
    size_at: Callable[[int], int],
    dirty: list[QueueTail],
    fresh: list[QueueTail],
) -> None:
    """Add the units of records that were written.

    ``dirty`` gets the queues that grow, ``fresh`` those of them that held no unit in memory before,
    each before it grows: after an error half way no other queue has a new unit.
    """
    grown: set[QueueTail] = set()
    for number, tails in indexed:
        physical_offset = physical_offsets[number][0]
        unit = UNIT.pack(physical_offset, size_at(physical_offset), messages[number][3])
        for tail in tails:
            if not tail.pending:
                fresh.append(tail)
            if tail not in grown:
                grown.add(tail)
                dirty.append(tail)
            tail.extend(unit)
