# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Kernel of core.remoting.sends; mirrors its reference, _sends_py.py.

Owns: the bytes of one turn's requests while a call lasts. Must not touch: anything else.
Schema: the drawing in core/remoting/frames.py; headers are read by _header.pxd.
Preconditions: none; data, index and bodies may be hostile. Every read is checked against the end of
its frame, every frame against the end of the data. Unusual frames are left to the caller (None) and
not judged: other requests, headers with other members or values that are not text, escapes beyond
the basic plane, properties that the broker must examine. So this may leave more to the caller than
the reference does; if it answers, the reference gives the same answer.
The GIL is held: the work is making Python objects.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from motelog.core.records._big_endian cimport get16, get32, put32
from motelog.core.remoting._header cimport (
    BINARY,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEAD,
    JSON,
    Header,
    Text,
    is_ascii,
    is_text,
    put_decimal,
    put_literal,
    put_name,
    read_header,
    read_number,
)

cdef enum:
    ITEM_FIXED = 22
    SEND_V2 = 310
    SEND_BATCH = 320
    SYS_FLAG_TRANSACTION = 0xC
    PROPERTIES_MAX = 32767
    LETTERS = 13  # a to m

cdef const char *HEX = "0123456789ABCDEF"


cdef struct Seen:
    # The parts of a property text that the broker needs.
    const uint8_t *key
    Py_ssize_t key_size
    const uint8_t *tags
    Py_ssize_t tags_size
    bint waits


cdef class SendRules:
    """What a broker adds to messages, and which properties it must examine itself."""

    cdef bytes added
    cdef list odd
    cdef uint8_t[256] odd_first
    cdef bytes json_begin
    cdef bytes json_end
    cdef bytes host
    cdef bytes binary_begin
    cdef bytes binary_ext

    def __init__(
        self, bytes added not None, odd_names, bytes json_begin not None, bytes json_end not None,
        bytes binary_begin not None, bytes binary_ext not None, bytes host not None,
    ):
        cdef bytes name
        self.added = added
        self.odd = []
        for i in range(256):
            self.odd_first[i] = 0
        for name in odd_names:
            if not name:
                raise ValueError("a property has a name")
            self.odd.append(name)
            self.odd_first[<uint8_t>name[0]] = 1
        self.json_begin = json_begin
        self.json_end = json_end
        self.binary_begin = binary_begin
        self.binary_ext = binary_ext
        self.host = host

    cdef bint is_odd(self, const uint8_t *name, Py_ssize_t size):
        cdef bytes odd
        if not self.odd_first[name[0]]:
            return False
        for odd in self.odd:
            if PyBytes_GET_SIZE(odd) == size and memcmp(PyBytes_AS_STRING(odd), name, size) == 0:
                return True
        return False


# --- properties


cdef inline int _hex(uint8_t digit) noexcept:
    if c"0" <= digit <= c"9":
        return digit - c"0"
    if c"a" <= digit <= c"f":
        return digit - c"a" + 10
    if c"A" <= digit <= c"F":
        return digit - c"A" + 10
    return -1


cdef Py_ssize_t _unescape(const Text *text, uint8_t *out) noexcept:
    """Write a JSON text's bytes; return how many, never more than it has, or -1."""
    cdef const uint8_t *p = text.at
    cdef const uint8_t *end = p + text.size
    cdef const uint8_t *stop
    cdef uint8_t *begin = out
    cdef int digit, i
    cdef uint32_t point
    if not text.is_escaped:
        memcpy(out, p, text.size)
        return text.size
    while p < end:
        stop = <const uint8_t *>memchr(p, c"\\", end - p)
        if stop == NULL:
            stop = end
        memcpy(out, p, stop - p)
        out += stop - p
        if stop == end:
            break
        p = stop + 2
        # A text does not end with a backslash: it would hide the quote after it.
        if p > end:
            return -1
        if stop[1] == c"u":
            if end - p < 4:
                return -1
            point = 0
            for i in range(4):
                digit = _hex(p[i])
                if digit < 0:
                    return -1
                point = point << 4 | <uint32_t>digit
            p += 4
            if point == 0 or 0xD800 <= point <= 0xDFFF:
                return -1
            if point < 0x80:
                out[0] = <uint8_t>point
                out += 1
            elif point < 0x800:
                out[0] = <uint8_t>(0xC0 | point >> 6)
                out[1] = <uint8_t>(0x80 | (point & 0x3F))
                out += 2
            else:
                out[0] = <uint8_t>(0xE0 | point >> 12)
                out[1] = <uint8_t>(0x80 | (point >> 6 & 0x3F))
                out[2] = <uint8_t>(0x80 | (point & 0x3F))
                out += 3
        else:
            if stop[1] == c'"' or stop[1] == c"\\" or stop[1] == c"/":
                out[0] = stop[1]
            elif stop[1] == c"n":
                out[0] = c"\n"
            elif stop[1] == c"t":
                out[0] = c"\t"
            elif stop[1] == c"r":
                out[0] = c"\r"
            elif stop[1] == c"b":
                out[0] = 8
            elif stop[1] == c"f":
                out[0] = 12
            else:
                return -1
            out += 1
    return out - begin


