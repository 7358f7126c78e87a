"""Reference of the frames kernel: specifies the results of gateway/mqtt/_frames.pyx.

Owns: the meaning of ``split``, ``split_one`` and ``encode_publish`` (docstrings: frames.py).
Must not touch: sessions, sockets. Faults are tuples, not exceptions: one bad packet must not end a
batch.
Spec: MQTT 5.0 sections 2.1, 3.3 and 3.4 to 3.7.
"""

from __future__ import annotations

import re
from typing import Any, Final

from motelog.gateway.mqtt.acks import decode_ack
from motelog.gateway.mqtt.errors import GatewayError, MalformedPacketError
from motelog.gateway.mqtt.packet_types import PROTOCOL_VERSIONS, PacketType, ReasonCode
from motelog.gateway.mqtt.packing import check_flags
from motelog.gateway.mqtt.varint import VARINT_MAX, decode_varint, encode_varint

_BODY_BYTES_MAX: Final = VARINT_MAX
_COUNTS_BYTES: Final = 8 * 256
# Within valid UTF-8: control characters U+0001..U+001F, U+007F..U+009F, U+0000 and the wildcards.
_NOT_IN_NAME: Final = re.compile(rb"[\x00-\x1f\x7f+#]|\xc2[\x80-\x9f]")
_ACKS: Final = frozenset(
    {PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP}
)
_FLAGS_2: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})

Frame = tuple[int, int, Any, Any, int, Any]


def split(data: Any, index: Any, counts: Any = None, joins_acks: bool = False) -> list[Frame]:
    octets = memoryview(data).cast("B")
    numbers = memoryview(index).cast("B")
    counters = memoryview(bytearray(_COUNTS_BYTES) if counts is None else counts).cast("B")
    if counters.readonly:
        raise BufferError("counts cannot be written")
    if len(counters) != _COUNTS_BYTES:
        raise ValueError(f"counts of {len(counters)} bytes are not 256 u64")
    counters = counters.cast("Q")
    if len(numbers) % 16:
        raise ValueError(f"index of {len(numbers)} bytes is not made of four u32 each")
    numbers = numbers.cast("I")
    frames: list[Frame] = []
    connecting: set[int] = set()
    for i in range(0, len(numbers), 4):
        connection, version, begin, end = numbers[i : i + 4]
        if not begin <= end <= len(octets):
            raise ValueError(f"frame [{begin}, {end}) is outside {len(octets)} bytes")
        if version != 0 and version not in PROTOCOL_VERSIONS:
            raise ValueError(f"{version} is not an MQTT version")
        frame = bytes(octets[begin:end])
        body_begin = _body_begin(frame, version)
        if body_begin == 0:
            frames.append(_fault(connection, ReasonCode.MALFORMED_PACKET, 0))
            continue
        counters[frame[0]] += 1
        frames.append(_split_frame(connection, version, frame[0], frame[body_begin:], connecting))
    return _with_joined_acks(frames) if joins_acks else frames


def split_one(first_byte: int, body: Any, version: int, connection: int) -> Frame:
    if version not in PROTOCOL_VERSIONS:
        raise ValueError(f"{version} is not an MQTT version")
    if not 0 <= first_byte <= 255:
        raise ValueError(f"{first_byte} is not a byte")
    try:
        return _split_body(first_byte, bytes(body), version, connection)
    except MalformedPacketError as exc:
        return _fault(connection, exc.reason_code, exc.offset_bytes)
    except GatewayError as exc:
        return _fault(connection, exc.reason_code, 0)


def encode_publish(
    topic: bytes, payload: bytes, first_byte: int, version: int, properties: bytes | None
) -> tuple[bytes, int]:
    if version not in PROTOCOL_VERSIONS:
        raise ValueError(f"{version} is not an MQTT version")
    if first_byte >> 4 != PacketType.PUBLISH or first_byte & 0x06 == 0x06:
        raise ValueError(f"{first_byte} does not begin a PUBLISH")
    if len(topic) > 65535:
        raise ValueError(f"topic of {len(topic)} bytes")
    if properties and version != 5:
        raise ValueError("properties before MQTT 5")
    packet_id = b"\0\0" if first_byte & 0x06 else b""
    block = b"" if version != 5 else encode_varint(len(properties or b"")) + (properties or b"")
    body_bytes = 2 + len(topic) + len(packet_id) + len(block) + len(payload)
    if body_bytes > _BODY_BYTES_MAX:
        raise ValueError(f"packet body of {body_bytes} bytes")
    head = bytes((first_byte,)) + encode_varint(body_bytes) + len(topic).to_bytes(2, "big") + topic
    return head + packet_id + block + payload, len(head) if packet_id else 0


def encode_publishes(
    messages: list[tuple[bytes, bytes, int, int, bytes | None]], version: int
) -> bytes:
    packets = []
    for message in messages:
        if len(message) != 5:
            raise ValueError("a message has five parts")
        topic, payload, first_byte, packet_id, properties = message
        if not 0 <= packet_id <= 65535:
            raise ValueError(f"{packet_id} is not a packet identifier")
        packet, at = encode_publish(topic, payload, first_byte, version, properties)
        if at:
            packet = packet[:at] + packet_id.to_bytes(2, "big") + packet[at + 2 :]
        packets.append(packet)
    return b"".join(packets)


