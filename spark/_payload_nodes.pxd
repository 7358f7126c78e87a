# cython: boundscheck=False, wraparound=False, cdivision=True
"""The shared part of the readers of all payload formats: filling the columns of a tree of fields.

Owns: the nodes as C has them, how an entry, a null or a whole struct is added and taken back.
Must not touch: the bytes of a payload, Python.
Invariants: a struct's own entry comes last, after those of its fields, so that a field which is
already present is one entry ahead of it. Every function that adds returns NO_MEMORY, or 0.
The numbers are those of payload_fields.Kind and _payload_nodes_py.Fault.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from motelog.spark._stores cimport NO_MEMORY, Store, Text, put_byte, put_bytes, put_i32

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
    BINARY = 13

cdef enum:
    OKAY = 0
    NO_PAYLOAD = 1
    BAD_FORMAT = 2
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
    Store valid          # a byte per entry, a bitmap only if a value is null
    Store offsets        # int32, one more than entries
    Store data

cdef struct Reader:
    Node* nodes
    int node_count
    Store scratch
    int64_t row_values_max
    int64_t batch_values_max
    int64_t values       # entries of this batch
    int64_t row_values   # of this payload
    int64_t rows
    # The payload that is being read.
    const uint8_t* data
    size_t size
    size_t at
    # Its fault.
    int wrong_node
    size_t wrong_at

# Reads the payload into an entry of each top-level column; returns a fault.
ctypedef int (*ReadPayload)(Reader*) noexcept nogil


cdef inline bint has_offsets(int kind) noexcept nogil:
    return kind == LIST or kind == STRING or kind == BINARY


cdef inline size_t width_of(int kind) noexcept nogil:
    """Return the bytes of an entry's data."""
    if kind == LONG or kind == DOUBLE or kind == TIMESTAMP:
        return 8
    if kind == INT or kind == FLOAT or kind == DATE:
        return 4
    if kind == SHORT:
        return 2
    return 16 if kind == DECIMAL else 1


cdef inline void take_back(Reader* r, int number, int64_t length) noexcept nogil:
    """Shorten a column to ``length`` entries, and the columns below it accordingly."""
    cdef Node* node = &r.nodes[number]
    cdef int32_t kept = 0
    cdef int64_t i
    cdef int child
    for i in range(length, node.length):
        node.nulls -= not node.valid.data[i]
    if has_offsets(node.kind):
        memcpy(&kept, node.offsets.data + 4 * length, 4)
        node.offsets.size = <size_t>(4 * (length + 1))
    if node.kind == STRING or node.kind == BINARY:
        node.data.size = <size_t>kept
    elif node.kind == LIST:
        take_back(r, node.first, kept)
    elif node.kind == STRUCT:
        for child in range(node.first, node.first + node.count):
            take_back(r, child, length)
    else:
        node.data.size = <size_t>length * width_of(node.kind)
    node.length = length
    node.valid.size = <size_t>length


cdef inline int end_entry(Reader* r, Node* node, bint valid) noexcept nogil:
    """Count an entry whose data has been added."""
    node.length += 1
    node.nulls += not valid
    r.row_values += 1
    return put_byte(&node.valid, valid)


cdef inline int put_null(Reader* r, int number) noexcept nogil:
    cdef Node* node = &r.nodes[number]
    cdef int child
    cdef uint8_t[16] zeros
    if node.kind == STRUCT:
        for child in range(node.first, node.first + node.count):
            if put_null(r, child):
                return NO_MEMORY
    elif node.kind == STRING or node.kind == BINARY:
        if put_i32(&node.offsets, <int32_t>node.data.size):
            return NO_MEMORY
    elif node.kind == LIST:
        if put_i32(&node.offsets, <int32_t>r.nodes[node.first].length):
            return NO_MEMORY
    else:
        memset(zeros, 0, 16)
        if put_bytes(&node.data, zeros, width_of(node.kind)):
            return NO_MEMORY
    return end_entry(r, node, False)


cdef inline int wrong(Reader* r, int fault, int node, size_t at) noexcept nogil:
    r.wrong_node = node
    r.wrong_at = at
    return fault


cdef inline int child_of(Reader* r, Node* node, Text name) noexcept nogil:
    """Return the field of that name; devices always send fields in the same order."""
    cdef int tried, child
    cdef Node* field
    child = node.expected
    for tried in range(node.count):
        field = &r.nodes[node.first + child]
        if field.name_size == name.size and memcmp(field.name, name.data, name.size) == 0:
            node.expected = child + 1 if child + 1 < node.count else 0
            return node.first + child
        child = child + 1 if child + 1 < node.count else 0
    return NOWHERE


cdef inline int end_struct(Reader* r, Node* node) noexcept nogil:
    """Count a struct; its missing fields are null."""
    cdef int child
    for child in range(node.first, node.first + node.count):
        if r.nodes[child].length == node.length and put_null(r, child):
            return NO_MEMORY
    return end_entry(r, node, True)


cdef inline int end_list(Reader* r, Node* node) noexcept nogil:
    """Count a list whose elements have been added."""
    if put_i32(&node.offsets, <int32_t>r.nodes[node.first].length):
        return NO_MEMORY
    return end_entry(r, node, True)
