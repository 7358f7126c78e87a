# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/decode.py: records in memory to tuples and messages, a batch per call.

Schema: the drawing in core/records/layout.py. Mirrors: core/records/_decode_py.py, answer for
answer. Preconditions: none; each record is parsed before any part of it is read or allocated. The
records must be in memory and not in a mapped file: there is no guard. Not checked: that times
make sense, and, unless the caller requests it, the CRC of bodies (the store's recovery has checked
it).
The GIL is held. decode_stored takes 0.11 us a record of three properties and 100 bytes, 0.55 before
it left properties for later, and 0.36 if all of them are accessed (2026-11-25, busy 2-core
x86-64). decode takes 0.13 us a record of eight properties, the reference 6 (2026-11-22, busy
2-core x86-64); decode_values takes 0.4 us, decode and core.message's decode_properties 4.
"""

cimport cython
from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
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

cdef extern from *:
    """
    /* Return kind.__new__(kind), not known to the collector: gc=False for a class in Python. */
    static PyObject *new_of(PyObject *kind, PyObject *nothing) {
        PyTypeObject *type = (PyTypeObject *)kind;
        PyObject *made = type->tp_new(type, nothing, NULL);
        if (made != NULL && PyObject_GC_IsTracked(made)) {
            PyObject_GC_UnTrack(made);
        }
        return made;
    }
    """
    object new_of(object kind, object nothing)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

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
    NAMES = 16  # properties of a message whose names are compared with the previous message's

# Messages of one producer have the same names in the same order. So the name at a place is compared
# with the one that was there before, and its text, hash included, is used again.
cdef list _names = [""] * NAMES


cdef dict _properties(bytes text):
    """Return the pairs of a property text as core.message.decode_properties does."""
    cdef const char *p = PyBytes_AS_STRING(text)
    cdef const char *end = p + PyBytes_GET_SIZE(text)
    cdef const char *stop
    cdef const char *middle
    cdef const char *known
    cdef Py_ssize_t size
    cdef Py_ssize_t known_bytes = 0
    cdef int at = 0
    cdef dict pairs = {}
    cdef object name
    while p < end:
        stop = <const char *> memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        middle = <const char *> memchr(p, 1, stop - p)
        if middle != NULL and middle + 1 < stop:
            size = middle - p
            name = None
            if at < NAMES:
                name = _names[at]
                known = PyUnicode_AsUTF8AndSize(name, &known_bytes)
                if known_bytes != size or memcmp(known, p, size) != 0:
                    name = None
            if name is None:
                name = PyUnicode_DecodeUTF8(p, size, b"replace")
                if at < NAMES:
                    _names[at] = name
            pairs[name] = PyUnicode_DecodeUTF8(middle + 1, stop - middle - 1, b"replace")
            at += 1
        p = stop + 1
    return pairs


# Its fields hold no cycles: the collector need not visit them.
@cython.no_gc
cdef class StoredFields:
    cdef readonly str topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t queue_offset
    cdef readonly int64_t physical_offset
    cdef readonly bytes body
    cdef readonly int32_t flag
    cdef readonly int32_t sys_flag
    cdef readonly int64_t born_timestamp_ms
    cdef readonly tuple born_host
    cdef readonly int64_t store_timestamp_ms
    cdef readonly tuple store_host
    cdef readonly int32_t reconsume_times
    cdef readonly int64_t prepared_transaction_offset
    cdef readonly int64_t stored_bytes
    cdef bytes _text  # of the properties, until all of them have been accessed
    cdef dict _pairs

    def __cinit__(self):
        # __new__ alone makes an empty message, which is safe to access.
        self.topic = ""
        self.body = b""
        self._text = b""

    def __init__(
        self, str topic, int32_t queue_id, int64_t queue_offset, int64_t physical_offset,
        bytes body, dict properties, int32_t flag, int32_t sys_flag, int64_t born_timestamp_ms,
        tuple born_host, int64_t store_timestamp_ms, tuple store_host, int32_t reconsume_times,
        int64_t prepared_transaction_offset, int64_t stored_bytes,
    ):
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.body = body
        self._pairs = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host = born_host
        self.store_timestamp_ms = store_timestamp_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.stored_bytes = stored_bytes

    @property
    def properties(self):
        if self._pairs is None:
            self._pairs = _properties(self._text)
            self._text = None
        return self._pairs

    def value_of(self, str name not None):
        cdef const char *encoded
        cdef const uint8_t *value
        cdef Py_ssize_t name_bytes = 0
        cdef Py_ssize_t value_bytes = 0
        # A name with U+FFFD may replace bytes that are not UTF-8.
        if self._pairs is not None or not name.isascii() or "\x01" in name or "\x02" in name:
            return self.properties.get(name)
        encoded = PyUnicode_AsUTF8AndSize(name, &name_bytes)
        value = find_property(
            <const uint8_t *> PyBytes_AS_STRING(self._text), PyBytes_GET_SIZE(self._text),
            <const uint8_t *> encoded, name_bytes, &value_bytes,
        )
        if value == NULL:
            return None
        return PyUnicode_DecodeUTF8(<const char *> value, value_bytes, b"replace")


def decode_stored(records, type kind not None):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = 0
    cdef Record r
    cdef list out = []
    cdef bytes topic = None
    cdef bytes last_topic = None
    cdef str topic_text = None
    cdef tuple born = None
    cdef tuple store = None
    # The hosts of the previous record: nearly always the next one has the same.
    cdef const uint8_t *born_at = NULL
    cdef const uint8_t *store_at = NULL
    cdef Py_ssize_t born_bytes = 0
    cdef Py_ssize_t store_bytes = 0
    cdef int32_t sys_flags = 0
    cdef StoredFields one
    if not issubclass(kind, StoredFields):
        raise TypeError("messages are StoredFields")
    PyObject_GetBuffer(records, &buffer, PyBUF_CONTIG_RO)
    try:
        while at < buffer.len:
            _expect(<const uint8_t *> buffer.buf, at, buffer.len, False, &r)
            topic = topic_of(&r, topic)
            if topic is not last_topic:
                topic_text = topic.decode(errors="replace")
                last_topic = topic
            if r.born_bytes != born_bytes or memcmp(born_host_of(&r), born_at, born_bytes) != 0:
                born_at, born_bytes = born_host_of(&r), r.born_bytes
                born = decode_host(cut(born_at, born_bytes))
            if (
                r.store_bytes != store_bytes
                or memcmp(store_host_of(&r), store_at, store_bytes) != 0
            ):
                store_at, store_bytes = store_host_of(&r), r.store_bytes
                store = decode_host(cut(store_at, store_bytes))
            one = <StoredFields> new_of(kind, ())
            one.topic = topic_text
            one.queue_id = queue_id_of(&r)
            one.queue_offset = queue_offset_of(&r)
            one.physical_offset = physical_offset_of(&r)
            one.body = cut(r.body, r.body_bytes)
            one._text = cut(r.properties, r.properties_bytes)
            one.flag = flag_of(&r)
            one.sys_flag = r.sys_flag
            one.born_timestamp_ms = born_ms_of(&r)
            one.born_host = born
            one.store_timestamp_ms = store_ms_of(&r)
            one.store_host = store
            one.reconsume_times = reconsume_times_of(&r)
            one.prepared_transaction_offset = prepared_offset_of(&r)
            one.stored_bytes = r.size
            sys_flags |= r.sys_flag
            out.append(one)
            at += r.size
    finally:
        PyBuffer_Release(&buffer)
    return out, sys_flags


def body_bytes(messages):
    cdef int64_t size = 0
    cdef StoredFields one
    for one in messages:
        size += len(one.body)
    return size


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
