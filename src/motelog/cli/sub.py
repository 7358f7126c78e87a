"""``motelog sub``: print the MQTT messages that match topic filters.

Owns: the command's options and output. Must not touch: packets (``mqtt_client``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from motelog.cli.addresses import address
from motelog.cli.output import CliError, write, write_json


def sub(
    topic: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="FILTER", help="Topic filter. May be repeated."),
    ],
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=1, help="0 or 1.")] = 1,
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="MQTT server.")] = "127.0.0.1:1883",
    count: Annotated[int | None, typer.Option(min=1, help="End after this many messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after this time.")] = None,
    protocol: Annotated[int, typer.Option(min=4, max=5, help="5, or 4 for MQTT 3.1.1.")] = 5,
    client_id: Annotated[str, typer.Option(help="Client identifier. [default: a new one]")] = "",
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGO|TIME|earliest",
            help="Begin in the past: 90s, 15m, 1h or 7d ago, or at a time in ISO 8601 (UTC unless"
            " it says otherwise) or in milliseconds. Our own servers only.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per message.")] = False,
) -> None:
    """Print messages as they arrive, until --count, --seconds or Ctrl-C."""
    import math

    import trio

    from motelog.cli.mqtt_client import FAILURE, connect, reason_text
    from motelog.gateway.errors import GatewayError
    from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Properties
    from motelog.gateway.mqtt.topics import check_topic_filter
    from motelog.gateway.sessions.stream import STREAM_OFFSET, STREAM_PREFIX

    for topic_filter in topic:
        try:
            check_topic_filter(topic_filter)
        except GatewayError as exc:
            raise CliError(f"--topic {topic_filter!r}: {exc}", status=2) from exc

    wanted, properties = topic, NO_PROPERTIES
    if since is not None:
        if protocol != 5:
            raise CliError("--since needs --protocol 5", status=2)
        properties = Properties(user_properties=((STREAM_OFFSET, _start(since)),))
        wanted = [STREAM_PREFIX + topic_filter for topic_filter in topic]

    async def run() -> int:
        received = 0
        async with connect(address("--to", to), version=protocol, client_id=client_id) as client:
            codes = await client.subscribe(wanted, qos=qos, properties=properties)
            for topic_filter, code in zip(topic, codes, strict=True):
                if code >= FAILURE:
                    text = reason_text(code, NO_PROPERTIES)
                    raise CliError(f"the server refused to subscribe {topic_filter!r}: {text}")
            if json:
                write_json({"event": "subscribed", "qos": codes})
            with trio.move_on_after(math.inf if seconds is None else seconds):
                async for message in client.received:
                    received += 1
                    text = message.payload.decode(errors="replace")
                    if json:
                        write_json({"topic": message.topic, "payload": text, "qos": message.qos})
                    else:
                        write(f"{message.topic} {text}")
                    if received == count:
                        break
        return received

    received = trio.run(run)
    if count is not None and received < count:
        raise CliError(f"{received} of {count} messages arrived within {seconds:g} s")


def _start(since: str) -> str:
    """Return the ``stream-offset`` that ``--since`` asks for."""
    import re
    import time

    from motelog.gateway.sessions.stream import parse_start

    ago = re.fullmatch(r"(\d{1,9})([smhd])", since, re.ASCII)
    if ago is not None:
        seconds = int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[ago[2]]
        return str(max(0, int((time.time() - seconds) * 1000)))
    try:
        parse_start(since)
    except ValueError as exc:
        text = f"--since {since!r}: use 90s, 15m, 1h, 7d, earliest, or a time in ISO 8601"
        raise CliError(text, status=2) from exc
    return since
