# cython: boundscheck=False, wraparound=False, cdivision=True
"""A payload in JSON -> entries of columns.

Mirrors spark/_json_payload_py.py. Owns: the bytes of JSON. Spec: RFC 8259, all of it.
The GIL is taken for the few numbers that need exact rounding.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp

from motelog.spark._payload_nodes cimport (
    BAD_FORMAT, BAD_TEXT, BINARY, BOOLEAN, BYTE, DATE, DECIMAL, DEPTH_MAX, DOUBLE, FLOAT, LIST, NOWHERE,
    OKAY, OUT_OF_RANGE, STRING, STRUCT, TIMESTAMP, TOO_DEEP, TOO_MANY, TWICE, WRONG_TYPE, Node, Reader,
    child_of, end_entry, end_list, end_struct, put_null, wrong,
)
from motelog.spark._payload_values cimport (
    Number, is_digit, put_decimal, put_double, put_text, put_whole, scan_number,
)
from motelog.spark._stores cimport NO_MEMORY, Store, Text, put_byte, put_bytes, sequence, text_at

cdef extern from *:
    """
    static const double motelog_powers[23] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
        1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
    };
    """
    const double* POWERS "motelog_powers"


cdef inline int hex_digit(uint8_t byte) noexcept nogil:
    if is_digit(byte):
        return byte - 0x30
    byte |= 0x20
    return byte - 0x57 if 0x61 <= byte <= 0x66 else -1


cdef inline int put_code(Store* store, uint32_t code) noexcept nogil:
    """Add a code point as UTF-8."""
    cdef uint8_t[4] out
    cdef size_t size
    if code < 0x80:
        out[0] = <uint8_t>code
        size = 1
    elif code < 0x800:
        out[0] = <uint8_t>(0xC0 | code >> 6)
        out[1] = <uint8_t>(0x80 | (code & 0x3F))
        size = 2
    elif code < 0x10000:
        out[0] = <uint8_t>(0xE0 | code >> 12)
        out[1] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
        out[2] = <uint8_t>(0x80 | (code & 0x3F))
        size = 3
    else:
        out[0] = <uint8_t>(0xF0 | code >> 18)
        out[1] = <uint8_t>(0x80 | (code >> 12 & 0x3F))
        out[2] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
        out[3] = <uint8_t>(0x80 | (code & 0x3F))
        size = 4
    return put_bytes(store, out, size)


cdef inline double exact_double(const uint8_t* data, size_t size) noexcept with gil:
    """Return the nearest double, infinite for a number that is too large."""
    return float(PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size))

cdef inline int hex_code(const uint8_t* p, size_t left) noexcept nogil:
    """Return the number of an escape with four hexadecimal digits, -1 if there is none."""
    cdef int code = 0
    cdef int digit, i
    if left < 6 or p[0] != 0x5C or p[1] != 0x75:
        return -1
    for i in range(2, 6):
        digit = hex_digit(p[i])
        if digit < 0:
            return -1
        code = code << 4 | digit
    return code


cdef inline int peek(Reader* r) noexcept nogil:
    """Return the byte at this place, -1 after the last."""
    return r.data[r.at] if r.at < r.size else -1


cdef inline void skip_space(Reader* r) noexcept nogil:
    cdef uint8_t byte
    while r.at < r.size:
        byte = r.data[r.at]
        if byte > 0x20 or byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
            return
        r.at += 1


cdef inline int read_json(Reader* r) noexcept nogil:
    cdef int fault
    skip_space(r)
    fault = json_value(r, 0, 1)
    if fault:
        return fault
    skip_space(r)
    return wrong(r, BAD_FORMAT, 0, r.at) if r.at < r.size else OKAY


cdef inline int json_value(Reader* r, int number, int depth) noexcept nogil:
    """Read the value at this place into a node; NOWHERE: it is only checked."""
    cdef int kind = r.nodes[number].kind if number != NOWHERE else NOWHERE
    cdef int first = peek(r)
    cdef size_t begin = r.at
    cdef size_t size
    cdef Text text
    cdef int fault
    if first == 0x22:
        if number != NOWHERE and kind != STRING and kind != TIMESTAMP and kind != DATE:
            return wrong(r, WRONG_TYPE, number, begin)
        fault = json_string(r, &text)
        if fault or number == NOWHERE:
            return fault
        return put_text(r, number, text, begin)
    if first == 0x2D or 0x30 <= first <= 0x39:
        return json_number(r, number, kind)
    if first == 0x7B:
        if number != NOWHERE and kind != STRUCT:
            return wrong(r, WRONG_TYPE, number, begin)
        return json_object(r, number, depth)
    if first == 0x5B:
        if number != NOWHERE and kind != LIST:
            return wrong(r, WRONG_TYPE, number, begin)
        return json_array(r, number, depth)
    if first != 0x74 and first != 0x66 and first != 0x6E:
        return wrong(r, BAD_FORMAT, 0, begin)
    size = 5 if first == 0x66 else 4
    if r.size - begin < size or memcmp(
        r.data + begin,
        <const char*>b"true" if first == 0x74 else <const char*>b"false" if first == 0x66 else <const char*>b"null",
        size,
    ):
        return wrong(r, BAD_FORMAT, 0, begin)
    if first == 0x6E:
        if number == 0:
            return wrong(r, WRONG_TYPE, 0, begin)
        if number != NOWHERE and put_null(r, number):
            return NO_MEMORY
    elif number != NOWHERE:
        if kind != BOOLEAN:
            return wrong(r, WRONG_TYPE, number, begin)
        if put_byte(&r.nodes[number].data, first == 0x74) or end_entry(r, &r.nodes[number], True):
            return NO_MEMORY
    r.at += size
    return OKAY


cdef inline int json_object(Reader* r, int number, int depth) noexcept nogil:
    cdef Node* node = &r.nodes[number] if number != NOWHERE else NULL
    cdef int child, fault
    cdef size_t name_at
    cdef Text name
    if depth > DEPTH_MAX:
        return wrong(r, TOO_DEEP, 0, r.at)
    r.at += 1
    skip_space(r)
    while peek(r) != 0x7D:
        name_at = r.at
        if peek(r) != 0x22:
            return wrong(r, BAD_FORMAT, 0, r.at)
        fault = json_string(r, &name)
        if fault:
            return fault
        child = NOWHERE
        if node != NULL:
            child = child_of(r, node, name)
            # An object's own entry comes last: a field that is already present is one ahead.
            if child != NOWHERE and r.nodes[child].length > node.length:
                return wrong(r, TWICE, child, name_at)
        skip_space(r)
        if peek(r) != 0x3A:
            return wrong(r, BAD_FORMAT, 0, r.at)
        r.at += 1
        skip_space(r)
        fault = json_value(r, child, depth + 1)
        if not fault:
            fault = next_item(r, 0x7D)
        if fault:
            return fault
    r.at += 1
    return OKAY if node == NULL else end_struct(r, node)


cdef inline int json_array(Reader* r, int number, int depth) noexcept nogil:
    cdef Node* node = &r.nodes[number] if number != NOWHERE else NULL
    cdef int child = node.first if node != NULL else NOWHERE
    cdef int fault
    if depth > DEPTH_MAX:
        return wrong(r, TOO_DEEP, 0, r.at)
    r.at += 1
    skip_space(r)
    while peek(r) != 0x5D:
        fault = json_value(r, child, depth + 1)
        if fault:
            return fault
        if r.row_values > r.row_values_max:
            return wrong(r, TOO_MANY, 0, r.at)
        fault = next_item(r, 0x5D)
        if fault:
            return fault
    r.at += 1
    return OKAY if node == NULL else end_list(r, node)


cdef inline int next_item(Reader* r, int end) noexcept nogil:
    """Step over a comma to the next item, or stop at the end."""
    skip_space(r)
    if peek(r) == 0x2C:
        r.at += 1
        skip_space(r)
        if peek(r) == end:
            return wrong(r, BAD_FORMAT, 0, r.at)
    elif peek(r) != end:
        return wrong(r, BAD_FORMAT, 0, r.at)
    return OKAY


cdef inline int json_string(Reader* r, Text* text) noexcept nogil:
    """Step over the string at this place; ``text`` is in the payload, with escapes in scratch."""
    cdef const uint8_t* data = r.data
    cdef size_t size = r.size
    cdef size_t at = r.at + 1
    cdef size_t begin = at
    cdef size_t step
    cdef bint is_copied = False
    cdef bint valid
    cdef uint8_t byte
    cdef int fault
    while True:
        while at < size:
            byte = data[at]
            if byte == 0x22 or byte == 0x5C or byte < 0x20:
                break
            if byte < 0x80:
                at += 1
                continue
            step = sequence(data + at, size - at, &valid)
            if not valid:
                return wrong(r, BAD_TEXT, 0, at)
            at += step
        if at >= size or data[at] < 0x20:
            return wrong(r, BAD_FORMAT, 0, at)
        if data[at] == 0x22 and not is_copied:
            text[0] = text_at(data + begin, <Py_ssize_t>(at - begin))
            r.at = at + 1
            return OKAY
        if not is_copied:
            r.scratch.size = 0
            is_copied = True
        if put_bytes(&r.scratch, data + begin, at - begin):
            return NO_MEMORY
        if data[at] == 0x22:
            text[0] = text_at(r.scratch.data, <Py_ssize_t>r.scratch.size)
            r.at = at + 1
            return OKAY
        fault = json_escape(r, &at)
        if fault:
            return fault
        begin = at


cdef inline int json_escape(Reader* r, size_t* at) noexcept nogil:
    """Add the meaning of the escape at a backslash to scratch, and step over it."""
    cdef const uint8_t* p = r.data + at[0]
    cdef size_t left = r.size - at[0]
    cdef int code, low
    cdef uint8_t byte
    if left < 2:
        return wrong(r, BAD_FORMAT, 0, at[0])
    byte = p[1]
    if byte == 0x75:
        code = hex_code(p, left)
        at[0] += 6
        if 0xD800 <= code < 0xDC00:
            low = hex_code(p + 6, left - 6)
            if not 0xDC00 <= low < 0xE000:
                return wrong(r, BAD_FORMAT, 0, at[0] - 6)
            code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
            at[0] += 6
        elif code < 0 or 0xDC00 <= code < 0xE000:
            return wrong(r, BAD_FORMAT, 0, at[0] - 6)
        return put_code(&r.scratch, <uint32_t>code)
    if byte == 0x62:
        byte = 0x08
    elif byte == 0x66:
        byte = 0x0C
    elif byte == 0x6E:
        byte = 0x0A
    elif byte == 0x72:
        byte = 0x0D
    elif byte == 0x74:
        byte = 0x09
    elif byte != 0x22 and byte != 0x5C and byte != 0x2F:
        return wrong(r, BAD_FORMAT, 0, at[0])
    at[0] += 2
    return put_byte(&r.scratch, byte)


cdef inline int json_number(Reader* r, int number, int kind) noexcept nogil:
    cdef size_t begin = r.at
    cdef Number found
    cdef Node* node
    if number != NOWHERE and kind < BYTE or kind == DATE or kind == BINARY:
        return wrong(r, WRONG_TYPE, number, begin)
    if not scan_number(r.data, r.size, begin, &found):
        return wrong(r, BAD_FORMAT, 0, begin + 1)
    r.at = found.end
    if number == NOWHERE:
        return OKAY
    node = &r.nodes[number]
    if kind == FLOAT or kind == DOUBLE:
        return json_float(r, node, number, &found, begin)
    if kind == DECIMAL:
        return put_decimal(r, node, number, text_at(r.data + begin, <Py_ssize_t>(r.at - begin)), begin)
    if not found.is_whole:
        return wrong(r, WRONG_TYPE, number, begin)
    if found.digits < 0:
        return wrong(r, OUT_OF_RANGE, number, begin)
    return put_whole(r, node, number, found.mantissa, found.negative, begin)


cdef inline int json_float(Reader* r, Node* node, int number, Number* found, size_t begin) noexcept nogil:
    cdef double value
    # Both are exact, so that one operation rounds once (Clinger's fast path).
    if found.digits >= 0 and found.mantissa <= 1ULL << 53 and -22 <= found.power <= 22:
        value = <double>found.mantissa
        if found.power < 0:
            value /= POWERS[-found.power]
        else:
            value *= POWERS[found.power]
        if found.negative:
            value = -value
    else:
        value = exact_double(r.data + begin, found.end - begin)
    if value - value != 0:
        return wrong(r, OUT_OF_RANGE, number, begin)
    return put_double(r, node, number, value, begin)
