"""The options that ``pub`` and ``sub`` share: where to connect, as whom, with which will.

Owns: their names, which are those of mosquitto_pub and mosquitto_sub, and the CONNECT that they
ask for. Must not touch: the connection (mqtt_client), what is published or printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from motelog.cli.addresses import address
from motelog.cli.output import CliError

if TYPE_CHECKING:
    from typer._click import Context

    from motelog.gateway.mqtt.packet_types import Connect, Properties, Will

HOST: Final = "127.0.0.1"
PORT: Final = 1883
NEVER_EXPIRES: Final = 0xFFFF_FFFF
VERSIONS: Final = {"31": 3, "311": 4, "5": 5}

Host = Annotated[
    str | None, typer.Option("--host", "-h", metavar="HOST", help=f"MQTT server. [default: {HOST}]")
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", metavar="N", min=1, max=65535, help=f"Its port. [default: {PORT}]"
    ),
]
To = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Both in one.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", "-L", metavar="URL", help="All in one: mqtt://[user[:password]@]host[:port]/topic."
    ),
]
ClientId = Annotated[
    str, typer.Option("--id", "-i", metavar="TEXT", help="Client identifier. [default: a new one]")
]
UserName = Annotated[str | None, typer.Option("--username", "-u", metavar="NAME", help="Login.")]
Password = Annotated[str | None, typer.Option("--pw", "-P", metavar="TEXT", help="Its password.")]
Version = Annotated[
    str,
    typer.Option(
        "--protocol-version",
        "-V",
        metavar="VERSION",
        help="mqttv5, mqttv311, mqttv31 (5, 311, 31).",
    ),
]
KeepAlive = Annotated[
    int,
    typer.Option(
        "--keepalive",
        "-k",
        metavar="SECONDS",
        min=0,
        max=65535,
        help="Seconds between pings; 0: none.",
    ),
]
KeepSession = Annotated[
    bool,
    typer.Option(
        "--disable-clean-session", "-c", help="Go on with the session of --id, and leave it behind."
    ),
]
SessionExpiry = Annotated[
    int | None,
    typer.Option(
        "--session-expiry-interval",
        "-x",
        metavar="SECONDS",
        min=-1,
        max=NEVER_EXPIRES,
        help="Keep the session this long after the end; -1: for ever. MQTT 5.",
    ),
]
WillTopic = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Have a message published here if the connection breaks."),
]
WillPayload = Annotated[str | None, typer.Option(metavar="TEXT", help="Body of that message.")]
WillQos = Annotated[int | None, typer.Option(metavar="N", min=0, max=2, help="Its QoS.")]
WillRetain = Annotated[bool, typer.Option("--will-retain", help="Retain it.")]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-D",
        metavar="PACKET NAME VALUE",
        help="MQTT 5 property, as in -D publish content-type text/plain, or -D publish"
        " user-property NAME VALUE. May be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Nothing on standard error but errors.")]

# What -D may set, by packet; the attribute is that of Properties.
_TEXT, _NUMBER, _BYTES = str, int, bytes
_MESSAGE: Final = {
    "content-type": ("content_type", _TEXT),
    "correlation-data": ("correlation_data", _BYTES),
    "message-expiry-interval": ("message_expiry_interval_s", _NUMBER),
    "payload-format-indicator": ("payload_format_indicator", _NUMBER),
    "response-topic": ("response_topic", _TEXT),
}
_SETTABLE: Final[dict[str, dict[str, tuple[str, type]]]] = {
    "connect": {
        "authentication-data": ("authentication_data", _BYTES),
        "authentication-method": ("authentication_method", _TEXT),
        "maximum-packet-size": ("maximum_packet_bytes", _NUMBER),
        "receive-maximum": ("receive_maximum", _NUMBER),
        "request-problem-information": ("request_problem_information", _NUMBER),
        "session-expiry-interval": ("session_expiry_interval_s", _NUMBER),
    },
    "publish": _MESSAGE,
    "subscribe": {},
    "will": {**_MESSAGE, "will-delay-interval": ("will_delay_interval_s", _NUMBER)},
}
_USER_PROPERTY: Final = "user-property"
_WORD_END: Final = "\0"  # between the words of one -D: no word of a command line holds it


class MqttCommand(TyperCommand):
    """A command whose ``-D`` takes three words, or four for a user property, as mosquitto's."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        words = iter(args)
        for word in words:
            if word not in ("-D", "--property"):
                joined.append(word)
                continue
            taken = [next(words, "") for _ in range(3)]
            if taken[1] == _USER_PROPERTY:
                taken.append(next(words, ""))
            joined.append(f"--property={_WORD_END.join(taken)}")
        return super().parse_args(ctx, joined)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask for: the server, the CONNECT, the properties of other packets."""

    address: tuple[str, int]
    connect: Connect
    url_topic: str | None
    properties: dict[str, Properties]

    @property
    def version(self) -> int:
        return self.connect.version


def wanted(
    *,
    host: str | None,
    port: int | None,
    to: str | None,
    url: str | None,
    client_id: str,
    user_name: str | None,
    password: str | None,
    version: str,
    keep_alive_s: int,
    keep_session: bool,
    session_expiry_s: int | None,
    will_topic: str | None,
    will_payload: str | None,
    will_qos: int | None,
    will_retain: bool,
    properties: list[str] | None,
) -> Wanted:
    """Return what the options ask for; CliError if they do not fit together."""
    from motelog.gateway.mqtt.packet_types import Connect

    number = _version(version)
    settled = _properties(properties or (), number)
    server, url_user, url_password, url_topic = _server(host, port, to, url)
    user_name = url_user if user_name is None else user_name
    password = url_password if password is None else password
    if password is not None and user_name is None and number != 5:
        raise CliError("--pw needs --username before MQTT 5", status=2)
    if keep_session and not client_id:
        raise CliError("--disable-clean-session needs --id: the session belongs to it", status=2)
    return Wanted(
        address=server,
        connect=Connect(
            version=number,
            clean_start=not keep_session,
            keep_alive_s=keep_alive_s,
            client_id=client_id,
            will=_will(will_topic, will_payload, will_qos, will_retain, settled["will"]),
            user_name=user_name,
            password=None if password is None else password.encode(),
            properties=_with_expiry(
                settled["connect"], number, session_expiry_s, keep_session, client_id
            ),
        ),
        url_topic=url_topic,
        properties=settled,
    )


def _version(text: str) -> int:
    found = VERSIONS.get(text.removeprefix("mqttv"))
    if found is None:
        named = "mqttv5, mqttv311 or mqttv31"
        raise CliError(f"--protocol-version: {text!r} is not {named}", status=2)
    return found


def _server(
    host: str | None, port: int | None, to: str | None, url: str | None
) -> tuple[tuple[str, int], str | None, str | None, str | None]:
    """Return (address, user name, password, topic); the last three come from a URL alone."""
    if sum((host is not None or port is not None, to is not None, url is not None)) > 1:
        raise CliError("name the server once: --host and --port, --to, or --url", status=2)
    if to is not None:
        return address("--to", to), None, None, None
    if url is not None:
        return _parsed_url(url)
    return (host or HOST, port or PORT), None, None, None


def _parsed_url(url: str) -> tuple[tuple[str, int], str | None, str | None, str | None]:
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise CliError(f"--url {url!r}: {exc}", status=2) from exc
    if parts.scheme == "mqtts":
        raise CliError("--url: mqtts needs TLS, which is not there yet; use mqtt://", status=2)
    if parts.scheme != "mqtt" or not parts.hostname:
        raise CliError(f"--url {url!r} is not mqtt://[user[:password]@]host[:port]/topic", status=2)
    user, password = (None if x is None else unquote(x) for x in (parts.username, parts.password))
    # A topic filter may hold '#' and '?', which mean something else in other URLs.
    _, _, topic = url.partition("://")[2].partition("/")
    return (parts.hostname, port or PORT), user, password, unquote(topic) or None


def _will(
    topic: str | None, payload: str | None, qos: int | None, retain: bool, properties: Properties
) -> Will | None:
    from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Will

    if topic is not None:
        check_topic_name("--will-topic", topic)
        return Will(topic, (payload or "").encode(), qos or 0, retain, properties)
    if payload is not None or qos is not None or retain or properties != NO_PROPERTIES:
        raise CliError("a will needs --will-topic", status=2)
    return None


def _with_expiry(
    properties: Properties, version: int, expiry_s: int | None, keep_session: bool, client_id: str
) -> Properties:
    """Return the CONNECT's properties; a session that is kept lasts for ever unless told."""
    from dataclasses import replace

    if expiry_s is None:
        if not keep_session or version != 5 or properties.session_expiry_interval_s is not None:
            return properties
        expiry_s = -1
    if version != 5:
        raise CliError("--session-expiry-interval needs --protocol-version mqttv5", status=2)
    expiry_s = NEVER_EXPIRES if expiry_s == -1 else expiry_s
    if expiry_s == NEVER_EXPIRES and not client_id:
        raise CliError("a session that never expires needs --id: it belongs to it", status=2)
    return replace(properties, session_expiry_interval_s=expiry_s)


