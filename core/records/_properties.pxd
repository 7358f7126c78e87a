"""Values in the text of a message's properties, for the kernels that need some of them."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

cdef struct Keys:
    const uint8_t *unique
    Py_ssize_t unique_bytes
    const uint8_t *words
    Py_ssize_t words_bytes
    bint is_dispatched


cdef inline bint find_keys(const uint8_t *text, Py_ssize_t size, Keys *keys) noexcept nogil:
    """Find the values of UNIQ_KEY and KEYS; return whether there is one.

    The last that is not empty counts, as in Java's map. ``is_dispatched``: the record names its
    places in further queues (core/records/dispatch.py).
    """
    cdef const uint8_t *end = text + size
    cdef const uint8_t *stop
    keys.unique = keys.words = NULL
    keys.unique_bytes = keys.words_bytes = 0
    keys.is_dispatched = False
    while text < end:
        stop = <const uint8_t *> memchr(text, 2, end - text)
        if stop == NULL:
            stop = end
        size = stop - text
        # Nearly every property ends here, on its first byte.
        if size > 5 and text[0] == c"K" and memcmp(text, b"KEYS\x01", 5) == 0:
            keys.words = text + 5
            keys.words_bytes = size - 5
        elif size > 9 and text[0] == c"U" and memcmp(text, b"UNIQ_KEY\x01", 9) == 0:
            keys.unique = text + 9
            keys.unique_bytes = size - 9
        elif (
            size > 25 and text[0] == c"I"
            and memcmp(text, b"INNER_MULTI_QUEUE_OFFSET\x01", 25) == 0
        ):
            keys.is_dispatched = True
        text = stop + 1
    return keys.unique_bytes > 0 or keys.words_bytes > 0


cdef inline const uint8_t *find_property(
    const uint8_t *text, Py_ssize_t size, const uint8_t *name, Py_ssize_t name_bytes,
    Py_ssize_t *value_bytes,
) noexcept nogil:
    """Return where the last value of ``name`` that is not empty begins, or NULL."""
    cdef const uint8_t *end = text + size
    cdef const uint8_t *stop
    cdef const uint8_t *found = NULL
    while text < end:
        stop = <const uint8_t *> memchr(text, 2, end - text)
        if stop == NULL:
            stop = end
        # The name holds no U+0001, so the first one in the item is the one after it.
        if (
            stop - text > name_bytes + 1
            and text[name_bytes] == 1
            and memcmp(text, name, name_bytes) == 0
        ):
            found = text + name_bytes + 1
            value_bytes[0] = stop - found
        text = stop + 1
    return found
