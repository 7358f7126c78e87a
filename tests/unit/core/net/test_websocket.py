"""WebSocket as a codec: the opening request, frames, and what is refused."""

from __future__ import annotations

import pytest

from motelog.core.net.codec import Decoded, Stream
from motelog.core.net.websocket import REQUEST_BYTES_MAX, WebSocketCodec
from tests.support.coded_peers import client_frame, opening_request, server_frames


def opened() -> WebSocketCodec:
    codec = WebSocketCodec("/mqtt")
    assert codec.receive(opening_request()).stream is Stream.OPEN
    return codec


def closing_code(decoded: Decoded) -> int:
    [(opcode, payload)], rest = server_frames(decoded.answer)
    assert (opcode, rest) == (8, b"")
    return int.from_bytes(payload, "big")


def test_opening_request_is_answered_as_rfc_6455_says() -> None:
    request = opening_request().replace(b"AAECAwQFBgcICQoLDA0ODw==", b"dGhlIHNhbXBsZSBub25jZQ==")
    answer = WebSocketCodec("/mqtt").receive(request).answer
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (b"mqtt", b"mqtt"),
        (b"mqttv3.1", b"mqttv3.1"),
        (b"mqttv3.1, mqtt", b"mqtt"),
        (b"chat, mqttv3.1", b"mqttv3.1"),
    ],
)
def test_a_subprotocol_that_the_client_offers_is_selected(offered: bytes, selected: bytes) -> None:
    request = opening_request().replace(b"Protocol: mqtt", b"Protocol: " + offered)
    answer = WebSocketCodec("/mqtt").receive(request).answer
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Protocol: " + selected + b"\r\n" in answer


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"GET /mqtt", b"POST /mqtt", b"426"),
        (b"GET /mqtt", b"GET /other", b"404"),
        (b"HTTP/1.1", b"SIP/2.0", b"400"),
        (b"Upgrade: websocket", b"Upgrade: h2c", b"426"),
        (b"keep-alive, Upgrade", b"keep-alive", b"400"),
        (b"Version: 13", b"Version: 8", b"426"),
        (b"AAECAwQFBgcICQoLDA0ODw==", b"AAEC", b"400"),
        (b"AAECAwQFBgcICQoLDA0ODw==", b"not base64", b"400"),
        (b"Protocol: mqtt", b"Protocol: chat", b"400"),
        (b"Host: ", b"no name ", b"400"),
    ],
)
def test_request_that_opens_nothing_is_refused(old: bytes, new: bytes, status: bytes) -> None:
    codec = WebSocketCodec("/mqtt")
    decoded = codec.receive(opening_request().replace(old, new))
    assert decoded.stream is Stream.FAULTY
    assert decoded.answer.startswith(b"HTTP/1.1 " + status)
    assert codec.receive(b"more") == Decoded(b"")
    assert codec.send(b"data") == codec.close() == b""


def test_endless_request_is_refused_at_its_limit() -> None:
    codec = WebSocketCodec("/mqtt")
    assert codec.receive(b"GET /mqtt HTTP/1.1\r\n" + b"x" * (REQUEST_BYTES_MAX - 100)).answer == b""
    decoded = codec.receive(b"x" * 100)
    assert decoded.stream is Stream.FAULTY
    assert decoded.answer.startswith(b"HTTP/1.1 431 ")


def test_origin_of_a_page_is_asked_about() -> None:
    request = opening_request("/mqtt", "Origin: https://a.example")
    for welcome, status in (("https://a.example", b"101"), ("https://b.example", b"403")):
        codec = WebSocketCodec("/mqtt", welcome.__eq__)
        assert codec.receive(request).answer.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (client_frame(b"x", 1), 1003),
        (client_frame(b"x", 3), 1002),
        (client_frame(b"x", 11), 1002),
        (client_frame(b"x", 0), 1002),  # goes on with nothing
        (client_frame(b"x", is_last=False) + client_frame(b"y"), 1002),
        (client_frame(b"x", 9, is_last=False), 1002),
        (client_frame(bytes(126), 9), 1002),
        (client_frame(b"x", 8), 1002),  # half a code
        (b"\xc2" + client_frame(b"x")[1:], 1002),  # an extension's bit
        (b"\x82\x01x", 1002),  # no mask
        (b"\x82\xff" + b"\xff" * 12, 1002),
    ],
)
def test_broken_frame_ends_the_stream(frame: bytes, code: int) -> None:
    codec = opened()
    decoded = codec.receive(client_frame(b"before") + frame)
    assert decoded.stream is Stream.FAULTY
    assert decoded.data.startswith(b"before")
    assert closing_code(decoded) == code
    assert codec.receive(client_frame(b"more")) == Decoded(b"")
    assert codec.close() == b""


def test_ping_before_a_broken_frame_is_answered_however_they_come() -> None:
    decoded = opened().receive(client_frame(b"ping", 9) + client_frame(b"x", 1))
    frames, _ = server_frames(decoded.answer)
    assert frames == [(10, b"ping"), (8, (1003).to_bytes(2, "big"))]


def test_close_of_the_peer_is_answered_once() -> None:
    codec = opened()
    decoded = codec.receive(client_frame(b"\x03\xe9why", 8))
    assert decoded.stream is Stream.ENDED
    assert closing_code(decoded) == 1001
    assert codec.close() == codec.send(b"x") == b""


def test_our_close_comes_once() -> None:
    codec = opened()
    assert server_frames(codec.close()) == ([(8, (1000).to_bytes(2, "big"))], b"")
    assert codec.close() == b""


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_messages_of_every_length_are_sent_whole(size: int) -> None:
    assert server_frames(opened().send(bytes(size))) == ([(2, bytes(size))], b"")
