"""``motelog produce``: send messages to a queue topic with the native client."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from motelog.cli.input import Body, bodies
from motelog.cli.native import GROUP, Servers
from motelog.cli.options import takes_options
from motelog.cli.output import CliError, write, write_json
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status


@takes_options
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    message: Body = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every message.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key. May be repeated.")] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property. May be repeated."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Send the body this many times.")] = 1,
    *,
    servers: Servers,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per message.")] = False,
) -> None:
    """Send a message to a queue topic, or one per line of standard input."""
    from motelog.bridge.producer import Producer
    from motelog.core.message import Message

    options = servers.options
    properties = dict(_pair(text) for text in property_ or ())
    sent = 0

    async def run() -> None:
        nonlocal sent
        async with (
            Producer(**options, group=GROUP) as producer,
            aclosing(bodies(message, count)) as each,
        ):
            async for body in each:
                result = await producer.send(
                    Message(topic, body, tags=tag, keys=tuple(key or ()), properties=properties)
                )
                sent += 1
                if json:
                    write_json(
                        {
                            "status": result.status.name,
                            "message_id": result.message_id,
                            "broker": result.queue.broker_name,
                            "queue_id": result.queue.queue_id,
                            "queue_offset": result.queue_offset,
                        }
                    )

    try:
        run_interruptibly(run)
    except ValueError as exc:
        raise CliError(str(exc), status=Status.USAGE) from exc
    if not json:
        write(f"sent {sent}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CliError(f"--property: {text!r} is not NAME=VALUE", status=2)
    return name, value
