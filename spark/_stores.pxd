# cython: boundscheck=False, wraparound=False, cdivision=True
"""The shared part of the kernels of the Spark source: memory that grows, text and its UTF-8.

Code that embeds a Store frees its ``data``.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef enum:
    # Not a value of ScanStop, with which it is returned.
    NO_MEMORY = 17

cdef struct Store:
    uint8_t* data
    size_t size
    size_t capacity
    size_t hint      # the size of the last batch

cdef struct Text:
    const uint8_t* data
    size_t size


cdef inline int reserve(Store* store, size_t extra) noexcept nogil:
    """Make room for ``extra`` bytes more; NO_MEMORY leaves the store as it was."""
    return 0 if store.capacity - store.size >= extra else grow(store, extra)


cdef inline int grow(Store* store, size_t extra) noexcept nogil:
    cdef size_t capacity
    cdef void* grown
    capacity = store.capacity * 2 if store.capacity else max(4096, store.hint)
    while capacity - store.size < extra:
        capacity *= 2
    grown = realloc(store.data, capacity)
    if grown == NULL:
        return NO_MEMORY
    store.data = <uint8_t*>grown
    store.capacity = capacity
    return 0


cdef inline int put_bytes(Store* store, const uint8_t* data, size_t size) noexcept nogil:
    if size == 0:
        return 0
    if reserve(store, size):
        return NO_MEMORY
    memcpy(store.data + store.size, data, size)
    store.size += size
    return 0


cdef inline int put_byte(Store* store, uint8_t value) noexcept nogil:
    return put_bytes(store, &value, 1)


cdef inline int put_i32(Store* store, int32_t value) noexcept nogil:
    return put_bytes(store, <const uint8_t*>&value, 4)


cdef inline int put_i64(Store* store, int64_t value) noexcept nogil:
    return put_bytes(store, <const uint8_t*>&value, 8)


cdef inline Text text_at(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Text text
    text.data = data
    text.size = <size_t>size
    return text


cdef inline size_t sequence(const uint8_t* p, size_t left, bint* valid) noexcept nogil:
    """Return the bytes of the UTF-8 sequence at p, or of the part that U+FFFD replaces."""
    cdef uint8_t first = p[0]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef size_t need
    cdef size_t i
    valid[0] = False
    if first < 0x80:
        valid[0] = True
        return 1
    if first < 0xC2 or first > 0xF4:
        return 1
    if first < 0xE0:
        need = 2
    elif first < 0xF0:
        need = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    else:
        need = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    for i in range(1, need):
        if i >= left or p[i] < low or p[i] > high:
            return i
        low = 0x80
        high = 0xBF
    valid[0] = True
    return need


cdef inline bint is_utf8(Text text) noexcept nogil:
    cdef size_t i = 0
    cdef uint64_t word
    cdef bint valid
    while i < text.size:
        if text.size - i >= 8:
            memcpy(&word, text.data + i, 8)
            if not word & 0x8080808080808080ULL:
                i += 8
                continue
        if text.data[i] < 0x80:
            i += 1
            continue
        i += sequence(text.data + i, text.size - i, &valid)
        if not valid:
            return False
    return True
