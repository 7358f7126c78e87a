"""Reading messages of queue topics for commands: where to begin, and a range of a queue.

Owns: the values of ``--from``, reading one queue. Must not touch: what is done with messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from motelog.cli.output import CliError
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.bridge.pull import PullConsumer
    from motelog.core.message import MessageQueue
    from motelog.core.records.decode import StoredMessage
    from motelog.gateway.sessions.stream import StreamStart

BEGIN: Final = "begin"
_PULL_COUNT: Final = 512


def start_of(option: str, text: str, *, also: Iterable[str] = ()) -> StreamStart:
    """Return where reading begins according to ``text``; CliError names the option.

    ``also`` are further words that the caller handles itself.
    """
    from motelog.core.past_times import before_now
    from motelog.gateway.sessions.stream import StreamStart, parse_start

    if text == BEGIN:
        return StreamStart()
    ago_ms = before_now(text)
    if ago_ms is not None:
        return StreamStart(time_ms=ago_ms)
    try:
        return parse_start(text)
    except ValueError as exc:
        words = ", ".join((BEGIN, *also))
        known = f"{words}, 1h, a time in ISO 8601 or in milliseconds, or offset:N"
        raise CliError(f"{option} {text!r}: use {known}", status=Status.USAGE) from exc


async def begins_of(
    consumer: PullConsumer, queues: Iterable[MessageQueue], start: StreamStart
) -> dict[MessageQueue, int]:
    """Return the queue offset at which to begin each queue, or the nearest one that exists."""
    queues = tuple(queues)
    begins = await consumer.begin_offsets(queues)
    ends = await consumer.end_offsets(queues)
    offsets = await consumer.offsets_for_time(queues, start.time_ms)
    return {
        queue: min(max(offsets[queue], start.queue_offset, begins[queue]), ends[queue])
        for queue in queues
    }


async def read_queue(
    consumer: PullConsumer,
    queue: MessageQueue,
    begin: int,
    end: int,
    take: Callable[[StoredMessage], bool],
) -> None:
    """Pass a queue's messages with offsets in [begin, end) to ``take``, until it returns False."""
    while begin < end:
        found = await consumer.pull(queue, begin, count_max=min(_PULL_COUNT, end - begin))
        for message in found.messages():
            if message.queue_offset >= end or not take(message):
                return
        if found.next_offset <= begin:
            return
        begin = found.next_offset