cdef bint _look(SendRules rules, const uint8_t *p, Py_ssize_t size, Seen *seen):
    """Find the parts of a property text that the broker needs; False if it must look itself."""
    cdef const uint8_t *end = p + size
    cdef const uint8_t *stop
    cdef const uint8_t *name_end
    cdef const uint8_t *value
    cdef Py_ssize_t name_size, value_size
    seen.key = seen.tags = NULL
    seen.key_size = seen.tags_size = 0
    seen.waits = True
    if size and memchr(p, 0, size) != NULL:
        return False
    while p < end:
        stop = <const uint8_t *>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        name_end = <const uint8_t *>memchr(p, 1, stop - p)
        if name_end != NULL and name_end + 1 < stop:
            name_size = name_end - p
            value = name_end + 1
            value_size = stop - value
            if name_size == 4 and memcmp(p, "WAIT", 4) == 0:
                seen.waits = not (value_size == 5 and memcmp(value, "false", 5) == 0)
            elif name_size == 4 and memcmp(p, "TAGS", 4) == 0:
                seen.tags = value
                seen.tags_size = value_size
            elif name_size == 8 and memcmp(p, "UNIQ_KEY", 8) == 0:
                seen.key = value
                seen.key_size = value_size
            elif name_size and rules.is_odd(p, name_size):
                return False
        p = stop + 1
    return True


cdef bint _hash(const uint8_t *p, Py_ssize_t size, int64_t *code) noexcept:
    """Java's String.hashCode of an ASCII text; False for any other."""
    cdef uint32_t h = 0
    cdef Py_ssize_t i
    for i in range(size):
        if p[i] >= 0x80:
            return False
        h = 31 * h + p[i]
    code[0] = <int32_t>h
    return True


cdef bytes _stored(SendRules rules, const Text *text, Seen *seen, int64_t *code):
    """Return a property text with the broker's additions; None if the broker must look itself.

    The seen key is a part of the returned text, and lives as long.
    """
    cdef bytes stored
    cdef Py_ssize_t added = PyBytes_GET_SIZE(rules.added)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, text.size + 1 + added)
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(out)
    cdef Py_ssize_t size = _unescape(text, begin)
    if size < 0 or not _look(rules, begin, size, seen):
        return None
    if not _hash(seen.tags, seen.tags_size, code):
        return None
    if text.is_wide:
        try:
            PyUnicode_DecodeUTF8(<char *>begin, size, NULL)
        except UnicodeDecodeError:
            return None
    if size and begin[size - 1] != 2:
        begin[size] = 2
        size += 1
    memcpy(begin + size, PyBytes_AS_STRING(rules.added), added)
    size += added
    if size > PROPERTIES_MAX:
        return None
    stored = out[:size]
    seen.tags = NULL
    if seen.key != NULL:
        seen.key = <const uint8_t *>PyBytes_AS_STRING(stored) + (seen.key - begin)
    return stored


# --- what callers see


cdef bint _is_plain_key(const uint8_t *key, Py_ssize_t size) noexcept:
    """Return whether a key is the same in JSON."""
    cdef Py_ssize_t i
    for i in range(size):
        if not (
            c"0" <= key[i] <= c"9" or c"A" <= key[i] <= c"Z" or c"a" <= key[i] <= c"z"
        ):
            return False
    return True


