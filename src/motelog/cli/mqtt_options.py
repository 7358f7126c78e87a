"""The options that ``pub`` and ``sub`` share: server, login, will, TLS.

Owns: their names, which are those of mosquitto_pub and mosquitto_sub, and the CONNECT that they
result in. Must not touch: the connection (mqtt_client), what is published or printed.

A command that ``takes_options`` gets them all through a parameter, or a field, of type MqttOptions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from motelog.cli import contexts
from motelog.cli.addresses import address
from motelog.cli.output import CliError, write_note

if TYPE_CHECKING:
    import ssl

    from typer._click import Context

    from motelog.cli.mqtt_client import MqttClient
    from motelog.gateway.mqtt.packet_types import Connect, Properties, Will

HOST: Final = "127.0.0.1"
PORT: Final = 1883
TLS_PORT: Final = 8883
NEVER_EXPIRES: Final = 0xFFFF_FFFF
VERSIONS: Final = {"31": 3, "311": 4, "5": 5}
TLS_VERSIONS: Final = ("tlsv1.2", "tlsv1.3")

Qos = Annotated[int, typer.Option("--qos", "-q", metavar="N", min=0, max=2, help="0, 1 or 2.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors on standard error.")]

# The properties that -D may set, by packet; attributes are those of Properties.
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
_WORD_END: Final = "\0"  # joins the words of one -D: no command line argument contains it


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
    """What the options add up to: the server, the CONNECT, the properties of other packets."""

    address: tuple[str, int]
    connect: Connect
    url_topic: str | None
    properties: dict[str, Properties]
    bind: str | None
    tls: ssl.SSLContext | None
    is_debug: bool

    @property
    def version(self) -> int:
        return self.connect.version

    def connected(self) -> AbstractAsyncContextManager[MqttClient]:
        """Return a block in which there is such a connection."""
        from motelog.cli.mqtt_client import connect

        trace = write_note if self.is_debug else None
        return connect(self.address, self.connect, bind=self.bind, tls=self.tls, trace=trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions:
    """The options of an MQTT client; ``wanted`` is what they add up to."""

    server: ServerOptions
    bind: Annotated[
        str | None, typer.Option("-A", metavar="ADDRESS", help="Connect from this local address.")
    ] = None
    client_id: Annotated[
        str,
        typer.Option("--id", "-i", metavar="TEXT", help="Client identifier. [default: a new one]"),
    ] = ""
    id_prefix: Annotated[
        str | None,
        typer.Option(
            "--id-prefix", "-I", metavar="TEXT", help="Client identifier: this text and a number."
        ),
    ] = None
    user_name: Annotated[
        str | None, typer.Option("--username", "-u", metavar="NAME", help="Login.")
    ] = None
    password: Annotated[
        str | None, typer.Option("--pw", "-P", metavar="TEXT", help="The user's password.")
    ] = None
    version: Annotated[
        str,
        typer.Option(
            "--protocol-version",
            "-V",
            metavar="VERSION",
            help="mqttv5, mqttv311, mqttv31 (5, 311, 31).",
        ),
    ] = "mqttv5"
    keep_alive: Annotated[
        int,
        typer.Option(
            "--keepalive",
            "-k",
            metavar="SECONDS",
            min=0,
            max=65535,
            help="Seconds between pings; 0: none.",
        ),
    ] = 60
    keep_session: Annotated[
        bool,
        typer.Option(
            "--disable-clean-session",
            "-c",
            help="Resume the session of --id, and keep it at the end.",
        ),
    ] = False
    session_expiry: Annotated[
        int | None,
        typer.Option(
            "--session-expiry-interval",
            "-x",
            metavar="SECONDS",
            min=-1,
            max=NEVER_EXPIRES,
            help="Keep the session this many seconds after the end; -1: for ever. MQTT 5.",
        ),
    ] = None
    will: WillOptions
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "-D",
            metavar="PACKET NAME VALUE",
            help="MQTT 5 property, as in -D publish content-type text/plain, or -D publish"
            " user-property NAME VALUE. May be repeated.",
        ),
    ] = None
    tls: TlsOptions
    debug: Annotated[
        bool, typer.Option("--debug", "-d", help="Print each packet on standard error.")
    ] = False

    def wanted(self) -> Wanted:
        """Return what the options add up to; CliError if they cannot be combined."""
        from motelog.gateway.mqtt.packet_types import Connect

        version = _version(self.version)
        properties = _properties(self.property_ or (), version)
        server = self.server.named()
        tls = self.tls
        is_tls = server.is_tls or tls.asks_for_tls
        if not is_tls and (tls.cert or tls.key or tls.insecure or tls.tls_version):
            raise CliError("TLS needs --cafile, --capath, --tls-use-os-certs or mqtts://", status=2)
        user_name = server.user_name if self.user_name is None else self.user_name
        password = server.password if self.password is None else self.password
        if password is not None and user_name is None and version != 5:
            raise CliError("--pw needs --username before MQTT 5", status=2)
        client_id = self.client_id
        if self.id_prefix is not None:
            if client_id:
                raise CliError("--id and --id-prefix cannot be combined", status=2)
            client_id = f"{self.id_prefix}{os.getpid()}"
        if self.keep_session and not client_id:
            raise CliError("--disable-clean-session needs --id, which names the session", status=2)
        return Wanted(
            address=(server.host, server.port or (TLS_PORT if is_tls else PORT)),
            connect=Connect(
                version=version,
                clean_start=not self.keep_session,
                keep_alive_s=self.keep_alive,
                client_id=client_id,
                will=self.will.with_properties(properties["will"]),
                user_name=user_name,
                password=None if password is None else password.encode(),
                properties=self._with_expiry(properties["connect"], version, client_id),
            ),
            url_topic=server.topic,
            properties=properties,
            bind=self.bind,
            tls=tls.context(server.ca_file) if is_tls else None,
            is_debug=self.debug,
        )

    def _with_expiry(self, properties: Properties, version: int, client_id: str) -> Properties:
        """Return the CONNECT's properties; by default a kept session never expires."""
        expiry_s = self.session_expiry
        if expiry_s is None:
            is_set = properties.session_expiry_interval_s is not None
            if not self.keep_session or version != 5 or is_set:
                return properties
            expiry_s = -1
        if version != 5:
            raise CliError("--session-expiry-interval needs --protocol-version mqttv5", status=2)
        expiry_s = NEVER_EXPIRES if expiry_s == -1 else expiry_s
        if expiry_s == NEVER_EXPIRES and not client_id:
            raise CliError("a session that never expires needs --id, which names it", status=2)
        return replace(properties, session_expiry_interval_s=expiry_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which server; without any of them, that of the context."""

    host: Annotated[
        str | None,
        typer.Option("--host", "-h", metavar="HOST", help=f"MQTT server. [default: {HOST}]"),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            metavar="N",
            min=1,
            max=65535,
            help=f"The server's port. [default: {PORT}, with TLS {TLS_PORT}]",
        ),
    ] = None
    to: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Host and port in one."),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-L",
            metavar="URL",
            help="Server, login and topic in one: mqtt://[user[:password]@]host[:port]/topic,"
            " mqtts:// with TLS.",
        ),
    ] = None

    def named(self) -> _Server:
        has_parts = self.host is not None or self.port is not None
        if sum((has_parts, self.to is not None, self.url is not None)) > 1:
            raise CliError("name the server once: --host and --port, --to, or --url", status=2)
        if self.to is not None:
            return _Server(*address("--to", self.to))
        if self.url is not None:
            return _parsed_url("--url", self.url)
        if not has_parts:
            context = contexts.chosen()
            if context is not None and context.mqtt:
                return _server_of(context)
        return _Server(self.host or HOST, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class WillOptions:
    """The will, which the server publishes if the connection breaks."""

    will_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Topic name of the will, published if the connection breaks."
        ),
    ] = None
    will_payload: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Body of the will."),
    ] = None
    will_qos: Annotated[int | None, typer.Option(metavar="N", min=0, max=2, help="Its QoS.")] = None
    will_retain: Annotated[bool, typer.Option("--will-retain", help="Retain the will.")] = False

    def with_properties(self, properties: Properties) -> Will | None:
        from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Will

        if self.will_topic is not None:
            check_topic_name("--will-topic", self.will_topic)
            payload = (self.will_payload or "").encode()
            return Will(self.will_topic, payload, self.will_qos or 0, self.will_retain, properties)
        given = (self.will_payload, self.will_qos)
        if given != (None, None) or self.will_retain or properties != NO_PROPERTIES:
            raise CliError("a will needs --will-topic", status=2)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Whom to trust, and as whom to connect."""

    cafile: Annotated[
        Path | None,
        typer.Option("--cafile", metavar="PATH", help="TLS: trust the certificates in this file."),
    ] = None
    capath: Annotated[
        Path | None,
        typer.Option("--capath", metavar="DIR", help="TLS: trust the certificates in this folder."),
    ] = None
    tls_use_os_certs: Annotated[
        bool,
        typer.Option("--tls-use-os-certs", help="TLS: trust what the operating system trusts."),
    ] = False
    cert: Annotated[
        Path | None, typer.Option(metavar="PATH", help="TLS: the client's own certificate.")
    ] = None
    key: Annotated[Path | None, typer.Option(metavar="PATH", help="TLS: the key of --cert.")] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TLS: accept a certificate for another host.")
    ] = False
    tls_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="TLS: tlsv1.2 or tlsv1.3. [default: the highest that both support]",
        ),
    ] = None

    @property
    def asks_for_tls(self) -> bool:
        return self.tls_use_os_certs or self.cafile is not None or self.capath is not None

    def context(self, ca_file: str) -> ssl.SSLContext:
        """Return the TLS context; without --cafile and --capath it trusts ``ca_file``.

        If that is empty, it trusts what the operating system does.
        """
        import ssl

        cert, key, version = self.cert, self.key, self.tls_version
        if (cert is None) != (key is None):
            raise CliError("--cert and --key must be given together", status=2)
        if version is not None and version not in TLS_VERSIONS:
            known = " or ".join(TLS_VERSIONS)
            raise CliError(f"--tls-version: {version!r} is not {known}", status=2)
        cafile = Path(ca_file) if ca_file and not (self.cafile or self.capath) else self.cafile
        try:
            context = ssl.create_default_context(cafile=cafile, capath=self.capath)
            if cert is not None:
                context.load_cert_chain(cert, key)
        except OSError as exc:  # SSLError too: a file without a certificate, or another one's key
            files = ", ".join(str(one) for one in (cafile, self.capath, cert, key) if one)
            why = exc.strerror if exc.filename is None and exc.strerror else str(exc)
            raise CliError(f"TLS cannot use {files}: {why}", status=2) from exc
        context.check_hostname = not self.insecure
        if version is not None:
            is_12 = version == TLS_VERSIONS[0]
            number = ssl.TLSVersion.TLSv1_2 if is_12 else ssl.TLSVersion.TLSv1_3
            context.minimum_version = context.maximum_version = number
        return context


