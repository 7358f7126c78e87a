"""``motelog consume``: print the messages of a queue topic with the native client.

Owns: its options, where reading begins and ends. Must not touch: the terminal (output.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli.log_reading import BEGIN, begins_of, start_of
from motelog.cli.native import GROUP, Servers
from motelog.cli.options import takes_options
from motelog.cli.output import CliError
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status
from motelog.cli.stored_message import IsHex, show

if TYPE_CHECKING:
    from motelog.bridge.pull import PullConsumer
    from motelog.core.message import MessageQueue
    from motelog.gateway.sessions.stream import StreamStart

POLL_S = 1.0
END, COMMITTED = "end", "committed"


@dataclass(frozen=True, slots=True)
class Reading:
    """Which messages are read, and when it ends."""

    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="begin, end, committed (the group's committed offset), 15m, 1h or 7d ago, a time"
            " in ISO 8601 (UTC without an offset) or in milliseconds, or offset:N.",
        ),
    ] = BEGIN
    group: Annotated[str, typer.Option(help="Consumer group.")] = GROUP
    tags: Annotated[str, typer.Option(help="Only messages with one of these tags: 'a || b'.")] = "*"
    sql: Annotated[
        str | None,
        typer.Option(
            help="Only messages whose properties match: \"temperature > 30 AND a = 'b'\"."
        ),
    ] = None
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after this time.")] = None
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop after the message that is now the last one.")
    ] = False
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the group's offsets when it stops.")
    ] = False


@takes_options
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    *,
    reading: Reading,
    servers: Servers,
    is_hex: IsHex = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per message; bodies that are not UTF-8 in base64."
        ),
    ] = False,
) -> None:
    """Print messages as they arrive, until --count, --seconds, --until-end or Ctrl-C."""
    import math

    import trio

    from motelog.bridge.pull import PullConsumer
    from motelog.bridge.selector import select

    options, count, seconds = servers.options, reading.count, reading.seconds
    begin: StreamStart | str = reading.begin
    if reading.begin not in (BEGIN, END, COMMITTED):
        begin = start_of("--from", reading.begin, also=(END, COMMITTED))

    async def run() -> int:
        received = 0
        async with PullConsumer(**options, group=reading.group, hold_s=POLL_S) as consumer:
            queues = await consumer.queues(topic)
            ends = await consumer.end_offsets(queues) if reading.until_end else None
            consumer.assign(queues, tags=reading.tags, sql=reading.sql)
            await _seek(consumer, begin)
            with trio.move_on_after(math.inf if seconds is None else seconds):
                while count is None or received < count:
                    if ends is not None and await _has_reached(consumer, ends):
                        break
                    left = 512 if count is None else min(512, count - received)
                    for message in await consumer.poll(timeout_s=POLL_S, count_max=left):
                        received += 1
                        show(message, json=json, is_hex=is_hex)
            if reading.commit:
                with trio.CancelScope(shield=True):
                    await consumer.commit()
        return received

    try:
        select(reading.tags, reading.sql)
        received = run_interruptibly(run)
    except ValueError as exc:
        raise CliError(str(exc), status=Status.USAGE) from exc
    if count is not None and received < count and seconds is not None:
        text = f"{received} of {count} messages arrived within {seconds:g} s"
        raise CliError(text, status=Status.TIME)


async def _seek(consumer: PullConsumer, start: StreamStart | str) -> None:
    """Begin all queues where ``--from`` says; a missing offset becomes the nearest one."""
    if start == COMMITTED:
        return
    if start == BEGIN:
        consumer.seek_to_begin()
    elif start == END:
        consumer.seek_to_end()
    else:
        assert not isinstance(start, str)
        for queue, offset in (await begins_of(consumer, consumer.assigned, start)).items():
            consumer.seek(queue, offset)


async def _has_reached(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> bool:
    begins = None
    for queue, end in ends.items():
        position = consumer.position(queue)
        if position is None:
            # Nothing was returned yet: the queue is done if it is empty.
            begins = begins or await consumer.begin_offsets(list(ends))
            position = begins[queue]
        if position < end:
            return False
    return True
