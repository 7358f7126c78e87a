# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/store/index.py: keys of messages into a mapped index file, and chains out of it.

Schema: the drawing in core/store/index.py. Mirrors: core/store/_index_py.py, answer for answer.
Preconditions: none; every slot and entry number is checked against the file's limits before it is
followed, and every length of a record against the bytes that are there. What is not checked: that
an entry names a record with the wanted key (core.store.index_service reads the record) and the CRC
of records (recovery has seen them).
What is mapped is accessed in guarded bodies: a page that cannot be had is OSError (EIO).
The GIL is held, except while chains are made anew.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memset

from core._big_endian cimport get32, get64, put32, put64
from core._guard cimport guarded, raise_fault, touch
from core._keys cimport Keys, find_keys
from core._record_py import ScanStop
from core.store._index_py import key_hash as _key_hash

cdef extern from *:
    """
    #include <stdint.h>

    /* Whole seconds from begin to at, in [0, 2^31 - 1]; the difference of any two times fits. */
    static inline int32_t seconds_since(int64_t begin, int64_t at)
    {
        __int128 s = ((__int128) at - begin) / 1000;
        return s < 0 ? 0 : s > INT32_MAX ? INT32_MAX : (int32_t) s;
    }

    /* Compare begin + seconds with a time, in ms: no sum can overflow. */
    static inline int ends_before(int64_t begin, int64_t seconds, int64_t at)
    {
        return (__int128) begin + (__int128) seconds * 1000 + 999 < at;
    }

    static inline int begins_by(int64_t begin, int64_t seconds, int64_t at)
    {
        return (__int128) begin + (__int128) seconds * 1000 <= at;
    }
    """
    int32_t seconds_since(int64_t begin, int64_t at) nogil
    bint ends_before(int64_t begin, int64_t seconds, int64_t at) nogil
    bint begins_by(int64_t begin, int64_t seconds, int64_t at) nogil

cdef enum:
    HEADER = 40
    SLOT = 4
    ENTRY = 20
    INT_MAX = 0x7FFFFFFF
    RECORD_MIN = 92
    ROLLBACK = 0xC
    TEXTS_MAX = 131072  # two lengths of two bytes each
    # The values of ScanStop; OKAY is what _parse says of a whole record.
    OKAY = -1
    END = 0
    COUNT = 1
    BLANK = 2
    EMPTY = 3
    BAD_SIZE = 4
    BAD_MAGIC = 5
    BAD_LAYOUT = 6
    BAD_OFFSET = 8

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint32_t MAGIC_BLANK = 0xCBD43194
cdef tuple _STOPS = tuple(ScanStop)


def keyed(list messages not None):
    cdef Py_ssize_t i
    cdef object message
    cdef object properties
    cdef int64_t sys_flag
    cdef Keys keys
    cdef list found = []
    for i in range(PyList_GET_SIZE(messages)):
        message = messages[i]
        if not isinstance(message, tuple) or PyTuple_GET_SIZE(message) < 7:
            raise TypeError("a message is a tuple of 10")
        properties = <object> PyTuple_GET_ITEM(message, 2)
        if not isinstance(properties, bytes):
            raise TypeError("properties are bytes")
        if find_keys(
            <const uint8_t *> PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), &keys
        ):
            sys_flag = <object> PyTuple_GET_ITEM(message, 6)
            if sys_flag & ROLLBACK != ROLLBACK:
                found.append(i)
    return found


cdef int64_t _hash(bytes topic, const uint8_t *key, Py_ssize_t size) except -1:
    """Return abs(Java's hash of topic#key), 0 for the one number that has no positive one."""
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(topic)
    cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic)
    cdef uint32_t h = 0
    cdef uint8_t seen = 0
    cdef Py_ssize_t i
    for i in range(topic_bytes):
        h = 31 * h + p[i]
        seen |= p[i]
    h = 31 * h + c"#"
    for i in range(size):
        h = 31 * h + key[i]
        seen |= key[i]
    if seen & 0x80:
        return _key_hash(topic, PyBytes_FromStringAndSize(<const char *> key, size))
    if h & 0x80000000:
        h = 0 - h
    return h if h <= INT_MAX else 0