def _split_frame(
    connection: int, version: int, first_byte: int, body: bytes, connecting: set[int]
) -> Frame:
    """Parse the body of a frame whose fixed header is valid."""
    if version != 0:
        return split_one(first_byte, body, version, connection)
    if first_byte >> 4 == PacketType.CONNECT:
        connecting.add(connection)  # decode_connect checks its flags, which depend on the version
    elif connection not in connecting:  # [MQTT-3.1.0-1]
        return _fault(connection, ReasonCode.PROTOCOL_ERROR, 0)
    return (connection, first_byte, None, body, 0, None)


def _with_joined_acks(frames: list[Frame]) -> list[Frame]:
    joined: list[Frame] = []
    for frame in frames:
        connection, first_byte, _, _, packet_id, _ = frame
        if first_byte != PacketType.PUBACK << 4 or not packet_id:
            joined.append(frame)
        elif joined and joined[-1][:2] == (connection, first_byte) and joined[-1][4]:
            joined[-1][5].append(packet_id)
        else:
            joined.append((connection, first_byte, None, None, packet_id, [packet_id]))
    return joined


def _body_begin(frame: bytes, version: int) -> int:
    """Return where the body begins, 0 if the remaining length is not that of the frame.

    Only MQTT 5 requires the shortest form [MQTT-1.5.5-1]; some small 3.1.1 clients pad it.
    """
    remaining = 0
    for i in range(1, min(len(frame), 5)):
        remaining |= (frame[i] & 0x7F) << 7 * (i - 1)
        if frame[i] < 0x80:
            is_padded = frame[i] == 0 and i > 1 and version == 5
            return i + 1 if remaining == len(frame) - i - 1 and not is_padded else 0
    return 0


def _split_body(first_byte: int, body: bytes, version: int, connection: int) -> Frame:
    packet_type = first_byte >> 4
    if packet_type == PacketType.PUBLISH:
        return _split_publish(first_byte, body, version, connection)
    if packet_type in _ACKS:
        ack = decode_ack(version, first_byte, body)
        return (connection, first_byte, None, None, ack.packet_id, ack.reason_code)
    if packet_type == 0 or (packet_type == PacketType.AUTH and version != 5):
        raise MalformedPacketError(f"packet type {packet_type}")  # [MQTT-2.1.3-1], table 2-1
    check_flags(version, first_byte, 2 if packet_type in _FLAGS_2 else 0)
    if packet_type in (PacketType.PINGREQ, PacketType.PINGRESP) and body:
        raise MalformedPacketError("PINGREQ or PINGRESP with a body")
    return (connection, first_byte, None, body, 0, None)


def _split_publish(first_byte: int, body: bytes, version: int, connection: int) -> Frame:
    qos = first_byte >> 1 & 3
    # QoS 3 [MQTT-3.3.1-4]; DUP without QoS [MQTT-3.3.1-2]
    if qos == 3 or (qos == 0 and first_byte & 0x08):
        return _fault(connection, ReasonCode.MALFORMED_PACKET, 0)
    if len(body) < 2 or 2 + int.from_bytes(body[:2], "big") > len(body):
        return _fault(connection, ReasonCode.MALFORMED_PACKET, 0)
    at = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:at]
    if not topic and version != 5:  # [MQTT-4.7.3-1]
        return _fault(connection, ReasonCode.TOPIC_NAME_INVALID, 2)
    topic_fault = _topic_fault(topic)
    if topic_fault is not None:
        return _fault(connection, topic_fault[0], 2 + topic_fault[1])
    packet_id = 0
    if qos:
        if len(body) - at < 2:
            return _fault(connection, ReasonCode.MALFORMED_PACKET, at)
        packet_id = int.from_bytes(body[at : at + 2], "big")
        if packet_id == 0:  # [MQTT-2.2.1-3]
            return _fault(connection, ReasonCode.PROTOCOL_ERROR, at)
        at += 2
    properties = None
    if version == 5:
        block_bytes, at = decode_varint(body, at, len(body))
        if block_bytes > len(body) - at:
            return _fault(connection, ReasonCode.MALFORMED_PACKET, at)
        properties = body[at : at + block_bytes] or None
        at += block_bytes
        if not topic and properties is None:  # section 3.3.2.1: no Topic Alias either
            return _fault(connection, ReasonCode.PROTOCOL_ERROR, 2)
    return (connection, first_byte, topic, body[at:], packet_id, properties)


def _topic_fault(topic: bytes) -> tuple[int, int] | None:
    """Return (reason code, position) of the first character that is illegal in a topic name."""
    utf8_end = len(topic)
    try:
        topic.decode()
    except UnicodeDecodeError as exc:
        utf8_end = exc.start
    found = _NOT_IN_NAME.search(topic, 0, utf8_end)
    if found is not None:
        if found.group() == b"\0":  # [MQTT-1.5.4-2]
            return ReasonCode.MALFORMED_PACKET, found.start()
        return ReasonCode.TOPIC_NAME_INVALID, found.start()  # [MQTT-3.3.2-2], section 1.5.4
    if utf8_end < len(topic):  # [MQTT-1.5.4-1]
        return ReasonCode.MALFORMED_PACKET, utf8_end
    return None


def _fault(connection: int, reason_code: int, offset_bytes: int) -> Frame:
    return (connection, 0, None, None, int(reason_code), offset_bytes)
