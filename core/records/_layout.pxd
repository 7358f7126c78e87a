# cython: language_level=3
"""The layout of records and ConsumeQueue units: one parser for all kernels that read them.

The drawing is in core/records/layout.py, whose functions of the same names give the same answers.
Owns: where each field is, the limits of its length, which bytes are a record.
Must not touch: Python, except in the two functions that cut bytes out; the map guard (a caller
that parses a mapped file does so in a guarded body).
Invariants: parse reads nothing beyond the bytes that its caller names. After OKAY every
pointer and length of the Record is inside its ``size`` bytes. Functions that take a Record rely on
that and check nothing again. No function holds the GIL or allocates.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from motelog.core.records._big_endian cimport get16, get32, get64, put32, put64

cdef extern from *:
    """
    #define MAGIC_V1 0xDAA320A7u
    #define MAGIC_V2 0xDAA320ABu
    #define MAGIC_BLANK 0xCBD43194u
    """
    const uint32_t MAGIC_V1
    const uint32_t MAGIC_V2
    const uint32_t MAGIC_BLANK

cdef enum:
    RECORD_MIN = 92  # with a topic of one byte
    BLANK_MIN = 8
    TOPIC_V1_MAX = 127
    TOPIC_MAX = 255
    PROPERTIES_MAX = 32767
    IPV4_BYTES = 8  # a host: address and port
    IPV6_BYTES = 20
    BORN_IPV6 = 0x10  # in sysFlag
    STORE_IPV6 = 0x20
    TRANSACTION = 0xC
    COMMIT = 0x8
    ROLLBACK = 0xC
    # The fields with a fixed place: all are below RECORD_MIN.
    MAGIC_AT = 4
    CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_AT = 28
    SYS_FLAG_AT = 36
    BORN_MS_AT = 40
    BORN_HOST_AT = 48
    # After the hosts: 16 bytes before the body.
    RECONSUME_AT = 0
    PREPARED_AT = 4
    BODY_SIZE_AT = 12
    LATER_BYTES = 16
    # A ConsumeQueue unit.
    UNIT = 20
    UNIT_SIZE_AT = 8
    UNIT_CODE_AT = 12
    FILLER = 0x7FFFFFFF  # size of a unit that names no record
    # The values of ScanStop; OKAY is the answer for a whole record.
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


cdef struct Record:
    # The parts of a parsed record: pointers into the buffer from which it was parsed.
    const uint8_t *at
    const uint8_t *store  # the store timestamp, and the store host after it
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


cdef inline int parse(const uint8_t *at, Py_ssize_t there, Record *r) noexcept nogil:
    """Check the layout of the record at ``at``; ``there`` bytes may be read."""
    cdef Py_ssize_t p, head
    cdef int32_t size
    cdef uint32_t magic
    if there < RECORD_MIN:
        return BAD_SIZE
    size = <int32_t> get32(at)
    if size < RECORD_MIN or size > there:
        return BAD_SIZE
    magic = get32(at + MAGIC_AT)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    if <int32_t> get32(at + QUEUE_ID_AT) < 0 or <int64_t> get64(at + QUEUE_OFFSET_AT) < 0:
        return BAD_LAYOUT
    head = 2 if magic == MAGIC_V2 else 1
    r.at = at
    r.size = size
    r.sys_flag = <int32_t> get32(at + SYS_FLAG_AT)
    r.born_bytes = IPV6_BYTES if r.sys_flag & BORN_IPV6 else IPV4_BYTES
    r.store_bytes = IPV6_BYTES if r.sys_flag & STORE_IPV6 else IPV4_BYTES
    p = BORN_HOST_AT + r.born_bytes
    r.store = at + p
    p += 8 + r.store_bytes
    if p + LATER_BYTES + head + 2 > size:
        return BAD_LAYOUT
    r.body_bytes = <int32_t> get32(at + p + BODY_SIZE_AT)
    p += LATER_BYTES
    if r.body_bytes < 0 or r.body_bytes > size - p - head - 2:
        return BAD_LAYOUT
    r.body = at + p
    p += r.body_bytes
    r.topic_bytes = get16(at + p) if head == 2 else at[p]
    p += head
    # One byte is signed in Java: longer topics need the second version of the record.
    if r.topic_bytes < 1 or r.topic_bytes > (TOPIC_MAX if head == 2 else TOPIC_V1_MAX):
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


cdef inline int parse_in_log(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int64_t physical_base, Record *r
) noexcept nogil:
    """Return what is at ``at`` of a log file: OKAY for a record that names this place.