cdef object _send(SendRules rules, const uint8_t *frame, const uint8_t *end):
    cdef Header h
    cdef Text[LETTERS] fields
    cdef uint32_t seen_fields = 0
    cdef const Text *value
    cdef int k, letter
    cdef int64_t queue_id, sys_flag, born_ms, flag, times, queue_count
    cdef int64_t code = 0
    cdef bint is_batch
    cdef Seen seen
    cdef bytes properties
    if not read_header(frame, end, &h):
        return None
    if (h.code != SEND_V2 and h.code != SEND_BATCH) or h.flag & FLAG_RESPONSE:
        return None
    for k in range(h.count):
        value = &h.fields[k].value
        letter = -1
        if h.fields[k].name_size == 1 and c"a" <= h.fields[k].name[0] < c"a" + LETTERS:
            letter = h.fields[k].name[0] - c"a"
            fields[letter] = value[0]
            seen_fields |= <uint32_t>1 << letter
        # Only the properties may be anything but plain text.
        if letter != 8 and (value.is_escaped or value.is_wide):
            return None
    # All fields from a to i must be present: group, topic, default topic, numbers, properties.
    if seen_fields & 0x1FF != 0x1FF:
        return None
    if not (
        read_number(&fields[3], -2147483648, 2147483647, &queue_count)
        and read_number(&fields[4], 0, 2147483647, &queue_id)
        and read_number(&fields[5], 0, 2147483647, &sys_flag)
        and read_number(&fields[6], 0, 999999999999999999, &born_ms)
        and read_number(&fields[7], 0, 2147483647, &flag)
    ):
        return None
    times = 0
    if seen_fields >> 9 & 1 and not read_number(&fields[9], 0, 2147483647, &times):
        return None
    if sys_flag & SYS_FLAG_TRANSACTION:
        return None
    # Topics of groups have rules of their own.
    if not fields[1].size or fields[1].at[0] == c"%":
        return None
    is_batch = h.code == SEND_BATCH
    if seen_fields >> 12 & 1:
        is_batch = (
            is_batch
            or is_text(&fields[12], "true", 4)
            or is_text(&fields[12], "True", 4)
            or is_text(&fields[12], "1", 1)
        )
    properties = _stored(rules, &fields[8], &seen, &code)
    if properties is None or not _is_plain_key(seen.key, seen.key_size):
        return None
    # A single message without a key gets one from the caller.
    if seen.key_size == 0 and not is_batch:
        return None
    return (
        h.code,
        h.opaque,
        h.form,
        (h.flag & FLAG_ONEWAY) != 0,
        is_batch,
        (<char *>fields[1].at)[: fields[1].size].decode("ascii"),
        queue_id,
        sys_flag,
        born_ms,
        flag,
        times,
        None if seen.key_size == 0 else <bytes>seen.key[: seen.key_size],
        seen.waits,
        properties,
        code,
        <bytes>h.body[: end - h.body],
    )


def split_sends(data, index, Py_ssize_t count, SendRules rules not None):
    cdef Py_buffer octets
    cdef Py_buffer numbers
    cdef const uint32_t *row
    cdef const uint8_t *begin
    cdef list sends
    cdef Py_ssize_t i
    PyObject_GetBuffer(data, &octets, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(index, &numbers, PyBUF_SIMPLE)
        try:
            if count < 0 or count > numbers.len // 16:
                raise ValueError(f"{count} frames are not in the index")
            sends = [None] * count
            begin = <const uint8_t *>octets.buf
            for i in range(count):
                row = <const uint32_t *>numbers.buf + 4 * i
                if row[2] > row[3] or row[3] > <uint64_t>octets.len:
                    raise ValueError("a frame lies outside the data")
                sends[i] = _send(rules, begin + row[2], begin + row[3])
            return sends
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&octets)


def split_batch(
    bytes body not None, tail, int64_t born_ms, bytes born_host not None, SendRules rules not None
):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(body)
    cdef const uint8_t *item_end
    cdef const uint8_t *message
    cdef int64_t total, size, flag
    cdef int64_t code
    cdef list messages = []
    cdef Text text
    cdef Seen seen
    cdef bytes properties
    while p < end:
        if end - p < ITEM_FIXED:
            return None
        total = <int32_t>get32(p)
        flag = <int32_t>get32(p + 12)
        size = <int32_t>get32(p + 16)
        if total < ITEM_FIXED or total > end - p or size < 0 or size > total - ITEM_FIXED:
            return None
        item_end = p + total
        message = p + 20
        p = message + size
        text.size = get16(p)
        text.at = p + 2
        if text.size > 32767 or text.at + text.size != item_end:
            return None
        text.is_escaped = False
        text.is_wide = not is_ascii(text.at, text.size)
        code = 0
        properties = _stored(rules, &text, &seen, &code)
        if properties is None:
            return None
        messages.append(
            (
                tail, <bytes>message[:size], properties, code, born_ms, born_host, 0, flag, 0, 0,
            )
        )
        p = item_end
    return messages or None


