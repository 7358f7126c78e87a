"""``motelog sub``: print the MQTT messages that match topic filters, with mosquitto_sub's options.

Owns: which messages are requested and how they are printed. Must not touch: packets (mqtt_client),
format strings (message_format), the options shared with ``pub`` (mqtt_options).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli import mqtt_options
from motelog.cli.options import takes_options
from motelog.cli.output import CliError, write_bytes, write_error, write_json, write_note
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.cli.mqtt_client import MqttClient, Received
    from motelog.gateway.mqtt.packet_types import Properties

sub = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOptions:
    """The options of ``sub``."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="FILTER", help="Topic filter. May be repeated."),
    ] = None
    qos: mqtt_options.Qos = 1
    count: Annotated[
        int | None,
        typer.Option("--count", "-C", metavar="N", min=1, help="Stop after this many messages."),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", "-W", metavar="SECONDS", min=0.0, help="Stop after this time."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGO|TIME|earliest",
            help="Begin in the past: 90s, 15m, 1h or 7d ago, or at a time in ISO 8601 (UTC"
            " without an offset) or in milliseconds. Only Motelog servers support this.",
        ),
    ] = None
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the topic name before each body.")
    ] = False
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-F",
            metavar="TEXT",
            help="Format of each message: %t topic, %p body, %x body in hexadecimal, %q QoS,"
            " %r retained, %l bytes, %I time, %U Unix time, %j all as JSON, @H:@M:@S strftime,"
            " and the rest of mosquitto_sub's.",
        ),
    ] = None
    no_newline: Annotated[
        bool, typer.Option("-N", "--no-eol", help="Print no newline after a message.")
    ] = False
    pretty: Annotated[
        bool,
        typer.Option("--pretty", help="Print %j and %J on several lines."),
    ] = False
    filter_out: Annotated[
        list[str] | None,
        typer.Option(
            "--filter-out",
            "-T",
            metavar="FILTER",
            help="Do not print messages that match. May be repeated.",
        ),
    ] = None
    skip_retained: Annotated[
        bool, typer.Option("-R", "--skip-retained", help="Do not print retained messages.")
    ] = False
    retained_only: Annotated[
        bool,
        typer.Option("--retained-only", help="Stop at the first message that is not retained."),
    ] = False
    remove_retained: Annotated[
        bool, typer.Option("--remove-retained", help="Delete the retained messages that arrive.")
    ] = False
    retain_as_published: Annotated[
        bool,
        typer.Option("--retain-as-published", help="Show the publisher's retain flag. MQTT 5."),
    ] = False
    unsubscribe: Annotated[
        list[str] | None,
        typer.Option(
            "--unsubscribe",
            "-U",
            metavar="FILTER",
            help="Unsubscribe this filter. May be repeated.",
        ),
    ] = None
    end_subscribed: Annotated[
        bool, typer.Option("-E", "--end-subscribed", help="Stop once subscribed.")
    ] = False
    quiet: mqtt_options.Quiet = False
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per message; bodies that are not UTF-8 in base64."
        ),
    ] = False
    mqtt: mqtt_options.MqttOptions


@sub.command(
    "sub",
    cls=mqtt_options.MqttCommand,
    epilog="Example: motelog sub -v -t 'telemetry/#' --since 15m",
)
@takes_options
def subscribe(options: SubOptions) -> None:
    """Print messages as they arrive, until --count, --seconds or Ctrl-C.

    The options are those of mosquitto_sub, but QoS 1 and MQTT 5 are the defaults.
    """
    received = run_interruptibly(_Subscriber(options).run)
    count, seconds = options.count, options.seconds
    if seconds is not None and count is not None and received < count:
        text = f"{received} of {count} messages arrived within {seconds:g} s"
        raise CliError(text, status=Status.TIME)


