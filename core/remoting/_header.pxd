# cython: language_level=3
"""Headers of plain requests, read where they lie, and parts of answers: for the kernels of a turn.

The drawing is in core/remoting/frames.py, whose ``decode`` gives the same values; a JSON header is
an object of integers and texts whose member extFields is an object of texts.
Owns: where in a frame which field is, numbers in decimal digits both ways. Must not touch: Python,
what a field means.
Preconditions: none; a frame may be hostile. Every read is checked against the end of the frame.
Unusual headers are not judged: one with other members, values that are not text or more fields than
FIELDS is refused (False), and the caller decodes it.
Invariants: after True each name and value lies inside the frame, and names are ASCII without
escapes.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from motelog.core.records._big_endian cimport get16, get32, put16

cdef enum:
    HEAD = 8
    BINARY_FIXED = 13
    JSON = 0
    BINARY = 1
    FLAG_RESPONSE = 1
    FLAG_ONEWAY = 2
    FIELDS = 40  # Java's send has 15, and signing adds four


cdef struct Text:
    # Its bytes, and whether they hold escapes or bytes that are not ASCII.
    const uint8_t *at
    Py_ssize_t size
    bint is_escaped
    bint is_wide


cdef struct Field:
    const uint8_t *name
    Py_ssize_t name_size
    Text value


cdef struct Header:
    int form
    int64_t code
    int64_t opaque
    int64_t flag
    bint has_code
    const uint8_t *body
    int count
    Field[FIELDS] fields


cdef inline const uint8_t *_skip_space(const uint8_t *p, const uint8_t *end) noexcept:
    while p < end and (p[0] == c" " or p[0] == c"\n" or p[0] == c"\r" or p[0] == c"\t"):
        p += 1
    return p


cdef inline const uint8_t *_read_text(const uint8_t *p, const uint8_t *end, Text *text) noexcept:
    """Read a JSON text after its first quote; return the place after the last one, or NULL."""
    text.at = p
    text.is_escaped = text.is_wide = False
    while p < end:
        if p[0] == c'"':
            text.size = p - text.at
            return p + 1
        if p[0] == c"\\":
            text.is_escaped = True
            p += 2
            continue
        if p[0] < 0x20:
            return NULL
        if p[0] >= 0x80:
            text.is_wide = True
        p += 1
    return NULL


cdef inline const uint8_t *_read_int(
    const uint8_t *p, const uint8_t *end, int64_t *value
) noexcept:
    """Read a JSON integer of 32 bits; return the place after it, or NULL."""
    cdef bint is_negative = p < end and p[0] == c"-"
    cdef const uint8_t *first
    cdef int64_t number = 0
    if is_negative:
        p += 1
    first = p
    while p < end and c"0" <= p[0] <= c"9":
        number = 10 * number + (p[0] - c"0")
        p += 1
        if p - first > 10:
            return NULL
    # JSON has no leading zeros; a fraction or an exponent is for the caller.
    if p == first or (first[0] == c"0" and p - first > 1):
        return NULL
    if p < end and (p[0] == c"." or p[0] == c"e" or p[0] == c"E"):
        return NULL
    if is_negative:
        number = -number
    if not -2147483648 <= number <= 2147483647:
        return NULL
    value[0] = number
    return p


cdef inline bint is_text(const Text *text, const char *wanted, Py_ssize_t size) noexcept:
    return text.size == size and memcmp(text.at, wanted, size) == 0


cdef inline const uint8_t *_read_fields(
    const uint8_t *p, const uint8_t *end, Header *h
) noexcept:
    """Read the JSON object of a header's own fields, after its brace."""
    cdef Text name
    cdef Field *field
    p = _skip_space(p, end)
    if p < end and p[0] == c"}":
        return p + 1
    while True:
        if p >= end or p[0] != c'"' or h.count == FIELDS:
            return NULL
        field = &h.fields[h.count]
        p = _read_text(p + 1, end, &name)
        if p == NULL or name.is_escaped or name.is_wide:
            return NULL
        field.name = name.at
        field.name_size = name.size
        p = _skip_space(p, end)
        if p >= end or p[0] != c":":
            return NULL
        p = _skip_space(p + 1, end)
        if p >= end or p[0] != c'"':
            return NULL
        p = _read_text(p + 1, end, &field.value)
        if p == NULL:
            return NULL
        h.count += 1
        p = _skip_space(p, end)
        if p >= end:
            return NULL
        if p[0] == c"}":
            return p + 1
        if p[0] != c",":
            return NULL
        p = _skip_space(p + 1, end)


