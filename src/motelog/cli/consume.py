"""``motelog consume``: print the messages of a queue topic with the native client.

Owns: its options, where reading begins and ends. Must not touch: the terminal (output.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.credentials import CredentialsFile, credentials_of
from motelog.cli.output import CliError, write, write_json
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.bridge.pull import PullConsumer
    from motelog.core.message import MessageQueue, StoredMessage
    from motelog.gateway.sessions.stream import StreamStart

POLL_S = 1.0
BEGIN, END, COMMITTED = "begin", "end", "committed"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="begin, end, committed (where the group has got to), 15m, 1h or 7d ago, a time in"
            " ISO 8601 (UTC unless it says otherwise) or in milliseconds, or offset:N.",
        ),
    ] = BEGIN,
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
    credentials: CredentialsFile = None,
    is_hex: Annotated[bool, typer.Option("--hex", help="Print bodies in hexadecimal.")] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per message; bodies not UTF-8 in base64."),
    ] = False,
) -> None:
    """Print messages as they arrive, until --count, --seconds, --until-end or Ctrl-C."""
    import math

    import trio

    from motelog.bridge.pull import PullConsumer
    from motelog.bridge.selector import select

    account = credentials_of(credentials)
    start = None if begin in (BEGIN, END, COMMITTED) else _start(begin)

    async def run() -> int:
        received = 0
        async with PullConsumer(
            namesrv=namesrv, credentials=account, group=group, hold_s=POLL_S
        ) as consumer:
            queues = await consumer.queues(topic)
            ends = await consumer.end_offsets(queues) if until_end else None
            consumer.assign(queues, tags=tags, sql=sql)
            await _seek(consumer, start or begin)
            with trio.move_on_after(math.inf if seconds is None else seconds):
                while count is None or received < count:
                    if ends is not None and await _has_reached(consumer, ends):
                        break
                    left = 512 if count is None else min(512, count - received)
                    for message in await consumer.poll(timeout_s=POLL_S, count_max=left):
                        received += 1
                        _show(message, json=json, is_hex=is_hex)
            if commit:
                with trio.CancelScope(shield=True):
                    await consumer.commit()
        return received

    try:
        select(tags, sql)
        received = trio.run(run)
    except ValueError as exc:
        raise CliError(str(exc), status=Status.USAGE) from exc
    if count is not None and received < count and seconds is not None:
        text = f"{received} of {count} messages arrived within {seconds:g} s"
        raise CliError(text, status=Status.TIME)


def _start(text: str) -> StreamStart:
    from motelog.core.past_times import before_now
    from motelog.gateway.sessions.stream import StreamStart, parse_start

    ago_ms = before_now(text)
    if ago_ms is not None:
        return StreamStart(time_ms=ago_ms)
    try:
        return parse_start(text)
    except ValueError as exc:
        known = "begin, end, committed, 1h, a time in ISO 8601 or in milliseconds, or offset:N"
        raise CliError(f"--from {text!r}: use {known}", status=2) from exc


async def _seek(consumer: PullConsumer, start: StreamStart | str) -> None:
    """Begin in all queues where ``--from`` says; an offset that is not there is the nearest one."""
    if start == COMMITTED:
        return
    if start == BEGIN:
        consumer.seek_to_begin()
    elif start == END:
        consumer.seek_to_end()
    else:
        assert not isinstance(start, str)
        queues = consumer.assigned
        begins = await consumer.begin_offsets(queues)
        ends = await consumer.end_offsets(queues)
        offsets = await consumer.offsets_for_time(queues, start.time_ms)
        for queue in queues:
            wanted = max(offsets[queue], start.queue_offset)
            consumer.seek(queue, min(max(wanted, begins[queue]), ends[queue]))


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


def _show(message: StoredMessage, *, json: bool, is_hex: bool) -> None:
    if not json:
        place = f"{message.topic}/{message.queue_id}@{message.queue_offset} "
        body = message.body.hex() if is_hex else message.body.decode(errors="replace")
        write(place + body)
        return
    from motelog.cli.message_format import payload_fields

    value: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tag": message.tags,
        "keys": list(message.keys),
        "message_id": message.message_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "properties": message.properties,
        **payload_fields("body", message.body),
    }
    write_json(value)