def _properties(options: Iterable[str], version: int) -> dict[str, Properties]:
    """Return the properties of each packet that -D may name."""
    from motelog.gateway.mqtt.packet_types import Properties

    found: dict[str, dict[str, Any]] = {packet: {} for packet in _SETTABLE}
    for option in options:
        if version != 5:
            raise CliError("--property needs --protocol-version mqttv5", status=2)
        packet, name, *values = option.split(_WORD_END)
        settable = _SETTABLE.get(packet.lower())
        if settable is None:
            raise CliError(f"--property: {packet!r} is not one of {', '.join(_SETTABLE)}", status=2)
        here = found[packet.lower()]
        if name == _USER_PROPERTY:
            pair = (values[0], values[1])
            here["user_properties"] = (*here.get("user_properties", ()), pair)
        elif name in settable:
            attribute, kind = settable[name]
            here[attribute] = _value(name, values[0], kind)
        else:
            known = ", ".join([*settable, _USER_PROPERTY])
            raise CliError(f"--property {packet}: {name!r} is not one of {known}", status=2)
    made = {packet: Properties(**values) for packet, values in found.items()}
    for packet, properties in made.items():
        _check_encodable(packet, properties)
    return made


def _value(name: str, text: str, kind: type) -> str | int | bytes:
    if kind is not int:
        return text.encode() if kind is bytes else text
    if not (text.isascii() and text.isdigit()):
        raise CliError(f"--property: {name} is a number, not {text!r}", status=2)
    return int(text)


def _check_encodable(packet: str, properties: Properties) -> None:
    """Find values that the server would call malformed before they are sent."""
    from motelog.gateway.errors import GatewayError
    from motelog.gateway.mqtt.packet_types import PacketType
    from motelog.gateway.mqtt.properties import WILL, decode_properties, encode_properties

    packet_type = WILL if packet == "will" else PacketType[packet.upper()]
    try:
        decode_properties(encode_properties(properties.as_dict()), packet_type)
    except (ValueError, GatewayError) as exc:
        raise CliError(f"--property {packet}: {exc}", status=2) from exc


def check_topic_name(option: str, topic: str) -> None:
    """CliError unless a message may be published to ``topic``."""
    from motelog.gateway.errors import GatewayError
    from motelog.gateway.mqtt import topics

    try:
        topics.check_topic_name(topic)
        topic.encode()
    except (GatewayError, UnicodeEncodeError) as exc:
        raise CliError(f"{option} {topic!r}: {exc}", status=2) from exc
