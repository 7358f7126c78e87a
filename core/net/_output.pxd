"""The queued output of one connection; inlined into the reactor kernel.

Owns: nodes, references to payloads, the system calls that send. Must not touch: connections, epoll,
turns. Invariants: ``Output.bytes`` and ``allocated`` are the sums over its nodes. The caller keeps
messages and sums below 2 GiB.

    Output.head -> Node -> Node ... <- Output.tail
                   |       `-- begin..end of the bytes after its header, with room for more
                   `-- begin..end of a Shared payload: one bytes object for any number of nodes

Sending runs without the GIL, so a payload that no node refers to any more is put into a list, which
is released when the GIL is held.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from motelog.core.net._linux cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr, send_bytes, sendmsg

cdef enum:
    VECTORS_MAX = 64
    NODE_BYTES_MIN = 224             # with its header 256 bytes, freed when sent
    NODE_BYTES_MAX = 16352

cdef enum Sent:
    SENT_ALL
    SENT_PART                        # the socket takes no more now
    SENT_NEVER                       # and never will

cdef struct Shared:
    PyObject *owner                  # the bytes object; released with the GIL only
    const uint8_t *data
    Shared *next                     # in the list of payloads without a node
    uint32_t references

cdef struct Payloads:
    Shared *unreferenced
    uint64_t bytes                   # of all payloads, each counted once

cdef struct Node:
    Node *next
    Shared *shared                   # NULL: the bytes follow this header
    uint32_t begin                   # first byte not sent yet
    uint32_t end
    uint32_t room                    # 0 if shared

cdef struct Output:
    Node *head
    Node *tail
    uint32_t bytes
    uint32_t allocated               # by its nodes


cdef inline uint8_t *append_copy(Output *output, const uint8_t *data, uint32_t size) except NULL:
    """Copy a message to the end of the queue; return where the copy is."""
    cdef Node *node = output.tail
    cdef uint8_t *copied
    cdef uint32_t room = NODE_BYTES_MIN
    if node == NULL or node.room - node.end < size or node.shared != NULL:
        if node != NULL and node.shared == NULL:
            room = min(<uint32_t>NODE_BYTES_MAX, 4 * node.room)
        room = max(room, size)
        node = <Node *>malloc(sizeof(Node) + room)
        if node == NULL:
            raise MemoryError
        node.shared = NULL
        node.begin = 0
        node.end = 0
        node.room = room
        output.allocated += sizeof(Node) + room
        append_node(output, node)
    copied = <uint8_t *>(node + 1) + node.end
    memcpy(copied, data, size)
    node.end += size
    output.bytes += size
    return copied


cdef inline int append_reference(
    Output *output, Shared *shared, uint32_t begin, uint32_t end
) except -1:
    """Queue data[begin:end] of a shared payload."""
    cdef Node *node = <Node *>malloc(sizeof(Node))
    if node == NULL:
        raise MemoryError
    node.shared = shared
    node.begin = begin
    node.end = end
    node.room = 0
    shared.references += 1
    output.allocated += sizeof(Node)
    append_node(output, node)
    output.bytes += end - begin
    return 0


cdef inline void append_node(Output *output, Node *node) noexcept nogil:
    node.next = NULL
    if output.tail == NULL:
        output.head = node
    else:
        output.tail.next = node
    output.tail = node


cdef inline Sent send_queued(Output *output, int fd, Payloads *payloads) noexcept nogil:
    """Send until the queue is empty or the socket is full; drop the sent bytes."""
    cdef iovec vectors[VECTORS_MAX]
    cdef msghdr message
    cdef Node *node
    cdef uint32_t count
    cdef size_t queued
    cdef size_t left
    cdef ssize_t sent
    memset(&message, 0, sizeof(message))
    message.msg_iov = vectors
    while output.head != NULL:
        count = 0
        queued = 0
        node = output.head
        while node != NULL and count < VECTORS_MAX:
            if node.shared != NULL:
                vectors[count].iov_base = <void *>(node.shared.data + node.begin)
            else:
                vectors[count].iov_base = <uint8_t *>(node + 1) + node.begin
            vectors[count].iov_len = node.end - node.begin
            queued += node.end - node.begin
            count += 1
            node = node.next
        if count == 1:                   # the usual case, and cheaper
            sent = send_bytes(fd, vectors[0].iov_base, queued, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            message.msg_iovlen = count
            sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno == EINTR:
                continue
            return SENT_PART if errno == EAGAIN else SENT_NEVER
        output.bytes -= <uint32_t>sent
        left = <size_t>sent
        while output.head != NULL and left >= output.head.end - output.head.begin:
            left -= output.head.end - output.head.begin
            drop_first(output, payloads)
        if left:
            output.head.begin += <uint32_t>left
        if <size_t>sent < queued:
            return SENT_PART
    return SENT_ALL


cdef inline bytes take_queued(Output *output, uint32_t bytes_max, Payloads *payloads):
    """Remove the first bytes from the queue, at most so many, and return them."""
    cdef uint32_t wanted = min(output.bytes, bytes_max)
    cdef bytes taken = PyBytes_FromStringAndSize(NULL, wanted)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(taken)
    cdef Node *node
    cdef const uint8_t *data
    cdef uint32_t part
    while wanted or (output.head != NULL and output.head.begin == output.head.end):
        node = output.head
        data = node.shared.data if node.shared != NULL else <const uint8_t *>(node + 1)
        part = min(wanted, node.end - node.begin)
        memcpy(to, data + node.begin, part)
        to += part
        wanted -= part
        output.bytes -= part
        node.begin += part
        if node.begin == node.end:
            drop_first(output, payloads)
    return taken


cdef inline void drop_first(Output *output, Payloads *payloads) noexcept nogil:
    cdef Node *node = output.head
    output.head = node.next
    if output.head == NULL:
        output.tail = NULL
    if node.shared != NULL:
        unshare(node.shared, payloads)
    output.allocated -= sizeof(Node) + node.room
    free(node)


cdef inline void drop_queued(Output *output, Payloads *payloads) noexcept nogil:
    while output.head != NULL:
        drop_first(output, payloads)
    output.bytes = 0


cdef inline Shared *share(bytes data, Payloads *payloads) except NULL:
    """Return a payload that nodes may refer to; the caller holds one reference."""
    cdef Shared *shared = <Shared *>malloc(sizeof(Shared))
    if shared == NULL:
        raise MemoryError
    Py_INCREF(data)
    shared.owner = <PyObject *>data
    shared.data = <const uint8_t *>PyBytes_AS_STRING(data)
    shared.references = 1
    shared.next = NULL
    payloads.bytes += <uint64_t>len(data)
    return shared


cdef inline void unshare(Shared *shared, Payloads *payloads) noexcept nogil:
    shared.references -= 1
    if shared.references == 0:
        shared.next = payloads.unreferenced
        payloads.unreferenced = shared


cdef inline void release_payloads(Payloads *payloads) noexcept:
    cdef Shared *shared
    while payloads.unreferenced != NULL:
        shared = payloads.unreferenced
        payloads.unreferenced = shared.next
        payloads.bytes -= <uint64_t>PyBytes_GET_SIZE(<object>shared.owner)
        Py_DECREF(<object>shared.owner)
        free(shared)


cdef inline void put_before(Output *output, Output *first) noexcept nogil:
    """Move the queue of ``first`` before this one; ``first`` is left empty."""
    if first.head == NULL:
        return
    first.tail.next = output.head
    output.head = first.head
    if output.tail == NULL:
        output.tail = first.tail
    output.bytes += first.bytes
    output.allocated += first.allocated
    memset(first, 0, sizeof(Output))
