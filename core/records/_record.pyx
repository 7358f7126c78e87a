# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/record.py: RocketMQ records in and out of mapped bytes, a batch per call.

Schema: the drawing in core/records/record.py. Mirrors: core/records/_record_py.py, answer for answer.
Preconditions: none; every length is checked against the bytes that are there before anything is
read or allocated, and every message is unpacked and checked again before it is written. What is not
checked: that a topic name is allowed (core.store.message_store) and that times make sense.
What may be a mapped file is accessed in guarded bodies: a page that cannot be had is OSError (EIO).
Not so the arguments of decode, decode_brief, decode_values, crc32_31 and select_units, which are in
memory.
The GIL is held: a batch of 100 small records takes some 15 us. Not so while collect walks.
Looking ahead and copying records that lie in a row at once, gather reads 11 to 35 % more bytes a
second when records of 8 or 64 queues alternate, 0 to 21 % more in a row (2026-11-21, busy 2-core
x86-64). Walking in one guarded body with a table of queues of its own, collect takes 0.9 of the time
for records of 16 queues in turn, 0.65 for 100, 0.45 for 10 000. decode_values takes 0.4 us a record
of eight properties, decode and core.message's decode_properties 4 us (the same day and machine).
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

import os

from motelog.core.records._big_endian cimport get16, get32, get64, put16, put32, put64
from motelog.core.records._crc32 cimport crc_bytes, crc_init
from motelog.core.records._guard cimport guarded, guarded_copy, raise_fault, touch
from motelog.core.records._keys cimport Keys, find_keys
from motelog.core.records._record_py import REASONS, ScanStop, UnitRun
from motelog.core.errors import RecordError, RecordTooLargeError
from motelog.core.message import tags_code as _tags_code

crc_init()

cdef enum:
    UNIT = 20
    RECORD_MIN = 92
    PROPERTIES_MAX = 32767
    TOPIC_MAX = 255
    FEW_UNITS = 8  # what a queue keeps memory for while it is idle
    TABLE_MIN = 64  # slots of collect's table of queues; a power of two
    ITEMS_MIN = 64
    RUNS_MAX = 0x7FFFFFFF
    MESSAGES_AHEAD = 4  # what they lead to comes from memory in the meantime
    CACHE_LINE = 64
    FILLER = 0x7FFFFFFF
    SECTOR_BYTES = 512  # what a disk writes as a whole
    LOOK_MAX = 32  # records examined in one guarded body
    PARTS_MAX = 33280  # at least a record without its body: 112 + 257 + 32769
    # The values of ScanStop; OKAY is what _parse says of a whole record.
    OKAY = -1
    END = 0
    COUNT = 1
    BLANK = 2
    EMPTY = 3
    BAD_SIZE = 4
    BAD_MAGIC = 5
    BAD_LAYOUT = 6
    BAD_CRC = 7
    BAD_OFFSET = 8

cdef extern from *:
    """
    #define record_prefetch(at) __builtin_prefetch(at)
    """
    void prefetch "record_prefetch" (const void *at) noexcept nogil

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t MAGIC_BLANK = 0xCBD43194
cdef uint64_t HASH_FACTOR = 0x9E3779B97F4A7C15
cdef uint64_t _seed = int.from_bytes(os.urandom(8), "big")

_STOPS = tuple(ScanStop)