cdef inline uint8_t *_put(uint8_t *out, bytes text) noexcept:
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out + PyBytes_GET_SIZE(text)


cdef uint8_t *_put_ids(uint8_t *out, SendRules rules, list placed, Py_ssize_t first, Py_ssize_t count):
    """Write the offset ids of an answer's messages, with commas between them."""
    cdef Py_ssize_t i
    cdef int shift
    cdef uint64_t physical
    for i in range(first, first + count):
        if i > first:
            out[0] = c","
            out += 1
        out = _put(out, rules.host)
        physical = <uint64_t><int64_t>(<tuple?>placed[i])[0]
        for shift in range(60, -4, -4):
            out[0] = HEX[physical >> shift & 15]
            out += 1
    return out


def answer_sends(list staged not None, list placed not None, SendRules rules not None):
    cdef list frames = []
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t count, id_bytes, key_bytes, used
    cdef int64_t opaque, queue_id, queue_offset
    cdef bint is_oneway
    cdef int form
    cdef bytes key, out
    cdef object told
    cdef tuple send
    cdef uint8_t *begin
    cdef uint8_t *ext
    cdef uint8_t *p
    cdef uint8_t *value
    for send in staged:
        if len(send) != 8:
            raise ValueError("a staged send is a tuple of 8")
        opaque = send[1]
        form = send[2]
        is_oneway = send[3]
        queue_id = send[4]
        count = send[5]
        told = send[6]
        if count < 1 or count > len(placed) - first:
            raise ValueError("there are fewer places than messages")
        queue_offset = (<tuple?>placed[first])[1]
        if told is not None and type(told) is not bytes:
            frames.append(None)
            first += count
            continue
        key = told
        key_bytes = 0 if key is None else PyBytes_GET_SIZE(key)
        if is_oneway or (form != JSON and form != BINARY) or (
            key is not None
            and not _is_plain_key(<const uint8_t *>PyBytes_AS_STRING(key), key_bytes)
        ):
            frames.append(None)
            first += count
            continue
        id_bytes = count * (PyBytes_GET_SIZE(rules.host) + 17) - 1
        out = PyBytes_FromStringAndSize(
            NULL,
            HEAD + id_bytes + key_bytes + 256
            + max(
                PyBytes_GET_SIZE(rules.json_begin) + PyBytes_GET_SIZE(rules.json_end),
                PyBytes_GET_SIZE(rules.binary_begin) + PyBytes_GET_SIZE(rules.binary_ext),
            ),
        )
        begin = <uint8_t *>PyBytes_AS_STRING(out)
        p = begin + HEAD
        if form == JSON:
            p = _put(p, rules.json_begin)
            p = _put_ids(p, rules, placed, first, count)
            p = put_literal(p, '","queueId":"', 13)
            p = put_decimal(p, queue_id)
            p = put_literal(p, '","queueOffset":"', 17)
            p = put_decimal(p, queue_offset)
            if key is not None:
                p = put_literal(p, '","transactionId":"', 19)
                p = _put(p, key)
            p = put_literal(p, '"},"opaque":', 12)
            p = put_decimal(p, opaque)
            p = _put(p, rules.json_end)
        else:
            p = _put(p, rules.binary_begin)  # code, language, version
            put32(p, <uint32_t><int32_t>opaque)
            put32(p + 4, FLAG_RESPONSE)
            put32(p + 8, 0)  # no remark
            ext = p + 12
            p = _put(ext + 4, rules.binary_ext)
            p = put_name(p, "msgId", 5)
            put32(p, <uint32_t>id_bytes)
            p = _put_ids(p + 4, rules, placed, first, count)
            p = put_name(p, "queueId", 7)
            value = p + 4
            p = put_decimal(value, queue_id)
            put32(value - 4, <uint32_t>(p - value))
            p = put_name(p, "queueOffset", 11)
            value = p + 4
            p = put_decimal(value, queue_offset)
            put32(value - 4, <uint32_t>(p - value))
            if key is not None:
                p = put_name(p, "transactionId", 13)
                put32(p, <uint32_t>key_bytes)
                p = _put(p + 4, key)
            put32(ext, <uint32_t>(p - ext - 4))
        used = p - begin
        # Too long for a header: the caller refuses it with an explanation.
        if used - HEAD > 0xFFFFFF:
            frames.append(None)
        else:
            put32(begin, <uint32_t>(used - 4))
            put32(begin + 4, <uint32_t>form << 24 | <uint32_t>(used - HEAD))
            frames.append(out[:used])
        first += count
    return frames