cdef int _check(Py_buffer *buffer, int64_t slots, int64_t entries) except -1:
    if not (1 <= slots <= INT_MAX and 1 <= entries <= INT_MAX):
        raise ValueError("slots and entries must lie in [1, 2147483647]")
    if buffer.len < HEADER + slots * SLOT + entries * ENTRY:
        raise ValueError("the view is shorter than its slots and entries")
    return 0


cdef struct Copying:
    void *target
    const void *source
    size_t size


cdef void _copy(void *context) noexcept nogil:
    cdef Copying *c = <Copying *> context
    memcpy(c.target, c.source, c.size)


cdef int _copy_out(
    const uint8_t *source, size_t size, void *target, Py_buffer *buffer
) except -1:
    cdef Copying copying
    copying.target = target
    copying.source = source
    copying.size = size
    return touch(_copy, &copying, buffer)


cdef struct Putting:
    # One key to put; `is_put` says whether there was room for it.
    uint8_t *data
    int64_t slots
    int64_t entries
    int64_t hashed
    int64_t physical
    int64_t ms
    bint is_put


cdef void _put_guarded(void *context) noexcept nogil:
    cdef Putting *p = <Putting *> context
    p.is_put = _put_one(p.data, p.slots, p.entries, <int32_t> p.hashed, p.physical, p.ms)


cdef bint _put_one(
    uint8_t *data, int64_t slots, int64_t entries, int32_t hashed, int64_t physical, int64_t ms
) noexcept nogil:
    cdef int32_t count = <int32_t> get32(data + 36)
    cdef int32_t used = <int32_t> get32(data + 32)
    cdef int32_t previous
    cdef uint8_t *slot
    cdef uint8_t *entry
    if not 1 <= count < entries:
        return False
    slot = data + HEADER + hashed % slots * SLOT
    entry = data + HEADER + slots * SLOT + <int64_t> count * ENTRY
    previous = <int32_t> get32(slot)
    if not 0 < previous < count:
        previous = 0
    if count == 1:
        put64(data, ms)
        put64(data + 16, physical)
    # In this order every state in between can be read: an entry that no slot names, then a slot
    # whose entry the count does not cover yet.
    put32(entry, hashed)
    put64(entry + 4, physical)
    put32(entry + 12, seconds_since(<int64_t> get64(data), ms))
    put32(entry + 16, previous)
    put32(slot, count)
    put64(data + 8, ms)
    put64(data + 24, physical)
    if previous == 0 and used < INT_MAX:
        put32(data + 32, used + 1)
    put32(data + 36, count + 1)
    return True


def put(
    view, int64_t slots, int64_t entries, list items not None, Py_ssize_t item, Py_ssize_t key
):
    cdef Py_buffer buffer
    cdef Putting putting
    cdef bytes topic, properties
    cdef Keys keys
    cdef const uint8_t *word
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef Py_ssize_t number
    if item < 0 or key < 0:
        raise ValueError("item and key must not be negative")
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG)
    try:
        _check(&buffer, slots, entries)
        putting.data = <uint8_t *> buffer.buf
        putting.slots = slots
        putting.entries = entries
        while item < PyList_GET_SIZE(items):
            putting.physical, putting.ms, topic, properties = items[item]
            if topic is None or properties is None:
                raise TypeError("topic and properties are bytes")
            find_keys(
                <const uint8_t *> PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), &keys
            )
            number = 0
            if keys.unique_bytes:
                if key == 0:
                    putting.hashed = _hash(topic, keys.unique, keys.unique_bytes)
                    touch(_put_guarded, &putting, &buffer)
                    if not putting.is_put:
                        return item, key
                    key = 1
                number = 1
            if keys.words_bytes:
                word = keys.words
                end = word + keys.words_bytes
                while word < end:
                    stop = <const uint8_t *> memchr(word, c" ", end - word)
                    if stop == NULL:
                        stop = end
                    if stop > word:
                        if number == key:
                            putting.hashed = _hash(topic, word, stop - word)
                            touch(_put_guarded, &putting, &buffer)
                            if not putting.is_put:
                                return item, key
                            key += 1
                        number += 1
                    word = stop + 1
            item += 1
            key = 0
    finally:
        PyBuffer_Release(&buffer)
    return item, key