def _version(text: str) -> int:
    found = VERSIONS.get(text.removeprefix("mqttv"))
    if found is None:
        named = "mqttv5, mqttv311 or mqttv31"
        raise CliError(f"--protocol-version: {text!r} is not {named}", status=2)
    return found


@dataclass(frozen=True, slots=True)
class _Server:
    """A server as the options name it; None if only a URL could give the value."""

    host: str
    port: int | None = None
    user_name: str | None = None
    password: str | None = None
    topic: str | None = None
    is_tls: bool = False
    ca_file: str = ""


def _server_of(context: contexts.Context) -> _Server:
    """Return the server of a context with its credentials, which go to no other server."""
    server = _parsed_url("the context's address", context.mqtt)
    return replace(
        server,
        user_name=context.user_name or None,
        password=contexts.secret_in(context.password_file) if context.password_file else None,
        ca_file=context.ca_file,
    )


def check_url(option: str, url: str) -> None:
    """CliError unless this is the URL of a server, without a login or topic."""
    server = _parsed_url(option, url)
    if server.user_name is not None or server.password is not None:
        raise CliError(f"{option}: this address must not contain a login", status=2)
    if server.topic is not None:
        raise CliError(f"{option}: this address must not contain a topic", status=2)


def _parsed_url(option: str, url: str) -> _Server:
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise CliError(f"{option} {url!r}: {exc}", status=2) from exc
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        raise CliError(
            f"{option} {url!r} is not mqtt://[user[:password]@]host[:port]/topic", status=2
        )
    user, password = (None if x is None else unquote(x) for x in (parts.username, parts.password))
    # A topic filter may hold '#' and '?', which mean something else in other URLs.
    _, _, topic = url.partition("://")[2].partition("/")
    is_tls = parts.scheme == "mqtts"
    return _Server(parts.hostname, port, user, password, unquote(topic) or None, is_tls)


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
    """CliError for values that the server would reject as malformed."""
    from motelog.gateway.mqtt.errors import GatewayError
    from motelog.gateway.mqtt.packet_types import PacketType
    from motelog.gateway.mqtt.properties import WILL, decode_properties, encode_properties

    packet_type = WILL if packet == "will" else PacketType[packet.upper()]
    try:
        decode_properties(encode_properties(properties.as_dict()), packet_type)
    except (ValueError, GatewayError) as exc:
        raise CliError(f"--property {packet}: {exc}", status=2) from exc


def check_topic_name(option: str, topic: str) -> None:
    """CliError unless a message may be published to ``topic``."""
    from motelog.gateway.mqtt import topics
    from motelog.gateway.mqtt.errors import GatewayError

    try:
        topics.check_topic_name(topic)
        topic.encode()
    except (GatewayError, UnicodeEncodeError) as exc:
        raise CliError(f"{option} {topic!r}: {exc}", status=2) from exc
