"""A gateway in memory and the peers that talk to it in bytes.

Owns: Gateway, Peer, what a peer was sent as packets. Must not touch: expectations; those are the
tests'. What the transport does (framing, keep alive) needs sockets: ``test_transport``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mapping.message_properties import client_id_property
from motelog.gateway.mqtt.acks import decode_ack, encode_ack
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.fields import FieldReader, encode_string
from motelog.gateway.mqtt.packet_types import (
    Ack,
    Connack,
    Connect,
    PacketType,
    Properties,
    Subscribe,
    SubscribeEntry,
    SubscriptionAck,
    Unsubscribe,
)
from motelog.gateway.mqtt.properties import length_and_properties, read_properties
from motelog.gateway.mqtt.subscribe import (
    decode_suback,
    decode_unsuback,
    encode_subscribe,
    encode_unsubscribe,
)
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import Stage
from tests.support.mqtt_wire import varint

PINGREQ = b"\xc0\x00"


@dataclass(frozen=True)
class Packet:
    """A packet that the gateway sent: first byte and body."""

    first_byte: int
    body: bytes

    @property
    def type(self) -> PacketType:
        return PacketType(self.first_byte >> 4)

    @property
    def bytes_count(self) -> int:
        return 1 + len(varint(len(self.body))) + len(self.body)


@dataclass(frozen=True)
class Message:
    """A PUBLISH that the gateway sent."""

    topic: str
    payload: bytes
    qos: int
    packet_id: int
    dup: bool
    retain: bool
    properties: Properties


class Gateway:
    """A gateway whose log and connections are in memory."""

    def __init__(
        self, *, access: AccessConfig | None = None, log: FakeLog | None = None, **config: Any
    ) -> None:
        self.stage = Stage(GatewayConfig(**config), log=log, access=access)
        self._numbers = count()

    def open(self, version: int) -> Peer:
        """Open a connection, over which nothing is sent yet."""
        number = next(self._numbers)
        self.stage.turn(opened=[number])
        return Peer(self, number, version)

    def connect(
        self,
        version: int,
        client_id: str = "",
        *,
        clean_start: bool = True,
        **connect: Any,
    ) -> Peer:
        """Open a connection and have it accepted; ``peer.connack`` is the answer."""
        peer = self.open(version)
        peer.send(connect_packet(version, client_id, clean_start=clean_start, **connect))
        peer.connack = peer.read_connack()
        assert peer.connack.reason_code == 0
        return peer

    def connect_persistent(self, version: int, client_id: str, **properties: Any) -> Peer:
        """Connect to a session that outlives the connection."""
        if version == 5:
            properties.setdefault("session_expiry_interval_s", 3600)
        peer = self.connect(version, client_id, clean_start=False, **properties)
        assert peer.connack.properties.session_expiry_interval_s != 0
        return peer

    def publishers(self, queue_topic: str) -> list[str]:
        """Return the client identifiers with which the messages of a queue topic were stored."""
        records = [record for record in self.stage.stored() if record[0] == queue_topic.encode()]
        return [client_id_property(record[12]) for record in records]

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and the gateway notice it."""
        ms = int(seconds * 1000)
        self._tick()
        self.stage.clock.advance(ms)
        self.stage.log.now_ms += ms
        self._tick()
        self.stage.turn()

    def deliver(self) -> None:
        """Deliver what a turn's own slice has left over, as the server does."""
        while self.stage.delivery.deliver(self.stage.clock.now_ms()):
            pass

    def _tick(self) -> None:
        """Do what the gateway does each second."""
        while self.stage.tick():
            pass
        while self.stage.journal.refresh(1000):
            pass