cdef inline bint _read_json(const uint8_t *p, const uint8_t *end, Header *h) noexcept:
    cdef Text name, text
    cdef int64_t ignored
    p = _skip_space(p, end)
    if p >= end or p[0] != c"{":
        return False
    p = _skip_space(p + 1, end)
    while True:
        if p >= end or p[0] != c'"':
            return False
        p = _read_text(p + 1, end, &name)
        if p == NULL or name.is_escaped or name.is_wide:
            return False
        p = _skip_space(p, end)
        if p >= end or p[0] != c":":
            return False
        p = _skip_space(p + 1, end)
        if p >= end:
            return False
        if is_text(&name, "extFields", 9):
            # A second one would have to replace the first.
            if p[0] != c"{" or h.count:
                return False
            p = _read_fields(p + 1, end, h)
        elif is_text(&name, "code", 4):
            p = _read_int(p, end, &h.code)
            h.has_code = True
        elif is_text(&name, "flag", 4):
            p = _read_int(p, end, &h.flag)
        elif is_text(&name, "opaque", 6):
            p = _read_int(p, end, &h.opaque)
        elif is_text(&name, "version", 7):
            p = _read_int(p, end, &ignored)
        elif is_text(&name, "language", 8) or is_text(&name, "serializeTypeCurrentRPC", 23):
            if p[0] != c'"':
                return False
            p = _read_text(p + 1, end, &text)
            if p != NULL and (text.is_escaped or text.is_wide):
                return False
        elif is_text(&name, "remark", 6) and end - p > 4 and memcmp(p, "null", 4) == 0:
            p += 4
        else:
            return False
        if p == NULL:
            return False
        p = _skip_space(p, end)
        if p >= end:
            return False
        if p[0] == c"}":
            return h.has_code and _skip_space(p + 1, end) == end
        if p[0] != c",":
            return False
        p = _skip_space(p + 1, end)


cdef inline bint is_ascii(const uint8_t *p, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if p[i] >= 0x80:
            return False
    return True


cdef inline bint _read_binary(const uint8_t *p, const uint8_t *end, Header *h) noexcept:
    cdef uint32_t size
    cdef Field *field
    if end - p < BINARY_FIXED + 8:
        return False
    h.code = <int32_t><int64_t>get16(p)
    h.opaque = <int32_t>get32(p + 5)
    h.flag = <int32_t>get32(p + 9)
    if get32(p + BINARY_FIXED) != 0:  # a remark
        return False
    p += BINARY_FIXED + 4
    if get32(p) != <uint64_t>(end - p - 4):
        return False
    p += 4
    while p < end:
        if end - p < 2 or h.count == FIELDS:
            return False
        field = &h.fields[h.count]
        size = get16(p)
        p += 2
        if size > 32767 or <uint64_t>(end - p) < <uint64_t>size + 4:
            return False
        field.name = p
        field.name_size = size
        if not is_ascii(p, size):
            return False
        p += size
        field.value.size = get32(p)
        p += 4
        if field.value.size > end - p:
            return False
        field.value.at = p
        field.value.is_escaped = False
        field.value.is_wide = not is_ascii(p, field.value.size)
        h.count += 1
        p += field.value.size
    return True


cdef inline bint read_header(const uint8_t *frame, const uint8_t *end, Header *h) noexcept:
    """Read the header of one whole frame; False if that is left to the caller."""
    cdef uint32_t head
    if end - frame < HEAD or get32(frame) != <uint64_t>(end - frame - 4):
        return False
    head = get32(frame + 4)
    h.form = head >> 24
    h.body = frame + HEAD + (head & 0xFFFFFF)
    if h.body > end:
        return False
    h.count = 0
    h.has_code = False
    h.opaque = h.flag = 0
    if h.form == JSON:
        return _read_json(frame + HEAD, h.body, h)
    return h.form == BINARY and _read_binary(frame + HEAD, h.body, h)


cdef inline bint read_number(
    const Text *text, int64_t low, int64_t high, int64_t *value
) noexcept:
    """Read a number in decimal digits; False if it is anything else or outside the bounds."""
    cdef const uint8_t *p = text.at
    cdef const uint8_t *end = p + text.size
    cdef int64_t number = 0
    cdef bint is_negative = text.size > 0 and p[0] == c"-"
    if is_negative:
        p += 1
    if not 0 < end - p <= 18:
        return False
    while p < end:
        if not c"0" <= p[0] <= c"9":
            return False
        number = 10 * number + (p[0] - c"0")
        p += 1
    if is_negative:
        number = -number
    value[0] = number
    return low <= number <= high


cdef inline uint8_t *put_literal(uint8_t *out, const char *text, Py_ssize_t size) noexcept:
    memcpy(out, text, size)
    return out + size


cdef inline uint8_t *put_decimal(uint8_t *out, int64_t value) noexcept:
    """Write a number in decimal digits, at most 20 bytes; return the place after it."""
    cdef uint8_t[20] digits
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        out[0] = c"-"
        out += 1
        rest = 0 - rest
    while True:
        digits[count] = c"0" + <uint8_t>(rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef inline uint8_t *put_name(uint8_t *out, const char *name, Py_ssize_t size) noexcept:
    """Write the name of a binary header's entry; return where the length of its value goes."""
    put16(out, <uint32_t>size)
    memcpy(out + 2, name, size)
    return out + 2 + size
