"""``motelog pub``: publish MQTT messages from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from motelog.cli.addresses import address
from motelog.cli.input import bodies
from motelog.cli.output import CliError, write, write_json


def pub(
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="NAME", help="Topic name.")],
    message: Annotated[
        str | None,
        typer.Option(
            "--message", "-m", metavar="TEXT", help="Body. [default: each line of standard input]"
        ),
    ] = None,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=1, help="0 or 1.")] = 1,
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="MQTT server.")] = "127.0.0.1:1883",
    count: Annotated[int, typer.Option(min=1, help="Publish it this many times.")] = 1,
    protocol: Annotated[int, typer.Option(min=4, max=5, help="5, or 4 for MQTT 3.1.1.")] = 5,
    client_id: Annotated[str, typer.Option(help="Client identifier. [default: a new one]")] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Publish a message, or one per line of standard input."""
    import trio

    from motelog.cli.mqtt_client import MqttClient, connect
    from motelog.gateway.errors import GatewayError
    from motelog.gateway.mqtt.topics import check_topic_name

    try:
        check_topic_name(topic)
    except GatewayError as exc:
        raise CliError(f"--topic {topic!r}: {exc}", status=2) from exc
    published = 0

    async def run() -> MqttClient:
        nonlocal published
        async with connect(address("--to", to), version=protocol, client_id=client_id) as client:
            async for payload in bodies(message, count):
                await client.publish(topic, payload, qos=qos)
                published += 1
            await client.settle()
        return client

    client = trio.run(run)
    if json:
        write_json(
            {
                "published": published,
                "acknowledged": client.acknowledged,
                "refused": client.refused,
            }
        )
    else:
        write(f"published {published}, acknowledged {client.acknowledged}")
    if client.refused:
        reasons = "; ".join(client.refusals.values())
        raise CliError(f"the server refused {client.refused} of {published}: {reasons}")