@dataclass
class Peer:
    """One connection's other end."""

    gateway: Gateway
    number: int
    version: int
    _inbox: deque[Packet] = field(default_factory=deque)
    _packet_ids: count[int] = field(default_factory=lambda: count(1))
    connack: Connack = field(default_factory=lambda: Connack(0xFF, False))

    # --- what the peer sends -------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send whole packets, which the gateway receives at once."""
        frames = []
        while data:
            end = _frame_end(data)
            frames.append((self.number, data[:end]))
            data = data[end:]
        self.gateway.stage.turn(*frames)

    def send_hex(self, text: str) -> None:
        self.send(bytes.fromhex(text))

    def drop(self) -> None:
        """End the connection as a network that fails."""
        self.gateway.stage.turn(closed=[(self.number, CloseReason.PEER)])

    def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        """Send DISCONNECT; the connection ends."""
        block = Properties(**properties).as_dict()
        self.send(encode_disconnect(self.version, reason_code, block))

    def subscribe(
        self, *filters: str, qos: int = 1, identifier: int | None = None, **options: Any
    ) -> list[int]:
        """Subscribe and return SUBACK's codes; what else came stays in the inbox."""
        self.send_subscribe(*filters, qos=qos, identifier=identifier, **options)
        suback = self._take(PacketType.SUBACK)
        return list(decode_suback(self.version, suback.body).reason_codes)

    def send_subscribe(
        self, *filters: str, qos: int = 1, identifier: int | None = None, **options: Any
    ) -> None:
        entries = tuple(SubscribeEntry(one, qos, **options) for one in filters)
        identifiers = () if identifier is None else (identifier,)
        properties = Properties(subscription_identifiers=identifiers)
        packet = Subscribe(next(self._packet_ids), entries, properties)
        self.send(encode_subscribe(self.version, packet))

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe and return UNSUBACK's codes; what else came stays in the inbox."""
        self.send_unsubscribe(*filters)
        unsuback = self._take(PacketType.UNSUBACK)
        return list(decode_unsuback(self.version, unsuback.body).reason_codes)

    def send_unsubscribe(self, *filters: str) -> None:
        packet = Unsubscribe(next(self._packet_ids), filters)
        self.send(encode_unsubscribe(self.version, packet))

    def publish(self, topic: str, payload: bytes = b"hi", qos: int = 0, **more: Any) -> None:
        """Send a PUBLISH and see it through; ``more`` as with ``publish_packet``.

        The acknowledgements of QoS 2 are taken, as a server may deliver at the PUBREL.
        """
        packet_id = self.put(topic, payload, qos, **more)
        if qos == 2:
            pubrec = self._take(PacketType.PUBREC)
            assert decode_ack(self.version, pubrec.first_byte, pubrec.body) == Ack(packet_id, 0)
            self.answer(PacketType.PUBREL, packet_id)
            self._take(PacketType.PUBCOMP)

    def put(self, topic: str, payload: bytes = b"hi", qos: int = 0, **more: Any) -> int:
        """Send a PUBLISH and return its packet identifier, 0 if it has none."""
        packet_id: int = more.pop("packet_id", 0) or (next(self._packet_ids) if qos else 0)
        self.send(publish_packet(self.version, topic, payload, qos, packet_id=packet_id, **more))
        return packet_id

    def answer(self, packet_type: PacketType, packet_id: int, reason_code: int = 0) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self.send(encode_ack(packet_type, self.version, packet_id, reason_code))

    # --- what the peer was sent ----------------------------------------------------------

    def received(self) -> bytes:
        """Take what came, as it came."""
        return b"".join(self.gateway.stage.output.sent.pop(self.number, []))

    def packets(self) -> list[Packet]:
        """Take all packets that came."""
        self._receive()
        found = list(self._inbox)
        self._inbox.clear()
        return found

    def packet(self) -> Packet:
        """Take the next packet."""
        self._receive()
        assert self._inbox, "nothing came"
        return self._inbox.popleft()

    def read_connack(self) -> Connack:
        packet = self.packet()
        assert packet.first_byte == 0x20
        return decode_connack(self.version, packet.body)

    def read_suback(self) -> SubscriptionAck:
        packet = self.packet()
        assert packet.first_byte == 0x90
        return decode_suback(self.version, packet.body)

    def read_unsuback(self) -> SubscriptionAck:
        packet = self.packet()
        assert packet.first_byte == 0xB0
        return decode_unsuback(self.version, packet.body)

    def read_ack(self, packet_type: PacketType) -> Ack:
        packet = self.packet()
        assert packet.type == packet_type
        return decode_ack(self.version, packet.first_byte, packet.body)

    def message(self) -> Message:
        """Take the next packet, which is a PUBLISH."""
        return decode_message(self.version, self.packet())

    def messages(self) -> list[Message]:
        """Take all packets, which are PUBLISH packets."""
        return [decode_message(self.version, packet) for packet in self.packets()]

    def payloads(self) -> list[bytes]:
        """Take all packets, which are PUBLISH packets, and return what they carry."""
        return [message.payload for message in self.messages()]

    @property
    def is_closed(self) -> bool:
        """Whether the gateway has closed the connection."""
        return self.number in self.gateway.stage.output.closed

    def assert_ended(self, reason_code: int) -> None:
        """Check that the gateway ends the connection; MQTT 5 is told why before that."""
        packets = self.packets()
        assert self.is_closed
        if self.version == 5:
            (packet,) = packets
            disconnect = decode_disconnect(5, packet.first_byte, packet.body, from_server=True)
            assert hex(disconnect.reason_code) == hex(reason_code)
        else:
            assert packets == []

    def assert_refused(self, reason_code: int) -> None:
        """Check that CONNECT is refused; before MQTT 5 without an answer, if it is malformed."""
        if self.version == 5:
            connack = self.read_connack()
            assert (hex(connack.reason_code), connack.session_present) == (hex(reason_code), False)
        assert self.packets() == []
        assert self.is_closed

    def assert_open(self) -> None:
        """Check that the gateway serves the connection, and has nothing else to say."""
        assert not self.is_closed
        self.send(PINGREQ)
        assert self.packets() == [Packet(0xD0, b"")]

    def _take(self, packet_type: PacketType) -> Packet:
        """Take the first packet of a type from behind others."""
        self._receive()
        for packet in self._inbox:
            if packet.type == packet_type:
                self._inbox.remove(packet)
                return packet
        raise AssertionError(f"no {packet_type.name} came: {self._inbox}")

    def _receive(self) -> None:
        data = self.received()
        while data:
            end = _frame_end(data)
            reader = FieldReader(data[1:end])
            reader.varint()
            self._inbox.append(Packet(data[0], reader.rest()))
            data = data[end:]


