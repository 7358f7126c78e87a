"""TLS as a codec: records that come in parts or together, and the end of the stream."""

from __future__ import annotations

import pytest

from motelog.core.net.codec import Decoded, Stream
from motelog.core.net.tls import RECORD_BYTES, TlsCodec, TlsContexts
from tests.support.certificates import certificates
from tests.support.coded_peers import TlsClient


def opened() -> tuple[TlsCodec, TlsClient]:
    files = certificates()
    codec, client = TlsCodec(TlsContexts(files.server, files.server_key).current()), TlsClient()
    to_server = client.begin()
    while to_server or not client.is_open:
        answer = codec.receive(to_server).answer
        _, to_server = client.decode(answer)
    return codec, client


@pytest.mark.parametrize("left_bytes", [1, 16, 17, 400, RECORD_BYTES - 1, RECORD_BYTES])
def test_record_is_handed_over_when_it_is_whole_with_all_behind_it(left_bytes: int) -> None:
    codec, client = opened()
    large = client.encode(bytes(range(256)) * (RECORD_BYTES // 256))
    assert codec.receive(large[:-left_bytes]).data == b""
    small = client.encode(b"a") + client.encode(b"b" * 300)
    decoded = codec.receive(large[-left_bytes:] + small)
    assert decoded.data == bytes(range(256)) * (RECORD_BYTES // 256) + b"a" + b"b" * 300
    assert decoded.stream is Stream.OPEN
    assert codec.receive(client.encode(b"more")).data == b"more"


def test_end_of_the_peer_ends_the_stream_behind_what_came_with_it() -> None:
    codec, client = opened()
    last = client.encode(b"last")
    assert codec.receive(last + client.end()) == (b"last", b"", Stream.ENDED)
    assert codec.receive(last) == Decoded(b"")


def test_broken_record_is_a_fault_behind_what_came_before_it() -> None:
    codec, client = opened()
    broken = bytearray(client.encode(b"before") + client.encode(b"broken"))
    broken[-1] ^= 1
    decoded = codec.receive(bytes(broken))
    assert (decoded.data, decoded.stream) == (b"before", Stream.FAULTY)
    assert codec.send(b"x") == codec.close() == b""