cdef class QueueTail:
    """Where the next record of one queue goes, and the newest units of it: those not on file yet."""

    cdef readonly bytes topic
    cdef readonly int32_t queue_id
    cdef readonly int64_t next_offset
    cdef int64_t _last_physical
    cdef uint8_t *_units
    cdef Py_ssize_t _used
    cdef Py_ssize_t _capacity
    cdef int64_t _put_messages
    cdef int64_t _put_bytes

    def __init__(self, bytes topic not None, queue_id, next_offset):
        if not 1 <= PyBytes_GET_SIZE(topic) <= TOPIC_MAX:
            raise ValueError(f"a topic has 1 to 255 bytes, not {len(topic)}")
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue id {queue_id} is not in [0, 2147483648)")
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = next_offset
        self._last_physical = INT64_MIN

    def __dealloc__(self):
        PyMem_Free(self._units)

    @property
    def pending(self):
        return self._used

    @property
    def first_offset(self):
        return self.next_offset - self._used

    def units(self, int64_t offset, int64_t count):
        cdef int64_t first = self.next_offset - self._used
        if offset < first or count < 0:
            raise ValueError("these units are not held")
        if offset >= self.next_offset:
            return b""
        if count > self.next_offset - offset:
            count = self.next_offset - offset
        return PyBytes_FromStringAndSize(
            <char *> self._units + (offset - first) * UNIT, count * UNIT
        )

    def extend(self, bytes units not None):
        cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // UNIT
        if count * UNIT != PyBytes_GET_SIZE(units):
            raise ValueError("units have 20 bytes each")
        if count == 0:
            return
        self.reserve(count)
        memcpy(self._units + self._used * UNIT, PyBytes_AS_STRING(units), count * UNIT)
        self._used += count
        self.next_offset += count

    def drop(self, int64_t end_offset):
        cdef int64_t first = self.next_offset - self._used
        cdef int64_t count
        if end_offset <= first or self._used == 0:
            return
        # Compared before it is subtracted: the difference of any two could overflow.
        count = self._used if end_offset >= self.next_offset else end_offset - first
        self._used -= count
        memmove(self._units, self._units + count * UNIT, self._used * UNIT)
        self._shrink()

    def take_back(self, int64_t physical_end):
        while (
            self._used > 0
            and <int64_t> get64(self._units + (self._used - 1) * UNIT) >= physical_end
        ):
            self._used -= 1
            self.next_offset -= 1

    def reset(self, int64_t next_offset):
        self._used = 0
        self._shrink()
        self.next_offset = next_offset

    def take_put(self):
        put = self._put_messages, self._put_bytes
        self._put_messages = self._put_bytes = 0
        return put

    cdef void _shrink(self) noexcept:
        """A burst must not hold its memory for as long as the queue lives."""
        cdef Py_ssize_t wanted = self._used if self._used > FEW_UNITS else FEW_UNITS
        cdef void *smaller
        if self._capacity > 4 * wanted:
            smaller = PyMem_Realloc(self._units, wanted * UNIT)
            if smaller != NULL:
                self._units = <uint8_t *> smaller
                self._capacity = wanted

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Make room for so many more units."""
        cdef Py_ssize_t wanted
        cdef void *grown
        if count <= self._capacity - self._used:
            return 0
        wanted = self._capacity * 2 if self._capacity else FEW_UNITS
        if wanted < self._used + count:
            wanted = self._used + count
        grown = PyMem_Realloc(self._units, wanted * UNIT)
        if grown == NULL:
            raise MemoryError
        self._units = <uint8_t *> grown
        self._capacity = wanted
        return 0

    cdef void add(self, int64_t physical_offset, int32_t size, int64_t code) noexcept:
        """Note a record in the room reserved."""
        cdef uint8_t *unit = self._units + self._used * UNIT
        put64(unit, <uint64_t> physical_offset)
        put32(unit + 8, <uint32_t> size)
        put64(unit + 12, <uint64_t> code)
        self._used += 1
        self.next_offset += 1
        self._put_messages += 1
        self._put_bytes += size
        self._last_physical = physical_offset


cdef struct Fields:
    # One message to append. The pointers live as long as the tuple they come from.
    PyObject *tail
    const uint8_t *body
    const uint8_t *properties
    const uint8_t *born
    Py_ssize_t body_bytes
    Py_ssize_t properties_bytes
    Py_ssize_t born_bytes
    Py_ssize_t topic_bytes
    int64_t code
    int64_t born_ms
    int64_t prepared
    int32_t sys_flag
    int32_t flag
    int32_t reconsume


cdef inline int32_t _int32(object value) except? -1:
    cdef int64_t wide
    if not isinstance(value, int):
        raise TypeError("an integer is expected")
    wide = value
    if wide < -0x80000000 or wide > 0x7FFFFFFF:
        raise OverflowError(f"{value} does not fit into 32 bits")
    return <int32_t> wide


cdef inline int64_t _int64(object value) except? -1:
    if not isinstance(value, int):
        raise TypeError("an integer is expected")
    return <int64_t> value


cdef inline bytes _bytes(object value):
    if not isinstance(value, bytes):
        raise TypeError("body, properties and born host are bytes")
    return <bytes> value


cdef int _unpack(object message, Py_ssize_t body_bytes_max, Fields *out) except -1:
    """Fill ``out`` from one tuple; TypeError, ValueError, OverflowError, RecordTooLargeError."""
    cdef bytes body, properties, born
    cdef QueueTail tail
    if not isinstance(message, tuple) or PyTuple_GET_SIZE(message) != 10:
        raise TypeError("a message to append is a tuple of 10")
    first = <object> PyTuple_GET_ITEM(message, 0)
    if not isinstance(first, QueueTail):
        raise TypeError("the first item is a QueueTail")
    tail = <QueueTail> first
    body = _bytes(<object> PyTuple_GET_ITEM(message, 1))
    properties = _bytes(<object> PyTuple_GET_ITEM(message, 2))
    born = _bytes(<object> PyTuple_GET_ITEM(message, 5))
    out.code = _int64(<object> PyTuple_GET_ITEM(message, 3))
    out.born_ms = _int64(<object> PyTuple_GET_ITEM(message, 4))
    out.sys_flag = _int32(<object> PyTuple_GET_ITEM(message, 6))
    out.flag = _int32(<object> PyTuple_GET_ITEM(message, 7))
    out.reconsume = _int32(<object> PyTuple_GET_ITEM(message, 8))
    out.prepared = _int64(<object> PyTuple_GET_ITEM(message, 9))
    out.tail = <PyObject *> tail
    out.topic_bytes = PyBytes_GET_SIZE(tail.topic)
    out.body = <const uint8_t *> PyBytes_AS_STRING(body)
    out.body_bytes = PyBytes_GET_SIZE(body)
    out.properties = <const uint8_t *> PyBytes_AS_STRING(properties)
    out.properties_bytes = PyBytes_GET_SIZE(properties)
    out.born = <const uint8_t *> PyBytes_AS_STRING(born)
    out.born_bytes = PyBytes_GET_SIZE(born)
    if out.born_bytes != 8 and out.born_bytes != 20:
        raise ValueError(f"a host has 8 or 20 bytes, not {out.born_bytes}")
    if out.body_bytes > body_bytes_max:
        raise RecordTooLargeError(
            f"the body has {out.body_bytes} bytes, the limit is {body_bytes_max}"
        )
    if out.properties_bytes > PROPERTIES_MAX:
        raise RecordTooLargeError(
            f"the properties have {out.properties_bytes} bytes, the limit is {PROPERTIES_MAX}"
        )
    if memchr(out.properties, 0, out.properties_bytes) != NULL:
        raise ValueError("a property text with a zero byte could pass for a torn record")
    return 0


cdef inline void _fetch_message(list messages, Py_ssize_t i) noexcept:
    """Have the processor fetch what ``_unpack`` looks at a little later.

    Where there are thousands of queues, each message's is not in its caches.
    """
    cdef PyObject *ahead
    if i + 2 * MESSAGES_AHEAD < PyList_GET_SIZE(messages):
        ahead = PyList_GET_ITEM(messages, i + 2 * MESSAGES_AHEAD)
        prefetch(ahead)
        prefetch(<char *> ahead + CACHE_LINE)
    if i + MESSAGES_AHEAD < PyList_GET_SIZE(messages):
        ahead = PyList_GET_ITEM(messages, i + MESSAGES_AHEAD)
        if isinstance(<object> ahead, tuple) and PyTuple_GET_SIZE(<object> ahead):
            ahead = PyTuple_GET_ITEM(<object> ahead, 0)
            prefetch(ahead)
            prefetch(<char *> ahead + CACHE_LINE)


cdef inline void _fetch_unit(list messages, Py_ssize_t i) noexcept:
    """Have the processor fetch where the unit of a message a little later goes."""
    cdef QueueTail tail
    if i + MESSAGES_AHEAD < PyList_GET_SIZE(messages):
        message = <object> PyList_GET_ITEM(messages, i + MESSAGES_AHEAD)
        if isinstance(message, tuple) and PyTuple_GET_SIZE(message):
            first = <object> PyTuple_GET_ITEM(message, 0)
            if isinstance(first, QueueTail):
                tail = <QueueTail> first
                prefetch(tail._units + tail._used * UNIT)


cdef inline Py_ssize_t _size(Fields *f, Py_ssize_t store_bytes) noexcept:
    return (
        75 + f.born_bytes + store_bytes + (f.topic_bytes > 127)
        + f.body_bytes + f.topic_bytes + f.properties_bytes
    )


def measure(list messages not None, Py_ssize_t begin, Py_ssize_t body_bytes_max):
    cdef Py_ssize_t i, size
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t largest = 0
    cdef Fields f
    if begin < 0:
        raise ValueError("begin is negative")
    for i in range(begin, PyList_GET_SIZE(messages)):
        _fetch_message(messages, i)
        _unpack(<object> PyList_GET_ITEM(messages, i), body_bytes_max, &f)
        size = _size(&f, 20)
        total += size
        if size > largest:
            largest = size
    return total, largest


cdef struct Writing:
    # One record to write: where, and what is not the message's own.
    Fields *fields
    uint8_t *at
    Py_ssize_t size
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_ms
    const uint8_t *store
    Py_ssize_t store_bytes
    const char *topic
    int32_t queue_id


cdef void _write(void *context) noexcept nogil:
    cdef Writing *w = <Writing *> context
    cdef Fields *f = w.fields
    cdef uint8_t *p = w.at
    put32(p, <uint32_t> w.size)
    put32(p + 4, MAGIC_V2 if f.topic_bytes > 127 else MAGIC_V1)
    put32(p + 8, crc_bytes(f.body, f.body_bytes) & 0x7FFFFFFF)
    put32(p + 12, <uint32_t> w.queue_id)
    put32(p + 16, <uint32_t> f.flag)
    put64(p + 20, <uint64_t> w.queue_offset)
    put64(p + 28, <uint64_t> w.physical_offset)
    put32(p + 36, <uint32_t> f.sys_flag)
    put64(p + 40, <uint64_t> f.born_ms)
    p += 48
    memcpy(p, f.born, f.born_bytes)
    p += f.born_bytes
    put64(p, <uint64_t> w.store_ms)
    p += 8
    memcpy(p, w.store, w.store_bytes)
    p += w.store_bytes
    put32(p, <uint32_t> f.reconsume)
    put64(p + 4, <uint64_t> f.prepared)
    put32(p + 12, <uint32_t> f.body_bytes)
    p += 16
    memcpy(p, f.body, f.body_bytes)
    p += f.body_bytes
    if f.topic_bytes > 127:
        p[0] = 0
        p += 1
    p[0] = <uint8_t> f.topic_bytes
    p += 1
    memcpy(p, w.topic, f.topic_bytes)
    p += f.topic_bytes
    put16(p, <uint16_t> f.properties_bytes)
    memcpy(p + 2, f.properties, f.properties_bytes)


def encode_batch(
    target, Py_ssize_t position, Py_ssize_t limit, int64_t physical_base, list messages not None,
    Py_ssize_t begin, int64_t store_timestamp_ms, bytes store_host not None, list dirty not None,
    list placed, batch_begin=None, list fresh=None,
):
    cdef Py_buffer buffer
    cdef Py_ssize_t i = begin
    cdef Py_ssize_t store_bytes = PyBytes_GET_SIZE(store_host)
    cdef Py_ssize_t size
    cdef Fields f
    cdef Writing w
    cdef QueueTail tail
    cdef int64_t queue_offset
    cdef bint has_unit
    cdef int64_t batch_at = physical_base + position if batch_begin is None else batch_begin
    w.fields = &f
    w.store = <const uint8_t *> PyBytes_AS_STRING(store_host)
    w.store_bytes = store_bytes
    w.store_ms = store_timestamp_ms
    if store_bytes != 8 and store_bytes != 20:
        raise ValueError(f"a host has 8 or 20 bytes, not {store_bytes}")
    if begin < 0:
        raise ValueError("begin is negative")
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= limit <= buffer.len):
            raise ValueError("position and limit lie outside the target")
        while i < PyList_GET_SIZE(messages):
            _fetch_unit(messages, i)
            _unpack(<object> PyList_GET_ITEM(messages, i), 0x7FFFFFFF, &f)
            size = _size(&f, store_bytes)
            if size + 8 > limit - position:
                break
            tail = <QueueTail> f.tail
            f.sys_flag &= ~0x30
            if f.born_bytes == 20:
                f.sys_flag |= 0x10
            if store_bytes == 20:
                f.sys_flag |= 0x20
            # Prepared (0x4) and rolled-back (0xC) records have no place in a queue.
            has_unit = (f.sys_flag & 0xC) == 0 or (f.sys_flag & 0xC) == 0x8
            queue_offset = 0
            if has_unit:
                queue_offset = tail.next_offset
                tail.reserve(1)
            w.at = <uint8_t *> buffer.buf + position
            w.size = size
            w.physical_offset = physical_base + position
            w.queue_offset = queue_offset
            w.queue_id = tail.queue_id
            w.topic = PyBytes_AS_STRING(tail.topic)
            touch(_write, &w, &buffer)
            if has_unit:
                if tail._last_physical < batch_at:
                    dirty.append(tail)
                if tail._used == 0 and fresh is not None:
                    fresh.append(tail)
                tail.add(physical_base + position, <int32_t> size, f.code)
            if placed is not None:
                placed.append((physical_base + position, queue_offset))
            position += size
            i += 1
    finally:
        PyBuffer_Release(&buffer)
    return i, position


def encode_blank(target, Py_ssize_t position, Py_ssize_t limit):
    cdef Py_buffer buffer
    cdef uint8_t head[8]
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= limit <= buffer.len and limit - position >= 8):
            raise ValueError("a blank record needs 8 bytes")
        put32(head, <uint32_t> (limit - position))
        put32(head + 4, MAGIC_BLANK)
        guarded_copy(<uint8_t *> buffer.buf + position, head, 8, &buffer)
    finally:
        PyBuffer_Release(&buffer)


def copy_out(view, Py_ssize_t begin, Py_ssize_t end):
    cdef Py_buffer buffer
    cdef const uint8_t *source
    cdef bytes out
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= end <= buffer.len):
            raise ValueError("begin and end lie outside the view")
        out = PyBytes_FromStringAndSize(NULL, end - begin)
        source = <const uint8_t *> buffer.buf + begin
        guarded_copy(PyBytes_AS_STRING(out), source, end - begin, &buffer)
        return out
    finally:
        PyBuffer_Release(&buffer)


def copy_in(target, Py_ssize_t position, bytes data not None):
    cdef Py_buffer buffer
    cdef uint8_t *at
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= buffer.len and PyBytes_GET_SIZE(data) <= buffer.len - position):
            raise ValueError("the data lies outside the target")
        at = <uint8_t *> buffer.buf + position
        guarded_copy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &buffer)
    finally:
        PyBuffer_Release(&buffer)


def crc32_31(data):
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_CONTIG_RO)
    try:
        return crc_bytes(<const uint8_t *> buffer.buf, buffer.len) & 0x7FFFFFFF
    finally:
        PyBuffer_Release(&buffer)


cdef struct Record:
    # Where the parts of a checked record lie; pointers go into the buffer it was parsed from.
    const uint8_t *at
    const uint8_t *store
    const uint8_t *body
    const uint8_t *topic
    const uint8_t *properties
    Py_ssize_t size
    Py_ssize_t born_bytes
    Py_ssize_t store_bytes
    Py_ssize_t body_bytes
    Py_ssize_t topic_bytes
    Py_ssize_t properties_bytes
    int32_t sys_flag


cdef int _parse(const uint8_t *at, Py_ssize_t there, Record *r) noexcept nogil:
    """Check the layout of the record at ``at``, of which ``there`` bytes may be read."""
    cdef Py_ssize_t p, head
    cdef int32_t size
    cdef uint32_t magic
    if there < RECORD_MIN:
        return BAD_SIZE
    size = <int32_t> get32(at)
    if size < RECORD_MIN or size > there:
        return BAD_SIZE
    magic = get32(at + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    if <int32_t> get32(at + 12) < 0 or <int64_t> get64(at + 20) < 0:
        return BAD_LAYOUT
    head = 2 if magic == MAGIC_V2 else 1
    r.at = at
    r.size = size
    r.sys_flag = <int32_t> get32(at + 36)
    r.born_bytes = 20 if r.sys_flag & 0x10 else 8
    r.store_bytes = 20 if r.sys_flag & 0x20 else 8
    p = 48 + r.born_bytes
    r.store = at + p
    p += 8 + r.store_bytes
    if p + 16 + head + 2 > size:
        return BAD_LAYOUT
    r.body_bytes = <int32_t> get32(at + p + 12)
    p += 16
    if r.body_bytes < 0 or r.body_bytes > size - p - head - 2:
        return BAD_LAYOUT
    r.body = at + p
    p += r.body_bytes
    r.topic_bytes = get16(at + p) if head == 2 else at[p]
    p += head
    if r.topic_bytes < 1 or r.topic_bytes > (TOPIC_MAX if head == 2 else 127):
        return BAD_LAYOUT
    if r.topic_bytes > size - p - 2:
        return BAD_LAYOUT
    r.topic = at + p
    p += r.topic_bytes
    r.properties_bytes = get16(at + p)
    p += 2
    if r.properties_bytes != size - p or r.properties_bytes > PROPERTIES_MAX:
        return BAD_LAYOUT
    r.properties = at + p
    return OKAY


cdef inline bint _is_intact(Record *r) noexcept nogil:
    return r.body_bytes == 0 or (crc_bytes(r.body, r.body_bytes) & 0x7FFFFFFF) == get32(r.at + 8)


cdef inline bytes _cut(const uint8_t *p, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> p, size)


cdef bytes _topic(Record *r, bytes last):
    """Return the topic, shared with the record before when it is the same."""
    if (
        last is not None
        and PyBytes_GET_SIZE(last) == r.topic_bytes
        and memcmp(PyBytes_AS_STRING(last), r.topic, r.topic_bytes) == 0
    ):
        return last
    return _cut(r.topic, r.topic_bytes)


cdef const uint8_t *_property(
    Record *r, const uint8_t *name, Py_ssize_t name_bytes, Py_ssize_t *value_bytes
) noexcept nogil:
    """Return where the last non-empty value of ``name`` begins, or NULL."""
    cdef const uint8_t *p = r.properties
    cdef const uint8_t *end = p + r.properties_bytes
    cdef const uint8_t *stop
    cdef const uint8_t *found = NULL
    while p < end:
        stop = <const uint8_t *> memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        # The name holds no U+0001, so the first one in the item is the one behind it.
        if (
            stop - p > name_bytes + 1
            and p[name_bytes] == 1
            and memcmp(p, name, name_bytes) == 0
        ):
            found = p + name_bytes + 1
            value_bytes[0] = stop - found
        p = stop + 1
    return found


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
            topic = _topic(&r, topic)
            out.append(
                (
                    topic,
                    <int32_t> get32(r.at + 12),
                    <int64_t> get64(r.at + 20),
                    <int64_t> get64(r.at + 28),
                    <int32_t> get32(r.at + 16),
                    r.sys_flag,
                    <int64_t> get64(r.at + 40),
                    _cut(r.at + 48, r.born_bytes),
                    <int64_t> get64(r.store),
                    _cut(r.store + 8, r.store_bytes),
                    <int32_t> get32(r.body - 16),
                    <int64_t> get64(r.body - 12),
                    _cut(r.properties, r.properties_bytes),
                    _cut(r.body, r.body_bytes),
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
            topic = _topic(&r, topic)
            value = NULL
            if searchable:
                value = _property(
                    &r, <const uint8_t *> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name),
                    &value_bytes,
                )
            out.append(
                (
                    <int64_t> get64(r.at + 20),
                    None if value == NULL else _cut(value, value_bytes),
                    topic,
                    _cut(r.properties, r.properties_bytes),
                    _cut(r.body, r.body_bytes),
                    r.sys_flag,
                    <int64_t> get64(r.store),
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
                value = _property(
                    &r, <const uint8_t *> PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded),
                    &value_bytes,
                )
                if value != NULL:
                    values[name] = PyUnicode_DecodeUTF8(
                        <const char *> value, value_bytes, b"replace"
                    )
            out.append((<int64_t> get64(r.at + 20), r.size, values))
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
            if _parse(data + at, buffer.len - at, &r) != OKAY:
                return False
            queue_offset = <int64_t> get64(r.at + 20)
            if (
                <int32_t> get32(r.at + 12) != queue_id
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
    cdef int stop = _parse(data + at, end - at, r)
    if stop == OKAY and verify and not _is_intact(r):
        stop = BAD_CRC
    if stop != OKAY:
        raise RecordError(REASONS[stop], offset_bytes=at)
    return 0


cdef int _examine(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int64_t physical_base, Record *r
) noexcept nogil:
    """Say what lies at ``at``: OKAY for a record that belongs there, else why the scan stops."""
    cdef int stop
    if end - at < 8:
        return BAD_SIZE
    if get64(data + at) == 0:
        return EMPTY
    if get32(data + at + 4) == MAGIC_BLANK:
        return BLANK if <Py_ssize_t> get32(data + at) == end - at else BAD_SIZE
    stop = _parse(data + at, end - at, r)
    if stop != OKAY:
        return stop
    if <int64_t> get64(data + at + 28) != physical_base + at:
        return BAD_OFFSET
    if not _is_intact(r):
        return BAD_CRC
    if _is_torn(data, at, end, r):
        return BAD_LAYOUT
    return OKAY


cdef struct Look:
    # The records from a place of a view on, at most count_max, and OKAY or why the last is no more.
    const uint8_t *data
    Py_ssize_t at
    Py_ssize_t end
    int64_t physical_base
    Py_ssize_t count_max
    Py_ssize_t count
    int stop
    Record records[LOOK_MAX]
    uint8_t parts[2 * PARTS_MAX]


cdef void _look(void *context) noexcept nogil:
    """Examine records and take along all of them but their bodies, for use outside the guard.

    Several at a time: entering the guard costs as much as a small record. ``at`` moves behind them.
    """
    cdef Look *look = <Look *> context
    cdef Record *r
    cdef Py_ssize_t head_bytes, text_bytes
    cdef uint8_t *parts = look.parts
    look.count = 0
    look.stop = OKAY
    while (
        look.count < look.count_max and look.at < look.end
        and parts <= look.parts + PARTS_MAX
    ):
        r = &look.records[look.count]
        look.stop = _examine(look.data, look.at, look.end, look.physical_base, r)
        if look.stop != OKAY:
            return
        head_bytes = r.body - r.at
        text_bytes = r.properties + r.properties_bytes - r.topic
        memcpy(parts, r.at, head_bytes)
        memcpy(parts + head_bytes, r.topic, text_bytes)
        r.store = parts + (r.store - r.at)
        r.properties = parts + head_bytes + (r.properties - r.topic)
        r.topic = parts + head_bytes
        r.at = parts
        parts += head_bytes + text_bytes
        look.at += r.size
        look.count += 1


cdef bint _is_torn(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Record *r
) noexcept nogil:
    """Say whether a crash has torn the record where no CRC covers it: in topic or properties.

    A tear leaves zeros up to the end of a sector; neither text has any.
    """
    cdef Py_ssize_t record_end = at + r.size
    cdef Py_ssize_t sector_end
    if memchr(r.topic, 0, r.topic_bytes) != NULL:
        return True
    if r.properties_bytes == 0:
        return False
    sector_end = ((r.properties - data) | (SECTOR_BYTES - 1)) + 1
    while sector_end <= record_end:
        if data[sector_end - 1] == 0:
            return True
        sector_end += SECTOR_BYTES
    if data[record_end - 1] != 0:
        return False
    while record_end < min(sector_end, end):
        if data[record_end] != 0:
            return False
        record_end += 1
    return True


cdef bint _tags_hash(Record *r, int64_t *code) noexcept nogil:
    """Find Java's hash of the TAGS property, 0 without one; false if it is not ASCII."""
    cdef Py_ssize_t value_bytes = 0
    cdef Py_ssize_t i
    cdef uint32_t h = 0
    cdef const uint8_t *value = _property(r, b"TAGS", 4, &value_bytes)
    code[0] = 0
    if value != NULL:
        for i in range(value_bytes):
            if value[i] >= 0x80:
                return False
            h = 31 * h + value[i]
        code[0] = <int32_t> h
    return True


