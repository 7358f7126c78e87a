# cython: boundscheck=False, wraparound=False, cdivision=True
"""A payload in MessagePack -> entries of columns.

Mirrors spark/_msgpack_payload_py.py. Owns: the bytes of MessagePack. Must not touch: Python.
Not checked: that text which goes into no column, or into a binary one, is UTF-8.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from motelog.core.records._big_endian cimport get16, get32, get64
from motelog.spark._payload_nodes cimport (
    BAD_FORMAT, BAD_TEXT, BINARY, BOOLEAN, BYTE, DATE, DECIMAL, DEPTH_MAX, DOUBLE, FLOAT, LIST, LONG,
    NOWHERE, OKAY, OUT_OF_RANGE, STRING, STRUCT, TIMESTAMP, TOO_DEEP, TOO_MANY, TWICE, WRONG_TYPE,
    Node, Reader, child_of, end_entry, end_list, end_struct, put_null, wrong,
)
from motelog.spark._payload_values cimport (
    TIME_MS_MAX, TIME_MS_MIN, Number, put_decimal, put_double, put_text, put_whole, scan_number,
)
from motelog.spark._stores cimport NO_MEMORY, Text, is_utf8, put_byte, put_i64, text_at

cdef enum:
    NIL_ITEM = 0
    BOOLEAN_ITEM = 1
    WHOLE_ITEM = 2
    FLOAT_ITEM = 3
    TEXT_ITEM = 4
    BYTES_ITEM = 5
    EXTENSION_ITEM = 6
    ARRAY_ITEM = 7
    MAP_ITEM = 8
    # The type of MessagePack's own extension.
    TIMESTAMP_EXTENSION = -1

cdef struct Item:
    int kind
    bint negative
    uint64_t whole       # a number without its sign, a boolean, the items of an array or map
    double value
    Text text            # of text, bytes, an extension
    int extension


cdef inline int read_msgpack(Reader* r) noexcept nogil:
    cdef int fault = msgpack_value(r, 0, 1)
    if fault:
        return fault
    return wrong(r, BAD_FORMAT, 0, r.at) if r.at < r.size else OKAY


cdef inline int msgpack_value(Reader* r, int number, int depth) noexcept nogil:
    """Read the value at this place into a node; NOWHERE: it is only checked."""
    cdef Node* node = &r.nodes[number] if number != NOWHERE else NULL
    cdef size_t begin = r.at
    cdef Item item
    cdef double value
    cdef int fault = msgpack_item(r, &item)
    if fault:
        return fault
    if item.kind == MAP_ITEM:
        if node != NULL and node.kind != STRUCT:
            return wrong(r, WRONG_TYPE, number, begin)
        return wrong(r, TOO_DEEP, 0, begin) if depth > DEPTH_MAX else msgpack_map(r, number, item.whole, depth)
    if item.kind == ARRAY_ITEM:
        if node != NULL and node.kind != LIST:
            return wrong(r, WRONG_TYPE, number, begin)
        return wrong(r, TOO_DEEP, 0, begin) if depth > DEPTH_MAX else msgpack_array(r, number, item.whole, depth)
    if node == NULL:
        return OKAY
    if item.kind == NIL_ITEM:
        return wrong(r, WRONG_TYPE, 0, begin) if number == 0 else put_null(r, number)
    if item.kind == TEXT_ITEM:
        return msgpack_text(r, node, number, item.text, begin)
    if item.kind == WHOLE_ITEM:
        if BYTE <= node.kind <= LONG or node.kind == TIMESTAMP:
            return put_whole(r, node, number, item.whole, item.negative, begin)
        if node.kind == FLOAT or node.kind == DOUBLE:
            value = <double>item.whole
            return put_double(r, node, number, -value if item.negative else value, begin)
        if node.kind == DECIMAL:
            return msgpack_decimal(r, node, number, &item, begin)
    elif item.kind == FLOAT_ITEM:
        if node.kind == FLOAT or node.kind == DOUBLE:
            return put_double(r, node, number, item.value, begin)
    elif item.kind == BOOLEAN_ITEM:
        if node.kind == BOOLEAN:
            return NO_MEMORY if put_byte(&node.data, <uint8_t>item.whole) else end_entry(r, node, True)
    elif item.kind == BYTES_ITEM:
        if node.kind == BINARY:
            return put_text(r, number, item.text, begin)
    elif node.kind == TIMESTAMP and item.extension == TIMESTAMP_EXTENSION:
        return msgpack_timestamp(r, node, number, item.text, begin)
    return wrong(r, WRONG_TYPE, number, begin)


cdef inline int msgpack_map(Reader* r, int number, uint64_t count, int depth) noexcept nogil:
    cdef Node* node = &r.nodes[number] if number != NOWHERE else NULL
    cdef uint64_t i
    cdef size_t key_at
    cdef int child, fault
    cdef Item key
    for i in range(count):
        key_at = r.at
        fault = msgpack_item(r, &key)
        if fault:
            return fault
        child = NOWHERE
        if key.kind == TEXT_ITEM and node != NULL:
            child = child_of(r, node, key.text)
            if child != NOWHERE and r.nodes[child].length > node.length:
                return wrong(r, TWICE, child, key_at)
        elif key.kind == ARRAY_ITEM or key.kind == MAP_ITEM:
            r.at = key_at
            fault = msgpack_value(r, NOWHERE, depth + 1)
            if fault:
                return fault
        fault = msgpack_value(r, child, depth + 1)
        if fault:
            return fault
    return OKAY if node == NULL else end_struct(r, node)


cdef inline int msgpack_array(Reader* r, int number, uint64_t count, int depth) noexcept nogil:
    cdef Node* node = &r.nodes[number] if number != NOWHERE else NULL
    cdef int child = node.first if node != NULL else NOWHERE
    cdef uint64_t i
    cdef int fault
    for i in range(count):
        fault = msgpack_value(r, child, depth + 1)
        if fault:
            return fault
        if r.row_values > r.row_values_max:
            return wrong(r, TOO_MANY, 0, r.at)
    return OKAY if node == NULL else end_list(r, node)


cdef inline int msgpack_text(Reader* r, Node* node, int number, Text text, size_t begin) noexcept nogil:
    cdef Number found
    if node.kind == STRING and not is_utf8(text):
        return wrong(r, BAD_TEXT, 0, begin)
    if node.kind == STRING or node.kind == BINARY or node.kind == TIMESTAMP or node.kind == DATE:
        return put_text(r, number, text, begin)
    if node.kind == DECIMAL and text.size and scan_number(text.data, text.size, 0, &found):
        if found.end == text.size:
            return put_decimal(r, node, number, text, begin)
    return wrong(r, WRONG_TYPE, number, begin)


cdef inline int msgpack_decimal(Reader* r, Node* node, int number, Item* item, size_t begin) noexcept nogil:
    cdef uint8_t[21] digits
    cdef int first = 21
    cdef uint64_t left = item.whole
    while True:
        first -= 1
        digits[first] = <uint8_t>(0x30 + left % 10)
        left = left // 10
        if not left:
            break
    if item.negative:
        first -= 1
        digits[first] = 0x2D
    return put_decimal(r, node, number, text_at(digits + first, 21 - first), begin)


cdef inline int msgpack_timestamp(Reader* r, Node* node, int number, Text text, size_t begin) noexcept nogil:
    """Add a time of 32, 64 or 96 bits, cut to microseconds."""
    cdef int64_t seconds
    cdef uint64_t both
    cdef uint32_t nanoseconds = 0
    if text.size == 4:
        seconds = get32(text.data)
    elif text.size == 8:
        both = get64(text.data)
        nanoseconds = <uint32_t>(both >> 34)
        seconds = <int64_t>(both & 0x3FFFFFFFFULL)
    elif text.size == 12:
        nanoseconds = get32(text.data)
        seconds = <int64_t>get64(text.data + 4)
    else:
        return wrong(r, WRONG_TYPE, number, begin)
    if nanoseconds > 999999999:
        return wrong(r, WRONG_TYPE, number, begin)
    if not TIME_MS_MIN // 1000 <= seconds <= TIME_MS_MAX // 1000:
        return wrong(r, OUT_OF_RANGE, number, begin)
    if put_i64(&node.data, seconds * 1000000 + nanoseconds // 1000):
        return NO_MEMORY
    return end_entry(r, node, True)


cdef inline int msgpack_item(Reader* r, Item* item) noexcept nogil:
    """Step over the head of an item, and over all of it if it is not an array or map."""
    cdef size_t begin = r.at
    cdef uint64_t bits = 0
    cdef int64_t whole
    cdef float narrow
    cdef uint32_t bits32
    cdef uint8_t first
    cdef int size
    item.negative = False
    if begin >= r.size:
        return wrong(r, BAD_FORMAT, 0, r.size)
    first = r.data[begin]
    r.at += 1
    if first < 0x80:
        item.kind = WHOLE_ITEM
        item.whole = first
        return OKAY
    if first >= 0xE0:
        item.kind = WHOLE_ITEM
        item.negative = True
        item.whole = 256 - first
        return OKAY
    if first < 0x90:
        item.kind = MAP_ITEM
        item.whole = first & 0x0F
        return OKAY
    if first < 0xA0:
        item.kind = ARRAY_ITEM
        item.whole = first & 0x0F
        return OKAY
    if first < 0xC0:
        item.kind = TEXT_ITEM
        return msgpack_bytes(r, item, first & 0x1F)
    if first == 0xC0:
        item.kind = NIL_ITEM
        return OKAY
    if first == 0xC1:
        return wrong(r, BAD_FORMAT, 0, begin)
    if first < 0xC4:
        item.kind = BOOLEAN_ITEM
        item.whole = first & 1
        return OKAY
    if 0xD4 <= first <= 0xD8:
        item.kind = EXTENSION_ITEM
        return msgpack_extension(r, item, 1ULL << (first - 0xD4))
    # The remaining types have a number of 1, 2, 4 or 8 bytes after the first byte: sizes or values.
    if first < 0xCA:
        size = 1 << (first - 0xC4) % 3
    elif first < 0xCC:
        size = 4 << (first - 0xCA)
    elif first < 0xD4:
        size = 1 << (first & 3)
    elif first < 0xDC:
        size = 1 << (first - 0xD9)
    else:
        size = 2 << (first & 1)
    if r.size - r.at < <size_t>size:
        return wrong(r, BAD_FORMAT, 0, r.size)
    if size == 1:
        bits = r.data[r.at]
    elif size == 2:
        bits = get16(r.data + r.at)
    elif size == 4:
        bits = get32(r.data + r.at)
    else:
        bits = get64(r.data + r.at)
    r.at += <size_t>size
    if first < 0xC7:
        item.kind = BYTES_ITEM
        return msgpack_bytes(r, item, bits)
    if first < 0xCA:
        item.kind = EXTENSION_ITEM
        return msgpack_extension(r, item, bits)
    if first < 0xCC:
        item.kind = FLOAT_ITEM
        if size == 4:
            bits32 = <uint32_t>bits
            memcpy(&narrow, &bits32, 4)
            item.value = narrow
        else:
            memcpy(&item.value, &bits, 8)
        return OKAY
    item.whole = bits
    if first < 0xD0:
        item.kind = WHOLE_ITEM
    elif first < 0xD4:
        item.kind = WHOLE_ITEM
        whole = <int8_t>bits if size == 1 else <int16_t>bits if size == 2 else <int32_t>bits if size == 4 else <int64_t>bits
        if whole < 0:
            item.negative = True
            item.whole = 0 - <uint64_t>whole
    elif first < 0xDC:
        item.kind = TEXT_ITEM
        return msgpack_bytes(r, item, bits)
    else:
        item.kind = ARRAY_ITEM if first < 0xDE else MAP_ITEM
    return OKAY


cdef inline int msgpack_extension(Reader* r, Item* item, uint64_t size) noexcept nogil:
    if r.at >= r.size:
        return wrong(r, BAD_FORMAT, 0, r.size)
    item.extension = <int8_t>r.data[r.at]
    r.at += 1
    return msgpack_bytes(r, item, size)


cdef inline int msgpack_bytes(Reader* r, Item* item, uint64_t size) noexcept nogil:
    if r.size - r.at < size:
        return wrong(r, BAD_FORMAT, 0, r.size)
    item.text = text_at(r.data + r.at, <Py_ssize_t>size)
    r.at += <size_t>size
    return OKAY
