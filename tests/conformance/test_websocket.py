"""Chapter 6: MQTT over WebSocket."""

from __future__ import annotations

from motelog.core.net.codec import Stream
from motelog.core.net.websocket import WebSocketCodec
from tests.conformance.statements import proves
from tests.support.coded_peers import client_frame, opening_request, server_frames

CONNECT = b"\x10\x0d\x00\x04MQTT%c\x02\x00\x3c\x00\x01x"


@proves(mqtt3="MQTT-6.0.0-1", mqtt5="MQTT-6.0.0-1")
def test_any_data_frame_that_is_not_binary_ends_the_connection(version: int) -> None:
    codec = WebSocketCodec("/mqtt")
    codec.receive(opening_request())
    data, answer, stream = codec.receive(client_frame(CONNECT % version, opcode=1))
    assert (data, stream) == (b"", Stream.FAULTY)
    assert server_frames(answer)[0] == [(8, (1003).to_bytes(2, "big"))]


@proves(mqtt3="MQTT-6.0.0-2", mqtt5="MQTT-6.0.0-2")
def test_packets_need_not_be_aligned_to_frames(version: int) -> None:
    codec = WebSocketCodec("/mqtt")
    packets = CONNECT % version + b"\xc0\x00"
    frames = [client_frame(packets[begin : begin + 4]) for begin in range(0, len(packets), 4)]
    assert codec.receive(opening_request() + b"".join(frames)).data == packets


@proves(mqtt3="MQTT-6.0.0-4", mqtt5="MQTT-6.0.0-4")
def test_server_selects_the_subprotocol_mqtt(version: int) -> None:
    answer = WebSocketCodec("/mqtt").receive(opening_request()).answer
    assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in answer
