# cython: language_level=3
# Access to mapped files that survives an inaccessible page: for kernels to cimport.
#
# If a file is cut, or the disk fails while a page is read, the access causes a SIGBUS, which ends a
# process. guarded() makes it a value. Owns: this process's handler for SIGBUS; each kernel that
# cimports this installs its own handler before the previous one, and passes on the faults that are
# not its own. Must not touch: Python, except for the OSError of touch(). A
# guarded body is C that holds nothing that must be released: a fault may jump out of any line.

from libc.errno cimport EIO
from libc.string cimport memcpy

ctypedef void (*guarded_body)(void *context) noexcept nogil

cdef extern from *:
    """
    #include <pthread.h>
    #include <setjmp.h>
    #include <signal.h>
    #include <stddef.h>
    #include <stdint.h>

    /* Some processors report the page of a fault, not its address; none has larger pages. */
    #define MAP_GUARD_PAGE ((uintptr_t) 65536)

    struct map_guard {
        sigjmp_buf jump;
        uintptr_t begin, end;
    };

    static __thread struct map_guard *map_guard_armed;
    static struct sigaction map_guard_before;
    static pthread_once_t map_guard_once = PTHREAD_ONCE_INIT;

    static void map_guard_fault(int number, siginfo_t *info, void *context)
    {
        struct map_guard *guard = map_guard_armed;
        uintptr_t at = (uintptr_t) info->si_addr;
        if (info->si_code > 0 && guard != NULL && at >= guard->begin && at < guard->end) {
            map_guard_armed = NULL;
            siglongjmp(guard->jump, 1);
        }
        if (map_guard_before.sa_flags & SA_SIGINFO) {
            map_guard_before.sa_sigaction(number, info, context);
        } else if (map_guard_before.sa_handler != SIG_DFL
                   && map_guard_before.sa_handler != SIG_IGN) {
            map_guard_before.sa_handler(number);
        } else {
            /* On return the access is repeated. Then it ends the process, as it should. */
            signal(number, SIG_DFL);
            if (info->si_code <= 0) raise(number);
        }
    }

    static void map_guard_install(void)
    {
        struct sigaction action;
        action.sa_sigaction = map_guard_fault;
        sigemptyset(&action.sa_mask);
        /* Not deferred: the handler is left by a jump that does not restore a signal mask. */
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        sigaction(SIGBUS, &action, &map_guard_before);
    }

    /* Run body(context); 0, or -1 if a page of [begin, begin + size) is inaccessible. */
    static int guarded(void (*body)(void *), void *context, const void *begin, size_t size)
    {
        struct map_guard guard;
        pthread_once(&map_guard_once, map_guard_install);
        guard.begin = (uintptr_t) begin & ~(MAP_GUARD_PAGE - 1);
        guard.end = (uintptr_t) begin + size;
        if (sigsetjmp(guard.jump, 0)) return -1;
        map_guard_armed = &guard;
        body(context);
        map_guard_armed = NULL;
        return 0;
    }
    """
    int guarded(
        guarded_body body, void *context, const void *begin, size_t size
    ) noexcept nogil


cdef inline int touch(guarded_body body, void *context, Py_buffer *buffer) except -1:
    """Run a body that accesses the buffer; OSError if one of its pages is inaccessible."""
    if guarded(body, context, buffer.buf, buffer.len) < 0:
        raise_fault()
    return 0


cdef inline int raise_fault() except -1:
    raise OSError(EIO, "a page of a mapped file is not there or cannot be read")


cdef struct Copying:
    void *target
    const void *source
    size_t size


cdef inline void copying_body(void *context) noexcept nogil:
    cdef Copying *c = <Copying *> context
    memcpy(c.target, c.source, c.size)


cdef inline int guarded_copy(
    void *target, const void *source, size_t size, Py_buffer *buffer
) except -1:
    """Copy into or out of the buffer; OSError if one of its pages is inaccessible."""
    cdef Copying copying
    copying.target = target
    copying.source = source
    copying.size = size
    return touch(copying_body, &copying, buffer)