``end`` is the file's end, which a blank record must reach. No CRC is computed.
    """
    cdef int stop
    if end - at < BLANK_MIN:
        return BAD_SIZE
    if get64(data + at) == 0:
        return EMPTY
    if get32(data + at + MAGIC_AT) == MAGIC_BLANK:
        return BLANK if <Py_ssize_t> get32(data + at) == end - at else BAD_SIZE
    stop = parse(data + at, end - at, r)
    if stop == OKAY and physical_offset_of(r) != physical_base + at:
        return BAD_OFFSET
    return stop


cdef inline bint names_itself(
    const uint8_t *at, int32_t size, int64_t physical_offset
) noexcept nogil:
    """Return whether a record of this size and place begins here; RECORD_MIN bytes may be read."""
    cdef uint32_t magic = get32(at + MAGIC_AT)
    return (
        <int32_t> get32(at) == size
        and (magic == MAGIC_V1 or magic == MAGIC_V2)
        and <int64_t> get64(at + PHYSICAL_AT) == physical_offset
    )


cdef inline uint32_t body_crc_of(const Record *r) noexcept nogil:
    return get32(r.at + CRC_AT)


cdef inline int32_t queue_id_of(const Record *r) noexcept nogil:
    return <int32_t> get32(r.at + QUEUE_ID_AT)


cdef inline int32_t flag_of(const Record *r) noexcept nogil:
    return <int32_t> get32(r.at + FLAG_AT)


cdef inline int64_t queue_offset_of(const Record *r) noexcept nogil:
    return <int64_t> get64(r.at + QUEUE_OFFSET_AT)


cdef inline int64_t physical_offset_of(const Record *r) noexcept nogil:
    return <int64_t> get64(r.at + PHYSICAL_AT)


cdef inline int64_t born_ms_of(const Record *r) noexcept nogil:
    return <int64_t> get64(r.at + BORN_MS_AT)


cdef inline const uint8_t *born_host_of(const Record *r) noexcept nogil:
    return r.at + BORN_HOST_AT


cdef inline int64_t store_ms_of(const Record *r) noexcept nogil:
    return <int64_t> get64(r.store)


cdef inline const uint8_t *store_host_of(const Record *r) noexcept nogil:
    return r.store + 8


cdef inline int32_t reconsume_times_of(const Record *r) noexcept nogil:
    return <int32_t> get32(r.body - LATER_BYTES + RECONSUME_AT)


cdef inline int64_t prepared_offset_of(const Record *r) noexcept nogil:
    return <int64_t> get64(r.body - LATER_BYTES + PREPARED_AT)


cdef inline bint has_unit(int32_t sys_flag) noexcept nogil:
    """Prepared (0x4) and rolled-back (0xC) records have no place in a queue."""
    return (sys_flag & TRANSACTION) == 0 or (sys_flag & TRANSACTION) == COMMIT


cdef inline bint is_rolled_back(int64_t sys_flag) noexcept nogil:
    return (sys_flag & TRANSACTION) == ROLLBACK


cdef inline bytes cut(const uint8_t *p, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> p, size)


cdef inline bytes topic_of(const Record *r, bytes last):
    """Return the topic, shared with the previous record if it is the same."""
    if (
        last is not None
        and PyBytes_GET_SIZE(last) == r.topic_bytes
        and memcmp(PyBytes_AS_STRING(last), r.topic, r.topic_bytes) == 0
    ):
        return last
    return cut(r.topic, r.topic_bytes)


cdef inline void put_unit(
    uint8_t *unit, int64_t physical_offset, int32_t size, int64_t code
) noexcept nogil:
    put64(unit, <uint64_t> physical_offset)
    put32(unit + UNIT_SIZE_AT, <uint32_t> size)
    put64(unit + UNIT_CODE_AT, <uint64_t> code)


cdef inline int64_t unit_physical(const uint8_t *unit) noexcept nogil:
    return <int64_t> get64(unit)


cdef inline int32_t unit_size(const uint8_t *unit) noexcept nogil:
    return <int32_t> get32(unit + UNIT_SIZE_AT)


cdef inline int64_t unit_code(const uint8_t *unit) noexcept nogil:
    return <int64_t> get64(unit + UNIT_CODE_AT)
