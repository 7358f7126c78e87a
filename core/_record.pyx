# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/record.py: RocketMQ records in and out of mapped bytes, a batch per call.

Schema: the drawing in core/record.py. Mirrors: core/_record_py.py, answer for answer.
Preconditions: none; every length is checked against the bytes that are there before anything is
read or allocated, and every message is unpacked and checked again before it is written. What is not
checked: that a topic name is allowed (core.store.message_store) and that times make sense.
What may be a mapped file is accessed in guarded bodies: a page that cannot be had is OSError (EIO).
Not so the arguments of decode, decode_brief, crc32_31 and select_units, which are in memory.
The GIL is held: a batch of 100 small records takes some 15 us.
Looking ahead and copying records that lie in a row at once, gather reads 11 to 35 % more bytes a
second when records of 8 or 64 queues alternate, 0 to 21 % more in a row (2026-11-21, busy 2-core
x86-64).
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from core._big_endian cimport get16, get32, get64, put16, put32, put64
from core._crc32 cimport crc_bytes, crc_init
from core._guard cimport guarded, raise_fault, touch
from core._keys cimport Keys, find_keys
from core._record_py import REASONS, ScanStop
from core.errors import RecordError, RecordTooLargeError
from core.message import tags_code as _tags_code

crc_init()

cdef enum:
    UNIT = 20
    RECORD_MIN = 92
    PROPERTIES_MAX = 32767
    TOPIC_MAX = 255
    FEW_UNITS = 8  # what a queue keeps memory for while it is idle
    CACHE = 256  # entries of collect's cache; a power of two
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

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t MAGIC_BLANK = 0xCBD43194

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

    def take_units(self):
        taken = PyBytes_FromStringAndSize(<char *> self._units, self._used * UNIT)
        self._used = 0
        self._shrink()
        return taken

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
    list placed, batch_begin=None,
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
    cdef Copying copying
    cdef uint8_t head[8]
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= limit <= buffer.len and limit - position >= 8):
            raise ValueError("a blank record needs 8 bytes")
        put32(head, <uint32_t> (limit - position))
        put32(head + 4, MAGIC_BLANK)
        copying.target = <uint8_t *> buffer.buf + position
        copying.source = head
        copying.size = 8
        touch(_copy, &copying, &buffer)
    finally:
        PyBuffer_Release(&buffer)


cdef struct Copying:
    uint8_t *target
    const uint8_t *source
    Py_ssize_t size


cdef void _copy(void *context) noexcept nogil:
    cdef Copying *c = <Copying *> context
    memcpy(c.target, c.source, c.size)


def copy_out(view, Py_ssize_t begin, Py_ssize_t end):
    cdef Py_buffer buffer
    cdef Copying copying
    cdef bytes out
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= end <= buffer.len):
            raise ValueError("begin and end lie outside the view")
        out = PyBytes_FromStringAndSize(NULL, end - begin)
        copying.target = <uint8_t *> PyBytes_AS_STRING(out)
        copying.source = <const uint8_t *> buffer.buf + begin
        copying.size = end - begin
        touch(_copy, &copying, &buffer)
        return out
    finally:
        PyBuffer_Release(&buffer)


def copy_in(target, Py_ssize_t position, bytes data not None):
    cdef Py_buffer buffer
    cdef Copying copying
    PyObject_GetBuffer(target, &buffer, PyBUF_CONTIG)
    try:
        if not (0 <= position <= buffer.len and PyBytes_GET_SIZE(data) <= buffer.len - position):
            raise ValueError("the data lies outside the target")
        copying.target = <uint8_t *> buffer.buf + position
        copying.source = <const uint8_t *> PyBytes_AS_STRING(data)
        copying.size = PyBytes_GET_SIZE(data)
        touch(_copy, &copying, &buffer)
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


cdef int64_t _record_tags_code(Record *r) except? -1:
    """Return Java's hash of the TAGS property, 0 without one."""
    cdef Py_ssize_t value_bytes = 0
    cdef Py_ssize_t i
    cdef uint32_t h = 0
    cdef const uint8_t *value = _property(r, b"TAGS", 4, &value_bytes)
    if value == NULL:
        return 0
    for i in range(value_bytes):
        if value[i] >= 0x80:
            return _tags_code(_cut(value, value_bytes).decode(errors="replace"))
        h = 31 * h + value[i]
    return <int32_t> h


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


