# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/decode.py: concatenated records in memory to tuples, a batch per call.

Schema: the drawing in core/records/layout.py. Mirrors: core/records/_decode_py.py, answer for
answer. Preconditions: none; each record is parsed before any part of it is read or allocated. The
records must be in memory and not in a mapped file: there is no guard. What is not checked: that
times make sense, and, unless the caller asks for it, the CRC of bodies (the store's recovery has
checked it).
The GIL is held. decode takes 0.13 us a record of eight properties, the reference 6 (2026-11-22, busy
2-core x86-64); decode_values takes 0.4 us, decode and core.message's decode_properties 4.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from motelog.core.records._crc32 cimport crc_init, is_intact
from motelog.core.records._layout cimport (
    BAD_CRC, OKAY, Record, born_host_of, born_ms_of, cut, flag_of, parse, physical_offset_of,
    prepared_offset_of, queue_id_of, queue_offset_of, reconsume_times_of, store_host_of,
    store_ms_of, topic_of,
)
from motelog.core.records._properties cimport find_property
from motelog.core.errors import RecordError
from motelog.core.message import decode_host
from motelog.core.records.layout import REASONS

crc_init()


def decode(records, Py_ssize_t count_max=0x7FFFFFFF, bint verify=False):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef Record r
    cdef list out = []
    cdef bytes topic = None
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        while at < buffer.len and PyList_GET_SIZE(out) < count_max:
            _expect(<const uint8_t *> buffer.buf, at, buffer.len, verify, &r)
            topic = topic_of(&r, topic)
            out.append(
                (
                    topic,
                    queue_id_of(&r),
                    queue_offset_of(&r),
                    physical_offset_of(&r),
                    flag_of(&r),
                    r.sys_flag,
                    born_ms_of(&r),
                    cut(born_host_of(&r), r.born_bytes),
                    store_ms_of(&r),
                    cut(store_host_of(&r), r.store_bytes),
                    reconsume_times_of(&r),
                    prepared_offset_of(&r),
                    cut(r.properties, r.properties_bytes),
                    cut(r.body, r.body_bytes),
                )
            )
            at += r.size
    finally:
        PyBuffer_Release(&buffer)
    return out


cdef enum:
    NAMES = 16  # properties of a record whose names are looked for in the record before


cdef struct Name:
    const uint8_t *at
    Py_ssize_t size


cdef dict _properties(const Record *r, Name *names, list texts):
    """Return the pairs of a property text as core.message.decode_properties does.

    Records of one producer have the same names in the same order. So the name at a place is
    compared with the one that was there before, and its text, hash included, is used again.
    """
    cdef const uint8_t *p = r.properties
    cdef const uint8_t *end = p + r.properties_bytes
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    cdef Py_ssize_t size
    cdef int at = 0
    cdef dict pairs = {}
    cdef object name
    while p < end:
        stop = <const uint8_t *> memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        middle = <const uint8_t *> memchr(p, 1, stop - p)
        if middle != NULL and middle + 1 < stop:
            size = middle - p
            if at < NAMES and names[at].size == size and memcmp(names[at].at, p, size) == 0:
                name = texts[at]
            else:
                name = PyUnicode_DecodeUTF8(<const char *> p, size, b"replace")
                if at < NAMES:
                    names[at].at = p
                    names[at].size = size
                    texts[at] = name
            pairs[name] = PyUnicode_DecodeUTF8(
                <const char *> middle + 1, stop - middle - 1, b"replace"
            )
            at += 1
        p = stop + 1
    return pairs


