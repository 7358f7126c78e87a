# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/scan.py: walks, checks and finds the records of a log file.

Schema: the drawing in core/records/layout.py. Mirrors: core/records/_scan_py.py, answer for answer.
Preconditions: none; each record is parsed before any part of it is read or allocated, and must be
intact and name its own place. Not checked: that a topic name is allowed and that times make sense
(core.store).
The view may be a mapped file and is accessed in guarded bodies: an inaccessible page is
OSError (EIO). The GIL is held while scan walks, not while collect, find_record and zeros_from do.
collect walks in one guarded body and keeps a table of queues of its own. It takes 0.9 of the time
of a walk with Python's dictionaries for records of 16 queues in turn, 0.65 for 100, 0.45 for 10 000
(2026-11-21, busy 2-core x86-64). It takes 0.06 us a record, scan 0.15, the reference of scan 8.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import os

from motelog.core.records._big_endian cimport get64
from motelog.core.records._crc32 cimport crc_init, is_intact
from motelog.core.records._guard cimport guarded, raise_fault, touch
from motelog.core.records._layout cimport (
    BAD_CRC, BAD_LAYOUT, COUNT, END, MAGIC_AT, MAGIC_V1, OKAY, RECORD_MIN, Record, UNIT, cut,
    has_unit, is_rolled_back, parse_in_log, put_unit, queue_id_of, queue_offset_of, store_ms_of,
    topic_of,
)
from motelog.core.records._properties cimport Keys, find_keys, find_property
from motelog.core.message import tags_code as _tags_code
from motelog.core.records._scan_py import UnitRun
from motelog.core.records.dispatch import dispatch_places as _dispatch_places
from motelog.core.records.layout import ScanStop

crc_init()

cdef enum:
    TABLE_MIN = 64  # slots of collect's table of queues; a power of two
    ITEMS_MIN = 64
    RUNS_MAX = 0x7FFFFFFF
    SECTOR_BYTES = 512  # what a disk writes as a whole
    LOOK_MAX = 32  # records examined in one guarded body
    PARTS_MAX = 33280  # at least a record without its body: 112 + 257 + 32769

cdef uint64_t HASH_FACTOR = 0x9E3779B97F4A7C15
cdef uint64_t _seed = int.from_bytes(os.urandom(8), "big")

_STOPS = tuple(ScanStop)


cdef int _examine(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int64_t physical_base, Record *r
) noexcept nogil:
    """Return OKAY if an intact record of this place is at ``at``, else the fault."""
    cdef int stop = parse_in_log(data, at, end, physical_base, r)
    if stop != OKAY:
        return stop
    if not is_intact(r):
        return BAD_CRC
    if _is_torn(data, at, end, r):
        return BAD_LAYOUT
    return OKAY