def collect(
    view, Py_ssize_t begin, Py_ssize_t end, int64_t physical_base, Py_ssize_t count_max,
    tuple timed_topics not None, due_time, list keyed=None, int64_t keyed_bytes_max=1 << 26,
):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = begin
    cdef Py_ssize_t count = 0
    cdef int stop = END
    cdef Look look
    cdef Record *r
    cdef Py_ssize_t i
    cdef list runs = []
    cdef dict current = {}
    # Where the queue of a record was found last: borrowed from `runs`, which keeps them alive.
    cdef PyObject *cache[CACHE]
    cdef uint32_t slot
    cdef QueueTail run
    cdef int64_t queue_offset, code, ms
    cdef int64_t last_ms = 0
    cdef bytes timed
    cdef uint64_t timed_sizes = 0
    cdef int64_t keyed_bytes = 0
    cdef Keys keys
    for item in timed_topics:
        if not isinstance(item, bytes):
            raise TypeError("a topic is bytes")
        timed_sizes |= <uint64_t> 1 << (PyBytes_GET_SIZE(<bytes> item) & 63)
    if keyed_bytes_max < 0:
        raise ValueError("keyed_bytes_max is negative")
    for slot in range(CACHE):
        cache[slot] = NULL
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        _begin_look(&look, &buffer, begin, end, physical_base)
        while at < end:
            if count >= count_max or keyed_bytes > keyed_bytes_max:
                stop = COUNT
                break
            look.count_max = min(count_max - count, LOOK_MAX)
            touch(_look, &look, &buffer)
            for i in range(look.count):
                r = &look.records[i]
                count += 1
                ms = <int64_t> get64(r.store)
                if ms > last_ms:
                    last_ms = ms
                if (r.sys_flag & 0xC) == 0 or (r.sys_flag & 0xC) == 0x8:
                    code = _record_tags_code(r)
                    # Nearly no topic has the length of one of these.
                    if timed_sizes >> (r.topic_bytes & 63) & 1:
                        for timed in timed_topics:
                            if (
                                r.topic_bytes == PyBytes_GET_SIZE(timed)
                                and memcmp(r.topic, PyBytes_AS_STRING(timed), r.topic_bytes) == 0
                            ):
                                code = due_time(_cut(r.properties, r.properties_bytes), ms) or code
                    slot = _slot(r)
                    run = <QueueTail> cache[slot] if cache[slot] != NULL else None
                    if run is None or not _is_of(run, r):
                        run = current.get(
                            (_cut(r.topic, r.topic_bytes), <int32_t> get32(r.at + 12))
                        )
                    queue_offset = <int64_t> get64(r.at + 20)
                    if run is None or run.next_offset != queue_offset:
                        run = QueueTail(
                            _cut(r.topic, r.topic_bytes), <int32_t> get32(r.at + 12), queue_offset
                        )
                        current[(run.topic, run.queue_id)] = run
                        runs.append(run)
                    cache[slot] = <PyObject *> run
                    run.reserve(1)
                    run.add(physical_base + at, <int32_t> r.size, code)
                if (
                    keyed is not None
                    and find_keys(r.properties, r.properties_bytes, &keys)
                    and r.sys_flag & 0xC != 0xC
                ):
                    keyed.append(
                        (
                            physical_base + at, ms, _cut(r.topic, r.topic_bytes),
                            _cut(r.properties, r.properties_bytes),
                        )
                    )
                    keyed_bytes += r.topic_bytes + r.properties_bytes
                at += r.size
                if keyed_bytes > keyed_bytes_max:
                    break
            stop = look.stop
            if stop != OKAY and keyed_bytes <= keyed_bytes_max:
                break
        else:
            stop = END
    finally:
        PyBuffer_Release(&buffer)
    return runs, at, _STOPS[stop], count, last_ms


cdef inline uint32_t _slot(Record *r) noexcept nogil:
    """Return where in the cache the queue of a record is: a hash of both ends of its name."""
    cdef uint32_t h = get32(r.at + 12) * <uint32_t> 0x9E3779B1
    if r.topic_bytes >= 4:
        h = (h ^ get32(r.topic + r.topic_bytes - 4)) * <uint32_t> 0x85EBCA6B
    h = (h ^ r.topic[0] ^ <uint32_t> r.topic_bytes << 8) * <uint32_t> 0xC2B2AE35
    return h >> 24


cdef inline bint _is_of(QueueTail run, Record *r) noexcept:
    return (
        run.queue_id == <int32_t> get32(r.at + 12)
        and PyBytes_GET_SIZE(run.topic) == r.topic_bytes
        and memcmp(PyBytes_AS_STRING(run.topic), r.topic, r.topic_bytes) == 0
    )


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


cdef extern from *:
    """
    #define record_prefetch(at) __builtin_prefetch(at)
    """
    void prefetch "record_prefetch" (const void *at) noexcept nogil


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