cdef int64_t _record_tags_code(Record *r) except? -1:
    """Return Java's hash of the TAGS property, 0 without one."""
    cdef Py_ssize_t value_bytes = 0
    cdef int64_t code
    cdef const uint8_t *value
    if _tags_hash(r, &code):
        return code
    value = _property(r, b"TAGS", 4, &value_bytes)
    return _tags_code(_cut(value, value_bytes).decode(errors="replace"))


def scan(view, Py_ssize_t begin, Py_ssize_t end, int64_t physical_base, Py_ssize_t count_max):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = begin
    cdef Py_ssize_t i
    cdef int stop = END
    cdef Look look
    cdef Record *r
    cdef list found = []
    cdef bytes topic = None
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        _begin_look(&look, &buffer, begin, end, physical_base)
        while at < end:
            if PyList_GET_SIZE(found) >= count_max:
                stop = COUNT
                break
            look.count_max = min(count_max - PyList_GET_SIZE(found), LOOK_MAX)
            touch(_look, &look, &buffer)
            for i in range(look.count):
                r = &look.records[i]
                topic = _topic(r, topic)
                found.append(
                    (
                        topic,
                        <int32_t> get32(r.at + 12),
                        <int64_t> get64(r.at + 20),
                        physical_base + at,
                        r.size,
                        _record_tags_code(r),
                        r.sys_flag,
                        <int64_t> get64(r.store),
                        _cut(r.properties, r.properties_bytes),
                    )
                )
                at += r.size
            stop = look.stop
            if stop != OKAY:
                break
        else:
            stop = END
    finally:
        PyBuffer_Release(&buffer)
    return found, at, _STOPS[stop]