class _Subscriber:
    """A client that subscribes and prints; CliError if the options cannot be combined."""

    def __init__(self, options: SubOptions) -> None:
        self._options = options
        self._wanted = wanted = options.mqtt.wanted()
        filters = [*(options.topic or ()), *([wanted.url_topic] if wanted.url_topic else ())]
        if not (filters or options.unsubscribe):
            raise CliError("name a topic filter: --topic FILTER, or --url with one", status=2)
        _check_filters("--topic", filters)
        _check_filters("--filter-out", options.filter_out)
        _check_filters("--unsubscribe", options.unsubscribe)
        if options.retain_as_published and wanted.version != 5:
            raise CliError("--retain-as-published needs --protocol-version mqttv5", status=2)
        self._filters = filters
        self._asked, self._properties = filters, wanted.properties["subscribe"]
        if (since := options.since) is not None:
            if wanted.version != 5:
                raise CliError("--since needs --protocol-version mqttv5", status=2)
            self._asked, self._properties = _from_the_past(filters, since, self._properties)
        self._show = _printer(options)

    async def run(self) -> int:
        """Return how many messages were printed."""
        import math

        import trio

        options = self._options
        count = math.inf if options.count is None else options.count
        received = 0
        async with self._wanted.connected() as client:
            await self._subscribe(client)
            with trio.move_on_after(math.inf if options.seconds is None else options.seconds):
                while not options.end_subscribed and received < count:
                    message = await client.receive()
                    if options.retained_only and not message.retain:
                        break
                    if options.remove_retained and message.retain and message.payload:
                        await client.publish(message.topic, b"", qos=options.qos, retain=True)
                    if self._is_shown(message):
                        self._show(message)
                        received += 1
            await client.settle()
        return received

    async def _subscribe(self, client: MqttClient) -> None:
        from motelog.cli.mqtt_client import FAILURE, reason_text
        from motelog.gateway.mqtt.packet_types import SubscribeEntry, SubscriptionAck

        options = self._options
        qos, as_published = options.qos, options.retain_as_published
        entries = [
            SubscribeEntry(one, qos, retain_as_published=as_published) for one in self._asked
        ]
        answer = SubscriptionAck(0, ())
        if entries:
            answer = await client.subscribe(entries, properties=self._properties)
        codes = list(answer.reason_codes)
        for topic_filter, code in zip(self._filters, codes, strict=True):
            if code >= FAILURE:
                text = reason_text(code, answer.properties)
                text = f"the server refused the subscription {topic_filter!r}: {text}"
                raise CliError(text, status=Status.REFUSED)
        if options.unsubscribe:
            await client.unsubscribe(options.unsubscribe)
        if options.json:
            write_json({"event": "subscribed", "qos": codes})
        elif not options.quiet:
            for topic_filter, code in zip(self._filters, codes, strict=True):
                write_note(f"subscribed to {topic_filter} with QoS {code}")

    def _is_shown(self, message: Received) -> bool:
        from motelog.gateway.mqtt.topics import matches

        if self._options.skip_retained and message.retain:
            return False
        return not any(matches(one, message.topic) for one in self._options.filter_out or ())


def _check_filters(option: str, topic_filters: list[str] | None) -> None:
    from motelog.gateway.mqtt.errors import GatewayError
    from motelog.gateway.mqtt.topics import check_topic_filter

    for topic_filter in topic_filters or ():
        try:
            check_topic_filter(topic_filter)
        except GatewayError as exc:
            raise CliError(f"{option} {topic_filter!r}: {exc}", status=2) from exc


def _from_the_past(
    topic_filters: list[str], since: str, properties: Properties
) -> tuple[list[str], Properties]:
    """Return the filters and the SUBSCRIBE properties for a replay."""
    from dataclasses import replace

    from motelog.gateway.sessions.stream import STREAM_OFFSET, STREAM_PREFIX

    pairs = (*properties.user_properties, (STREAM_OFFSET, _start(since)))
    return [STREAM_PREFIX + one for one in topic_filters], replace(
        properties, user_properties=pairs
    )


def _start(since: str) -> str:
    """Return the ``stream-offset`` for ``--since``."""
    from motelog.core.past_times import before_now
    from motelog.gateway.sessions.stream import parse_start

    ago_ms = before_now(since)
    if ago_ms is not None:
        return str(ago_ms)
    try:
        parse_start(since)
    except ValueError as exc:
        text = f"--since {since!r}: use 90s, 15m, 1h, 7d, earliest, or a time in ISO 8601"
        raise CliError(text, status=2) from exc
    return since


def _printer(options: SubOptions) -> Callable[[Received], None]:
    """Return a function that prints a message."""
    import time

    from motelog.cli.message_format import (
        MessageFormat,
        MessageFormatError,
        NoJsonError,
        json_properties,
        payload_fields,
    )

    if options.json:

        def show_json(message: Received) -> None:
            value = {
                "topic": message.topic,
                **payload_fields("payload", message.payload),
                "qos": message.qos,
                "retain": message.retain,
            }
            properties = json_properties(message.properties)
            write_json(value | ({"properties": properties} if properties else {}))

        return show_json
    text = options.output_format
    if text is None:
        text = "%t %p" if options.verbose else "%p"
    end = b"" if options.no_newline else b"\n"
    try:
        message_format = MessageFormat(text, is_pretty=options.pretty)
    except MessageFormatError as exc:
        raise CliError(f"--format: {exc}", status=2) from exc

    def show(message: Received) -> None:
        try:
            write_bytes(message_format.render(message, time.time_ns()) + end)
        except NoJsonError as exc:
            write_error(str(exc))

    return show
