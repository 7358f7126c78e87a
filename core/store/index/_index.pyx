# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/store/index/index.py: keys of records into a mapped index file, and chains out of it.

Schema: the drawing in core/store/index/index.py. Mirrors: core/store/index/_index_py.py, answer for answer.
Preconditions: none; every slot and entry number is checked against the file's limits before it is
followed, and records are parsed by core/records/_layout.pxd. Not checked: that an entry names a
record with the wanted key (core.store.index.index_service reads the record) and the CRC of records
(they were just written, or recovery has seen them).
Mapped files are accessed in guarded bodies: a page that cannot be read is OSError (EIO).
The GIL is held, except while chains are rebuilt.

Keys are taken up to KEYS_MAX at a time and then put, all in one guarded body. The processor fetches
the slot of each key, somewhere in 20 MB, while the next keys are hashed. Measured 2026-11-21,
x86_64, 2 busy processors: an append takes 90 to 130 ns more for a key, half of it for page faults;
it took 540 to 720 with a tuple and a guarded body for each key.
"""

from cpython.buffer cimport PyBUF_CONTIG, PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memset

from motelog.core.records._big_endian cimport get32, get64, put32, put64
from motelog.core.records._guard cimport guarded, guarded_copy, raise_fault, touch
from motelog.core.records._layout cimport (
    COUNT, END, OKAY, Record, is_rolled_back, parse_in_log, store_ms_of,
)
from motelog.core.records._prefetch cimport prefetch_for_write
from motelog.core.records._properties cimport Keys, find_keys
from motelog.core.records.layout import ScanStop

cdef extern from *:
    """
    #include <stdint.h>

    /* Whole seconds from begin to at, in [0, 2^31 - 1]; the difference of any two times fits. */
    static inline int32_t seconds_since(int64_t begin, int64_t at)
    {
        int64_t ms;
        if (__builtin_sub_overflow(at, begin, &ms)) return at < begin ? 0 : INT32_MAX;
        ms /= 1000;
        return ms < 0 ? 0 : ms > INT32_MAX ? INT32_MAX : (int32_t) ms;
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

    /* Go on from h with Java's hash of 8 ASCII characters, the first in the highest byte: neighbours
       are joined to lanes of 2 characters, then of 4; no lane can overflow. */
    static inline uint32_t hash_eight(uint32_t h, uint64_t w)
    {
        w = (w >> 8 & 0x00FF00FF00FF00FFu) * 31 + (w & 0x00FF00FF00FF00FFu);
        w = (w >> 16 & 0x0000FFFF0000FFFFu) * (31 * 31) + (w & 0x0000FFFF0000FFFFu);
        h = h * (31u * 31 * 31 * 31) + (uint32_t) (w >> 32);
        return h * (31u * 31 * 31 * 31) + (uint32_t) w;
    }

    /* Go on from h with one character of UTF-8, as UTF-16; what Python's errors="replace" replaces
       is one U+FFFD. Returns the place after it. */
    static const uint8_t *hash_one(uint32_t *h, const uint8_t *p, const uint8_t *end)
    {
        uint32_t c = *p++;
        uint8_t low = 0x80, high = 0xBF;
        int more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2
                 : c >= 0xF0 && c < 0xF5 ? 3 : -1;
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        if (more < 0) c = 0xFFFD;
        else if (more > 0) c &= 0x3F >> more;
        for (; more > 0; more--) {
            if (p == end || *p < low || *p > high) {
                c = 0xFFFD;
                break;
            }
            c = c << 6 | (*p++ & 0x3F);
            low = 0x80;
            high = 0xBF;
        }
        if (c >= 0x10000) {
            *h = 31 * *h + 0xD7C0 + (c >> 10);
            c = 0xDC00 | (c & 0x3FF);
        }
        *h = 31 * *h + c;
        return p;
    }
    """
    int32_t seconds_since(int64_t begin, int64_t at) nogil
    bint ends_before(int64_t begin, int64_t seconds, int64_t at) nogil
    bint begins_by(int64_t begin, int64_t seconds, int64_t at) nogil
    uint32_t hash_eight(uint32_t h, uint64_t w) nogil
    const uint8_t *hash_one(uint32_t *h, const uint8_t *p, const uint8_t *end) nogil

cdef enum:
    HEADER = 40
    SLOT = 4
    ENTRY = 20
    INT_MAX = 0x7FFFFFFF
    KEYS_MAX = 128
    AHEAD = 16  # entries; their slots are fetched from memory meanwhile

cdef tuple _STOPS = tuple(ScanStop)


def any_keyed(list messages not None):
    cdef Py_ssize_t i
    cdef object message
    cdef object properties
    cdef int64_t sys_flag
    cdef Keys keys
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
            if not is_rolled_back(sys_flag):
                return True
    return False


cdef inline uint32_t _hash(uint32_t h, const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Continue from h with Java's hash of a text."""
    cdef const uint8_t *end = p + size
    cdef uint64_t eight
    while p < end:
        if end - p >= 8:
            eight = get64(p)
            if not eight & <uint64_t> 0x8080808080808080:
                h = hash_eight(h, eight)
                p += 8
                continue
        p = hash_one(&h, p, end)
    return h


cdef int _check(Py_buffer *buffer, int64_t slots, int64_t entries) except -1:
    if not (1 <= slots <= INT_MAX and 1 <= entries <= INT_MAX):
        raise ValueError("slots and entries must lie in [1, 2147483647]")
    if buffer.len < HEADER + slots * SLOT + entries * ENTRY:
        raise ValueError("the view is shorter than its slots and entries")
    return 0


cdef struct Key:
    int64_t physical
    int64_t ms
    int64_t owner  # whose key it is: an item's number, or a record's place in the log file
    int64_t number  # among the keys of that
    int64_t slot
    int32_t hashed


cdef struct Batch:
    # Keys taken; the first `put` of them are in the file, all of them unless it is full.
    Key keys[KEYS_MAX]
    Py_ssize_t count
    Py_ssize_t put
    uint8_t *data
    int64_t slots
    int64_t entries


cdef struct Texts:
    # The position of one record's keys, and the values put with them.
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    int64_t physical
    int64_t ms
    int64_t owner


cdef inline void _take_one(
    Batch *b, Texts *t, const uint8_t *word, Py_ssize_t size, uint32_t topic_hash, int64_t number
) noexcept nogil:
    cdef Key *key = &b.keys[b.count]
    cdef uint32_t h = _hash(topic_hash, word, size)
    # The absolute value, and 0 for the one number that has none.
    if h >> 31:
        h = 0 - h
    if h > INT_MAX:
        h = 0
    key.hashed = <int32_t> h
    key.slot = h % <uint32_t> b.slots
    key.physical = t.physical
    key.ms = t.ms
    key.owner = t.owner
    key.number = number
    prefetch_for_write(b.data + HEADER + key.slot * SLOT)
    b.count += 1


cdef int64_t _take(Batch *b, Texts *t, int64_t begin) noexcept nogil:
    """Take keys from number ``begin`` on; return the first without a place, or -1."""
    cdef Keys keys
    cdef const uint8_t *word
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef uint32_t h
    cdef int64_t number = 0
    if not find_keys(t.properties, t.properties_bytes, &keys):
        return -1
    h = 31 * _hash(0, t.topic, t.topic_bytes) + c"#"
    if keys.unique_bytes:
        if begin == 0:
            if b.count == KEYS_MAX:
                return 0
            _take_one(b, t, keys.unique, keys.unique_bytes, h, 0)
        number = 1
    word = keys.words
    end = word + keys.words_bytes
    while word < end:
        stop = <const uint8_t *> memchr(word, c" ", end - word)
        if stop == NULL:
            stop = end
        if stop > word:
            if number >= begin:
                if b.count == KEYS_MAX:
                    return number
                _take_one(b, t, word, stop - word, h, number)
            number += 1
        word = stop + 1
    return -1


cdef void _put_batch(void *context) noexcept nogil:
    cdef Batch *b = <Batch *> context
    while b.put < b.count and _put_one(b.data, b.slots, b.entries, &b.keys[b.put]):
        b.put += 1


cdef inline bint _put_one(
    uint8_t *data, int64_t slots, int64_t entries, const Key *key
) noexcept nogil:
    cdef int32_t count = <int32_t> get32(data + 36)
    cdef int32_t used = <int32_t> get32(data + 32)
    cdef int32_t previous
    cdef uint8_t *slot
    cdef uint8_t *entry
    if not 1 <= count < entries:
        return False
    slot = data + HEADER + key.slot * SLOT
    entry = data + HEADER + slots * SLOT + <int64_t> count * ENTRY
    previous = <int32_t> get32(slot)
    if not 0 < previous < count:
        previous = 0
    if count == 1:
        put64(data, key.ms)
        put64(data + 16, key.physical)
    # This order makes every state in between readable: an entry that no slot names, then a slot
    # whose entry the count does not cover yet. So the header is written with each key, not with
    # each batch; it is one cache line.
    put32(entry, key.hashed)
    put64(entry + 4, key.physical)
    put32(entry + 12, seconds_since(<int64_t> get64(data), key.ms))
    put32(entry + 16, previous)
    put32(slot, count)
    put64(data + 8, key.ms)
    put64(data + 24, key.physical)
    if previous == 0 and used < INT_MAX:
        put32(data + 32, used + 1)
    put32(data + 36, count + 1)
    return True


cdef bint _flush(Batch *b, Py_buffer *buffer) except -1:
    """Put the keys that were taken; return whether there was room for all of them."""
    b.put = 0
    touch(_put_batch, b, buffer)
    if b.put < b.count:
        return False
    b.count = 0
    return True


cdef int _begin(
    Batch *b, Py_buffer *buffer, int64_t slots, int64_t entries
) except -1:
    _check(buffer, slots, entries)
    b.data = <uint8_t *> buffer.buf
    b.slots = slots
    b.entries = entries
    b.count = 0
    return 0


def put(
    view, int64_t slots, int64_t entries, list items not None, Py_ssize_t item, Py_ssize_t key
):
    cdef Py_buffer buffer
    cdef Batch batch
    cdef Texts texts
    cdef bytes topic, properties
    cdef int64_t left = key
    if item < 0 or key < 0:
        raise ValueError("item and key must not be negative")
    PyObject_GetBuffer(view, &buffer, PyBUF_CONTIG)
    try:
        _begin(&batch, &buffer, slots, entries)
        while True:
            while item < PyList_GET_SIZE(items):
                texts.physical, texts.ms, topic, properties = items[item]
                if topic is None or properties is None:
                    raise TypeError("topic and properties are bytes")
                texts.owner = item
                texts.topic = <const uint8_t *> PyBytes_AS_STRING(topic)
                texts.topic_bytes = PyBytes_GET_SIZE(topic)
                texts.properties = <const uint8_t *> PyBytes_AS_STRING(properties)
                texts.properties_bytes = PyBytes_GET_SIZE(properties)
                left = _take(&batch, &texts, left)
                if left >= 0:
                    break
                item += 1
                left = 0
            if not _flush(&batch, &buffer):
                return batch.keys[batch.put].owner, batch.keys[batch.put].number
            if item >= PyList_GET_SIZE(items):
                return item, left
    finally:
        PyBuffer_Release(&buffer)


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
            raise ValueError("a hash is in [0, 2147483647]")
        data = <const uint8_t *> buffer.buf
        guarded_copy(header, data, HEADER, &buffer)
        first_ms = <int64_t> get64(header)
        count = <int32_t> get32(header + 36)
        if count > entries - 1:
            count = entries - 1
        if number == 0:
            guarded_copy(slot, data + HEADER + hashed % slots * SLOT, SLOT, &buffer)
            number = <int32_t> get32(slot)
        # A slot may name the entry after the last one: it was written before the slot was.
        while 0 < number <= count and PyList_GET_SIZE(found) < count_max:
            guarded_copy(entry, data + HEADER + slots * SLOT + number * ENTRY, ENTRY, &buffer)
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
        if r.number + AHEAD < r.count:
            # The slot of a damaged entry may be anywhere; the hint fetches it or ignores it.
            prefetch_for_write(
                slots + <int64_t> (get32(entry + AHEAD * ENTRY) % <uint32_t> r.slots) * SLOT
            )
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


cdef struct Walk:
    # The position of the walk in a log file: a record, and the first of its keys to take.
    const uint8_t *data
    Py_ssize_t at
    Py_ssize_t end
    int64_t physical_base
    int64_t key
    Py_ssize_t taken  # how many keys of earlier records the batch has
    Py_ssize_t left
    int stop
    Batch *batch


cdef void _walk(void *context) noexcept nogil:
    """Take the keys of records until the walk stops; OKAY if there was no place for a key."""
    cdef Walk *w = <Walk *> context
    cdef Record record
    cdef Texts texts
    cdef int64_t left
    w.taken = 0
    while w.at < w.end:
        if w.left <= 0:
            w.stop = COUNT
            return
        w.stop = parse_in_log(w.data, w.at, w.end, w.physical_base, &record)
        if w.stop != OKAY:
            return
        if not is_rolled_back(record.sys_flag):
            texts.topic = record.topic
            texts.topic_bytes = record.topic_bytes
            texts.properties = record.properties
            texts.properties_bytes = record.properties_bytes
            texts.physical = w.physical_base + w.at
            texts.ms = store_ms_of(&record)
            texts.owner = w.at
            left = _take(w.batch, &texts, w.key)
            if left >= 0:
                w.key = left
                return
        w.at += record.size
        w.key = 0
        w.taken = w.batch.count
        w.left -= 1
    w.stop = END


def put_records(
    view, int64_t slots, int64_t entries, log, Py_ssize_t begin, Py_ssize_t end,
    int64_t physical_base, Py_ssize_t key, Py_ssize_t count_max,
):
    cdef Py_buffer index
    cdef Py_buffer records
    cdef Batch batch
    cdef Walk walk
    cdef bint is_gone
    if key < 0:
        raise ValueError("key must not be negative")
    PyObject_GetBuffer(view, &index, PyBUF_CONTIG)
    try:
        _begin(&batch, &index, slots, entries)
        PyObject_GetBuffer(log, &records, PyBUF_CONTIG_RO)
        try:
            if not (0 <= begin <= end <= records.len):
                raise ValueError("begin and end lie outside the log")
            walk.data = <const uint8_t *> records.buf
            walk.at = begin
            walk.end = end
            walk.physical_base = physical_base
            walk.key = key
            walk.left = count_max
            walk.stop = OKAY
            walk.batch = &batch
            while walk.stop == OKAY:
                is_gone = guarded(_walk, &walk, records.buf, records.len) < 0
                if is_gone:
                    batch.count = walk.taken
                batch.put = 0
                if guarded(_put_batch, &batch, index.buf, index.len) < 0:
                    is_gone = True
                    walk.at = batch.keys[batch.put].owner
                    walk.key = batch.keys[batch.put].number
                elif batch.put < batch.count:
                    return batch.keys[batch.put].owner, batch.keys[batch.put].number, None
                batch.count = 0
                if is_gone:
                    # The caller continues after the returned position, so no key is put twice.
                    if walk.at == begin:
                        raise_fault()
                    walk.stop = COUNT
        finally:
            PyBuffer_Release(&records)
    finally:
        PyBuffer_Release(&index)
    return walk.at, walk.key, _STOPS[walk.stop]