def decode_fields(records):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef Record r
    cdef list out = []
    cdef bytes topic = None
    cdef bytes last_topic = None
    cdef bytes host, born_host = None, store_host = None
    cdef object topic_text = None, born = None, store = None
    cdef Name[NAMES] names
    cdef list texts = [None] * NAMES
    cdef int i
    for i in range(NAMES):
        names[i].size = -1
        names[i].at = NULL
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        while at < buffer.len:
            _expect(<const uint8_t *> buffer.buf, at, buffer.len, False, &r)
            topic = topic_of(&r, topic)
            if topic is not last_topic:
                topic_text = topic.decode(errors="replace")
                last_topic = topic
            host = cut(born_host_of(&r), r.born_bytes)
            if host != born_host:
                born_host, born = host, decode_host(host)
            host = cut(store_host_of(&r), r.store_bytes)
            if host != store_host:
                store_host, store = host, decode_host(host)
            out.append(
                (
                    topic_text,
                    queue_id_of(&r),
                    queue_offset_of(&r),
                    physical_offset_of(&r),
                    cut(r.body, r.body_bytes),
                    _properties(&r, names, texts),
                    flag_of(&r),
                    r.sys_flag,
                    born_ms_of(&r),
                    born,
                    store_ms_of(&r),
                    store,
                    reconsume_times_of(&r),
                    prepared_offset_of(&r),
                    r.size,
                )
            )
            at += r.size
    finally:
        PyBuffer_Release(&buffer)
    return out


def decode_brief(records, bytes name not None):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t value_bytes = 0
    cdef Record r
    cdef list out = []
    cdef bytes topic = None
    cdef const uint8_t *value
    # A name with a separator in it is in no property text.
    cdef bint searchable = b"\x01" not in name and b"\x02" not in name
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        while at < buffer.len:
            _expect(<const uint8_t *> buffer.buf, at, buffer.len, False, &r)
            topic = topic_of(&r, topic)
            value = NULL
            if searchable:
                value = find_property(
                    r.properties, r.properties_bytes, <const uint8_t *> PyBytes_AS_STRING(name),
                    PyBytes_GET_SIZE(name), &value_bytes,
                )
            out.append(
                (
                    queue_offset_of(&r),
                    None if value == NULL else cut(value, value_bytes),
                    topic,
                    cut(r.properties, r.properties_bytes),
                    cut(r.body, r.body_bytes),
                    r.sys_flag,
                    store_ms_of(&r),
                    r.size,
                )
            )
            at += r.size
    finally:
        PyBuffer_Release(&buffer)
    return out


def decode_values(records, tuple names not None):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t value_bytes = 0
    cdef Record r
    cdef list out = []
    # A name with a separator in it is in no property text.
    cdef list wanted = [
        (name, name.encode()) for name in names if "\x01" not in name and "\x02" not in name
    ]
    cdef dict values
    cdef const uint8_t *value
    cdef bytes encoded
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        while at < buffer.len:
            _expect(<const uint8_t *> buffer.buf, at, buffer.len, False, &r)
            values = {}
            for name, encoded in wanted:
                value = find_property(
                    r.properties, r.properties_bytes, <const uint8_t *> PyBytes_AS_STRING(encoded),
                    PyBytes_GET_SIZE(encoded), &value_bytes,
                )
                if value != NULL:
                    values[name] = PyUnicode_DecodeUTF8(
                        <const char *> value, value_bytes, b"replace"
                    )
            out.append((queue_offset_of(&r), r.size, values))
            at += r.size
    finally:
        PyBuffer_Release(&buffer)
    return out


def in_queue(records, bytes topic not None, int64_t queue_id, int64_t begin, int64_t end):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef int64_t lowest = begin
    cdef int64_t queue_offset
    cdef Record r
    cdef const uint8_t *data
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        data = <const uint8_t *> buffer.buf
        while at < buffer.len:
            if parse(data + at, buffer.len - at, &r) != OKAY:
                return False
            queue_offset = queue_offset_of(&r)
            if (
                queue_id_of(&r) != queue_id
                or not lowest <= queue_offset < end
                or r.topic_bytes != PyBytes_GET_SIZE(topic)
                or memcmp(r.topic, PyBytes_AS_STRING(topic), r.topic_bytes) != 0
            ):
                return False
            lowest = queue_offset + 1
            at += r.size
        return True
    finally:
        PyBuffer_Release(&buffer)


cdef int _expect(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, bint verify, Record *r
) except -1:
    """Parse the record at ``at`` or raise RecordError."""
    cdef int stop = parse(data + at, end - at, r)
    if stop == OKAY and verify and not is_intact(r):
        stop = BAD_CRC
    if stop != OKAY:
        raise RecordError(REASONS[stop], offset_bytes=at)
    return 0