cdef struct Look:
    # The records of a view from a place on, at most count_max; then OKAY, or why the walk ended.
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
    """Examine records and copy all of them but their bodies, for use outside the guard.

    Several at a time: entering the guard costs as much as a small record. ``at`` moves after them.
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
        r.body = parts + head_bytes
        r.body_bytes = 0
        r.at = parts
        parts += head_bytes + text_bytes
        look.at += r.size
        look.count += 1


cdef bint _is_torn(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Record *r
) noexcept nogil:
    """Return whether a crash has torn the record in topic or properties, which no CRC covers.

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
    """Find Java's hash of the TAGS property, 0 without one; False if it is not ASCII."""
    cdef Py_ssize_t value_bytes = 0
    cdef Py_ssize_t i
    cdef uint32_t h = 0
    cdef const uint8_t *value = find_property(
        r.properties, r.properties_bytes, b"TAGS", 4, &value_bytes
    )
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
    value = find_property(
        r.properties, r.properties_bytes, b"TAGS", 4, &value_bytes
    )
    return _tags_code(cut(value, value_bytes).decode(errors="replace"))


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
                topic = topic_of(r, topic)
                found.append(
                    (
                        topic,
                        queue_id_of(r),
                        queue_offset_of(r),
                        physical_base + at,
                        r.size,
                        _record_tags_code(r),
                        r.sys_flag,
                        store_ms_of(r),
                        cut(r.properties, r.properties_bytes),
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
    uint8_t *unit  # the place of the next one, when all are known


cdef struct Found:
    # The unit of one record, and its run.
    int64_t physical
    int64_t code
    int32_t size
    int32_t run


cdef struct Late:
    # A record whose texts Python must see: topic and properties are a place in Walk.texts.
    int64_t physical
    int64_t ms
    Py_ssize_t text_at
    Py_ssize_t topic_bytes
    Py_ssize_t properties_bytes
    Py_ssize_t unit  # the Found that needs another code, or -1
    bint is_timed
    bint is_keyed
    bint is_dispatched


cdef struct Name:
    const char *text
    Py_ssize_t size


cdef struct Walk:
    # What collect examines, and what it has found.
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
    # The number of a queue's newest run, plus one: open addressing by hash; a power of two.
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
    """Take record after record; put aside those that need Python, with their texts.

    The Walk refers to all allocated memory at any time, because a fault may end this anywhere.
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
    """Note one record; False without memory for it."""
    cdef int64_t ms = store_ms_of(r)
    cdef bint is_late = False
    cdef bint is_timed = False
    cdef bint is_keyed, is_dispatched
    cdef Py_ssize_t number
    cdef Found *found
    cdef Keys keys
    if ms > w.last_ms:
        w.last_ms = ms
    if has_unit(r.sys_flag):
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
        find_keys(r.properties, r.properties_bytes, &keys)
        and w.wants_keyed and not is_rolled_back(r.sys_flag)
    )
    is_dispatched = keys.is_dispatched and has_unit(r.sys_flag)
    if is_keyed:
        w.keyed_bytes += r.topic_bytes + r.properties_bytes
    if not is_late and not is_keyed and not is_dispatched:
        return True
    number = w.found_count - 1 if is_late or is_dispatched else -1
    return _put_aside(w, r, ms, number, is_timed, is_keyed, is_dispatched)


cdef bint _put_aside(
    Walk *w, Record *r, int64_t ms, Py_ssize_t unit, bint is_timed, bint is_keyed,
    bint is_dispatched,
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
    late.is_dispatched = is_dispatched
    w.late_count += 1
    return True


cdef Py_ssize_t _run_of(Walk *w, Record *r) noexcept nogil:
    """Return the run that the record's unit continues, or a new one; -1 without memory."""
    cdef int64_t queue_offset = queue_offset_of(r)
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
            and run.queue_id == queue_id_of(r)
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
    run.queue_id = queue_id_of(r)
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
    """Make the table large enough for one more run; each queue's newest counts."""
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
    """Make room for so many items in an array; False without memory for it."""
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
    """Return the next queue offset; after the greatest possible one, an offset no record has."""
    return <int64_t> (<uint64_t> queue_offset + 1)


cdef inline uint64_t _queue_hash(Record *r) noexcept nogil:
    """Return a hash of the record's queue; names made to have one hash need to know the seed."""
    cdef uint64_t h = (_seed ^ <uint32_t> queue_id_of(r)) * HASH_FACTOR
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
        further = _see_late(&w, due_time, keyed)
        return _unit_runs(&w) + further, w.at, _STOPS[w.stop], w.count, w.last_ms
    finally:
        PyBuffer_Release(&buffer)
        PyMem_Free(timed)
        free(w.runs)
        free(w.table)
        free(w.found)
        free(w.late)
        free(w.texts)


cdef list _see_late(Walk *w, due_time, list keyed):
    """Hand over the keys, find the codes that Python must find, return units of further queues.
    """
    cdef Py_ssize_t i
    cdef Late *late
    cdef Found *found
    cdef Record r
    cdef bytes properties
    cdef list further = []
    cdef uint8_t unit[UNIT]
    for i in range(w.late_count):
        late = &w.late[i]
        r.properties = w.texts + late.text_at + late.topic_bytes
        r.properties_bytes = late.properties_bytes
        properties = cut(r.properties, r.properties_bytes)
        if late.is_keyed:
            topic = cut(w.texts + late.text_at, late.topic_bytes)
            keyed.append((late.physical, late.ms, topic, properties))
        if late.unit >= 0:
            w.found[late.unit].code = _record_tags_code(&r)
        if late.is_timed:
            code = due_time(properties, late.ms)
            if code:
                w.found[late.unit].code = code
        if late.is_dispatched:
            found = &w.found[late.unit]
            put_unit(unit, found.physical, found.size, found.code)
            units = cut(unit, UNIT)
            for name, offset in _dispatch_places(
                cut(w.texts + late.text_at, late.topic_bytes), properties
            ):
                further.append(UnitRun(name, 0, offset, units))
    return further


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
        topic = cut(w.texts + run.topic_at, run.topic_bytes)
        runs.append(UnitRun(topic, run.queue_id, run.first_offset, units))
        run.unit = <uint8_t *> PyBytes_AS_STRING(units)  # `runs` keeps it alive
    for i in range(w.found_count):
        found = &w.found[i]
        run = &w.runs[found.run]
        put_unit(run.unit, found.physical, found.size, found.code)
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
        # Both magic numbers begin with the same byte.
        hit = <const uint8_t *> memchr(s.data + at + MAGIC_AT, MAGIC_V1 >> 24, s.stop - at)
        if hit == NULL:
            return
        at = hit - s.data - MAGIC_AT
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
