# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Kernel of core/records/read.py: chooses units, and copies their records out of mapped files.

Schema: the drawing in core/records/layout.py. Mirrors: core/records/_read_py.py, answer for answer.
Preconditions: none; a unit's place is compared with the present bytes before it is read or
allocated. Not checked, unless the caller requests it: the lengths inside records and the CRC of
their bodies (recovery has checked them; a reader that passes bytes to others requests it from
core.store.store_reader).
Buffers that may be mapped files are accessed in guarded bodies: an inaccessible page is
OSError (EIO). The units of select_units are in memory and need no guard. The GIL is held.
gather looks ahead, and copies neighbouring records at once. That reads 11 to 35 % more bytes a
second if records of 8 or 64 queues alternate, 0 to 21 % more if they are adjacent (2026-11-21,
busy 2-core x86-64).
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from motelog.core.records._crc32 cimport crc_init, is_intact
from motelog.core.records._guard cimport guarded_copy, touch
from motelog.core.records._layout cimport (
    BAD_CRC, FILLER, OKAY, RECORD_MIN, Record, UNIT, names_itself, parse, unit_code, unit_physical,
    unit_size,
)
from motelog.core.records._prefetch cimport prefetch
from motelog.core.errors import RecordError
from motelog.core.records.layout import REASONS

crc_init()

cdef enum:
    GATHER_OUTSIDE = -2
    GATHER_OTHER = -3
    AHEAD = 8  # units; with records of other queues between them, each is a wait for memory
    AHEAD_LINES = 8  # of 64 bytes; after that the processor has recognised the pattern


cdef struct Gathering:
    # Units to gather; `stop` is OKAY, the fault of the record at `at`, or GATHER_...
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
    cdef int64_t ahead
    cdef Record r
    g.at = 0
    g.total = 0
    while unit < g.unit_end:
        physical_offset = unit_physical(unit)
        size = unit_size(unit)
        g.stop = GATHER_OUTSIDE
        # Compared before it is subtracted: the difference of any two could overflow.
        if physical_offset < g.file_base:
            g.at = 0
            return
        if g.unit_end - unit > AHEAD * UNIT:
            ahead = unit_physical(unit + AHEAD * UNIT)
            if g.file_base <= ahead < g.file_base + g.size:
                prefetch(g.data + (ahead - g.file_base))
        g.at = physical_offset - g.file_base
        if size < RECORD_MIN or g.at > g.size or size > g.size - g.at:
            return
        g.stop = GATHER_OTHER
        if not names_itself(g.data + g.at, size, physical_offset):
            return
        if g.verify:
            g.stop = parse(g.data + g.at, size, &r)
            if g.stop == OKAY and not is_intact(&r):
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
    cdef const uint8_t *begin = g.data      # of adjacent records
    cdef const uint8_t *end = g.data
    cdef const uint8_t *ahead
    cdef int32_t size, line
    while unit < g.unit_end:
        if g.data + (unit_physical(unit) - g.file_base) != end:
            memcpy(out, begin, end - begin)
            out += end - begin
            begin = end = g.data + (unit_physical(unit) - g.file_base)
            if g.unit_end - unit > AHEAD * UNIT:
                ahead = g.data + (unit_physical(unit + AHEAD * UNIT) - g.file_base)
                size = unit_size(unit + AHEAD * UNIT)
                for line in range(0, min(size, AHEAD_LINES * 64), 64):
                    prefetch(ahead + line)
        end += unit_size(unit)
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
            size = unit_size(unit)
            if size <= 0:
                break
            if unit_physical(unit) < physical_begin or size == FILLER:
                removed += 1
                i += 1
                continue
            # Java compares the low 32 bits, as a signed number.
            if tag_codes is not None and <int32_t> unit_code(unit) not in tag_codes:
                i += 1
                continue
            if chosen >= count_max or (chosen and total + size > bytes_max):
                break
            memcpy(p + chosen * UNIT, unit, UNIT)
            chosen += 1
            total += size
            i += 1
        return out[: chosen * UNIT], i, removed, total
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
