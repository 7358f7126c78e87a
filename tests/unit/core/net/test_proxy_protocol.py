"""The PROXY protocol as a codec: whose address it tells, and what is refused."""

from __future__ import annotations

import pytest

from motelog.core.net.codec import Decoded, Stream
from motelog.core.net.proxy_protocol import SIGNATURE, ProxyCodec

V4 = bytes((192, 0, 2, 1, 198, 51, 100, 1)) + b"\xc9\x3b\x07\x5b"
V6 = bytes.fromhex("20010db8" + "00" * 11 + "07") + bytes(16) + b"\xc9\x3b\x07\x5b"


def v2(command: int, family: int, body: bytes, size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    return SIGNATURE + bytes((command, family)) + length.to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.1 51515 1883\r\n", ("192.0.2.1", 51515)),
        (b"PROXY TCP6 2001:db8::7 ::1 51515 1883\r\n", ("2001:db8::7", 51515)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (v2(0x21, 0x11, V4), ("192.0.2.1", 51515)),
        (v2(0x21, 0x11, V4 + b"\x04\x00\x00"), ("192.0.2.1", 51515)),
        (v2(0x21, 0x21, V6), ("2001:db8::7", 51515)),
        (v2(0x20, 0x00, b""), None),
        (v2(0x21, 0x31, bytes(216)), None),  # of Unix sockets
    ],
)
def test_header_tells_the_peer(header: bytes, peer: tuple[str, int] | None) -> None:
    codec = ProxyCodec()
    assert codec.receive(header + b"first") == Decoded(b"first", b"", Stream.PLAIN)
    assert codec.peer == peer
    assert codec.receive(b"second") == Decoded(b"second", b"", Stream.PLAIN)
    assert codec.send(b"answer") == b"answer"


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.1 51515\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 51515 1883\r\n",
        b"PROXY TCP4 example.com 198.51.100.1 51515 1883\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.1 65536 1883\r\n",
        b"PROXY TCP6 fe80::1%lo ::1 51515 1883\r\n",
        b"PROXY SCTP 1 2 3 4\r\n",
        b"PROXY TCP4 " + b"1" * 107,
        v2(0x22, 0x11, V4),
        v2(0x11, 0x11, V4),
        v2(0x21, 0x11, V4[:11]),
        v2(0x21, 0x11, b"", 5000),
    ],
)
def test_anything_else_ends_the_stream(header: bytes) -> None:
    codec = ProxyCodec()
    assert codec.receive(header) == Decoded(b"", b"", Stream.FAULTY)
    assert codec.receive(b"more") == Decoded(b"")
    assert codec.send(b"answer") == codec.close() == b""
    assert codec.peer is None