def select(
    view, int64_t slots, int64_t entries, int64_t hashed, int64_t number, int64_t begin_ms,
    int64_t end_ms, Py_ssize_t count_max,
):
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef uint8_t header[HEADER]
    cdef uint8_t slot[SLOT]
    cdef uint8_t entry[ENTRY]
    cdef int64_t first_ms, count, previous, delta_s
    cdef list found = []
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        _check(&buffer, slots, entries)
        if not 0 <= hashed <= INT_MAX:
            raise ValueError("a hash lies in [0, 2147483647]")
        data = <const uint8_t *> buffer.buf
        _copy_out(data, HEADER, header, &buffer)
        first_ms = <int64_t> get64(header)
        count = <int32_t> get32(header + 36)
        if count > entries - 1:
            count = entries - 1
        if number == 0:
            _copy_out(data + HEADER + hashed % slots * SLOT, SLOT, slot, &buffer)
            number = <int32_t> get32(slot)
        # A slot may name the entry behind the last one: it was written before the slot was.
        while 0 < number <= count and PyList_GET_SIZE(found) < count_max:
            _copy_out(data + HEADER + slots * SLOT + number * ENTRY, ENTRY, entry, &buffer)
            delta_s = <int32_t> get32(entry + 12)
            if delta_s < INT_MAX and ends_before(first_ms, delta_s if number > 1 else 0, begin_ms):
                return found, 0
            if <int32_t> get32(entry) == hashed and (
                delta_s <= 0 or begins_by(first_ms, delta_s if number > 1 else 0, end_ms)
            ):
                found.append(<int64_t> get64(entry + 4))
            previous = <int32_t> get32(entry + 16)
            number = previous if previous < number else 0
        return found, number if 0 < number <= count else 0
    finally:
        PyBuffer_Release(&buffer)


cdef struct Relinking:
    uint8_t *data
    int64_t slots
    int64_t count
    int64_t physical_end
    int64_t number
    int64_t used


cdef void _relink(void *context) noexcept nogil:
    cdef Relinking *r = <Relinking *> context
    cdef uint8_t *slots = r.data + HEADER
    cdef uint8_t *entry
    cdef uint8_t *slot
    cdef int64_t physical
    cdef int64_t last = 0
    cdef int32_t hashed
    memset(slots, 0, r.slots * SLOT)
    r.number = 1
    r.used = 0
    while r.number < r.count:
        entry = slots + r.slots * SLOT + r.number * ENTRY
        hashed = <int32_t> get32(entry)
        physical = <int64_t> get64(entry + 4)
        if (
            hashed < 0 or <int32_t> get32(entry + 12) < 0 or physical < last
            or physical >= r.physical_end
        ):
            return
        last = physical
        slot = slots + hashed % r.slots * SLOT
        if get32(slot) == 0:
            r.used += 1
        put32(entry + 16, get32(slot))
        put32(slot, <uint32_t> r.number)
        r.number += 1


def relink(view, int64_t slots, int64_t entries, int64_t count, int64_t physical_end):
    cdef Py_buffer buffer
    cdef Relinking relinking
    cdef int result
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG)
    try:
        _check(&buffer, slots, entries)
        if not 1 <= count <= entries:
            raise ValueError("count must lie in [1, entries]")
        relinking.data = <uint8_t *> buffer.buf
        relinking.slots = slots
        relinking.count = count
        relinking.physical_end = physical_end
        with nogil:
            result = guarded(_relink, &relinking, buffer.buf, buffer.len)
        if result < 0:
            raise_fault()
        return relinking.number, relinking.used
    finally:
        PyBuffer_Release(&buffer)


cdef struct Record:
    int32_t size
    int32_t sys_flag
    int64_t store_ms
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes


