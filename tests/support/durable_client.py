"""An MQTT client that keeps its half of the session when its connection or the server dies.

Owns: DurableClient: one socket that does not block, the exchanges of both directions that are not
finished, and what the standard asks of a client that comes back: the same packet identifiers, DUP,
PUBREL for what has been received (MQTT 5.0 section 4.4). Must not touch: expectations.

A program that has many of them waits for their sockets in one thread (``fileno``, ``readable``,
``writable``). Whatever ends a connection leaves the client away; only ``connect`` brings it back.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.packet_types import (
    Connack,
    Connect,
    Properties,
    Subscribe,
    SubscribeEntry,
)
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe
from tests.support.mqtt_wire import varint

DEADLINE_S = 20.0
DUP = 0x08

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


@dataclass(slots=True)
class Sending:
    """A message that is not acknowledged: PUBLISH is owed, or PUBREL once PUBREC has come."""

    topic: str
    payload: bytes
    qos: int
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message as it was handed over, once for each QoS 2 exchange."""

    topic: str
    payload: bytes
    qos: int
    is_dup: bool


class DurableClient:
    """A client with a session that outlives its connections.

    ``on_message`` is called with each message, ``on_done`` with the topic and payload of each of
    ours that the server has taken for good. ``packet_ids`` is how many identifiers it uses in turn:
    few of them are soon used again.
    """

    def __init__(
        self,
        client_id: str,
        *,
        version: int = 4,
        receive_maximum: int | None = None,
        packet_ids: int = 60,
        on_message: Callable[[Arrived], None] = lambda _: None,
        on_done: Callable[[str, bytes], None] = lambda _topic, _payload: None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self._receive_maximum = receive_maximum
        self._packet_ids = packet_ids
        self._on_message = on_message
        self._on_done = on_done
        #: Our messages by packet identifier, oldest first.
        self.sending: dict[int, Sending] = {}
        #: Identifiers of QoS 2 messages that were handed over and not released.
        self.received: set[int] = set()
        self.granted: list[int] | None = None
        #: While set, acknowledgements wait in ``_owed``.
        self.holds_back = False
        self._owed: list[bytes] = []
        self._last_packet_id = 0
        self._socket: socket.socket | None = None
        self._in = b""
        self._out = bytearray()

    # --- connections ---------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        return self._socket is None

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def connect(self, address: tuple[str, int], *, clean_start: bool = False) -> Connack | None:
        """Connect and send again what is owed; None if the server goes away meanwhile."""
        assert self.is_away
        properties = Properties()
        if self.version == 5:
            properties = Properties(
                session_expiry_interval_s=3600, receive_maximum=self._receive_maximum
            )
        packet = Connect(
            version=self.version,
            clean_start=clean_start,
            keep_alive_s=60,
            client_id=self.client_id,
            properties=properties,
        )
        self._in, self._out, self._owed = b"", bytearray(), []
        try:
            self._socket = socket.create_connection(address, timeout=DEADLINE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(encode_connect(packet))
            while not (packets := split(self._in)[0]):
                data = self._socket.recv(65_536)
                if not data:
                    raise ConnectionError("closed before CONNACK")
                self._in += data
        except ConnectionError:
            self.break_off()
            return None
        first_byte, body = packets[0]
        assert first_byte == 0x20, hex(first_byte)
        connack = decode_connack(self.version, body)
        self._in = self._in[1 + len(varint(len(body))) + len(body) :]
        self._socket.setblocking(False)
        for packet_id, owed in self.sending.items():  # [MQTT-4.4.0-1]
            if owed.is_released:
                self._put(_ack(PUBREL, packet_id))
            else:
                self._put(self._publish(owed, packet_id, DUP))
        self._handle_packets()
        return connack

    def break_off(self) -> None:
        """End the connection without DISCONNECT; nothing of the session is forgotten."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def disconnect(self) -> None:
        """End the connection with DISCONNECT, which may overtake nothing that was sent."""
        self._put(b"\xe0\x00")
        self.break_off()

    # --- what it sends -------------------------------------------------------------------

    def subscribe(self, *filters: tuple[str, int]) -> None:
        """Send one SUBSCRIBE; ``granted`` has the answer when it has come."""
        entries = tuple(SubscribeEntry(topic_filter, qos) for topic_filter, qos in filters)
        self.granted = None
        self._put(encode_subscribe(self.version, Subscribe(packet_id=65_535, entries=entries)))

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Send a message at QoS 1 or 2 and remember it until the server has it."""
        packet_id = self._last_packet_id
        while True:
            packet_id = packet_id % self._packet_ids + 1
            if packet_id not in self.sending:
                break
        self._last_packet_id = packet_id
        message = self.sending[packet_id] = Sending(topic, payload, qos)
        self._put(self._publish(message, packet_id, 0))

    def acknowledge(self) -> None:
        """Send the acknowledgements that were held back."""
        owed, self._owed = self._owed, []
        for packet in owed:
            self._put(packet)

    def _publish(self, message: Sending, packet_id: int, flags: int) -> bytes:
        name = message.topic.encode()
        body = len(name).to_bytes(2, "big") + name + packet_id.to_bytes(2, "big")
        body += (b"\x00" if self.version == 5 else b"") + message.payload
        return bytes((0x30 | message.qos << 1 | flags,)) + varint(len(body)) + body

    def _answer(self, first_byte: int, packet_id: int) -> None:
        packet = _ack(first_byte, packet_id)
        if self.holds_back or self._owed:
            self._owed.append(packet)  # in order [MQTT-4.6.0-2]
        else:
            self._put(packet)

    def _put(self, packet: bytes) -> None:
        if self._socket is not None:
            self._out += packet
            self.writable()

    # --- the socket is ready -------------------------------------------------------------

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def writable(self) -> None:
        """Send what waits, as far as the socket takes it."""
        assert self._socket is not None
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except ConnectionError:
            self._lost()

    def readable(self) -> None:
        """Take what the server has sent, and answer it."""
        assert self._socket is not None
        try:
            data = self._socket.recv(262_144)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.break_off()
            return
        self._in += data
        self._handle_packets()

    def _lost(self) -> None:
        """Read what the server still said, then be away."""
        assert self._socket is not None
        self._out.clear()
        sock = self._socket
        try:
            while data := sock.recv(262_144):
                self._in += data
        except (BlockingIOError, ConnectionError):
            pass
        self.break_off()
        self._handle_packets()

    def _handle_packets(self) -> None:
        packets, self._in = split(self._in)
        for first_byte, body in packets:
            self._handle(first_byte, body)

    def _handle(self, first_byte: int, body: bytes) -> None:
        packet_type = first_byte & 0xF0
        packet_id = int.from_bytes(body[:2], "big")
        if packet_type == 0x30:
            self._arrived(first_byte, body)
        elif packet_type == PUBACK:
            self._done(packet_id, 1, body)
        elif packet_type == PUBREC:
            self._received(packet_id, body)
        elif packet_type == PUBCOMP:
            self._done(packet_id, 2, b"")
        elif first_byte == PUBREL:
            self.received.discard(packet_id)
            self._answer(PUBCOMP, packet_id)
        elif first_byte == 0x90:
            self.granted = list(decode_suback(self.version, body).reason_codes)
        elif first_byte == 0xE0:
            self.break_off()
        else:
            raise AssertionError(f"{self.client_id} was sent {first_byte:#x} {body.hex()}")

    def _arrived(self, first_byte: int, body: bytes) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        topic, qos = body[2:end].decode(), first_byte >> 1 & 3
        packet_id = int.from_bytes(body[end : end + 2], "big") if qos else 0
        end += 2 if qos else 0
        if self.version == 5:
            assert body[end] < 128
            end += 1 + body[end]
        message = Arrived(topic, body[end:], qos, bool(first_byte & DUP))
        if qos == 2:
            if packet_id not in self.received:
                self.received.add(packet_id)
                self._on_message(message)
            self._answer(PUBREC, packet_id)
        else:
            self._on_message(message)
            if qos:
                self._answer(PUBACK, packet_id)

    def _received(self, packet_id: int, body: bytes) -> None:
        owed = self.sending.get(packet_id)
        if owed is not None:
            assert owed.qos == 2, "PUBREC for a message at QoS 1"
            assert len(body) == 2 or body[2] < 0x80, f"PUBREC refuses: {body.hex()}"
            owed.is_released = True
        self._put(_ack(PUBREL, packet_id))

    def _done(self, packet_id: int, qos: int, body: bytes) -> None:
        owed = self.sending.get(packet_id)
        if owed is None:
            return
        assert owed.qos == qos, f"acknowledged as if at QoS {qos}"
        assert len(body) <= 2 or body[2] < 0x80, f"refused: {body.hex()}"
        assert qos == 1 or owed.is_released, "PUBCOMP before PUBREL"
        del self.sending[packet_id]
        self._on_done(owed.topic, owed.payload)


def _ack(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the whole packets in ``data`` as (first byte, body), and what is left."""
    packets = []
    at = 0
    while at + 1 < len(data):
        begin, length, shift = at + 1, 0, 0
        while begin < len(data):
            length |= (data[begin] & 127) << shift
            shift += 7
            begin += 1
            if data[begin - 1] < 128:
                break
        else:
            break
        if begin + length > len(data):
            break
        packets.append((data[at], data[begin : begin + length]))
        at = begin + length
    return packets, data[at:]
