"""Queue offsets of a query: their JSON in checkpoints and options, and dividing batches.

Owns: the offset document, ranges, the fair share of a limit, the split into partitions.
Must not touch: pyspark, pyarrow, sockets, clocks; the broker's offsets are arguments.

    {"telemetry": {"broker-a/0": 17, "broker-a/1": 4}}     topic -> "broker/queue id" -> next offset

The document names the topics, so that a checkpoint cannot be used with another one by mistake.
Keys are ordered by broker and queue id, so that equal offsets are equal text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from motelog.core.message import MessageQueue
from motelog.spark.errors import OffsetFormatError
from motelog.spark.topics import Topics

QueueOffsets = dict[MessageQueue, int]
OffsetDocument = dict[str, dict[str, int]]
Edge = Literal["earliest", "latest"]
EDGES: Final[tuple[Edge, Edge]] = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages [begin, end) of one queue.

    ``is_open``: the messages at its beginning may be missing, because the queue is new to the
    query or was created again. Then it begins where the broker's log begins.
    """

    queue: MessageQueue
    begin: int
    end: int
    is_open: bool = False

    @property
    def rows(self) -> int:
        return self.end - self.begin


def queue_label(queue: MessageQueue) -> str:
    """Return "broker/queue id"."""
    return f"{queue.broker_name}/{queue.queue_id}"