cdef int _begin_look(
    Look *look, Py_buffer *buffer, Py_ssize_t begin, Py_ssize_t end, int64_t physical_base
) except -1:
    if not (0 <= begin <= end <= buffer.len):
        raise ValueError("begin and end lie outside the view")
    look.data = <const uint8_t *> buffer.buf
    look.at = begin
    look.end = end
    look.physical_base = physical_base
    return 0


cdef struct Run:
    # Units of one queue with consecutive queue offsets; the topic is a place in Walk.texts.
    int64_t first_offset
    int64_t next_offset
    Py_ssize_t topic_at
    Py_ssize_t topic_bytes
    uint64_t hashed
    int32_t queue_id
    bint is_timed
    uint8_t *unit  # where the next one goes when all are known


cdef struct Found:
    # The unit of one record, and which run it belongs to.
    int64_t physical
    int64_t code
    int32_t size
    int32_t run


cdef struct Late:
    # A record of which Python has to see the texts: topic and properties are a place in Walk.texts.
    int64_t physical
    int64_t ms
    Py_ssize_t text_at
    Py_ssize_t topic_bytes
    Py_ssize_t properties_bytes
    Py_ssize_t unit  # which Found needs another code, or -1
    bint is_timed
    bint is_keyed


cdef struct Name:
    const char *text
    Py_ssize_t size


