# cython: boundscheck=False, wraparound=False, cdivision=True
"""A Sparkplug B payload -> entries of columns.

Mirrors spark/_sparkplug_payload_py.py, which says which field goes where. Owns: the bytes of
Protocol Buffers as far as Sparkplug needs them. Must not touch: Python.
Not checked: fields without a column (properties, metadata), the inside of a DataSet or Template.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, strlen

from motelog.spark._payload_nodes cimport (
    BAD_FORMAT, BAD_TEXT, BINARY, BOOLEAN, DOUBLE, INT, LIST, LONG, NOWHERE, OKAY, STRING, STRUCT,
    TIMESTAMP, TOO_MANY, TWICE, WRONG_TYPE, Node, Reader, child_of, end_entry, end_list, end_struct,
    wrong,
)
from motelog.spark._payload_values cimport put_double, put_text, put_whole
from motelog.spark._stores cimport NO_MEMORY, Text, is_utf8, put_byte, put_i64, text_at

cdef extern from *:
    """
    /* By the number of a field: its encoding, and its column; "" is none. */
    static const char motelog_payload_wire[] = " 02022";
    static const char *const motelog_payload_names[] = {"", "timestamp", "metrics", "seq", "uuid", "body"};
    static const char motelog_metric_wire[] = " 2000000220051022222";
    static const char *const motelog_metric_names[] = {
        "", "name", "alias", "timestamp", "datatype", "is_historical", "", "", "", "",
        "long_value", "long_value", "double_value", "double_value", "boolean_value", "string_value",
        "bytes_value", "bytes_value", "bytes_value", "bytes_value",
    };
    """
    const char* PAYLOAD_WIRE "motelog_payload_wire"
    const char** PAYLOAD_NAMES "motelog_payload_names"
    const char* METRIC_WIRE "motelog_metric_wire"
    const char** METRIC_NAMES "motelog_metric_names"

cdef enum:  # how fields are encoded
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5
    # Fields of a payload.
    METRICS = 2
    PAYLOAD_LAST = 5
    # Fields of a metric.
    DATATYPE = 4
    IS_NULL = 7
    VALUE_FIRST = 10
    INT_VALUE = 10
    FLOAT_VALUE = 12
    METRIC_LAST = 19
    # Values of datatype.
    INT8 = 1
    INT16 = 2
    INT32 = 3

cdef struct Field:
    uint64_t number
    int wire
    size_t at
    uint64_t bits
    Text text


cdef inline int read_sparkplug(Reader* r) noexcept nogil:
    cdef Node* payload = &r.nodes[0]
    cdef int metrics = child_of(r, payload, text_at(<const uint8_t*>PAYLOAD_NAMES[METRICS], 7))
    cdef int fault
    cdef Field field
    if metrics != NOWHERE:
        if r.nodes[metrics].kind != LIST or r.nodes[r.nodes[metrics].first].kind != STRUCT:
            return wrong(r, WRONG_TYPE, metrics, 0)
    while r.at < r.size:
        fault = next_field(r, r.size, PAYLOAD_WIRE, PAYLOAD_LAST, &field)
        if fault:
            return fault
        if field.number == METRICS:
            if metrics != NOWHERE:
                r.at -= field.text.size
                fault = sparkplug_metric(r, r.nodes[metrics].first, r.at + field.text.size)
                if not fault and r.row_values > r.row_values_max:
                    fault = wrong(r, TOO_MANY, 0, r.at)
        elif field.number <= PAYLOAD_LAST:
            fault = sparkplug_put(r, payload, PAYLOAD_NAMES[field.number], &field)
        if fault:
            return fault
    if metrics != NOWHERE and end_list(r, &r.nodes[metrics]):
        return NO_MEMORY
    return end_struct(r, payload)


cdef inline int sparkplug_metric(Reader* r, int number, size_t end) noexcept nogil:
    cdef Node* metric = &r.nodes[number]
    cdef bint is_null = False
    cdef bint has_value = False
    cdef uint64_t datatype = 0
    cdef int fault
    cdef Field field, value
    while r.at < end:
        fault = next_field(r, end, METRIC_WIRE, METRIC_LAST, &field)
        if fault:
            return fault
        if field.number > METRIC_LAST:
            continue
        if field.number >= VALUE_FIRST:
            if has_value:
                return wrong(r, BAD_FORMAT, 0, field.at)
            has_value = True
            value = field
            continue
        if field.number == DATATYPE:
            datatype = field.bits
        elif field.number == IS_NULL:
            is_null = field.bits != 0
        fault = sparkplug_put(r, metric, METRIC_NAMES[field.number], &field)
        if fault:
            return fault
    # Last, since the meaning of an int_value depends on the datatype.
    if has_value and not is_null:
        if value.number == INT_VALUE:
            value.bits = <uint64_t>sparkplug_int(<uint32_t>value.bits, datatype)
        fault = sparkplug_put(r, metric, METRIC_NAMES[value.number], &value)
        if fault:
            return fault
    return end_struct(r, metric)


cdef inline int64_t sparkplug_int(uint32_t bits, uint64_t datatype) noexcept nogil:
    if datatype == INT8:
        return <int8_t>bits
    if datatype == INT16:
        return <int16_t>bits
    if datatype == INT32:
        return <int32_t>bits
    return bits


cdef inline int sparkplug_put(Reader* r, Node* parent, const char* name, Field* field) noexcept nogil:
    """Add a field's value to the column of that name, if there is one."""
    cdef int number = NOWHERE
    cdef Node* node
    cdef float narrow
    cdef uint32_t bits32
    cdef double value
    if name[0]:
        number = child_of(r, parent, text_at(<const uint8_t*>name, <Py_ssize_t>strlen(name)))
    if number == NOWHERE:
        return OKAY
    node = &r.nodes[number]
    if node.length > parent.length:
        return wrong(r, TWICE, number, field.at)
    if field.wire == BYTES:
        if node.kind == STRING and not is_utf8(field.text):
            return wrong(r, BAD_TEXT, 0, field.at)
        if node.kind == STRING or node.kind == BINARY:
            return put_text(r, number, field.text, field.at)
    elif field.wire == VARINT:
        if node.kind == LONG:
            return NO_MEMORY if put_i64(&node.data, <int64_t>field.bits) else end_entry(r, node, True)
        if node.kind == INT or node.kind == TIMESTAMP:
            return put_whole(r, node, number, field.bits, False, field.at)
        if node.kind == BOOLEAN:
            return NO_MEMORY if put_byte(&node.data, field.bits != 0) else end_entry(r, node, True)
    elif node.kind == DOUBLE:
        if field.wire == FIXED32:
            bits32 = <uint32_t>field.bits
            memcpy(&narrow, &bits32, 4)
            value = narrow
        else:
            memcpy(&value, &field.bits, 8)
        return put_double(r, node, number, value, field.at)
    return wrong(r, WRONG_TYPE, number, field.at)


