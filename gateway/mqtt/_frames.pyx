# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel of gateway.mqtt.frames; mirrors _frames_py.py, which says what it must answer.

Owns: the bytes of one batch of frames while the call lasts. Must not touch: anything else.

    frame:    first byte | remaining length varint 1..4 | body
    PUBLISH:  topic length u16 | topic | packet id u16 if QoS > 0 | v5: block length varint, block | payload
    ack:      packet id u16 | v5: reason code u8, block length varint, block; both may be left out

Preconditions: none; data, index and body may be hostile. Every read is checked against the end of the
frame, every frame against the end of the data. Not checked here: property blocks of a PUBLISH (their
length is; gateway.mqtt.properties reads them) and the bodies of all other packets (their own
modules). An acknowledgement with properties goes to gateway.mqtt.acks: rare, and no hot path.
The GIL is held: the work is making Python objects.
Measured 2026-11-21, 2 x86_64 cores in use by others too, best of 40 runs:
a PUBLISH QoS 1 with 23 bytes of topic and 100 of payload is split in 0.12 to 0.2 us, the reference
takes 4.1 to 4.9; a PUBACK 0.07 against 5.8; encode_publish 0.14 against 1.44. 2026-11-22: a message of
encode_publishes 0.025 against 1.17 us, where encode_publish takes 0.08 and its packet is cut and joined.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.acks import decode_ack

cdef enum:
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_NAME_INVALID = 0x90
    CONNECT = 1
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    UNSUBSCRIBE = 10
    PINGREQ = 12
    PINGRESP = 13
    AUTH = 15
    BODY_BYTES_MAX = 268435455
    COUNTS_BYTES = 2048

# 1 where an octet needs a second look in a topic name: control, wildcard, DEL, not ASCII.
cdef uint8_t[256] _odd
# Bit 0: a reason code of PUBACK and PUBREC, bit 1: of PUBREL and PUBCOMP.
cdef uint8_t[256] _ack_codes