cdef int _parse(const uint8_t *at, Py_ssize_t there, int64_t place, Record *r) noexcept nogil:
    cdef uint32_t magic
    cdef Py_ssize_t position
    cdef int64_t body
    if there < 8:
        return BAD_SIZE
    r.size = <int32_t> get32(at)
    magic = get32(at + 4)
    if r.size == 0 and magic == 0:
        return EMPTY
    if magic == MAGIC_BLANK:
        return BLANK
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    if r.size < RECORD_MIN or r.size > there:
        return BAD_SIZE
    if <int64_t> get64(at + 28) != place:
        return BAD_OFFSET
    r.sys_flag = <int32_t> get32(at + 36)
    position = 68 if r.sys_flag & 0x10 else 56
    # The longest fixed part, with two IPv6 hosts, has 115 bytes: checked before each step.
    if position + 8 > r.size:
        return BAD_LAYOUT
    r.store_ms = <int64_t> get64(at + position)
    position += 40 if r.sys_flag & 0x20 else 28
    if position + 4 > r.size:
        return BAD_LAYOUT
    body = get32(at + position)
    if body > r.size - position - 4:
        return BAD_LAYOUT
    position += 4 + body
    if magic == MAGIC_V2:
        if position + 2 > r.size:
            return BAD_LAYOUT
        r.topic_bytes = at[position] << 8 | at[position + 1]
        position += 2
    else:
        if position + 1 > r.size:
            return BAD_LAYOUT
        r.topic_bytes = at[position]
        position += 1
    r.topic = at + position
    position += r.topic_bytes
    if position + 2 > r.size:
        return BAD_LAYOUT
    r.properties_bytes = at[position] << 8 | at[position + 1]
    position += 2
    r.properties = at + position
    return OKAY if position + r.properties_bytes == r.size else BAD_LAYOUT


cdef struct Look:
    # What lies at a place of a log file: why the walk stops there, or OKAY and the record.
    const uint8_t *data
    Py_ssize_t at
    Py_ssize_t end
    int64_t physical_base
    uint8_t *texts
    Record record
    int stop
    bint has_keys


cdef void _look(void *context) noexcept nogil:
    """Parse a record and take along topic and properties if it has keys."""
    cdef Look *look = <Look *> context
    cdef Record *r = &look.record
    cdef Keys keys
    look.stop = _parse(
        look.data + look.at, look.end - look.at, look.physical_base + look.at, r
    )
    if look.stop != OKAY:
        return
    look.has_keys = (
        find_keys(r.properties, r.properties_bytes, &keys) and r.sys_flag & ROLLBACK != ROLLBACK
    )
    if look.has_keys:
        memcpy(look.texts, r.topic, r.topic_bytes)
        memcpy(look.texts + r.topic_bytes, r.properties, r.properties_bytes)
        r.topic = look.texts
        r.properties = look.texts + r.topic_bytes


def collect_keyed(
    view, Py_ssize_t begin, Py_ssize_t end, int64_t physical_base, Py_ssize_t count_max
):
    cdef Py_buffer buffer
    cdef Py_ssize_t at = begin
    cdef int stop = END
    cdef Look look
    cdef uint8_t texts[TEXTS_MAX]
    cdef Record *r = &look.record
    cdef list items = []
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG_RO)
    try:
        if not (0 <= begin <= end <= buffer.len):
            raise ValueError("begin and end lie outside the view")
        look.data = <const uint8_t *> buffer.buf
        look.end = end
        look.physical_base = physical_base
        look.texts = texts
        while at < end:
            if PyList_GET_SIZE(items) >= count_max:
                stop = COUNT
                break
            look.at = at
            touch(_look, &look, &buffer)
            stop = look.stop
            if stop != OKAY:
                break
            if look.has_keys:
                items.append(
                    (
                        physical_base + at,
                        r.store_ms,
                        PyBytes_FromStringAndSize(<const char *> r.topic, r.topic_bytes),
                        PyBytes_FromStringAndSize(
                            <const char *> r.properties, r.properties_bytes
                        ),
                    )
                )
            at += r.size
        else:
            stop = END
    finally:
        PyBuffer_Release(&buffer)
    return items, at, _STOPS[stop]