cdef struct Walk:
    # What collect looks at, and what it has found.
    const uint8_t *data
    Py_ssize_t at
    Py_ssize_t end
    int64_t physical_base
    Py_ssize_t count_max
    Py_ssize_t count
    int stop
    int64_t last_ms
    bint wants_keyed
    int64_t keyed_bytes
    int64_t keyed_bytes_max
    Name *timed
    Py_ssize_t timed_count
    Run *runs
    Py_ssize_t runs_count
    Py_ssize_t runs_capacity
    # Where the newest run of a queue is, plus one: open addressing by hash; a power of two.
    int32_t *table
    Py_ssize_t table_size
    Found *found
    Py_ssize_t found_count
    Py_ssize_t found_capacity
    Late *late
    Py_ssize_t late_count
    Py_ssize_t late_capacity
    uint8_t *texts
    Py_ssize_t texts_bytes
    Py_ssize_t texts_capacity
    bint lacks_memory


cdef void _walk(void *context) noexcept nogil:
    """Take record after record; what needs Python is put aside with its texts.

    What is allocated hangs on the Walk all the time: a fault may end this anywhere.
    """
    cdef Walk *w = <Walk *> context
    cdef Record r
    while w.at < w.end:
        if w.count >= w.count_max or w.keyed_bytes > w.keyed_bytes_max:
            w.stop = COUNT
            return
        w.stop = _examine(w.data, w.at, w.end, w.physical_base, &r)
        if w.stop != OKAY:
            return
        if not _take(w, &r):
            w.lacks_memory = True
            return
        w.count += 1
        w.at += r.size
    w.stop = END


