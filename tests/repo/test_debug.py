"""The prompt of ``make debug`` (tests/debug.py)."""

from __future__ import annotations

import io

import pytest

from tests import debug


def shown(
    lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Type lines at the prompt; return what it shows."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    debug.main()
    return capsys.readouterr().out


def test_each_line_shows_what_the_gateway_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        'a = connect("a")',
        'a.subscribe("t/+")',
        'b = connect("b", 4)',
        'b.publish("t/1", b"hi", qos=1)',
        'a.send_hex("00 00")',
    ]
    found = [
        "a < CONNACK Connack(reason_code=0",
        "a < SUBACK SubscriptionAck(packet_id=1, reason_codes=(1,)",
        "b < CONNACK Connack(reason_code=0",
        "log: topic t, queue 7, offset 0, b'hi'",
        "a < PUBLISH Message(topic='t/1', payload=b'hi', qos=1",
        "b < PUBACK Ack(packet_id=1",
        "a < DISCONNECT Disconnect(reason_code=129",
        "a: the gateway has closed the connection",
    ]
    text = shown(lines, monkeypatch, capsys)
    places = [text.index(line) for line in found]
    assert places == sorted(places)
    assert all(text.count(line) == 1 for line in found)


def test_what_was_shown_can_still_be_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(['a = connect("a")', "a.read_connack().reason_code + 1000"], monkeypatch, capsys)
    assert "1000\n" in text


def test_an_error_leaves_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(["1 / 0", 'a = connect("a")'], monkeypatch, capsys)
    assert "a < CONNACK" in text
