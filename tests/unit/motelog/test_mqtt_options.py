"""What the connection options of ``motelog pub`` and ``sub`` ask the server for."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import pytest
import typer.main

from motelog.cli.mqtt_options import MqttCommand, MqttOptions, Wanted
from motelog.cli.options import takes_options
from motelog.cli.output import CliError
from motelog.gateway.mqtt.packet_types import Properties, Will


@cache
def command() -> tuple[Any, list[Wanted]]:
    """Return a command with these options, and where it notes what it gets."""
    found: list[Wanted] = []

    @takes_options
    def note(mqtt: MqttOptions) -> None:
        found.append(mqtt.wanted())

    app = typer.Typer()
    app.command(cls=MqttCommand)(note)
    return typer.main.get_command(app), found


def wanted(*arguments: str) -> Wanted:
    """Return what a command gets from these arguments."""
    called, found = command()
    found.clear()
    called.main(list(arguments), standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], ("127.0.0.1", 1883)),
        (["-h", "broker"], ("broker", 1883)),
        (["-p", "1885"], ("127.0.0.1", 1885)),
        (["-h", "::1", "-p", "1885"], ("::1", 1885)),
        (["--to", "[::1]:1"], ("::1", 1)),
        (["-L", "mqtt://broker/a"], ("broker", 1883)),
        (["-L", "mqtt://u:p@[::1]:99/a"], ("::1", 99)),
        (["-L", "mqtts://broker/a"], ("broker", 8883)),
        (["-L", "mqtts://broker:1/a"], ("broker", 1)),
        (["--tls-use-os-certs"], ("127.0.0.1", 8883)),
    ],
)
def test_where_to_connect(arguments: list[str], address: tuple[str, int]) -> None:
    assert wanted(*arguments).address == address


def test_tls_is_what_an_option_asks_for() -> None:
    assert wanted().tls is None
    usual = wanted("-L", "mqtts://broker").tls
    assert usual is not None
    assert (usual.check_hostname, usual.verify_mode) == (True, ssl.CERT_REQUIRED)
    lax = wanted("--tls-use-os-certs", "--insecure", "--tls-version", "tlsv1.3").tls
    assert lax is not None
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert lax.minimum_version == lax.maximum_version == ssl.TLSVersion.TLSv1_3


def test_url_carries_login_and_topic() -> None:
    found = wanted("-L", "mqtt://me:a%40b@broker/a/#")
    assert (found.connect.user_name, found.connect.password) == ("me", b"a@b")
    assert found.url_topic == "a/#"
    assert wanted("-L", "mqtt://broker/").url_topic is None


def test_login_session_and_keep_alive() -> None:
    found = wanted("-u", "me", "-P", "pass", "-i", "me1", "-c", "-k", "5", "-V", "mqttv311").connect
    assert (found.user_name, found.password, found.client_id) == ("me", b"pass", "me1")
    assert (found.version, found.clean_start, found.keep_alive_s) == (4, False, 5)
    assert found.properties == Properties()


@pytest.mark.parametrize(
    ("text", "version"),
    [("31", 3), ("311", 4), ("5", 5), ("mqttv31", 3), ("mqttv311", 4), ("mqttv5", 5)],
)
def test_versions(text: str, version: int) -> None:
    assert wanted("-V", text).version == version


@pytest.mark.parametrize(
    ("arguments", "expiry_s"),
    [
        (["-i", "me", "-c"], 0xFFFF_FFFF),
        (["-i", "me", "-x", "-1"], 0xFFFF_FFFF),
        (["-i", "me", "-c", "-x", "60"], 60),
        (["-i", "me", "-c", "-D", "connect", "session-expiry-interval", "7"], 7),
        ([], None),
    ],
)
def test_how_long_a_session_lasts(arguments: list[str], expiry_s: int | None) -> None:
    assert wanted(*arguments).connect.properties.session_expiry_interval_s == expiry_s


def test_will_with_properties() -> None:
    found = wanted(
        "--will-topic", "gone/me", "--will-payload", "bye", "--will-qos", "1", "--will-retain",
        "-D", "will", "will-delay-interval", "5",
    )  # fmt: skip
    properties = Properties(will_delay_interval_s=5)
    assert found.connect.will == Will("gone/me", b"bye", 1, True, properties)


def test_properties_take_three_words_or_four() -> None:
    found = wanted(
        "-D", "publish", "user-property", "k", "-v", "-D", "PUBLISH", "correlation-data", "id",
        "-D", "publish", "user-property", "k", "w", "-i", "me",
    )  # fmt: skip
    assert found.properties["publish"] == Properties(
        user_properties=(("k", "-v"), ("k", "w")), correlation_data=b"id"
    )
    assert found.connect.client_id == "me"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "a:1", "-h", "b"], "name the server once"),
        (["-L", "mqtt://a/b", "-p", "1"], "name the server once"),
        (["-i", "a", "-I", "b"], "--id and --id-prefix cannot be combined"),
        (["--insecure"], "TLS needs --cafile"),
        (["--cafile", "/nowhere"], "TLS cannot use /nowhere"),
        (["--cafile", __file__], f"TLS cannot use {__file__}: "),
        (["-L", "mqtts://a", "--cert", __file__], "--cert and --key must be given together"),
        (["-L", "mqtts://a", "--tls-version", "ssl3"], "'ssl3' is not tlsv1.2 or tlsv1.3"),
        (["-L", "http://a/b"], "is not mqtt://"),
        (["-L", "mqtt://a:port/b"], "--url 'mqtt://a:port/b'"),
        (["-V", "6"], "'6' is not mqttv5, mqttv311 or mqttv31"),
        (["-V", "311", "-P", "x"], "--pw needs --username"),
        (["-c"], "needs --id"),
        (["-x", "-1"], "never expires needs --id"),
        (["-V", "31", "-x", "5"], "needs --protocol-version mqttv5"),
        (["--will-retain"], "a will needs --will-topic"),
        (["--will-topic", "a/#"], "--will-topic 'a/#'"),
        (["-D", "puback", "reason-string", "x"], "'puback' is not one of connect, publish"),
        (["-D", "publish", "reason-string", "x"], "'reason-string' is not one of content-type"),
        (["-D", "publish"], "'' is not one of"),
        (["-D", "publish", "message-expiry-interval", "1h"], "is a number, not '1h'"),
        (["-D", "publish", "payload-format-indicator", "7"], "may not be 7"),
        (["-D", "connect", "receive-maximum", "70000"], "cannot be 70000"),
        (["-V", "311", "-D", "publish", "content-type", "x"], "--property needs"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(arguments: list[str], text: str) -> None:
    with pytest.raises(CliError) as caught:
        wanted(*arguments)
    assert text in str(caught.value)
    assert caught.value.status == 2
