"""``motelog consume``: print the messages of a queue topic with the native client.

Owns: its options, where reading begins and ends. Must not touch: the terminal (output.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.output import CliError, write, write_json

if TYPE_CHECKING:
    from motelog.bridge.pull import PullConsumer
    from motelog.core.message import MessageQueue, StoredMessage

POLL_S = 1.0


class Begin(StrEnum):
    BEGIN = "begin"
    END = "end"
    COMMITTED = "committed"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    begin: Annotated[
        Begin, typer.Option("--from", help="committed: at the group's committed offset.")
    ] = Begin.BEGIN,
    group: Annotated[str, typer.Option(help="Consumer group.")] = "motelog-cli",
    tags: Annotated[
        str, typer.Option(help="Only messages with one of these tags: 'a || b'.")
    ] = "*",
    sql: Annotated[
        str | None,
        typer.Option(
            help="Only messages whose properties match: \"temperature > 30 AND a = 'b'\"."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after this time.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End at the message that is the last one now.")
    ] = False,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit the group's offsets at the end.")
    ] = False,
    namesrv: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Name server; more separated by ';'.")
    ] = "127.0.0.1:9876",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per message.")] = False,
) -> None:
    """Print messages as they arrive, until --count, --seconds, --until-end or Ctrl-C."""
    import math

    import trio

    from motelog.bridge.errors import FilterError, RouteError
    from motelog.bridge.pull import PullConsumer
    from motelog.bridge.selector import select

    async def run() -> int:
        received = 0
        async with PullConsumer(namesrv=namesrv, group=group, hold_s=POLL_S) as consumer:
            queues = await consumer.queues(topic)
            ends = await consumer.end_offsets(queues) if until_end else None
            consumer.assign(queues, tags=tags, sql=sql)
            if begin is Begin.BEGIN:
                consumer.seek_to_begin()
            elif begin is Begin.END:
                consumer.seek_to_end()
            with trio.move_on_after(math.inf if seconds is None else seconds):
                while count is None or received < count:
                    if ends is not None and await _has_reached(consumer, ends):
                        break
                    left = 512 if count is None else min(512, count - received)
                    for message in await consumer.poll(timeout_s=POLL_S, count_max=left):
                        received += 1
                        _show(message, json=json)
            if commit:
                with trio.CancelScope(shield=True):
                    await consumer.commit()
        return received

    try:
        select(tags, sql)
        received = trio.run(run)
    except (FilterError, ValueError) as exc:
        raise CliError(str(exc)) from exc
    except RouteError as exc:
        remedy = "it is created by the first message: motelog produce, or motelog pub"
        raise CliError(str(exc), remedy=remedy) from exc
    if count is not None and received < count and seconds is not None:
        raise CliError(f"{received} of {count} messages arrived within {seconds:g} s")


async def _has_reached(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> bool:
    begins = None
    for queue, end in ends.items():
        position = consumer.position(queue)
        if position is None:
            # Nothing was handed out yet: the queue is done if there is nothing in it.
            begins = begins or await consumer.begin_offsets(list(ends))
            position = begins[queue]
        if position < end:
            return False
    return True


def _show(message: StoredMessage, *, json: bool) -> None:
    body = message.body.decode(errors="replace")
    if not json:
        write(f"{message.topic}/{message.queue_id}@{message.queue_offset} {body}")
        return
    value: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tag": message.tags,
        "keys": list(message.keys),
        "message_id": message.message_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "properties": message.properties,
        "body": body,
    }
    write_json(value)