cdef inline bint _take(Walk *w, Record *r) noexcept nogil:
    """Note one record; false without memory for it."""
    cdef int64_t ms = <int64_t> get64(r.store)
    cdef bint has_unit = (r.sys_flag & 0xC) == 0 or (r.sys_flag & 0xC) == 0x8
    cdef bint is_late = False
    cdef bint is_timed = False
    cdef bint is_keyed
    cdef Py_ssize_t number
    cdef Found *found
    cdef Keys keys
    if ms > w.last_ms:
        w.last_ms = ms
    if has_unit:
        number = _run_of(w, r)
        if number < 0 or not _has_room(
            <void **> &w.found, &w.found_capacity, w.found_count + 1, sizeof(Found)
        ):
            return False
        found = &w.found[w.found_count]
        found.physical = w.physical_base + w.at
        found.size = <int32_t> r.size
        found.run = <int32_t> number
        is_timed = w.runs[number].is_timed
        is_late = not _tags_hash(r, &found.code) or is_timed
        w.found_count += 1
    is_keyed = (
        w.wants_keyed and r.sys_flag & 0xC != 0xC
        and find_keys(r.properties, r.properties_bytes, &keys)
    )
    if is_keyed:
        w.keyed_bytes += r.topic_bytes + r.properties_bytes
    if not is_late and not is_keyed:
        return True
    return _put_aside(w, r, ms, w.found_count - 1 if is_late else -1, is_timed, is_keyed)


cdef bint _put_aside(
    Walk *w, Record *r, int64_t ms, Py_ssize_t unit, bint is_timed, bint is_keyed
) noexcept nogil:
    cdef Late *late
    cdef Py_ssize_t text_at
    if not _has_room(<void **> &w.late, &w.late_capacity, w.late_count + 1, sizeof(Late)):
        return False
    text_at = _keep(w, r.topic, r.topic_bytes)
    if text_at < 0 or _keep(w, r.properties, r.properties_bytes) < 0:
        return False
    late = &w.late[w.late_count]
    late.physical = w.physical_base + w.at
    late.ms = ms
    late.text_at = text_at
    late.topic_bytes = r.topic_bytes
    late.properties_bytes = r.properties_bytes
    late.unit = unit
    late.is_timed = is_timed
    late.is_keyed = is_keyed
    w.late_count += 1
    return True


cdef Py_ssize_t _run_of(Walk *w, Record *r) noexcept nogil:
    """Return which run the record's unit is the next of, a new one if none is; -1 for no memory."""
    cdef int64_t queue_offset = <int64_t> get64(r.at + 20)
    cdef uint64_t hashed = _queue_hash(r)
    cdef Py_ssize_t slot
    cdef Run *run
    if 2 * w.runs_count >= w.table_size and not _grow_table(w):
        return -1
    slot = hashed & (w.table_size - 1)
    while w.table[slot]:
        run = &w.runs[w.table[slot] - 1]
        if (
            run.hashed == hashed and run.topic_bytes == r.topic_bytes
            and run.queue_id == <int32_t> get32(r.at + 12)
            and memcmp(w.texts + run.topic_at, r.topic, r.topic_bytes) == 0
        ):
            if run.next_offset == queue_offset:
                run.next_offset = _behind(queue_offset)
                return w.table[slot] - 1
            break
        slot = (slot + 1) & (w.table_size - 1)
    if not _begin_run(w, r, hashed, queue_offset):
        return -1
    w.table[slot] = <int32_t> w.runs_count
    return w.runs_count - 1


cdef bint _begin_run(
    Walk *w, Record *r, uint64_t hashed, int64_t queue_offset
) noexcept nogil:
    cdef Py_ssize_t i
    cdef Run *run
    if w.runs_count >= RUNS_MAX or not _has_room(
        <void **> &w.runs, &w.runs_capacity, w.runs_count + 1, sizeof(Run)
    ):
        return False
    run = &w.runs[w.runs_count]
    run.topic_at = _keep(w, r.topic, r.topic_bytes)
    if run.topic_at < 0:
        return False
    run.topic_bytes = r.topic_bytes
    run.hashed = hashed
    run.queue_id = <int32_t> get32(r.at + 12)
    run.first_offset = queue_offset
    run.next_offset = _behind(queue_offset)
    run.is_timed = False
    for i in range(w.timed_count):
        if w.timed[i].size == r.topic_bytes and memcmp(
            w.timed[i].text, w.texts + run.topic_at, r.topic_bytes
        ) == 0:
            run.is_timed = True
    w.runs_count += 1
    return True


cdef bint _grow_table(Walk *w) noexcept nogil:
    """Make the table large enough for one run more than there are; each queue's newest counts."""
    cdef Py_ssize_t size = w.table_size * 2 if w.table_size else TABLE_MIN
    cdef int32_t *table = <int32_t *> calloc(size, sizeof(int32_t))
    cdef Py_ssize_t i, slot
    if table == NULL:
        return False
    for i in range(w.table_size):
        if w.table[i]:
            slot = w.runs[w.table[i] - 1].hashed & (size - 1)
            while table[slot]:
                slot = (slot + 1) & (size - 1)
            table[slot] = w.table[i]
    free(w.table)
    w.table = table
    w.table_size = size
    return True


cdef inline bint _has_room(
    void **array, Py_ssize_t *capacity, Py_ssize_t wanted, size_t item_bytes
) noexcept nogil:
    """Have room for so many items in an array; false without memory for it."""
    cdef Py_ssize_t larger
    cdef void *grown
    if wanted <= capacity[0]:
        return True
    larger = 2 * capacity[0] if capacity[0] else ITEMS_MIN
    if larger < wanted:
        larger = wanted
    grown = realloc(array[0], larger * item_bytes)
    if grown == NULL:
        return False
    array[0] = grown
    capacity[0] = larger
    return True


