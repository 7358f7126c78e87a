# cython: boundscheck=False, wraparound=False, cdivision=True
"""Kernel of the JSON parser: payloads -> Arrow buffers of typed columns.

Mirrors spark/_json_columns_py.py; spark/json_columns.py has the documentation of both.
Schema: the nodes of spark/payload_fields.py, level by level, so that children stand side by side.
Preconditions: none; payloads may be any bytes, offsets and the validity are checked against them.
Not checked: nothing that RFC 8259 asks for is left out.
The GIL is released while payloads are parsed, and taken for the few numbers that need exact
rounding and for the words of a malformed payload.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from motelog.spark._stores cimport (
    NO_MEMORY, Store, Text, put_byte, put_bytes, put_i32, put_i64, sequence, text_at,
)
from motelog.spark._json_columns_py import BATCH_VALUES_MAX, ROW_VALUES_MAX, fault_text

cdef extern from *:
    """
    typedef unsigned __int128 motelog_u128;
    """
    ctypedef unsigned long long motelog_u128

cdef enum:
    STRUCT = 0
    LIST = 1
    STRING = 2
    BOOLEAN = 3
    BYTE = 4
    SHORT = 5
    INT = 6
    LONG = 7
    FLOAT = 8
    DOUBLE = 9
    DECIMAL = 10
    TIMESTAMP = 11
    DATE = 12

cdef enum:
    OKAY = 0
    NO_PAYLOAD = 1
    BAD_JSON = 2
    BAD_TEXT = 3
    WRONG_TYPE = 4
    OUT_OF_RANGE = 5
    TWICE = 6
    TOO_DEEP = 7
    TOO_MANY = 8

cdef enum:
    DEPTH_MAX = 64
    # The node of values that belong to no column.
    NOWHERE = -1

cdef int64_t TIME_MS_MIN = -62135596800000
cdef int64_t TIME_MS_MAX = 253402300799999
cdef double[23] POWERS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]

cdef struct Node:
    int kind
    int first            # number of the first child
    int count            # of children
    int expected         # the child that comes next, if fields keep their order
    int precision
    int scale
    const uint8_t* name
    size_t name_size
    int64_t length       # entries so far
    int64_t nulls
    Store valid          # a byte per entry, a bitmap only when something is null
    Store offsets        # int32, one more than entries
    Store data

cdef struct Number:
    size_t end
    bint negative
    bint is_whole        # no fraction and no exponent
    int digits           # significant ones, as many as ``mantissa`` has; -1: it has not all
    int64_t power
    uint64_t mantissa


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 0x30 <= byte <= 0x39


cdef inline int two_digits(const uint8_t* p) noexcept nogil:
    """Return the number, or a large one when these are no digits."""
    if not is_digit(p[0]) or not is_digit(p[1]):
        return 10000
    return (p[0] - 0x30) * 10 + (p[1] - 0x30)


cdef int64_t days_before(int year, int month, int day) noexcept nogil:
    """Return the days since 1970-01-01 of a date in the Gregorian calendar."""
    cdef int y = year - (month <= 2)
    cdef int era = y // 400
    cdef int of_era = y - era * 400
    cdef int of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    cdef int of_days = of_era * 365 + of_era // 4 - of_era // 100 + of_year
    return <int64_t>era * 146097 + of_days - 719468


cdef bint read_date(const uint8_t* p, int64_t* days) noexcept nogil:
    """Read ten bytes such as 2026-11-21."""
    cdef int century = two_digits(p)
    cdef int year = two_digits(p + 2)
    cdef int month = two_digits(p + 5)
    cdef int day = two_digits(p + 8)
    cdef int longest
    if century > 99 or year > 99 or p[4] != 0x2D or p[7] != 0x2D or not 1 <= month <= 12:
        return False
    year += 100 * century
    longest = 31
    if month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    if year < 1 or not 1 <= day <= longest:
        return False
    days[0] = days_before(year, month, day)
    return True


cdef bint read_time(Text text, int64_t* us) noexcept nogil:
    """Read a time as RFC 3339 has it."""
    cdef const uint8_t* p = text.data
    cdef const uint8_t* end = p + text.size
    cdef int64_t days = 0
    cdef int64_t fraction = 0
    cdef int64_t offset_s
    cdef int hour, minute, second, digits
    if text.size < 20 or not read_date(p, &days):
        return False
    if p[10] != 0x54 and p[10] != 0x74 and p[10] != 0x20:
        return False
    hour = two_digits(p + 11)
    minute = two_digits(p + 14)
    second = two_digits(p + 17)
    if hour > 23 or minute > 59 or second > 59 or p[13] != 0x3A or p[16] != 0x3A:
        return False
    us[0] = ((days * 24 + hour) * 60 + minute) * 60 + second
    p += 19
    if p[0] == 0x2E:
        p += 1
        digits = 0
        while p < end and is_digit(p[0]):
            if digits < 6:
                fraction = fraction * 10 + (p[0] - 0x30)
            digits += 1
            p += 1
        if not 1 <= digits <= 9:
            return False
        while digits < 6:
            fraction *= 10
            digits += 1
    if end - p == 1 and (p[0] == 0x5A or p[0] == 0x7A):
        offset_s = 0
    elif end - p == 6 and (p[0] == 0x2B or p[0] == 0x2D) and p[3] == 0x3A:
        hour = two_digits(p + 1)
        minute = two_digits(p + 4)
        if hour > 23 or minute > 59:
            return False
        offset_s = (hour * 60 + minute) * 60
        if p[0] == 0x2D:
            offset_s = -offset_s
    else:
        return False
    us[0] = (us[0] - offset_s) * 1000000 + fraction
    return True


cdef inline int hex_digit(uint8_t byte) noexcept nogil:
    if is_digit(byte):
        return byte - 0x30
    byte |= 0x20
    return byte - 0x57 if 0x61 <= byte <= 0x66 else -1


cdef int put_code(Store* store, uint32_t code) noexcept nogil:
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


cdef double exact_double(const uint8_t* data, size_t size) noexcept with gil:
    """Return the nearest double, infinite for a number that is too large."""
    return float(PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size))


cdef class JsonColumns:
    """See spark/json_columns.py."""

    cdef Node* nodes
    cdef int node_count
    cdef list shown             # the nodes as Python has them, for the words of a fault
    cdef list names             # keeps the bytes that nodes point at
    cdef list faults
    cdef Store scratch
    cdef int64_t row_values_max, batch_values_max
    cdef int64_t values         # entries of this batch
    cdef int64_t row_values     # of this payload
    cdef readonly int64_t rows
    # The payload that is being read.
    cdef const uint8_t* data
    cdef size_t size
    cdef size_t at
    # What is wrong with it.
    cdef int wrong_node
    cdef size_t wrong_at

    def __cinit__(self):
        self.nodes = NULL
        self.node_count = 0
        memset(&self.scratch, 0, sizeof(Store))

    def __init__(self, nodes, *, int64_t row_values_max=ROW_VALUES_MAX, int64_t batch_values_max=BATCH_VALUES_MAX):
        cdef int i
        cdef Node* node
        if self.nodes != NULL:
            raise TypeError("JsonColumns is made once")
        self.shown = list(nodes)
        self.names = [node_shown.field.name.encode() for node_shown in self.shown]
        count = len(self.shown)
        self.nodes = <Node*>PyMem_Calloc(count, sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        self.node_count = count
        for i in range(self.node_count):
            node = &self.nodes[i]
            node.kind = int(self.shown[i].field.kind)
            node.first = self.shown[i].first
            node.count = len(self.shown[i].field.children)
            if not STRUCT <= node.kind <= DATE or node.first <= i or node.first + node.count > self.node_count:
                raise ValueError(f"node {i} is not one of a numbered tree")
            if node.kind != STRUCT and node.count != (node.kind == LIST):
                raise ValueError(f"node {i} has {node.count} children")
            node.precision = self.shown[i].field.precision
            node.scale = self.shown[i].field.scale
            if node.kind == DECIMAL and not 0 <= node.scale <= node.precision <= 38:
                raise ValueError(f"node {i} is no decimal of up to 38 digits")
            name = self.names[i]
            node.name = <const uint8_t*><const char*>name
            node.name_size = len(name)
        self.row_values_max = row_values_max
        self.batch_values_max = batch_values_max
        self._clear()

    def __dealloc__(self):
        cdef int i
        for i in range(self.node_count):
            free(self.nodes[i].valid.data)
            free(self.nodes[i].offsets.data)
            free(self.nodes[i].data.data)
        PyMem_Free(self.nodes)
        free(self.scratch.data)

    def _clear(self):
        cdef int i
        cdef Node* node
        self.rows = 0
        self.values = 0
        self.faults = []
        for i in range(self.node_count):
            node = &self.nodes[i]
            node.length = 0
            node.nulls = 0
            node.valid.size = 0
            node.offsets.size = 0
            node.data.size = 0
            if (node.kind == STRING or node.kind == LIST) and put_i32(&node.offsets, 0):
                raise MemoryError

    def parse(self, payloads, int64_t begin, int64_t end):
        cdef Py_buffer valid, offsets, data
        cdef int64_t stopped
        cdef bint has_nulls
        valid_given, offsets_given, data_given = payloads[1]
        cdef int held = 0
        try:
            PyObject_GetBuffer(b"" if valid_given is None else valid_given, &valid, PyBUF_SIMPLE)
            held = 1
            PyObject_GetBuffer(b"" if offsets_given is None else offsets_given, &offsets, PyBUF_SIMPLE)
            held = 2
            PyObject_GetBuffer(b"" if data_given is None else data_given, &data, PyBUF_SIMPLE)
            held = 3
            has_nulls = valid_given is not None
            if not 0 <= begin <= end < max(1, offsets.len // 4):
                raise ValueError(f"rows [{begin}, {end}) are not in the payloads")
            if has_nulls and valid.len * 8 < end:
                raise ValueError(f"rows [{begin}, {end}) are not in the validity")
            with nogil:
                stopped = self._parse(
                    <const uint8_t*>valid.buf if has_nulls else NULL,
                    <const uint8_t*>offsets.buf, <const uint8_t*>data.buf, data.len, begin, end,
                )
            if stopped == -1:
                raise MemoryError
            if stopped == -2:
                raise ValueError("the offsets do not lie in the payloads")
            return stopped
        finally:
            if held > 0:
                PyBuffer_Release(&valid)
            if held > 1:
                PyBuffer_Release(&offsets)
            if held > 2:
                PyBuffer_Release(&data)

    def take(self):
        cdef int i
        cdef Node* node
        taken = []
        for i in range(1, self.node_count):
            node = &self.nodes[i]
            buffers = [bitmap(&node.valid) if node.nulls else None]
            if node.kind == STRING or node.kind == LIST:
                buffers.append(as_bytes(&node.offsets))
            if node.kind == BOOLEAN:
                buffers.append(bitmap(&node.data))
            elif node.kind != STRUCT and node.kind != LIST:
                buffers.append(as_bytes(&node.data))
            taken.append((node.length, (node.nulls, buffers)))
        faults = self.faults
        self._clear()
        return taken, faults

    cdef int64_t _parse(
        self, const uint8_t* valid, const uint8_t* offsets, const uint8_t* data, int64_t size,
        int64_t begin, int64_t end,
    ) noexcept nogil:
        """Return the row before which it stopped, -1 without memory, -2 at offsets that lead out."""
        cdef int64_t row
        cdef int32_t first, last
        cdef int fault
        for row in range(begin, end):
            if self.values >= self.batch_values_max:
                return row
            memcpy(&first, offsets + 4 * row, 4)
            memcpy(&last, offsets + 4 * row + 4, 4)
            if not 0 <= first <= last <= size:
                return -2
            self.at = 0
            self.row_values = 0
            self.wrong_node = 0
            self.wrong_at = 0
            if valid != NULL and not valid[row >> 3] >> (row & 7) & 1:
                self.size = 0
                fault = NO_PAYLOAD
            else:
                self.data = data + first
                self.size = <size_t>(last - first)
                fault = self._payload()
            if fault == NO_MEMORY:
                return -1
            if fault:
                self._take_back(0, self.rows)
                if self._put_null(0):
                    return -1
                with gil:
                    self.faults.append(
                        (self.rows, fault_text(fault, self.shown[self.wrong_node], self.wrong_at, self.size))
                    )
            self.values += self.row_values
            self.rows += 1
        return end

    cdef void _take_back(self, int number, int64_t length) noexcept nogil:
        """Shorten a column to ``length`` entries, and what is below it accordingly."""
        cdef Node* node = &self.nodes[number]
        cdef int32_t kept = 0
        cdef int64_t i
        cdef int child
        for i in range(length, node.length):
            node.nulls -= not node.valid.data[i]
        if node.kind == STRING or node.kind == LIST:
            memcpy(&kept, node.offsets.data + 4 * length, 4)
            node.offsets.size = <size_t>(4 * (length + 1))
        if node.kind == STRING:
            node.data.size = <size_t>kept
        elif node.kind == LIST:
            self._take_back(node.first, kept)
        elif node.kind == STRUCT:
            for child in range(node.first, node.first + node.count):
                self._take_back(child, length)
        else:
            node.data.size = <size_t>length * width_of(node.kind)
        node.length = length
        node.valid.size = <size_t>length

    cdef inline int _end(self, Node* node, bint valid) noexcept nogil:
        """Count an entry whose data is there."""
        node.length += 1
        node.nulls += not valid
        self.row_values += 1
        return put_byte(&node.valid, valid)

    cdef int _put_null(self, int number) noexcept nogil:
        cdef Node* node = &self.nodes[number]
        cdef int child
        cdef uint8_t[16] zeros
        if node.kind == STRUCT:
            for child in range(node.first, node.first + node.count):
                if self._put_null(child):
                    return NO_MEMORY
        elif node.kind == STRING:
            if put_i32(&node.offsets, <int32_t>node.data.size):
                return NO_MEMORY
        elif node.kind == LIST:
            if put_i32(&node.offsets, <int32_t>self.nodes[node.first].length):
                return NO_MEMORY
        else:
            memset(zeros, 0, 16)
            if put_bytes(&node.data, zeros, width_of(node.kind)):
                return NO_MEMORY
        return self._end(node, False)

    cdef inline int _wrong(self, int fault, int node, size_t at) noexcept nogil:
        self.wrong_node = node
        self.wrong_at = at
        return fault

    cdef inline int _peek(self) noexcept nogil:
        """Return the byte at this place, -1 behind the last."""
        return self.data[self.at] if self.at < self.size else -1

    cdef inline void _skip_space(self) noexcept nogil:
        cdef uint8_t byte
        while self.at < self.size:
            byte = self.data[self.at]
            if byte > 0x20 or byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
                return
            self.at += 1

    cdef int _payload(self) noexcept nogil:
        cdef int fault
        self._skip_space()
        fault = self._value(0, 1)
        if fault:
            return fault
        self._skip_space()
        return self._wrong(BAD_JSON, 0, self.at) if self.at < self.size else OKAY

    cdef int _value(self, int number, int depth) noexcept nogil:
        """Read the value at this place into a node; NOWHERE: it is only checked."""
        cdef int kind = self.nodes[number].kind if number != NOWHERE else NOWHERE
        cdef int first = self._peek()
        cdef size_t begin = self.at
        cdef size_t size
        cdef Text text
        cdef int fault
        if first == 0x22:
            if number != NOWHERE and kind != STRING and kind != TIMESTAMP and kind != DATE:
                return self._wrong(WRONG_TYPE, number, begin)
            fault = self._string(&text)
            if fault or number == NOWHERE:
                return fault
            return self._of_text(number, text, begin)
        if first == 0x2D or 0x30 <= first <= 0x39:
            return self._number(number, kind)
        if first == 0x7B:
            if number != NOWHERE and kind != STRUCT:
                return self._wrong(WRONG_TYPE, number, begin)
            return self._object(number, depth)
        if first == 0x5B:
            if number != NOWHERE and kind != LIST:
                return self._wrong(WRONG_TYPE, number, begin)
            return self._array(number, depth)
        if first != 0x74 and first != 0x66 and first != 0x6E:
            return self._wrong(BAD_JSON, 0, begin)
        size = 5 if first == 0x66 else 4
        if self.size - begin < size or memcmp(
            self.data + begin,
            <const char*>b"true" if first == 0x74 else <const char*>b"false" if first == 0x66 else <const char*>b"null",
            size,
        ):
            return self._wrong(BAD_JSON, 0, begin)
        if first == 0x6E:
            if number == 0:
                return self._wrong(WRONG_TYPE, 0, begin)
            if number != NOWHERE and self._put_null(number):
                return NO_MEMORY
        elif number != NOWHERE:
            if kind != BOOLEAN:
                return self._wrong(WRONG_TYPE, number, begin)
            if put_byte(&self.nodes[number].data, first == 0x74) or self._end(&self.nodes[number], True):
                return NO_MEMORY
        self.at += size
        return OKAY

    cdef int _object(self, int number, int depth) noexcept nogil:
        cdef Node* node = &self.nodes[number] if number != NOWHERE else NULL
        cdef int child, fault
        cdef size_t name_at
        cdef Text name
        if depth > DEPTH_MAX:
            return self._wrong(TOO_DEEP, 0, self.at)
        self.at += 1
        self._skip_space()
        while self._peek() != 0x7D:
            name_at = self.at
            if self._peek() != 0x22:
                return self._wrong(BAD_JSON, 0, self.at)
            fault = self._string(&name)
            if fault:
                return fault
            child = NOWHERE
            if node != NULL:
                child = self._child(node, name)
                # An object's own entry comes last: a field that is there already is one ahead.
                if child != NOWHERE and self.nodes[child].length > node.length:
                    return self._wrong(TWICE, child, name_at)
            self._skip_space()
            if self._peek() != 0x3A:
                return self._wrong(BAD_JSON, 0, self.at)
            self.at += 1
            self._skip_space()
            fault = self._value(child, depth + 1)
            if not fault:
                fault = self._next_item(0x7D)
            if fault:
                return fault
        self.at += 1
        if node == NULL:
            return OKAY
        for child in range(node.first, node.first + node.count):
            if self.nodes[child].length == node.length and self._put_null(child):
                return NO_MEMORY
        return self._end(node, True)

    cdef inline int _child(self, Node* node, Text name) noexcept nogil:
        """Return the field of that name; devices send fields in the same order again and again."""
        cdef int tried, child
        cdef Node* field
        child = node.expected
        for tried in range(node.count):
            field = &self.nodes[node.first + child]
            if field.name_size == name.size and memcmp(field.name, name.data, name.size) == 0:
                node.expected = child + 1 if child + 1 < node.count else 0
                return node.first + child
            child = child + 1 if child + 1 < node.count else 0
        return NOWHERE

    cdef int _array(self, int number, int depth) noexcept nogil:
        cdef Node* node = &self.nodes[number] if number != NOWHERE else NULL
        cdef int child = node.first if node != NULL else NOWHERE
        cdef int fault
        if depth > DEPTH_MAX:
            return self._wrong(TOO_DEEP, 0, self.at)
        self.at += 1
        self._skip_space()
        while self._peek() != 0x5D:
            fault = self._value(child, depth + 1)
            if fault:
                return fault
            if self.row_values > self.row_values_max:
                return self._wrong(TOO_MANY, 0, self.at)
            fault = self._next_item(0x5D)
            if fault:
                return fault
        self.at += 1
        if node == NULL:
            return OKAY
        if put_i32(&node.offsets, <int32_t>self.nodes[child].length):
            return NO_MEMORY
        return self._end(node, True)

    cdef inline int _next_item(self, int end) noexcept nogil:
        """Step over a comma to the next item, or stand at the end."""
        self._skip_space()
        if self._peek() == 0x2C:
            self.at += 1
            self._skip_space()
            if self._peek() == end:
                return self._wrong(BAD_JSON, 0, self.at)
        elif self._peek() != end:
            return self._wrong(BAD_JSON, 0, self.at)
        return OKAY

    cdef int _string(self, Text* text) noexcept nogil:
        """Step over the string at this place; ``text`` is in the payload, with escapes in scratch."""
        cdef const uint8_t* data = self.data
        cdef size_t size = self.size
        cdef size_t at = self.at + 1
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
                    return self._wrong(BAD_TEXT, 0, at)
                at += step
            if at >= size or data[at] < 0x20:
                return self._wrong(BAD_JSON, 0, at)
            if data[at] == 0x22 and not is_copied:
                text[0] = text_at(data + begin, <Py_ssize_t>(at - begin))
                self.at = at + 1
                return OKAY
            if not is_copied:
                self.scratch.size = 0
                is_copied = True
            if put_bytes(&self.scratch, data + begin, at - begin):
                return NO_MEMORY
            if data[at] == 0x22:
                text[0] = text_at(self.scratch.data, <Py_ssize_t>self.scratch.size)
                self.at = at + 1
                return OKAY
            fault = self._escape(&at)
            if fault:
                return fault
            begin = at

    cdef int _escape(self, size_t* at) noexcept nogil:
        """Add what the escape at a backslash means to scratch, and step over it."""
        cdef const uint8_t* p = self.data + at[0]
        cdef size_t left = self.size - at[0]
        cdef int code, low
        cdef uint8_t byte
        if left < 2:
            return self._wrong(BAD_JSON, 0, at[0])
        byte = p[1]
        if byte == 0x75:
            code = hex_code(p, left)
            at[0] += 6
            if 0xD800 <= code < 0xDC00:
                low = hex_code(p + 6, left - 6)
                if not 0xDC00 <= low < 0xE000:
                    return self._wrong(BAD_JSON, 0, at[0] - 6)
                code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
                at[0] += 6
            elif code < 0 or 0xDC00 <= code < 0xE000:
                return self._wrong(BAD_JSON, 0, at[0] - 6)
            return put_code(&self.scratch, <uint32_t>code)
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
            return self._wrong(BAD_JSON, 0, at[0])
        at[0] += 2
        return put_byte(&self.scratch, byte)

    cdef int _of_text(self, int number, Text text, size_t begin) noexcept nogil:
        cdef Node* node = &self.nodes[number]
        cdef int64_t value = 0
        if node.kind == STRING:
            if put_bytes(&node.data, text.data, text.size) or put_i32(&node.offsets, <int32_t>node.data.size):
                return NO_MEMORY
        elif node.kind == TIMESTAMP:
            if not read_time(text, &value):
                return self._wrong(WRONG_TYPE, number, begin)
            if put_i64(&node.data, value):
                return NO_MEMORY
        else:
            if text.size != 10 or not read_date(text.data, &value):
                return self._wrong(WRONG_TYPE, number, begin)
            if put_i32(&node.data, <int32_t>value):
                return NO_MEMORY
        return self._end(node, True)

    cdef int _number(self, int number, int kind) noexcept nogil:
        cdef size_t begin = self.at
        cdef Number found
        cdef Node* node
        if number != NOWHERE and kind < BYTE or kind == DATE:
            return self._wrong(WRONG_TYPE, number, begin)
        if not scan_number(self.data, self.size, begin, &found):
            return self._wrong(BAD_JSON, 0, begin + 1)
        self.at = found.end
        if number == NOWHERE:
            return OKAY
        node = &self.nodes[number]
        if kind == FLOAT or kind == DOUBLE:
            return self._put_float(node, number, &found, begin)
        if kind == DECIMAL:
            return self._put_decimal(node, number, begin)
        return self._put_whole(node, number, &found, begin)

    cdef int _put_float(self, Node* node, int number, Number* found, size_t begin) noexcept nogil:
        cdef double value
        cdef float narrow
        cdef int fault
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
            value = exact_double(self.data + begin, found.end - begin)
        if node.kind == DOUBLE:
            if value - value != 0:
                return self._wrong(OUT_OF_RANGE, number, begin)
            fault = put_bytes(&node.data, <const uint8_t*>&value, 8)
        else:
            narrow = <float>value
            if narrow - narrow != 0:
                return self._wrong(OUT_OF_RANGE, number, begin)
            fault = put_bytes(&node.data, <const uint8_t*>&narrow, 4)
        return NO_MEMORY if fault else self._end(node, True)

    cdef int _put_whole(self, Node* node, int number, Number* found, size_t begin) noexcept nogil:
        cdef uint64_t limit
        cdef int64_t value
        cdef int8_t value8
        cdef int16_t value16
        cdef int fault
        if not found.is_whole:
            return self._wrong(WRONG_TYPE, number, begin)
        if node.kind == TIMESTAMP:
            limit = <uint64_t>(-TIME_MS_MIN if found.negative else TIME_MS_MAX)
        else:
            limit = 1ULL << (7 if node.kind == BYTE else 15 if node.kind == SHORT else 31 if node.kind == INT else 63)
            limit -= not found.negative
        if found.digits < 0 or found.power != 0 or found.mantissa > limit:
            return self._wrong(OUT_OF_RANGE, number, begin)
        value = <int64_t>(0 - found.mantissa if found.negative else found.mantissa)
        if node.kind == TIMESTAMP:
            fault = put_i64(&node.data, value * 1000)
        elif node.kind == LONG:
            fault = put_i64(&node.data, value)
        elif node.kind == INT:
            fault = put_i32(&node.data, <int32_t>value)
        elif node.kind == SHORT:
            value16 = <int16_t>value
            fault = put_bytes(&node.data, <const uint8_t*>&value16, 2)
        else:
            value8 = <int8_t>value
            fault = put_bytes(&node.data, <const uint8_t*>&value8, 1)
        return NO_MEMORY if fault else self._end(node, True)

    cdef int _put_decimal(self, Node* node, int number, size_t begin) noexcept nogil:
        """Add the number in [begin, at) times 10^scale, if that is whole and has few digits."""
        cdef const uint8_t* p = self.data + begin
        cdef const uint8_t* end = self.data + self.at
        cdef bint negative = p[0] == 0x2D
        cdef bint in_fraction = False
        cdef bint power_negative = False
        cdef motelog_u128 units = 0
        cdef int64_t digits = 0      # from the first to the last that is not zero
        cdef int64_t zeros = 0       # behind those
        cdef int64_t fraction = 0
        cdef int64_t power = 0
        p += negative
        while p < end and (p[0] | 0x20) != 0x65:
            if p[0] == 0x2E:
                in_fraction = True
            else:
                fraction += in_fraction
                if p[0] == 0x30:
                    zeros += digits > 0
                else:
                    digits += zeros + 1
                    if digits > 38:
                        return self._wrong(OUT_OF_RANGE, number, begin)
                    while zeros:
                        units = units * 10
                        zeros -= 1
                    units = units * 10 + (p[0] - 0x30)
            p += 1
        if p < end:
            p += 1
            power_negative = p[0] == 0x2D
            p += p[0] == 0x2D or p[0] == 0x2B
            while p < end:
                power = min(power * 10 + (p[0] - 0x30), <int64_t>1000000000)
                p += 1
        if digits:
            power = (-power if power_negative else power) - fraction + zeros + node.scale
            if power < 0 or digits + power > node.precision:
                return self._wrong(OUT_OF_RANGE, number, begin)
            while power:
                units = units * 10
                power -= 1
        if negative:
            units = 0 - units
        if put_bytes(&node.data, <const uint8_t*>&units, 16):
            return NO_MEMORY
        return self._end(node, True)


cdef inline int hex_code(const uint8_t* p, size_t left) noexcept nogil:
    """Return the number of an escape with four hexadecimal digits, -1 if it is none."""
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


cdef bint scan_number(const uint8_t* data, size_t size, size_t at, Number* found) noexcept nogil:
    """Read the number at ``at``; false if there is only a minus."""
    cdef uint64_t mantissa = 0
    cdef int digits = 0
    cdef int64_t power = 0
    cdef int64_t written = 0
    cdef bint power_negative = False
    cdef size_t mark
    found.negative = data[at] == 0x2D
    at += found.negative
    if at >= size or not is_digit(data[at]):
        return False
    found.is_whole = True
    if data[at] == 0x30:
        at += 1
    else:
        while at < size and is_digit(data[at]):
            if digits < 19:
                mantissa = mantissa * 10 + (data[at] - 0x30)
            digits += digits < 20
            at += 1
    if at + 1 < size and data[at] == 0x2E and is_digit(data[at + 1]):
        found.is_whole = False
        at += 1
        while at < size and is_digit(data[at]):
            if digits < 19:
                mantissa = mantissa * 10 + (data[at] - 0x30)
                power -= 1
            # Zeros before the first other digit say only where that stands.
            digits += digits < 20 and (digits > 0 or data[at] != 0x30)
            at += 1
    if at < size and (data[at] | 0x20) == 0x65:
        mark = at + 1
        if mark < size and (data[mark] == 0x2B or data[mark] == 0x2D):
            power_negative = data[mark] == 0x2D
            mark += 1
        if mark < size and is_digit(data[mark]):
            found.is_whole = False
            while mark < size and is_digit(data[mark]):
                written = min(written * 10 + (data[mark] - 0x30), <int64_t>1000000)
                mark += 1
            at = mark
            power += -written if power_negative else written
    found.end = at
    found.mantissa = mantissa
    found.power = power
    found.digits = digits if digits < 20 else -1
    return True


cdef inline size_t width_of(int kind) noexcept nogil:
    """Return the bytes of an entry's data."""
    if kind == LONG or kind == DOUBLE or kind == TIMESTAMP:
        return 8
    if kind == INT or kind == FLOAT or kind == DATE:
        return 4
    if kind == SHORT:
        return 2
    return 16 if kind == DECIMAL else 1


cdef bytes as_bytes(Store* store):
    return PyBytes_FromStringAndSize(<const char*>store.data, <Py_ssize_t>store.size)


cdef bytes bitmap(Store* store):
    """Return a bit for each byte of the store."""
    cdef size_t i
    cdef bytes bits = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>((store.size + 7) // 8))
    cdef uint8_t* out = <uint8_t*><char*>bits
    memset(out, 0, (store.size + 7) // 8)
    for i in range(store.size):
        out[i >> 3] |= <uint8_t>((store.data[i] != 0) << (i & 7))
    return bits