def connect_packet(version: int, client_id: str = "", **connect: Any) -> bytes:
    """Return a CONNECT; ``connect`` has fields of Connect, or properties for MQTT 5."""
    fields = {
        name: connect.pop(name) for name in list(connect) if name in Connect.__struct_fields__
    }
    fields = {"clean_start": True, "keep_alive_s": 60, **fields}
    properties = Properties(**connect)
    return encode_connect(
        Connect(version=version, client_id=client_id, properties=properties, **fields)
    )


def raw_connect(
    version: int, flags: int, payload: bytes, *, name: bytes = b"MQTT", level: int | None = None
) -> bytes:
    """Return a CONNECT that need not be legal."""
    opening = encode_name(name) + bytes([level or version, flags]) + b"\0\x3c"
    body = opening + (b"\0" if version == 5 else b"") + payload
    return b"\x10" + varint(len(body)) + body


def publish_packet(
    version: int,
    topic: str | bytes,
    payload: bytes = b"hi",
    qos: int = 0,
    *,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    **properties: Any,
) -> bytes:
    """Return a PUBLISH; ``properties`` are for MQTT 5."""
    name = topic.encode() if isinstance(topic, str) else topic
    body = len(name).to_bytes(2, "big") + name
    if qos:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += length_and_properties(Properties(**properties).as_dict())
    body += payload
    return bytes([0x30 | dup << 3 | qos << 1 | retain]) + varint(len(body)) + body


def subscribe_packet(
    version: int, *filters: str | bytes, packet_id: int = 1, options: int = 1, flags: int = 2
) -> bytes:
    """Return a SUBSCRIBE that need not be legal."""
    parts = [packet_id.to_bytes(2, "big"), b"\0" if version == 5 else b""]
    parts += [encode_name(one) + bytes([options]) for one in filters]
    body = b"".join(parts)
    return bytes([0x80 | flags]) + varint(len(body)) + body


def unsubscribe_packet(
    version: int, *filters: str | bytes, packet_id: int = 1, flags: int = 2
) -> bytes:
    """Return an UNSUBSCRIBE that need not be legal."""
    parts = [packet_id.to_bytes(2, "big"), b"\0" if version == 5 else b""]
    parts += [encode_name(one) for one in filters]
    body = b"".join(parts)
    return bytes([0xA0 | flags]) + varint(len(body)) + body


def encode_name(name: str | bytes) -> bytes:
    """Return a string field, also of bytes that are no legal string."""
    return len(name).to_bytes(2, "big") + name if isinstance(name, bytes) else encode_string(name)


def decode_message(version: int, packet: Packet) -> Message:
    """Return a PUBLISH as what it says."""
    assert packet.type == PacketType.PUBLISH, packet
    reader = FieldReader(packet.body)
    topic = reader.string()
    qos = packet.first_byte >> 1 & 3
    packet_id = reader.u16() if qos else 0
    properties = Properties()
    if version == 5:
        properties = read_properties(reader, PacketType.PUBLISH, from_server=True)
    return Message(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        packet_id=packet_id,
        dup=bool(packet.first_byte & 8),
        retain=bool(packet.first_byte & 1),
        properties=properties,
    )


def _frame_end(data: bytes) -> int:
    reader = FieldReader(data)
    reader.u8()
    length = reader.varint()
    return reader.position + length