cdef inline Py_ssize_t _keep(Walk *w, const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Copy a text out of the record and return its place in ``texts``; -1 without memory for it."""
    cdef Py_ssize_t at = w.texts_bytes
    if not _has_room(<void **> &w.texts, &w.texts_capacity, at + size, 1):
        return -1
    memcpy(w.texts + at, text, size)
    w.texts_bytes += size
    return at


cdef inline int64_t _behind(int64_t queue_offset) noexcept nogil:
    """Return the next queue offset: for the last there can be, one that no record has."""
    return <int64_t> (<uint64_t> queue_offset + 1)


cdef inline uint64_t _queue_hash(Record *r) noexcept nogil:
    """Return a hash of the record's queue; names made to have one hash need to know the seed."""
    cdef uint64_t h = (_seed ^ get32(r.at + 12)) * HASH_FACTOR
    cdef const uint8_t *p = r.topic
    cdef Py_ssize_t left = r.topic_bytes
    while left >= 8:
        h = (h ^ get64(p)) * HASH_FACTOR
        h ^= h >> 32
        p += 8
        left -= 8
    while left > 0:
        h = (h ^ p[0]) * HASH_FACTOR
        p += 1
        left -= 1
    return h ^ h >> 32


def collect(
    view, Py_ssize_t begin, Py_ssize_t end, int64_t physical_base, Py_ssize_t count_max,
    tuple timed_topics not None, due_time, list keyed=None, int64_t keyed_bytes_max=1 << 26,
):
    cdef Py_buffer buffer
    cdef Walk w
    cdef Name *timed = NULL
    cdef int result = 0
    for item in timed_topics:
        if not isinstance(item, bytes):
            raise TypeError("a topic is bytes")
    if keyed_bytes_max < 0:
        raise ValueError("keyed_bytes_max is negative")
    memset(&w, 0, sizeof(Walk))
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= end <= buffer.len):
            raise ValueError("begin and end lie outside the view")
        w.data = <const uint8_t *> buffer.buf
        w.at = begin
        w.end = end
        w.physical_base = physical_base
        w.count_max = count_max
        w.wants_keyed = keyed is not None
        w.keyed_bytes_max = keyed_bytes_max
        timed = <Name *> PyMem_Malloc((PyTuple_GET_SIZE(timed_topics) + 1) * sizeof(Name))
        if timed == NULL:
            raise MemoryError
        w.timed = timed
        for item in timed_topics:
            w.timed[w.timed_count].text = PyBytes_AS_STRING(<bytes> item)
            w.timed[w.timed_count].size = PyBytes_GET_SIZE(<bytes> item)
            w.timed_count += 1
        with nogil:
            result = guarded(_walk, &w, buffer.buf, buffer.len)
        if result < 0:
            raise_fault()
        if w.lacks_memory:
            raise MemoryError
        _see_late(&w, due_time, keyed)
        return _unit_runs(&w), w.at, _STOPS[w.stop], w.count, w.last_ms
    finally:
        PyBuffer_Release(&buffer)
        PyMem_Free(timed)
        free(w.runs)
        free(w.table)
        free(w.found)
        free(w.late)
        free(w.texts)


cdef int _see_late(Walk *w, due_time, list keyed) except -1:
    """Hand over the keys, and find the codes that Python has to find."""
    cdef Py_ssize_t i
    cdef Late *late
    cdef Record r
    cdef bytes properties
    for i in range(w.late_count):
        late = &w.late[i]
        r.properties = w.texts + late.text_at + late.topic_bytes
        r.properties_bytes = late.properties_bytes
        properties = _cut(r.properties, r.properties_bytes)
        if late.is_keyed:
            topic = _cut(w.texts + late.text_at, late.topic_bytes)
            keyed.append((late.physical, late.ms, topic, properties))
        if late.unit >= 0:
            w.found[late.unit].code = _record_tags_code(&r)
        if late.is_timed:
            code = due_time(properties, late.ms)
            if code:
                w.found[late.unit].code = code
    return 0


cdef list _unit_runs(Walk *w):
    """Return the runs with their units, in the order in which they begin in the log."""
    cdef Py_ssize_t i
    cdef Run *run
    cdef Found *found
    cdef bytes units
    cdef list runs = []
    for i in range(w.runs_count):
        run = &w.runs[i]
        units = PyBytes_FromStringAndSize(
            NULL, <Py_ssize_t> (<uint64_t> run.next_offset - <uint64_t> run.first_offset) * UNIT
        )
        topic = _cut(w.texts + run.topic_at, run.topic_bytes)
        runs.append(UnitRun(topic, run.queue_id, run.first_offset, units))
        run.unit = <uint8_t *> PyBytes_AS_STRING(units)  # `runs` keeps it alive
    for i in range(w.found_count):
        found = &w.found[i]
        run = &w.runs[found.run]
        put64(run.unit, <uint64_t> found.physical)
        put32(run.unit + 8, <uint32_t> found.size)
        put64(run.unit + 12, <uint64_t> found.code)
        run.unit += UNIT
    return runs


cdef struct Search:
    const uint8_t *data
    Py_ssize_t begin
    Py_ssize_t stop
    Py_ssize_t end
    int64_t physical_base
    Py_ssize_t found


cdef void _search(void *context) noexcept nogil:
    cdef Search *s = <Search *> context
    cdef Py_ssize_t at = s.begin
    cdef Record r
    cdef const uint8_t *hit
    s.found = -1
    while at < s.stop:
        # 0xDA begins both magic numbers, four bytes into a record.
        hit = <const uint8_t *> memchr(s.data + at + 4, 0xDA, s.stop - at)
        if hit == NULL:
            return
        at = hit - s.data - 4
        if _examine(s.data, at, s.end, s.physical_base, &r) == OKAY:
            s.found = at
            return
        at += 1


def find_record(
    view, Py_ssize_t begin, Py_ssize_t stop, Py_ssize_t end, int64_t physical_base
):
    cdef Py_buffer buffer
    cdef Search search
    cdef int result
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= stop <= end <= buffer.len):
            raise ValueError("begin, stop and end lie outside the view")
        search.data = <const uint8_t *> buffer.buf
        search.begin = begin
        search.stop = min(stop, end - RECORD_MIN + 1)
        search.end = end
        search.physical_base = physical_base
        with nogil:
            result = guarded(_search, &search, buffer.buf, buffer.len)
        if result < 0:
            raise_fault()
        return search.found
    finally:
        PyBuffer_Release(&buffer)


cdef void _search_zeros(void *context) noexcept nogil:
    cdef Search *s = <Search *> context
    cdef Py_ssize_t end = s.end
    while end - s.begin >= 8 and get64(s.data + end - 8) == 0:
        end -= 8
    while end > s.begin and s.data[end - 1] == 0:
        end -= 1
    s.found = end


