"""An MQTT client that keeps its half of the session when its connection or the server dies.

Owns: ClientSession, the exchanges of both directions that are not finished, and what the standard
asks of a client that comes back: the same packet identifiers, DUP, PUBREL for what the server has
received (MQTT 5.0 section 4.4); DurableClient, one with a socket; Sockets, those of many. Must not
touch: expectations.

A ClientSession does no I/O: ``handle`` takes what the server has sent, ``take_out`` has what is to
be sent. A program with many DurableClients waits for their sockets in one thread (``fileno``,
``readable``, ``flush``). Whatever ends a connection leaves the client away; only ``connect`` brings
it back.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.packet_types import (
    Connack,
    Connect,
    Properties,
    Subscribe,
    SubscribeEntry,
    Unsubscribe,
    Will,
)
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe, encode_unsubscribe
from tests.support.mqtt_wire import varint

DEADLINE_S = 20.0
DUP = 0x08
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
#: Identifier of SUBSCRIBE and UNSUBSCRIBE; those of messages are lower.
SUBSCRIBE_ID = 65_535


class BadAnswerError(Exception):
    """The server has sent what no server may send."""


@dataclass(slots=True)
class Sending:
    """A message that is not acknowledged: PUBLISH is owed, or PUBREL once PUBREC has come."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message as it was handed over, once for each QoS 2 exchange."""

    topic: str
    payload: bytes
    qos: int
    is_dup: bool


