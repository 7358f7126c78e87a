"""Hints to the processor to fetch memory that is read a little later; any address is allowed."""

cdef extern from *:
    """
    #define motelog_prefetch(at) __builtin_prefetch(at)
    #define motelog_prefetch_for_write(at) __builtin_prefetch((at), 1)
    """
    void prefetch "motelog_prefetch" (const void *at) noexcept nogil
    void prefetch_for_write "motelog_prefetch_for_write" (const void *at) noexcept nogil