def in_order(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues in the order of the offset document."""
    return sorted(queues, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


def encode_offsets(topics: Topics, offsets: QueueOffsets) -> OffsetDocument:
    """Return the document for a checkpoint, with all topics that are named or have queues."""
    document: OffsetDocument = {topic: {} for topic in sorted(topics.names)}
    for queue in in_order(offsets):
        document.setdefault(queue.topic, {})[queue_label(queue)] = offsets[queue]
    return document


def decode_offsets(topics: Topics, document: object) -> QueueOffsets:
    """Return the offsets of a document that ``encode_offsets`` wrote.

    A topic that was added to the query later is missing. A topic that the query no longer names is
    an error: its position would be lost silently.
    """
    offsets: QueueOffsets = {}
    for queue, value in _entries(topics, document):
        offset = _offset(value)
        if offset is None:
            raise OffsetFormatError(f"{queue_label(queue)!r} is {value!r}, expected an offset")
        offsets[queue] = offset
    return offsets


def parse_offsets(topics: Topics, text: str) -> dict[MessageQueue, int | Edge]:
    """Return the offsets of an option's JSON: numbers, "earliest" or "latest" by queue."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise OffsetFormatError(f"not JSON: {exc}") from None
    parsed: dict[MessageQueue, int | Edge] = {}
    for queue, value in _entries(topics, document):
        position = next((edge for edge in EDGES if value == edge), _offset(value))
        if position is None:
            raise OffsetFormatError(
                f"{queue_label(queue)!r} is {value!r}, expected an offset, 'earliest' or 'latest'"
            )
        parsed[queue] = position
    return parsed


def _entries(topics: Topics, document: object) -> Iterable[tuple[MessageQueue, object]]:
    if not isinstance(document, Mapping):
        raise OffsetFormatError(f"offsets are {document!r}, expected an object of {topics}")
    others = [topic for topic in document if topic not in topics]
    if others:
        raise OffsetFormatError(
            f"the offsets are also of {others!r}, but the query reads {topics}: name these topics"
            " too, or use a new checkpoint"
        )
    for topic, queues in document.items():
        if not isinstance(queues, Mapping):
            raise OffsetFormatError(f"offsets of {topic!r} are {queues!r}, expected an object")
        for label, value in queues.items():
            broker, slash, queue_id = str(label).rpartition("/")
            if not (slash and broker and queue_id.isascii() and queue_id.isdecimal()):
                raise OffsetFormatError(f"queue {label!r}, expected 'broker name/queue id'")
            yield MessageQueue(topic, broker, int(queue_id)), value


def _offset(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    return None


def ranges_between(start: QueueOffsets, end: QueueOffsets) -> list[OffsetRange]:
    """Return the ranges between two offsets, in the order of queues, without empty ones.

    A queue that is not in ``start`` begins at its beginning. So does one whose end is before its
    start: the broker has created it again, and the query accepted that when it planned the end.
    """
    ranges = []
    for queue in in_order(end):
        begin = start.get(queue)
        if begin is None or end[queue] < begin:
            begin, is_open = 0, True
        else:
            is_open = False
        if begin < end[queue]:
            ranges.append(OffsetRange(queue, begin, end[queue], is_open))
    return ranges


def limit_rows(
    begin: QueueOffsets, latest: QueueOffsets, rows_max: int, *, first: int = 0
) -> QueueOffsets:
    """Return the end of the next batch, at most ``rows_max`` rows after ``begin``.

    Each queue of ``latest`` gets an equal share; the unused part of a short queue's share goes to
    the others. Remaining rows go to the queues from number ``first`` (modulo count) on.
    """
    queues = in_order(latest)
    backlogs = [max(0, latest[queue] - begin.get(queue, 0)) for queue in queues]
    shares = fair_shares(backlogs, rows_max, first=first)
    return {
        queue: min(begin.get(queue, 0), latest[queue]) + share
        for queue, share in zip(queues, shares, strict=True)
    }


def limit_bytes(
    begin: QueueOffsets,
    latest: QueueOffsets,
    bytes_max: int,
    *,
    row_bytes: Mapping[MessageQueue, int],
    first: int = 0,
) -> QueueOffsets:
    """Return the end of the next batch: rows of ``row_bytes`` each, at most ``bytes_max`` in total.

    The limit is shared as in ``limit_rows``. If no row fits, the batch still has one: a query must
    get past a message that is larger than its limit.
    """
    queues = in_order(latest)
    backlogs = [max(0, latest[queue] - begin.get(queue, 0)) for queue in queues]
    sizes = [max(1, row_bytes.get(queue, 1)) for queue in queues]
    wanted = [rows * size for rows, size in zip(backlogs, sizes, strict=True)]
    shares = fair_shares(wanted, bytes_max, first=first)
    rows = [share // size for share, size in zip(shares, sizes, strict=True)]
    if not any(rows):
        rows = fair_shares(backlogs, 1, first=first)
    return {
        queue: min(begin.get(queue, 0), latest[queue]) + count
        for queue, count in zip(queues, rows, strict=True)
    }


def fair_shares(wanted: Sequence[int], total: int, *, first: int = 0) -> list[int]:
    """Divide ``total`` equally, but give each at most what it wants.

    The remainder of the division goes one by one to those from number ``first`` on.
    """
    shares = list(wanted)
    left = total
    waiting = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for done, i in enumerate(waiting):
        level, rest = divmod(left, len(waiting) - done)
        if wanted[i] > level:
            # All from here on want more than an equal share of the rest.
            crowd = sorted(waiting[done:])
            turn = first % len(crowd)
            for place, j in enumerate(crowd[turn:] + crowd[:turn]):
                shares[j] = level + (place < rest)
            break
        left -= wanted[i]
    return shares


def split_ranges(
    ranges: Sequence[OffsetRange], *, partitions_min: int = 1, rows_max: int | None = None
) -> list[OffsetRange]:
    """Return the ranges cut into pieces: one Spark task each.

    There are at least ``partitions_min`` pieces if there are that many rows; larger ranges are cut
    first. No piece has more than ``rows_max`` rows. Pieces of a range differ by at most one row.
    """
    pieces = [
        1 if rows_max is None else -(-offset_range.rows // rows_max) for offset_range in ranges
    ]
    total = sum(offset_range.rows for offset_range in ranges)
    wanted = min(partitions_min, total)
    if sum(pieces) < wanted:
        # Pieces in proportion first; those lost to rounding go where pieces are largest.
        for i, offset_range in enumerate(ranges):
            pieces[i] = max(pieces[i], wanted * offset_range.rows // total)
        for _ in range(wanted - sum(pieces)):
            largest = max(range(len(ranges)), key=lambda i: ranges[i].rows / pieces[i])
            pieces[largest] += 1
    return [
        piece
        for offset_range, count in zip(ranges, pieces, strict=True)
        for piece in _cut(offset_range, count)
    ]


def share_tasks(
    pieces: Sequence[OffsetRange], *, tasks_min: int = 1, rows_max: int
) -> list[tuple[OffsetRange, ...]]:
    """Return the pieces by task: adjacent pieces of at most ``rows_max`` rows together share one.

    A task costs Spark milliseconds however few rows it has. If this would leave fewer than
    ``tasks_min`` tasks, each piece gets its own.
    """
    tasks: list[list[OffsetRange]] = []
    rows = 0
    for piece in pieces:
        rows += piece.rows
        if tasks and rows <= rows_max:
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
            rows = piece.rows
    if len(tasks) < tasks_min:
        return [(piece,) for piece in pieces]
    return [tuple(task) for task in tasks]


def _cut(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    for i in range(count):
        begin = whole.begin + whole.rows * i // count
        end = whole.begin + whole.rows * (i + 1) // count
        yield OffsetRange(whole.queue, begin, end, whole.is_open)