def zeros_from(view, Py_ssize_t begin, Py_ssize_t end):
    cdef Py_buffer buffer
    cdef Search search
    cdef int result
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= end <= buffer.len):
            raise ValueError("begin and end lie outside the view")
        search.data = <const uint8_t *> buffer.buf
        search.begin = begin
        search.end = end
        with nogil:
            result = guarded(_search_zeros, &search, buffer.buf, buffer.len)
        if result < 0:
            raise_fault()
        return search.found
    finally:
        PyBuffer_Release(&buffer)


cdef enum:
    GATHER_OUTSIDE = -2
    GATHER_OTHER = -3
    AHEAD = 8  # units; where records of other queues lie between, each is a wait for memory
    AHEAD_LINES = 8  # of 64 bytes; behind that the processor has seen where this goes


cdef struct Gathering:
    # Units to gather; `stop` is OKAY, what is wrong with the record at `at`, or GATHER_...
    const uint8_t *data
    Py_ssize_t size
    int64_t file_base
    const uint8_t *unit
    const uint8_t *unit_end
    bint verify
    int stop
    int64_t at
    Py_ssize_t total
    uint8_t *out


cdef void _gather_check(void *context) noexcept nogil:
    cdef Gathering *g = <Gathering *> context
    cdef const uint8_t *unit = g.unit
    cdef int64_t physical_offset
    cdef int32_t size
    cdef uint32_t magic
    cdef int64_t ahead
    cdef Record r
    g.at = 0
    g.total = 0
    while unit < g.unit_end:
        physical_offset = <int64_t> get64(unit)
        size = <int32_t> get32(unit + 8)
        g.stop = GATHER_OUTSIDE
        # Compared before it is subtracted: the difference of any two could overflow.
        if physical_offset < g.file_base:
            g.at = 0
            return
        if g.unit_end - unit > AHEAD * UNIT:
            ahead = <int64_t> get64(unit + AHEAD * UNIT)
            if g.file_base <= ahead < g.file_base + g.size:
                prefetch(g.data + (ahead - g.file_base))
        g.at = physical_offset - g.file_base
        if size < RECORD_MIN or g.at > g.size or size > g.size - g.at:
            return
        g.stop = GATHER_OTHER
        magic = get32(g.data + g.at + 4)
        if (
            <int32_t> get32(g.data + g.at) != size
            or (magic != MAGIC_V1 and magic != MAGIC_V2)
            or <int64_t> get64(g.data + g.at + 28) != physical_offset
        ):
            return
        if g.verify:
            g.stop = _parse(g.data + g.at, size, &r)
            if g.stop == OKAY and not _is_intact(&r):
                g.stop = BAD_CRC
            if g.stop != OKAY:
                return
        g.total += size
        unit += UNIT
    g.stop = OKAY


cdef void _gather_copy(void *context) noexcept nogil:
    cdef Gathering *g = <Gathering *> context
    cdef const uint8_t *unit = g.unit
    cdef uint8_t *out = g.out
    cdef const uint8_t *begin = g.data      # of the records that lie one behind the other
    cdef const uint8_t *end = g.data
    cdef const uint8_t *ahead
    cdef int32_t size, line
    while unit < g.unit_end:
        if g.data + (<int64_t> get64(unit) - g.file_base) != end:
            memcpy(out, begin, end - begin)
            out += end - begin
            begin = end = g.data + (<int64_t> get64(unit) - g.file_base)
            if g.unit_end - unit > AHEAD * UNIT:
                ahead = g.data + (<int64_t> get64(unit + AHEAD * UNIT) - g.file_base)
                size = <int32_t> get32(unit + AHEAD * UNIT + 8)
                for line in range(0, min(size, AHEAD_LINES * 64), 64):
                    prefetch(ahead + line)
        end += <int32_t> get32(unit + 8)
        unit += UNIT
    memcpy(out, begin, end - begin)


def gather(
    view, int64_t file_base, bytes units not None, Py_ssize_t begin, Py_ssize_t end,
    bint verify=False,
):
    cdef Py_buffer buffer
    cdef Gathering g
    cdef bytes out
    if not (0 <= begin <= end <= PyBytes_GET_SIZE(units) // UNIT):
        raise ValueError("begin and end lie outside the units")
    g.unit = <const uint8_t *> PyBytes_AS_STRING(units) + begin * UNIT
    g.unit_end = <const uint8_t *> PyBytes_AS_STRING(units) + end * UNIT
    g.file_base = file_base
    g.verify = verify
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        g.data = <const uint8_t *> buffer.buf
        g.size = buffer.len
        touch(_gather_check, &g, &buffer)
        if g.stop == GATHER_OUTSIDE:
            raise RecordError("a unit names bytes outside the file", offset_bytes=g.at)
        if g.stop == GATHER_OTHER:
            raise RecordError("a unit names no record", offset_bytes=g.at)
        if g.stop != OKAY:
            raise RecordError(REASONS[g.stop], offset_bytes=g.at)
        out = PyBytes_FromStringAndSize(NULL, g.total)
        g.out = <uint8_t *> PyBytes_AS_STRING(out)
        touch(_gather_copy, &g, &buffer)
        return out
    finally:
        PyBuffer_Release(&buffer)


def select_units(
    units, Py_ssize_t count_max, int64_t bytes_max, tag_codes, int64_t physical_begin
):
    cdef Py_buffer buffer
    cdef Py_ssize_t i, count
    cdef Py_ssize_t chosen = 0
    cdef Py_ssize_t removed = 0
    cdef int64_t total = 0
    cdef int32_t size
    cdef const uint8_t *unit
    cdef bytes out
    cdef char *p
    PyObject_GetBuffer(units, &buffer, PyBUF_CONTIG_RO)
    try:
        count = buffer.len // UNIT
        out = PyBytes_FromStringAndSize(
            NULL, (count if count < count_max else max(count_max, 0)) * UNIT
        )
        p = PyBytes_AS_STRING(out)
        i = 0
        while i < count:
            unit = <const uint8_t *> buffer.buf + i * UNIT
            size = <int32_t> get32(unit + 8)
            if size <= 0:
                break
            if <int64_t> get64(unit) < physical_begin or size == FILLER:
                removed += 1
                i += 1
                continue
            # Java compares the low 32 bits, as a signed number.
            if tag_codes is not None and <int32_t> get64(unit + 12) not in tag_codes:
                i += 1
                continue
            if chosen >= count_max or (chosen and total + size > bytes_max):
                break
            memcpy(p + chosen * UNIT, unit, UNIT)
            chosen += 1
            total += size
            i += 1
        return out[: chosen * UNIT], i, removed
    finally:
        PyBuffer_Release(&buffer)
