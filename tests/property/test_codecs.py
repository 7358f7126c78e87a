"""Codecs: any cut of the stream gives the same bytes, answers and end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.net.codec import Codec, Stacked, Stream
from motelog.core.net.proxy_protocol import SIGNATURE, ProxyCodec
from motelog.core.net.tls import TlsCodec, TlsContexts
from motelog.core.net.websocket import WebSocketCodec
from tests.support.certificates import certificates
from tests.support.coded_peers import (
    TlsClient,
    client_frame,
    opening_request,
    server_frames,
    split_at,
)

cuts = st.lists(st.integers(0, 1 << 20), max_size=60)
headers = st.sampled_from(
    (
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51515 1883\r\n",
        b"PROXY UNKNOWN\r\n",
        SIGNATURE + bytes.fromhex("21 11 000f c0000207 01020304 c93b 075b 000000"),
    )
)
payloads = st.binary(max_size=300) | st.sampled_from((bytes(125), bytes(126), b"x" * 70_000))
messages = st.lists(
    st.tuples(st.lists(payloads, min_size=1, max_size=3), st.sampled_from((None, b"", b"ping"))),
    max_size=5,
)


def run(codec: Codec, pieces: list[bytes]) -> tuple[bytes, bytes, Stream]:
    """Return all data, all answers and how the stream ended."""
    data = answer = b""
    stream = Stream.OPEN
    for piece in pieces:
        decoded = codec.receive(piece)
        data += decoded.data
        answer += decoded.answer
        stream = max(stream, decoded.stream)
    return data, answer, stream


@given(header=headers, messages=messages, is_closed=st.booleans(), cuts=cuts)
def test_websocket_behind_a_balancer_does_not_depend_on_cuts(
    header: bytes,
    messages: list[tuple[list[bytes], bytes | None]],
    is_closed: bool,
    cuts: list[int],
) -> None:
    stream = header + opening_request()
    wanted, pings = b"", []
    for parts, ping in messages:
        for i, part in enumerate(parts):
            is_last = i == len(parts) - 1
            stream += client_frame(part, 0 if i else 2, is_last=is_last)
            if ping is not None:
                stream += client_frame(ping, 9)
                pings.append((10, ping))
            wanted += part
    if is_closed:
        stream += client_frame((1000).to_bytes(2, "big"), 8)
        pings.append((8, (1000).to_bytes(2, "big")))
        stream += b"not read any more"
    codec = Stacked(ProxyCodec(), WebSocketCodec("/mqtt"))
    data, answer, ended = run(codec, split_at(stream, cuts))
    assert data == wanted
    assert ended is (Stream.ENDED if is_closed else Stream.OPEN)
    assert codec.peer == (None if b"UNKNOWN" in header else ("192.0.2.7", 51515))
    opened, _, frames = answer.partition(b"\r\n\r\n")
    assert opened.startswith(b"HTTP/1.1 101 ")
    assert server_frames(frames) == (pings, b"")


@given(stream=st.binary(max_size=400), is_open=st.booleans(), cuts=cuts)
def test_any_bytes_through_a_websocket_give_the_same_however_cut(
    stream: bytes, is_open: bool, cuts: list[int]
) -> None:
    if is_open:
        stream = opening_request() + stream
    whole = run(WebSocketCodec("/mqtt"), [stream])
    assert run(WebSocketCodec("/mqtt"), split_at(stream, cuts)) == whole


@given(stream=st.binary(max_size=200), is_begun=st.booleans(), cuts=cuts)
def test_any_bytes_as_a_proxy_header_give_the_same_however_cut(
    stream: bytes, is_begun: bool, cuts: list[int]
) -> None:
    stream = (b"PROXY TCP4 " if is_begun else b"") + stream
    one, other = ProxyCodec(), ProxyCodec()
    assert run(one, [stream]) == run(other, split_at(stream, cuts))
    assert one.peer == other.peer


@given(parts=st.lists(payloads, max_size=4), cuts=cuts)
def test_tls_does_not_depend_on_cuts(parts: list[bytes], cuts: list[int]) -> None:
    files = certificates()
    codec = TlsCodec(TlsContexts(files.server, files.server_key).current())
    client = TlsClient()
    to_server = client.begin()
    while not client.is_open:
        _, answer, stream = run(codec, split_at(to_server, cuts))
        assert stream is Stream.OPEN
        _, to_server = client.decode(answer)
    to_server += b"".join(client.encode(part) for part in parts)
    data, answer, stream = run(codec, split_at(to_server, cuts))
    assert (data, stream) == (b"".join(parts), Stream.OPEN)
    assert client.decode(answer + codec.send(b"to the client"))[0] == b"to the client"