cdef inline int next_field(
    Reader* r, size_t end, const char* wires, uint64_t last, Field* field
) noexcept nogil:
    """Step over the field at this place; fields up to ``last`` must be encoded as in ``wires``."""
    cdef uint64_t tag = 0
    cdef uint32_t bits32
    cdef int fault
    field.at = r.at
    fault = varint(r, end, &tag)
    if fault:
        return fault
    field.number = tag >> 3
    field.wire = tag & 7
    if field.number == 0 or tag >> 32 or field.number <= last and wires[field.number] != 0x30 + field.wire:
        return wrong(r, BAD_FORMAT, 0, field.at)
    if field.wire == VARINT:
        return varint(r, end, &field.bits)
    if field.wire == BYTES:
        fault = varint(r, end, &field.bits)
        if fault:
            return fault
        if end - r.at < field.bits:
            return wrong(r, BAD_FORMAT, 0, end)
        field.text = text_at(r.data + r.at, <Py_ssize_t>field.bits)
        r.at += <size_t>field.bits
        return OKAY
    if field.wire == FIXED64:
        if end - r.at < 8:
            return wrong(r, BAD_FORMAT, 0, end)
        memcpy(&field.bits, r.data + r.at, 8)
        r.at += 8
        return OKAY
    if field.wire == FIXED32:
        if end - r.at < 4:
            return wrong(r, BAD_FORMAT, 0, end)
        memcpy(&bits32, r.data + r.at, 4)
        field.bits = bits32
        r.at += 4
        return OKAY
    return wrong(r, BAD_FORMAT, 0, field.at)


cdef inline int varint(Reader* r, size_t end, uint64_t* value) noexcept nogil:
    """Read a number of at most ten bytes, truncated to 64 bits."""
    cdef size_t begin = r.at
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while shift < 70:
        if r.at >= end:
            return wrong(r, BAD_FORMAT, 0, end)
        byte = r.data[r.at]
        r.at += 1
        value[0] |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return OKAY
        shift += 7
    return wrong(r, BAD_FORMAT, 0, begin)
