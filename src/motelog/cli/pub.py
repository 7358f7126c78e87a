"""``motelog pub``: publish MQTT messages from the command line, with mosquitto_pub's options.

Owns: what is published and how often. Must not touch: packets (mqtt_client), the options shared
with ``sub`` (mqtt_options).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli import mqtt_options
from motelog.cli.input import Body, bodies, whole
from motelog.cli.options import takes_options
from motelog.cli.output import CliError, write_json, write_note
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.cli.mqtt_client import MqttClient

pub = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubOptions:
    """The options of ``pub``."""

    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="NAME", help="Topic name.")
    ] = None
    message: Body = None
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="Body: a file's content.")
    ] = None
    stdin_line: Annotated[
        bool, typer.Option("--stdin-line", "-l", help="Publish each line of standard input.")
    ] = False
    stdin_file: Annotated[
        bool, typer.Option("--stdin-file", "-s", help="Body: the whole of standard input.")
    ] = False
    null_message: Annotated[
        bool,
        typer.Option("--null-message", "-n", help="An empty body."),
    ] = False
    qos: mqtt_options.Qos = 1
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="Retain the message for later subscribers.")
    ] = False
    count: Annotated[
        int,
        typer.Option(
            "--repeat", "--count", metavar="N", min=1, help="Publish the body this many times."
        ),
    ] = 1
    repeat_delay: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Pause between repetitions.")
    ] = 0.0
    quiet: mqtt_options.Quiet = False
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False
    mqtt: mqtt_options.MqttOptions

    def payload(self) -> bytes | None:
        """Return the body, None if it comes from standard input; CliError if there are several."""
        given = (self.message is not None, self.file is not None, self.null_message)
        if sum((*given, self.stdin_line, self.stdin_file)) > 1:
            raise CliError("give only one of -m, -f, -l, -s and -n", status=2)
        if self.file is not None:
            return _content(self.file)
        if self.null_message:
            return b""
        return None if self.message is None else self.message.encode(errors="surrogateescape")

    async def payloads(self, payload: bytes | None) -> AsyncGenerator[bytes]:
        """Yield what is published: ``payload`` as often as it is wanted, or standard input."""
        body = await whole() if self.stdin_file else payload
        if body is None:
            async for line in bodies(None, 1):
                yield line
            return
        for _ in range(self.count):
            yield body


@pub.command(
    "pub",
    cls=mqtt_options.MqttCommand,
    epilog="Example: motelog pub -t telemetry/dev42/temperature -m 21.5",
)
@takes_options
def publish(options: PubOptions) -> None:
    """Publish a message, or one per line of standard input.

    The options are those of mosquitto_pub, but QoS 1 and MQTT 5 are the defaults, so that you see
    the server's answer to each message.
    """
    import trio

    wanted = options.mqtt.wanted()
    name = options.topic or wanted.url_topic
    if name is None:
        raise CliError("name the topic: --topic NAME, or --url with one", status=2)
    mqtt_options.check_topic_name("--topic", name)
    payload = options.payload()
    qos, retain, delay = options.qos, options.retain, options.repeat_delay
    properties = wanted.properties["publish"]

    async def run() -> tuple[MqttClient, int]:
        published = 0
        async with wanted.connected() as client:
            async with aclosing(options.payloads(payload)) as each:
                async for body in each:
                    if published and delay:
                        await client.settle()
                        await trio.sleep(delay)
                    await client.publish(name, body, qos=qos, retain=retain, properties=properties)
                    published += 1
            await client.settle()
        return client, published

    client, published = run_interruptibly(run)
    if options.json:
        counts = {"acknowledged": client.acknowledged, "refused": client.refused}
        write_json({"published": published, **counts})
    elif not options.quiet:
        write_note(f"published {published}, acknowledged {client.acknowledged}")
    if client.refused:
        reasons = "; ".join(client.refusals.values())
        text = f"the server refused {client.refused} of {published}: {reasons}"
        raise CliError(text, status=Status.REFUSED)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise CliError(f"--file {path}: {exc.strerror}", status=2) from exc