cdef void _fill_tables() noexcept:
    cdef int i
    for i in range(256):
        _odd[i] = 1 if i < 0x20 or i >= 0x7F or i == 0x2B or i == 0x23 else 0
        _ack_codes[i] = 0
    for i in (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
        _ack_codes[i] |= 1
    for i in (0x00, 0x92):
        _ack_codes[i] |= 2


_fill_tables()


def split(data, index, counts=None, bint joins_acks=False):
    cdef Py_buffer octets
    cdef Py_buffer numbers
    cdef Py_buffer counters
    if counts is None:
        counts = bytearray(COUNTS_BYTES)
    PyObject_GetBuffer(data, &octets, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(index, &numbers, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(counts, &counters, PyBUF_WRITABLE)
            try:
                if counters.len != COUNTS_BYTES:
                    raise ValueError(f"counts of {counters.len} bytes are not 256 u64")
                return _split_all(
                    <const uint8_t *>octets.buf, octets.len,
                    <const uint8_t *>numbers.buf, numbers.len,
                    <uint8_t *>counters.buf,
                    joins_acks,
                )
            finally:
                PyBuffer_Release(&counters)
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&octets)


def split_one(first_byte, body, version, connection):
    cdef Py_buffer octets
    if version != 3 and version != 4 and version != 5:
        raise ValueError(f"{version} is not an MQTT version")
    if not 0 <= first_byte <= 255:
        raise ValueError(f"{first_byte} is not a byte")
    PyObject_GetBuffer(body, &octets, PyBUF_SIMPLE)
    try:
        return _split_body(
            connection, first_byte, <const uint8_t *>octets.buf, octets.len, version
        )
    finally:
        PyBuffer_Release(&octets)


def encode_publish(bytes topic not None, bytes payload not None, int first_byte, int version, bytes properties):
    cdef Py_ssize_t number_at = 0
    cdef Py_ssize_t body_bytes = _publish_bytes(topic, payload, first_byte, version, properties)
    cdef bytes packet = PyBytes_FromStringAndSize(NULL, 1 + _varint_bytes(body_bytes) + body_bytes)
    if first_byte & 0x06:
        number_at = 3 + _varint_bytes(body_bytes) + PyBytes_GET_SIZE(topic)
    _put_publish(
        <uint8_t *>PyBytes_AS_STRING(packet), body_bytes, topic, payload, first_byte, 0, version, properties
    )
    return packet, number_at


def encode_publishes(list messages not None, int version):
    cdef Py_ssize_t count = len(messages)
    cdef Py_ssize_t i
    cdef Py_ssize_t body_bytes
    cdef Py_ssize_t whole_bytes = 0
    cdef tuple message
    cdef bytes topic, payload, properties, packets
    cdef int first_byte, packet_id
    cdef uint8_t *at
    for i in range(count):
        message = messages[i]
        if message is None or len(message) != 5:
            raise ValueError("a message has five parts")
        # Of any other type, a number could run code that changes the list, or itself, between the passes.
        if type(message[2]) is not int or type(message[3]) is not int:
            raise TypeError("first byte and packet identifier are numbers")
        topic, payload, first_byte, packet_id, properties = message
        if topic is None or payload is None:
            raise ValueError("a message has a topic and a payload")
        if not 0 <= packet_id <= 65535:
            raise ValueError(f"{packet_id} is not a packet identifier")
        body_bytes = _publish_bytes(topic, payload, first_byte, version, properties)
        whole_bytes += 1 + _varint_bytes(body_bytes) + body_bytes
    packets = PyBytes_FromStringAndSize(NULL, whole_bytes)
    at = <uint8_t *>PyBytes_AS_STRING(packets)
    for i in range(count):
        topic, payload, first_byte, packet_id, properties = <tuple>messages[i]
        body_bytes = _publish_bytes(topic, payload, first_byte, version, properties)
        at = _put_publish(at, body_bytes, topic, payload, first_byte, packet_id, version, properties)
    return packets


cdef Py_ssize_t _publish_bytes(
    bytes topic, bytes payload, int first_byte, int version, bytes properties
) except -1:
    """Return the length of a PUBLISH after its fixed header; ValueError if it cannot be one."""
    cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t payload_bytes = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t block_bytes = 0 if properties is None else PyBytes_GET_SIZE(properties)
    cdef Py_ssize_t body_bytes
    if version != 3 and version != 4 and version != 5:
        raise ValueError(f"{version} is not an MQTT version")
    if first_byte >> 4 != PUBLISH or first_byte & 0x06 == 0x06:
        raise ValueError(f"{first_byte} does not begin a PUBLISH")
    if topic_bytes > 65535:
        raise ValueError(f"topic of {topic_bytes} bytes")
    if block_bytes and version != 5:
        raise ValueError("properties before MQTT 5")
    if payload_bytes > BODY_BYTES_MAX or block_bytes > BODY_BYTES_MAX:
        raise ValueError("packet body is too long")
    body_bytes = 2 + topic_bytes + payload_bytes
    if first_byte & 0x06:
        body_bytes += 2
    if version == 5:
        body_bytes += _varint_bytes(block_bytes) + block_bytes
    if body_bytes > BODY_BYTES_MAX:
        raise ValueError(f"packet body of {body_bytes} bytes")
    return body_bytes


cdef uint8_t *_put_publish(
    uint8_t *at, Py_ssize_t body_bytes, bytes topic, bytes payload, int first_byte, int packet_id,
    int version, bytes properties,
) noexcept:
    """Write a PUBLISH of ``_publish_bytes``; return where it ends."""
    cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t block_bytes = 0 if properties is None else PyBytes_GET_SIZE(properties)
    at[0] = <uint8_t>first_byte
    at = _put_varint(at + 1, <uint32_t>body_bytes)
    at[0] = <uint8_t>(topic_bytes >> 8)
    at[1] = <uint8_t>(topic_bytes & 0xFF)
    memcpy(at + 2, PyBytes_AS_STRING(topic), topic_bytes)
    at += 2 + topic_bytes
    if first_byte & 0x06:
        at[0] = <uint8_t>(packet_id >> 8)
        at[1] = <uint8_t>(packet_id & 0xFF)
        at += 2
    if version == 5:
        at = _put_varint(at, <uint32_t>block_bytes)
        if block_bytes:
            memcpy(at, PyBytes_AS_STRING(properties), block_bytes)
            at += block_bytes
    memcpy(at, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    return at + PyBytes_GET_SIZE(payload)


cdef list _split_all(
    const uint8_t *octets, Py_ssize_t octets_count, const uint8_t *numbers, Py_ssize_t numbers_bytes,
    uint8_t *counts, bint joins_acks,
):
    cdef uint32_t[4] entry  # connection, version, begin, end; copied, as the index may lie anywhere
    cdef Py_ssize_t i
    cdef Py_ssize_t body_begin
    cdef const uint8_t *frame
    cdef Py_ssize_t frame_bytes
    cdef uint8_t first_byte
    cdef uint64_t count  # copied too
    cdef list frames = []
    cdef set connecting = None
    cdef list packet_ids = None  # of the PUBACKs that are the last frame
    cdef uint32_t acknowledging = 0  # the connection that they come from
    cdef tuple ack
    cdef uint32_t packet_id
    if numbers_bytes % 16:
        raise ValueError(f"index of {numbers_bytes} bytes is not made of four u32 each")
    for i in range(0, numbers_bytes, 16):
        memcpy(entry, numbers + i, 16)
        if entry[2] > entry[3] or <uint64_t>entry[3] > <uint64_t>octets_count:
            raise ValueError(f"frame [{entry[2]}, {entry[3]}) is outside {octets_count} bytes")
        if entry[1] != 0 and entry[1] != 3 and entry[1] != 4 and entry[1] != 5:
            raise ValueError(f"{entry[1]} is not an MQTT version")
        frame = octets + entry[2]
        frame_bytes = entry[3] - entry[2]
        body_begin = _body_begin(frame, frame_bytes, entry[1] == 5)
        if body_begin == 0:
            packet_ids = None
            frames.append(_fault(entry[0], MALFORMED_PACKET, 0))
            continue
        first_byte = frame[0]
        memcpy(&count, counts + 8 * first_byte, 8)
        count += 1
        memcpy(counts + 8 * first_byte, &count, 8)
        if joins_acks and first_byte == PUBACK << 4 and entry[1] != 0:
            packet_id = 0
            if frame_bytes - body_begin == 2:
                packet_id = (<uint32_t>frame[body_begin] << 8) | frame[body_begin + 1]
            if packet_id == 0:
                ack = _split_ack(entry[0], first_byte, frame + body_begin, frame_bytes - body_begin, entry[1])
                if ack[1] != first_byte:
                    packet_ids = None
                    frames.append(ack)
                    continue
                packet_id = ack[4]
            if packet_ids is not None and acknowledging == entry[0]:
                packet_ids.append(packet_id)
            else:
                packet_ids = [packet_id]
                acknowledging = entry[0]
                frames.append((entry[0], first_byte, None, None, packet_id, packet_ids))
            continue
        packet_ids = None
        if entry[1] != 0:
            frames.append(
                _split_body(
                    entry[0], first_byte, frame + body_begin, frame_bytes - body_begin, entry[1]
                )
            )
            continue
        if connecting is None:
            connecting = set()
        if first_byte >> 4 == CONNECT:  # its flags are judged with its version, by decode_connect
            connecting.add(entry[0])
        elif entry[0] not in connecting:  # [MQTT-3.1.0-1]
            frames.append(_fault(entry[0], PROTOCOL_ERROR, 0))
            continue
        frames.append(
            (entry[0], first_byte, None, _copy(frame + body_begin, frame_bytes - body_begin), 0, None)
        )
    return frames


cdef Py_ssize_t _body_begin(const uint8_t *frame, Py_ssize_t frame_bytes, bint is_v5) noexcept nogil:
    """Return where the body begins, 0 if the remaining length is not that of the frame."""
    cdef uint32_t remaining = 0
    cdef Py_ssize_t i
    for i in range(1, frame_bytes if frame_bytes < 5 else 5):
        remaining |= <uint32_t>(frame[i] & 0x7F) << <uint32_t>(7 * (i - 1))
        if frame[i] < 0x80:
            if <Py_ssize_t>remaining != frame_bytes - i - 1:
                return 0
            if frame[i] == 0 and i > 1 and is_v5:  # [MQTT-1.5.5-1]
                return 0
            return i + 1
    return 0


cdef tuple _split_body(
    uint32_t connection, uint8_t first_byte, const uint8_t *body, Py_ssize_t body_bytes, uint32_t version
):
    cdef uint8_t packet_type = first_byte >> 4
    cdef uint8_t flags = first_byte & 0x0F
    cdef uint8_t expected
    if packet_type == PUBLISH:
        return _split_publish(connection, first_byte, body, body_bytes, version)
    if packet_type == 0 or (packet_type == AUTH and version != 5):
        return _fault(connection, MALFORMED_PACKET, 0)
    expected = 2 if packet_type == PUBREL or packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE else 0
    # [MQTT-2.1.3-1]; only 3.1 allows DUP in the packets whose flags are 2.
    if flags != expected and not (version == 3 and expected == 2 and flags == 0x0A):
        return _fault(connection, MALFORMED_PACKET, 0)
    if PUBACK <= packet_type <= PUBCOMP:
        return _split_ack(connection, first_byte, body, body_bytes, version)
    if (packet_type == PINGREQ or packet_type == PINGRESP) and body_bytes:
        return _fault(connection, MALFORMED_PACKET, 0)
    return (connection, first_byte, None, _copy(body, body_bytes), 0, None)


cdef tuple _split_publish(
    uint32_t connection, uint8_t first_byte, const uint8_t *body, Py_ssize_t body_bytes, uint32_t version
):
    cdef uint8_t qos = first_byte >> 1 & 3
    cdef Py_ssize_t topic_bytes
    cdef Py_ssize_t at
    cdef Py_ssize_t block_bytes
    cdef Py_ssize_t fault_at
    cdef int reason_code = 0
    cdef uint32_t packet_id = 0
    cdef object properties = None
    # QoS 3 [MQTT-3.3.1-4]; DUP without QoS [MQTT-3.3.1-2]
    if qos == 3 or (qos == 0 and first_byte & 0x08):
        return _fault(connection, MALFORMED_PACKET, 0)
    if body_bytes < 2:
        return _fault(connection, MALFORMED_PACKET, 0)
    topic_bytes = (<Py_ssize_t>body[0] << 8) | body[1]
    if 2 + topic_bytes > body_bytes:
        return _fault(connection, MALFORMED_PACKET, 0)
    if topic_bytes == 0 and version != 5:  # [MQTT-4.7.3-1]
        return _fault(connection, TOPIC_NAME_INVALID, 2)
    fault_at = _topic_fault(body + 2, topic_bytes, &reason_code)
    if fault_at >= 0:
        return _fault(connection, reason_code, 2 + fault_at)
    at = 2 + topic_bytes
    if qos:
        if body_bytes - at < 2:
            return _fault(connection, MALFORMED_PACKET, at)
        packet_id = (<uint32_t>body[at] << 8) | body[at + 1]
        if packet_id == 0:  # [MQTT-2.2.1-3]
            return _fault(connection, PROTOCOL_ERROR, at)
        at += 2
    if version == 5:
        block_bytes = _get_varint(body, body_bytes, &at)
        if block_bytes < 0 or block_bytes > body_bytes - at:
            return _fault(connection, MALFORMED_PACKET, at)
        if block_bytes:
            properties = _copy(body + at, block_bytes)
            at += block_bytes
        elif topic_bytes == 0:  # section 3.3.2.1: no Topic Alias either
            return _fault(connection, PROTOCOL_ERROR, 2)
    return (
        connection,
        first_byte,
        _copy(body + 2, topic_bytes),
        _copy(body + at, body_bytes - at),
        packet_id,
        properties,
    )


cdef tuple _split_ack(
    uint32_t connection, uint8_t first_byte, const uint8_t *body, Py_ssize_t body_bytes, uint32_t version
):
    cdef uint8_t packet_type = first_byte >> 4
    cdef uint8_t reason_code = 0
    cdef uint32_t packet_id
    if body_bytes < 2 or (version != 5 and body_bytes > 2):
        return _fault(connection, MALFORMED_PACKET, 0)
    packet_id = (<uint32_t>body[0] << 8) | body[1]
    if packet_id == 0:  # [MQTT-2.2.1-3]
        return _fault(connection, PROTOCOL_ERROR, 0)
    if body_bytes > 2:
        reason_code = body[2]
        # [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
        if not _ack_codes[reason_code] & (1 if packet_type <= PUBREC else 2):
            return _fault(connection, PROTOCOL_ERROR, 0)
    if body_bytes > 3:
        try:
            decode_ack(version, first_byte, _copy(body, body_bytes))
        except GatewayError as exc:
            return _fault(connection, exc.reason_code, getattr(exc, "offset_bytes", 0))
    return (connection, first_byte, None, None, packet_id, reason_code)


cdef Py_ssize_t _get_varint(const uint8_t *body, Py_ssize_t body_bytes, Py_ssize_t *at) noexcept nogil:
    """Return the integer at ``at`` and move ``at`` past it; -1, unmoved, if cut, long or padded."""
    cdef Py_ssize_t value = 0
    cdef Py_ssize_t i
    for i in range(4):
        if at[0] + i >= body_bytes:
            return -1
        value |= <Py_ssize_t>(body[at[0] + i] & 0x7F) << (7 * i)
        if body[at[0] + i] < 0x80:
            if body[at[0] + i] == 0 and i > 0:  # [MQTT-1.5.5-1]
                return -1
            at[0] += i + 1
            return value
    return -1


cdef Py_ssize_t _topic_fault(
    const uint8_t *topic, Py_ssize_t topic_bytes, int *reason_code
) noexcept nogil:
    """Return where the first character begins that is illegal in a topic name, or -1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t length
    cdef uint8_t odd = 0
    for i in range(topic_bytes):
        odd |= _odd[topic[i]]
    if not odd:
        return -1
    i = 0
    while i < topic_bytes:
        if not _odd[topic[i]]:
            i += 1
            continue
        length = _utf8_bytes(topic + i, topic_bytes - i)
        if length == 0 or topic[i] == 0:  # [MQTT-1.5.4-1] [MQTT-1.5.4-2]
            reason_code[0] = MALFORMED_PACKET
            return i
        # [MQTT-3.3.2-2], section 1.5.4: odd ASCII is a wildcard or a control, C2 80..9F a control
        if length == 1 or (topic[i] == 0xC2 and topic[i + 1] < 0xA0):
            reason_code[0] = TOPIC_NAME_INVALID
            return i
        i += length
    return -1


cdef Py_ssize_t _utf8_bytes(const uint8_t *text, Py_ssize_t left) noexcept nogil:
    """Return the length of the UTF-8 sequence at ``text``, 0 if there is none (``left`` >= 1)."""
    cdef uint8_t lead = text[0]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:  # continuation, overlong, above U+10FFFF
        return 0
    if left < 2:
        return 0
    if lead == 0xE0:
        low = 0xA0  # overlong below
    elif lead == 0xED:
        high = 0x9F  # surrogates above
    elif lead == 0xF0:
        low = 0x90  # overlong below
    elif lead == 0xF4:
        high = 0x8F  # above U+10FFFF
    if not low <= text[1] <= high:
        return 0
    if lead < 0xE0:
        return 2
    if left < 3 or text[2] & 0xC0 != 0x80:
        return 0
    if lead < 0xF0:
        return 3
    if left < 4 or text[3] & 0xC0 != 0x80:
        return 0
    return 4


cdef Py_ssize_t _varint_bytes(Py_ssize_t value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef uint8_t *_put_varint(uint8_t *at, uint32_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value & 0x7F | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline bytes _copy(const uint8_t *octets, Py_ssize_t count):
    return PyBytes_FromStringAndSize(<const char *>octets, count)


cdef tuple _fault(uint32_t connection, int reason_code, Py_ssize_t offset_bytes):
    return (connection, 0, None, None, reason_code, offset_bytes)