class ClientSession:
    """The client's half of a session, which outlives its connections.

    ``on_message`` is called with each message, ``on_done`` with the topic and payload of each of
    ours that the server has taken for good, ``on_refused`` with each that it has refused, which
    is then not sent again. ``packet_ids`` is how many identifiers it uses in turn: few of them are
    soon used again.
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
        on_refused: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self._receive_maximum = receive_maximum
        self._packet_ids = packet_ids
        self._on_message = on_message
        self._on_done = on_done
        self._on_refused = on_refused
        #: Our messages by packet identifier, oldest first.
        self.sending: dict[int, Sending] = {}
        #: Identifiers of QoS 2 messages that were handed over and not released.
        self.received: set[int] = set()
        #: The last CONNACK, reason codes of the last SUBACK; None while it is waited for.
        self.connack: Connack | None = None
        self.granted: list[int] | None = None
        #: Whether the server has said that it ends the connection, and why.
        self.is_ended = False
        self.end_code = 0
        #: How often it has ended one, by reason code.
        self.endings = Counter[int]()
        #: Whether a message of ours that is refused is a fault; else it is owed as before.
        self.refusal_is_fault = True
        #: Messages refused while ``refusal_is_fault`` is false, counted by reason code.
        self.refusals = Counter[int]()
        #: While set, acknowledgements wait.
        self.holds_back = False
        self._owed: list[bytes] = []
        self._last_packet_id = 0
        self._out = bytearray()

    # --- what it sends -------------------------------------------------------------------

    def take_out(self) -> bytes:
        """Return the packets that are to be sent now."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def come(
        self, *, clean_start: bool = False, expiry_s: int = 3600, will: Will | None = None
    ) -> None:
        """Begin a connection with CONNECT; the rest follows when ``connack`` has come."""
        properties = Properties()
        if self.version == 5:
            properties = Properties(
                session_expiry_interval_s=expiry_s, receive_maximum=self._receive_maximum
            )
        packet = Connect(
            version=self.version,
            clean_start=clean_start,
            keep_alive_s=60,
            client_id=self.client_id,
            will=will,
            properties=properties,
        )
        self._out.clear()
        self._owed.clear()
        self.connack = None
        self.is_ended = False
        self._out += encode_connect(packet)
        if clean_start:
            self.received.clear()

    def subscribe(self, *filters: tuple[str, int]) -> None:
        """Send one SUBSCRIBE; ``granted`` has the answer when it has come."""
        entries = tuple(SubscribeEntry(topic_filter, qos) for topic_filter, qos in filters)
        self.granted = None
        self._out += encode_subscribe(self.version, Subscribe(SUBSCRIBE_ID, entries))

    def unsubscribe(self, *filters: str) -> None:
        self._out += encode_unsubscribe(self.version, Unsubscribe(SUBSCRIBE_ID, filters))

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Send a message at QoS 1 or 2 and remember it until the server has it."""
        packet_id = self._last_packet_id
        while True:
            packet_id = packet_id % self._packet_ids + 1
            if packet_id not in self.sending:
                break
        self._last_packet_id = packet_id
        message = self.sending[packet_id] = Sending(topic, payload, qos, retain)
        self._out += self._publish(message, packet_id, 0)

    def disconnect(self) -> None:
        self._out += b"\xe0\x00"

    def acknowledge(self) -> None:
        """Send the acknowledgements that were held back."""
        for packet in self._owed:
            self._out += packet
        self._owed.clear()

    def _send_again(self) -> None:
        for packet_id, owed in self.sending.items():  # [MQTT-4.4.0-1]
            if owed.is_released:
                self._out += _ack(PUBREL, packet_id)
            else:
                self._out += self._publish(owed, packet_id, DUP)

    def _publish(self, message: Sending, packet_id: int, flags: int) -> bytes:
        name = message.topic.encode()
        body = len(name).to_bytes(2, "big") + name + packet_id.to_bytes(2, "big")
        body += (b"\x00" if self.version == 5 else b"") + message.payload
        first_byte = 0x30 | message.qos << 1 | message.retain | flags
        return bytes((first_byte,)) + varint(len(body)) + body

    def _answer(self, first_byte: int, packet_id: int) -> None:
        packet = _ack(first_byte, packet_id)
        if self.holds_back or self._owed:
            self._owed.append(packet)  # in order [MQTT-4.6.0-2]
        else:
            self._out += packet

    # --- what comes ----------------------------------------------------------------------

    def handle(self, first_byte: int, body: bytes) -> None:
        """Take one packet of the server."""
        packet_type = first_byte & 0xF0
        packet_id = int.from_bytes(body[:2], "big")
        if packet_type == 0x20:
            self.connack = decode_connack(self.version, body)
            if not self.connack.reason_code:
                self._send_again()
        elif self.connack is None:
            raise BadAnswerError(f"{self.client_id} is sent {first_byte:#x} before CONNACK")
        elif packet_type == 0x30:
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
            self.is_ended = True
            self.end_code = body[0] if body else 0
            self.endings[self.end_code] += 1
        elif first_byte not in (0xB0, 0xD0):
            raise BadAnswerError(f"{self.client_id} is sent {first_byte:#x} {body.hex()}")

    def _arrived(self, first_byte: int, body: bytes) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        topic, qos = body[2:end].decode(), first_byte >> 1 & 3
        packet_id = int.from_bytes(body[end : end + 2], "big") if qos else 0
        end += 2 if qos else 0
        if self.version == 5:
            end += 1 + body[end]  # less than 128 bytes of properties
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
            if owed.qos != 2:
                raise BadAnswerError(f"{self.client_id} is sent PUBREC for a message at QoS 1")
            if self._is_refused(packet_id, body):
                return
            owed.is_released = True
        self._out += _ack(PUBREL, packet_id)

    def _done(self, packet_id: int, qos: int, body: bytes) -> None:
        owed = self.sending.get(packet_id)
        if owed is None:
            return
        if owed.qos != qos:
            raise BadAnswerError(f"{self.client_id}: {owed} is acknowledged as if at QoS {qos}")
        if self._is_refused(packet_id, body):
            return
        if qos == 2 and not owed.is_released:
            raise BadAnswerError(f"{self.client_id} is sent PUBCOMP before PUBREC for {owed}")
        del self.sending[packet_id]
        self._on_done(owed.topic, owed.payload)

    def _is_refused(self, packet_id: int, body: bytes) -> bool:
        if len(body) < 3 or body[2] < 0x80:
            return False
        self.refusals[body[2]] += 1
        if self._on_refused is not None:
            owed = self.sending.pop(packet_id)
            self._on_refused(owed.topic, owed.payload)
        elif self.refusal_is_fault:
            owed = self.sending[packet_id]
            raise BadAnswerError(f"{self.client_id}: {owed} is refused: {body.hex()}")
        return True


class DurableClient:
    """A ClientSession with a socket that does not block."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self._socket: socket.socket | None = None
        self._in = b""
        self._out = bytearray()

    @property
    def is_away(self) -> bool:
        return self._socket is None

    @property
    def address(self) -> tuple[str, int]:
        """Our (host, port) of the connection."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return host, port

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def connect(
        self, address: tuple[str, int], *, within_s: float = DEADLINE_S, will: Will | None = None
    ) -> Connack | None:
        """Connect and send again what is owed; None if the server goes away meanwhile.

        TimeoutError, and the client is away, if there is no answer in time.
        """
        assert self.is_away
        self._in, self._out = b"", bytearray()
        session = self.session
        session.come(will=will)
        try:
            self._socket = socket.create_connection(address, timeout=within_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(session.take_out())
            while session.connack is None:
                data = self._socket.recv(65_536)
                if not data:
                    raise ConnectionError("closed before CONNACK")
                self._in += data
                self._handle_packets()
        except ConnectionError:
            self.break_off()
            return None
        except TimeoutError:
            self.break_off()
            raise
        self._socket.setblocking(False)
        self.flush()
        return session.connack

    def break_off(self) -> None:
        """End the connection without DISCONNECT; nothing of the session is forgotten."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def disconnect(self) -> None:
        """End the connection with DISCONNECT, if the socket takes it."""
        self.session.disconnect()
        self.flush()
        self.break_off()

    # --- the socket is ready -------------------------------------------------------------

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def flush(self) -> None:
        """Send what the session has to send, as far as the socket takes it."""
        if self._socket is None:
            return
        self._out += self.session.take_out()
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except ConnectionError:
            # What the server said before it went is still to be read.
            self._out.clear()

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
        if self.session.is_ended:
            self.break_off()
        self.flush()

    def _handle_packets(self) -> None:
        packets, self._in = split(self._in)
        for first_byte, body in packets:
            self.session.handle(first_byte, body)


class Sockets:
    """The sockets of many clients, which one thread serves."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def serve(self, clients: Sequence[DurableClient], seconds: float) -> None:
        """Read and write for the clients that are not away, for some time."""
        end = time.monotonic() + seconds
        selector = self._selector
        while True:
            for key in list(selector.get_map().values()):
                selector.unregister(key.fileobj)
            for one in clients:
                if not one.is_away:
                    events = selectors.EVENT_READ | selectors.EVENT_WRITE * one.wants_to_write
                    selector.register(one.fileno(), events, one)
            left = end - time.monotonic()
            for key, events in selector.select(max(left, 0)):
                one = key.data
                if events & selectors.EVENT_WRITE and not one.is_away:
                    one.flush()
                if events & selectors.EVENT_READ and not one.is_away:
                    one.readable()
            if left <= 0:
                return


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
