# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/append.py: decided messages to records in mapped bytes, a batch per call.

Schema: the drawing in core/records/layout.py. Mirrors: core/records/_append_py.py, answer for
answer. Preconditions: none; every message is unpacked and checked again before it is written, and
every place against the present bytes. Not checked: that a topic name is allowed
(core.store.message_store) and that times make sense.
The target may be a mapped file and is accessed in guarded bodies: a page that cannot be accessed is
OSError (EIO). The GIL is held: a batch of 100 small records takes 4 us, the reference 520
(2026-11-22, busy 2-core x86-64).
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memmove

from motelog.core.records._big_endian cimport put16, put32, put64
from motelog.core.records._crc32 cimport crc31, crc_init
from motelog.core.records._guard cimport guarded_copy, touch
from motelog.core.records._layout cimport (
    BLANK_MIN, BODY_SIZE_AT, BORN_HOST_AT, BORN_IPV6, BORN_MS_AT, CRC_AT, FLAG_AT, IPV4_BYTES,
    IPV6_BYTES, LATER_BYTES, MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PHYSICAL_AT, PREPARED_AT,
    PROPERTIES_MAX, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECONSUME_AT, STORE_IPV6, SYS_FLAG_AT, TOPIC_MAX,
    TOPIC_V1_MAX, UNIT, has_unit, put_unit, unit_physical, unit_size,
)
from motelog.core.records._prefetch cimport prefetch
from motelog.core.errors import RecordTooLargeError

crc_init()

cdef enum:
    FEW_UNITS = 8  # an idle queue keeps memory for these
    MESSAGES_AHEAD = 4  # their data is fetched from memory meanwhile
    CACHE_LINE = 64


cdef class QueueTail:
    """The place of a queue's next record, and its newest units: those not on file yet."""

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
        cdef const uint8_t *last
        cdef bint is_put = self._last_physical >= physical_end
        while self._used > 0:
            last = self._units + (self._used - 1) * UNIT
            if unit_physical(last) < physical_end:
                break
            if is_put:
                self._put_messages -= 1
                self._put_bytes -= unit_size(last)
            self._used -= 1
            self.next_offset -= 1
        if is_put:
            self._last_physical = INT64_MIN

    def reset(self, int64_t next_offset):
        self._used = 0
        self._shrink()
        self.next_offset = next_offset

    def take_put(self):
        put = self._put_messages, self._put_bytes
        self._put_messages = self._put_bytes = 0
        return put

    cdef void _shrink(self) noexcept:
        """Free the memory of a burst: the queue must not hold it for as long as it lives."""
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
        """Note a record in the reserved room."""
        put_unit(self._units + self._used * UNIT, physical_offset, size, code)
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
    if out.born_bytes != IPV4_BYTES and out.born_bytes != IPV6_BYTES:
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
    """Let the processor fetch the data that ``_unpack`` reads a little later.

    With thousands of queues, the queue of a message is not in the processor's caches.
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
    """Let the processor fetch the place of the unit of a message a little later."""
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
        BORN_HOST_AT + f.born_bytes + 8 + store_bytes + LATER_BYTES + f.body_bytes
        + (2 if f.topic_bytes > TOPIC_V1_MAX else 1) + f.topic_bytes + 2 + f.properties_bytes
    )


def measure(list messages not None, Py_ssize_t begin, Py_ssize_t body_bytes_max):
    cdef Py_ssize_t i, size
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t largest = 0
    cdef bint is_marked = False
    cdef Fields f
    if begin < 0:
        raise ValueError("begin is negative")
    for i in range(begin, PyList_GET_SIZE(messages)):
        _fetch_message(messages, i)
        is_marked |= not PyTuple_CheckExact(<object> PyList_GET_ITEM(messages, i))
        _unpack(<object> PyList_GET_ITEM(messages, i), body_bytes_max, &f)
        size = _size(&f, IPV6_BYTES)
        total += size
        if size > largest:
            largest = size
    return total, largest, is_marked


cdef struct Writing:
    # One record to write: its place, and the values that are not the message's own.
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
    put32(p + MAGIC_AT, MAGIC_V2 if f.topic_bytes > TOPIC_V1_MAX else MAGIC_V1)
    put32(p + CRC_AT, crc31(f.body, f.body_bytes))
    put32(p + QUEUE_ID_AT, <uint32_t> w.queue_id)
    put32(p + FLAG_AT, <uint32_t> f.flag)
    put64(p + QUEUE_OFFSET_AT, <uint64_t> w.queue_offset)
    put64(p + PHYSICAL_AT, <uint64_t> w.physical_offset)
    put32(p + SYS_FLAG_AT, <uint32_t> f.sys_flag)
    put64(p + BORN_MS_AT, <uint64_t> f.born_ms)
    p += BORN_HOST_AT
    memcpy(p, f.born, f.born_bytes)
    p += f.born_bytes
    put64(p, <uint64_t> w.store_ms)
    p += 8
    memcpy(p, w.store, w.store_bytes)
    p += w.store_bytes
    put32(p + RECONSUME_AT, <uint32_t> f.reconsume)
    put64(p + PREPARED_AT, <uint64_t> f.prepared)
    put32(p + BODY_SIZE_AT, <uint32_t> f.body_bytes)
    p += LATER_BYTES
    memcpy(p, f.body, f.body_bytes)
    p += f.body_bytes
    if f.topic_bytes > TOPIC_V1_MAX:
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
    cdef bint is_queued
    cdef int64_t batch_at = physical_base + position if batch_begin is None else batch_begin
    w.fields = &f
    w.store = <const uint8_t *> PyBytes_AS_STRING(store_host)
    w.store_bytes = store_bytes
    w.store_ms = store_timestamp_ms
    if store_bytes != IPV4_BYTES and store_bytes != IPV6_BYTES:
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
            if size + BLANK_MIN > limit - position:
                break
            tail = <QueueTail> f.tail
            # The hosts determine the host bits, so that no caller can make a misread record.
            f.sys_flag &= ~(BORN_IPV6 | STORE_IPV6)
            if f.born_bytes == IPV6_BYTES:
                f.sys_flag |= BORN_IPV6
            if store_bytes == IPV6_BYTES:
                f.sys_flag |= STORE_IPV6
            is_queued = has_unit(f.sys_flag)
            queue_offset = 0
            if is_queued:
                queue_offset = tail.next_offset
                tail.reserve(1)
            w.at = <uint8_t *> buffer.buf + position
            w.size = size
            w.physical_offset = physical_base + position
            w.queue_offset = queue_offset
            w.queue_id = tail.queue_id
            w.topic = PyBytes_AS_STRING(tail.topic)
            touch(_write, &w, &buffer)
            if is_queued:
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
    cdef uint8_t head[BLANK_MIN]
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= limit <= buffer.len and limit - position >= BLANK_MIN):
            raise ValueError("a blank record needs 8 bytes")
        put32(head, <uint32_t> (limit - position))
        put32(head + MAGIC_AT, MAGIC_BLANK)
        guarded_copy(<uint8_t *> buffer.buf + position, head, BLANK_MIN, &buffer)
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
        return crc31(<const uint8_t *> buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
