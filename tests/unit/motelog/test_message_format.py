"""Format strings of ``motelog sub -F`` against what mosquitto_sub prints."""

from __future__ import annotations

import json
import time

import pytest

from motelog.cli.message_format import (
    MessageFormat,
    MessageFormatError,
    NoJsonError,
    payload_fields,
)
from motelog.cli.mqtt_client import Received
from motelog.gateway.mqtt.packet_types import Properties

AT_NS = 1_795_365_275_300_199_662
PLAIN = Received("a/b", b"hello", 1, True, 7)
RICH = Received(
    "a/b",
    b"hello",
    1,
    False,
    1,
    Properties(
        content_type="text",
        response_topic="r",
        message_expiry_interval_s=30,
        correlation_data=b"\xff",
        user_properties=(("k", "v"), ("k", "w")),
    ),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


# What mosquitto_sub 2.0.11 prints for the same message.
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%t %p", b"a/b hello"),
        ("%q %r %l %m %%", b"1 1 5 7 %"),
        ("%x %X", b"68656c6c6f 68656C6C6F"),
        ("%10t|%-10t|%3.2t|%05l|%-5l|", b"       a/b|a/b       | a/|00005|5    |"),
        ("%10p|%-10p|", b"     hello|hello     |"),
        ("%C|%P|%A|%E|%F|%S|%R|%D|%05E|%5m", b"||||||||00000|    7"),
        ("%I %U", b"2026-11-22T16:34:35+0000 1795365275.300199662"),
        ("@Y-@m-@dT@H:@M:@S@z @N @@ : %x", b"2026-11-22T16:34:35+0000 300199662 @ : 68656c6c6f"),
        (r"\e[92m%t \e[96m%p\e[0m", b"\x1b[92ma/b \x1b[96mhello\x1b[0m"),
        (r"é\\n\t\0\a\v\r", "é\\n\t\0\a\v\r".encode()),
        (
            "%j",
            b'{"tst":"2026-11-22T16:34:35.300199Z+0000","topic":"a/b","qos":1,"retain":1,'
            b'"payloadlen":5,"mid":7,"payload":"hello"}',
        ),
    ],
)
def test_sequences(text: str, printed: bytes) -> None:
    assert MessageFormat(text).render(PLAIN, AT_NS) == printed


def test_properties_of_mqtt_5() -> None:
    rendered = MessageFormat("%C|%10C|%R|%E|%05E|%D|%P").render(RICH, AT_NS)
    assert rendered == b"text|      text|r|30|00030|\xff|k:v k:w"
    shown = json.loads(MessageFormat("%j").render(RICH, AT_NS))["properties"]
    assert shown["content-type"] == "text"
    assert shown["correlation-data_base64"] == "/w=="


@pytest.mark.parametrize("text", ["%z", "%", "@", "a@", "%5", "\\", r"\q", "@!", "%d", "%@s"])
def test_what_has_no_meaning_is_refused(text: str) -> None:
    with pytest.raises(MessageFormatError, match=r"no meaning|incomplete"):
        MessageFormat(text)


def test_json_payload_stands_unquoted() -> None:
    message = Received("a", b'{"a": 1}', 0, False)
    assert b'"payload":{"a":1}' in MessageFormat("%J").render(message, AT_NS)
    assert b'\t"payload":\t{\n' in MessageFormat("%J", is_pretty=True).render(message, AT_NS)
    with pytest.raises(NoJsonError, match="not JSON: topic a"):
        MessageFormat("%J").render(Received("a", b"no", 0, False), AT_NS)


def test_bodies_that_are_not_text_survive_json() -> None:
    assert payload_fields("body", "ü".encode()) == {"body": "ü"}
    assert payload_fields("body", b"\x00\xff") == {"body": None, "body_base64": "AP8="}
