"""A blocking MQTT connection for tests that need to say exactly what goes over the wire.

Owns: one socket and the cutting of its answers into packets. Packets are written in hex or built
with the codec; answers come back as (first byte, body).
"""

from __future__ import annotations

import socket
from typing import Self

from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.packet_types import (
    Connack,
    Connect,
    Properties,
    Subscribe,
    SubscribeEntry,
)
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe

DEADLINE_S = 10.0


class Wire:
    """One TCP connection to a gateway; every wait ends after ``DEADLINE_S``."""

    def __init__(self, address: tuple[str, int], *, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(address)
        self._buffer = b""
        self.version = 4

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def packet(self) -> tuple[int, bytes]:
        """Return (first byte, body) of the next packet; ConnectionError at the end."""
        while True:
            cut = _cut(self._buffer)
            if cut is not None:
                first_byte, body, self._buffer = cut
                return first_byte, body
            self._receive()

    def closed(self) -> bool:
        """Wait for the peer to close; return whether it did so without another packet."""
        try:
            self.packet()
        except ConnectionError:
            return not self._buffer
        return False

    def connect(
        self,
        client_id: str = "",
        *,
        version: int = 4,
        clean_start: bool = True,
        keep_alive_s: int = 60,
        properties: Properties | None = None,
    ) -> Connack:
        """Send CONNECT and return the answer."""
        self.version = version
        connect = Connect(
            version=version,
            clean_start=clean_start,
            keep_alive_s=keep_alive_s,
            client_id=client_id,
            properties=properties or Properties(),
        )
        self.send(encode_connect(connect))
        first_byte, body = self.packet()
        assert first_byte == 0x20, hex(first_byte)
        return decode_connack(version, body)

    def subscribe(self, topic_filter: str, qos: int = 0, *, no_local: bool = False) -> int:
        """Subscribe to one filter and return its reason code."""
        entry = SubscribeEntry(topic_filter=topic_filter, qos=qos, no_local=no_local)
        self.send(encode_subscribe(self.version, Subscribe(packet_id=1, entries=(entry,))))
        first_byte, body = self.packet()
        assert first_byte == 0x90, hex(first_byte)
        return decode_suback(self.version, body).reason_codes[0]

    def publish(
        self, topic: str, payload: bytes, *, packet_id: int = 0, block: bytes = b"", flags: int = 0
    ) -> None:
        """Send one PUBLISH, at QoS 1 if it has a packet identifier."""
        name = topic.encode()
        body = len(name).to_bytes(2, "big") + name
        if packet_id:
            body += packet_id.to_bytes(2, "big")
        if self.version == 5:
            body += varint(len(block)) + block
        first_byte = 0x30 | (2 if packet_id else 0) | flags
        self.send(bytes([first_byte]) + varint(len(body) + len(payload)) + body + payload)

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("closed by the peer")
        self._buffer += data


def varint(value: int) -> bytes:
    """Return a Variable Byte Integer."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)


def published(first_byte: int, body: bytes) -> tuple[str, int, bytes]:
    """Return (topic name, packet identifier or 0, rest) of a PUBLISH body."""
    assert first_byte >> 4 == 3, hex(first_byte)
    end = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:end].decode()
    if first_byte & 6:
        return topic, int.from_bytes(body[end : end + 2], "big"), body[end + 2 :]
    return topic, 0, body[end:]


def _cut(data: bytes) -> tuple[int, bytes, bytes] | None:
    length = shift = 0
    for position in range(1, min(5, len(data))):
        length |= (data[position] & 127) << shift
        shift += 7
        if data[position] < 128:
            begin, end = position + 1, position + 1 + length
            return (data[0], data[begin:end], data[end:]) if len(data) >= end else None
    return None
