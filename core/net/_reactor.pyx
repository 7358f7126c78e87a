# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The reactor kernel; its stub, ``_reactor.pyi``, says what each call means.

Owns: descriptors, connection slots, the turn's buffers, queued output, until shut_down().
Must not touch: what frames mean; policy, clocks (the second enters with poll() and sweep()),
logging.

Everything inside poll(), flush() and sweep() runs without the GIL. One thread owns a Reactor: a
call from a second one while the first is inside raises RuntimeError.

    slots   [Connection 96 B] x connections_max, zero pages until used; its id is the index
    input   a turn buffer for all whole frames of a turn; a partial tail waits in its connection's
            block and is copied in front of the next bytes, unless it is large: then the rest is
            received into that block
    output  one queue per connection (_output.pxd): bytes copied, or references to shared payloads
    codecs  of listeners that have one, and of observed connections (codec.py): [Coded 32 B] x
            connections_max beside the slots

A connection without a codec pays one test of a flag for a receive and for a send. One with a codec
takes the GIL for both.

Checked here: every id, position and length from Python; every length from a peer, against the
connection's limit and the bytes present, before memory is taken: input takes memory as bytes come
in, never as a length claims. Generations in epoll's data tell stale events from new ones.
Not checked: that a descriptor handed to listen() stays open until stop_listening().

This module is longer than others: accepting, reading, flushing and ending all change the same flags
of a connection, and a call between extensions for each message would cost what the kernel saves.
The output queues have a state of their own and are in _output.pxd.

Measured (November 2026, busy 2-core x86-64 VM, 100 connections):
server CPU per message 5.5 us with one in flight, 0.46 us with 20; in plain Python 14.5 and 9.8,
a C loop of recv and send without Python 4.6 and 0.32.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, EINPROGRESS, EINTR, EMFILE, EPROTO, EUSERS, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from motelog.core.net._linux cimport (
    AF_INET, AF_INET6, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD,
    EPOLL_CTL_DEL, EPOLL_CTL_MOD, IPPROTO_IP, IPPROTO_TCP, IP_BIND_ADDRESS_NO_PORT, SHUT_RD, SHUT_WR,
    SHUT_RDWR, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET, SO_ERROR, SO_KEEPALIVE, SO_LINGER,
    TCP_INFO, TCP_NODELAY, TIOCOUTQ, accept4, bind, close_descriptor, connect, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait, getsockopt, htons, inet_ntop, inet_pton, ioctl, linger, ntohs, recv, setsockopt, shutdown, sockaddr,
    sockaddr_in, sockaddr_in6, sockaddr_storage, socket, socklen_t, tcp_info,
)
from motelog.core.net._output cimport (
    SENT_NEVER, SENT_PART, Output, Payloads, Sent, Shared, append_copy, append_reference, drop_queued,
    put_before, release_payloads, send_queued, share, take_queued, unshare,
)

import os

from motelog.core.net import reactor_types as _types
from motelog.core.net.codec import Observed

cdef enum:
    EVENTS_ROOM = 1024
    LISTENERS_ROOM = 64
    LISTENER_MARK = 0xFFFFFFFF       # in the generation half of epoll data
    MESSAGE_BYTES_MAX = 0x7FFFFFFF
    SENT_BYTES_AT = 256              # in sent_counts, after one count for each first byte

cdef enum State:
    FREE = 0
    CONNECTING
    OPEN
    LINGERING                        # closed by Python: sends what is queued, discards input
    DEAD                             # ended, to be reported in the next turn; holds no descriptor
    RESTING                          # holds nothing; its id is not reused yet

cdef enum Flag:
    PAUSED = 1                       # by Python
    FAULTED = 2                      # its input is no longer trusted
    FULL = 4                         # above output_bytes_high; not read until it has drained
    BLOCKED = 8                      # the socket takes no more; waits for EPOLLOUT
    DIRTY = 16                       # in the list that flush() serves
    BROKEN = 32                      # sending failed; what the peer sent before is still read
    HALF_CLOSED = 64                 # our side is shut down
    INPUT_ENDED = 128                # the peer's side is shut down
    DRAINED = 256                    # noted for the next turn
    FIRST_FRAME = 512                # idle_s_max ends with the first frame
    DEFERRED = 1024                  # the bytes after its first frame are cut in the next turn
    CODED = 2048                     # it has a codec: its listener's, or one that observes it

cdef enum:
    FAULT_TOO_LARGE = 1
    FAULT_MALFORMED = 2
    FAULT_IDLE = 3
    FAULT_TRANSPORT = 4
    STREAM_PLAIN = 1
    STREAM_ENDED = 2
    STREAM_FAULTY = 3
    CLOSE_PEER = 1
    CLOSE_RESET = 2
    CLOSE_OUTPUT_FULL = 3
    CLOSE_CONNECT_FAILED = 4

cdef union Since:
    uint32_t resting_until           # of RESTING: first turn that may reuse the id
    uint32_t socket_bytes            # of FULL: what the peer had not taken at the last sweep

cdef struct Connection:
    uint8_t *rest                    # partial frame, or NULL
    Output output
    uint32_t rest_bytes
    uint32_t rest_room
    uint32_t variant
    uint32_t frame_bytes_max
    uint32_t last_frame_s            # of CONNECTING and LINGERING: when that began
    uint32_t idle_s_max
    uint32_t events                  # what epoll is asked for
    Since since
    int fd
    uint16_t generation
    uint16_t flags
    int16_t listener
    uint16_t port
    uint8_t state
    uint8_t framing
    uint8_t family                   # 0 none, 4, 6
    uint8_t address[16]

cdef struct Coded:
    PyObject *codec                  # NULL until the peer has sent something
    Output wire                      # the codec's output, and its own answers

cdef struct Listener:
    int fd                           # -1: stopped
    uint32_t connections
    uint32_t connections_max
    uint32_t frame_bytes_max
    uint32_t first_frame_s
    uint32_t resume_s
    uint8_t framing
    uint8_t paused
    uint8_t coded

cdef uint32_t TURN_BYTES = _types.TURN_BYTES
cdef uint32_t TURN_FRAMES = _types.TURN_FRAMES
cdef uint32_t RECEIVE_BYTES_MAX = _types.RECEIVE_BYTES_MAX
cdef uint32_t ACCEPTS_MAX = _types.ACCEPTS_MAX
cdef uint32_t BUSY_EVENTS = _types.BUSY_EVENTS
cdef uint32_t DIRECT_BYTES = _types.DIRECT_BYTES
cdef uint32_t COPIED_BYTES_MAX = _types.COPIED_BYTES_MAX
cdef uint32_t CODED_BYTES_MAX = _types.CODED_BYTES_MAX
cdef int32_t LINGER_S = _types.LINGER_S
cdef int32_t CONNECT_S_MAX = _types.CONNECT_S_MAX
cdef uint32_t ACCEPT_PAUSE_S = _types.ACCEPT_PAUSE_S
# Before a socket is served the turn is below its limits, so these hold whatever one receive brings;
# only a frame received in place may need more.
cdef size_t DATA_ROOM = TURN_BYTES + DIRECT_BYTES + RECEIVE_BYTES_MAX
cdef size_t INDEX_ROOM = 16 * (TURN_FRAMES + (DIRECT_BYTES + RECEIVE_BYTES_MAX) // 2 + 1)
cdef tuple FAULTS = (None, *_types.Fault)
cdef tuple REASONS = tuple(_types.CloseReason)
cdef object Framing = _types.Framing
CONNECTION_BYTES = sizeof(Connection)
cdef object EMPTY = memoryview(b"")
cdef object EMPTY_INDEX = memoryview(b"").cast("I")


cdef int64_t frame_size(uint8_t framing, const uint8_t *p, uint32_t present) noexcept nogil:
    """Return the whole size of the frame at p, 0 if that takes more bytes, -1 if malformed."""
    cdef uint32_t length = 0
    cdef uint32_t i
    if framing == 1:
        if present < 4:
            return 0
        length = <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]
        return <int64_t>length + 4 if length >= 4 else -1
    for i in range(1, 5):
        if i >= present:
            return 0
        length |= <uint32_t>(p[i] & 127) << (7 * (i - 1))
        if p[i] < 128:
            return <int64_t>length + i + 1
    return -1


cdef class Block:
    """Bytes that a turn shows to Python; not overwritten while something still refers to them."""

    cdef uint8_t *bytes
    cdef size_t room
    cdef size_t shown
    cdef int exports

    def __cinit__(self, size_t room):
        self.bytes = <uint8_t *>malloc(room)
        if self.bytes == NULL:
            raise MemoryError
        self.room = room

    def __dealloc__(self):
        free(self.bytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.bytes, <Py_ssize_t>self.shown, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    cdef bint reserve(self, size_t room) noexcept nogil:
        cdef uint8_t *grown
        if room > self.room:
            grown = <uint8_t *>realloc(self.bytes, room)
            if grown == NULL:
                return False
            self.bytes = grown
            self.room = room
        return True


cdef class Turn:
    """One batch: what arrived and what happened; its buffers are valid until the next poll()."""

    cdef readonly uint32_t frames
    cdef readonly object data
    cdef readonly object index
    cdef readonly list opened
    cdef readonly list faults
    cdef readonly list closed
    cdef readonly list drained
    cdef readonly bint more

    def __bool__(self):
        return bool(self.frames or self.opened or self.faults or self.closed or self.drained)


cdef class Reactor:
    cdef int epoll_fd
    cdef bint inside
    cdef bint input_ready                # a receive filled its share, so its socket holds more
    cdef uint32_t now_s
    cdef uint32_t turn
    cdef readonly uint32_t connections_count
    # why the last accept failed and paused its listener, 0 if it did not; EUSERS: no free slot
    cdef readonly int accept_errno
    cdef uint32_t output_bytes_high
    cdef uint32_t output_bytes_max
    # slots
    cdef Connection *slots
    cdef uint32_t slots_max
    cdef uint32_t slots_fresh            # ids from here on were never used
    cdef uint32_t *free_slots
    cdef uint32_t free_count
    cdef uint32_t *resting               # ring of ids that wait to be free
    cdef uint32_t resting_begin
    cdef uint32_t resting_count
    cdef uint32_t *dirty
    cdef uint32_t dirty_count
    cdef uint32_t *deferred
    cdef uint32_t deferred_count
    cdef Payloads payloads
    cdef Coded *coded                    # for each slot; NULL until a listener has a codec
    cdef object codec_error              # an error of a codec, until it is taken
    # what the next turn reports; each id is in each list at most once
    cdef uint32_t *opened
    cdef uint32_t *faults
    cdef uint32_t *closed
    cdef uint32_t *drained
    cdef uint8_t *fault_kinds
    cdef uint8_t *close_kinds
    cdef uint32_t opened_count
    cdef uint32_t faults_count
    cdef uint32_t closed_count
    cdef uint32_t drained_count
    # the turn
    cdef Block data
    cdef Block index
    cdef Turn last
    cdef uint32_t data_bytes
    cdef uint32_t frames
    cdef epoll_event ready[EVENTS_ROOM]
    cdef uint32_t ready_begin
    cdef uint32_t ready_count
    cdef Listener listeners[LISTENERS_ROOM]
    cdef uint32_t listeners_count
    cdef uint32_t listeners_paused
    cdef list sockets                    # of the listeners
    cdef list codecs                     # of the listeners: what makes one, or None
    cdef Py_buffer sent
    cdef uint64_t *sent_counts           # in that buffer, NULL without one

    def __cinit__(
        self,
        *,
        int connections_max=20000,
        uint32_t output_bytes_high=262_144,
        uint32_t output_bytes_max=1_048_576,
        sent_counts=None,
    ):
        self.epoll_fd = -1
        if connections_max < 1 or output_bytes_high > output_bytes_max:
            raise ValueError(
                "connections_max is at least 1, output_bytes_high at most output_bytes_max"
            )
        self.slots_max = connections_max
        self.output_bytes_high = output_bytes_high
        self.output_bytes_max = output_bytes_max
        self.slots = <Connection *>calloc(connections_max, sizeof(Connection))
        self.free_slots = <uint32_t *>calloc(connections_max, 4)
        self.resting = <uint32_t *>calloc(connections_max, 4)
        self.dirty = <uint32_t *>calloc(connections_max, 4)
        self.deferred = <uint32_t *>calloc(connections_max, 4)
        self.opened = <uint32_t *>calloc(connections_max, 4)
        self.faults = <uint32_t *>calloc(connections_max, 4)
        self.closed = <uint32_t *>calloc(connections_max, 4)
        self.drained = <uint32_t *>calloc(connections_max, 4)
        self.fault_kinds = <uint8_t *>calloc(connections_max, 1)
        self.close_kinds = <uint8_t *>calloc(connections_max, 1)
        if (
            self.slots == NULL or self.free_slots == NULL or self.resting == NULL
            or self.dirty == NULL or self.deferred == NULL
            or self.opened == NULL or self.faults == NULL or self.closed == NULL or self.drained == NULL
            or self.fault_kinds == NULL or self.close_kinds == NULL
        ):
            raise MemoryError
        self.data = Block(DATA_ROOM)
        self.index = Block(INDEX_ROOM)
        self.sockets = []
        self.codecs = []
        if sent_counts is not None:
            PyObject_GetBuffer(sent_counts, &self.sent, PyBUF_WRITABLE)
            self.sent_counts = <uint64_t *>self.sent.buf
            if self.sent.len != 8 * (SENT_BYTES_AT + 1):
                raise ValueError(f"sent_counts of {self.sent.len} bytes are not 257 u64")
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.slots != NULL:
            self.end_all()
        if self.sent_counts != NULL:
            PyBuffer_Release(&self.sent)
        free(self.slots)
        free(self.coded)
        free(self.free_slots)
        free(self.resting)
        free(self.dirty)
        free(self.deferred)
        free(self.opened)
        free(self.faults)
        free(self.closed)
        free(self.drained)
        free(self.fault_kinds)
        free(self.close_kinds)

    # ------------------------------------------------------------------ what Python calls

    def fileno(self):
        return self.epoll_fd

    def listen(
        self,
        sock,
        framing,
        *,
        uint32_t frame_bytes_max,
        uint32_t first_frame_s,
        codec=None,
        uint32_t connections_max=0,
    ):
        cdef epoll_event event
        cdef Listener *listener
        cdef uint32_t i = self.listeners_count
        cdef int one = 1
        self.check_usable()
        if i == LISTENERS_ROOM:
            raise ValueError(f"a reactor takes at most {LISTENERS_ROOM} listeners")
        if codec is not None:
            self.make_coded()
        listener = &self.listeners[i]
        listener.coded = codec is not None
        listener.connections = 0
        listener.connections_max = connections_max
        listener.framing = int(Framing(framing))
        listener.frame_bytes_max = min(frame_bytes_max, <uint32_t>MESSAGE_BYTES_MAX)
        listener.first_frame_s = min(first_frame_s, <uint32_t>MESSAGE_BYTES_MAX)
        listener.paused = 0
        sock.setblocking(False)
        listener.fd = sock.fileno()
        setsockopt(listener.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>LISTENER_MARK << 32 | i
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, listener.fd, &event) != 0:
            raise OSError(errno, os.strerror(errno))
        self.sockets.append(sock)
        self.codecs.append(codec)
        self.listeners_count += 1
        return <int>i

    def stop_listening(self, uint32_t listener):
        self.check_usable()
        if listener >= self.listeners_count or self.listeners[listener].fd < 0:
            return
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, self.listeners[listener].fd, NULL)
        self.listeners_paused -= self.listeners[listener].paused
        self.listeners[listener].paused = 0
        self.listeners[listener].fd = -1
        self.sockets[listener].close()

    def connect(self, tuple address, framing, *, uint32_t frame_bytes_max, source=None):
        cdef sockaddr_storage storage
        cdef sockaddr_storage local
        cdef socklen_t size
        cdef socklen_t local_size = 0
        cdef int fd
        cdef int one = 1
        cdef int64_t slot
        cdef int error = 0
        cdef Connection *c
        cdef uint8_t kind = int(Framing(framing))
        self.check_usable()
        size = write_address(&storage, address[0], address[1])
        if source is not None:
            local_size = write_address(&local, source, 0)
        slot = self.take_slot()
        if slot < 0:
            raise OSError(EMFILE, "all connection slots of the reactor are taken")
        c = &self.slots[slot]
        fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
        if fd < 0:
            error = errno
        elif source is not None:
            setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one))
            if bind(fd, <sockaddr *>&local, local_size) != 0:
                error = errno
                close_descriptor(fd)
        if error:
            self.give_back(<uint32_t>slot)
            raise OSError(error, os.strerror(error))
        self.start(<uint32_t>slot, fd, CONNECTING, kind, -1, &storage)
        c.frame_bytes_max = min(frame_bytes_max, <uint32_t>MESSAGE_BYTES_MAX)
        if connect(fd, <sockaddr *>&storage, size) != 0 and errno != EINPROGRESS:
            self.end(<uint32_t>slot, CLOSE_CONNECT_FAILED)
        elif not self.watch(<uint32_t>slot, EPOLL_CTL_ADD, EPOLLOUT):
            self.end(<uint32_t>slot, CLOSE_CONNECT_FAILED)
        return <int>slot

    def poll(self, now_s):
        cdef uint32_t now = <uint32_t>(<int64_t>now_s)
        self.check_usable()
        self.recycle_blocks()
        self.inside = True
        with nogil:
            self.now_s = now
            self.take_turn()
        self.inside = False
        if self.payloads.unreferenced != NULL:
            release_payloads(&self.payloads)
        self.check_codecs()
        return self.report()

    def flush(self):
        self.check_usable()
        self.inside = True
        with nogil:
            self.flush_dirty()
        self.inside = False
        if self.payloads.unreferenced != NULL:
            release_payloads(&self.payloads)
        self.check_codecs()

    def send(self, Py_ssize_t connection, bytes data not None, bytes body not None=b""):
        self.check_owner()
        self.send_one(connection, data, body)
        if self.payloads.unreferenced != NULL:
            release_payloads(&self.payloads)

    def send_many(self, list items not None):
        self.check_owner()
        for connection, data in items:
            self.send_one(connection, <bytes?>data, b"")
        if self.payloads.unreferenced != NULL:
            release_payloads(&self.payloads)

    def fan_out(self, bytes data not None, connections):
        cdef const uint8_t *bytes_ = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef uint32_t size = message_bytes(data)
        cdef Shared *shared = NULL
        cdef int64_t slot
        cdef list skipped = []
        self.check_owner()
        if size > COPIED_BYTES_MAX:
            shared = share(data, &self.payloads)
        try:
            for connection in connections:
                slot = self.receiver(connection)
                if slot < 0:
                    skipped.append(connection)
                elif shared == NULL:
                    self.copy(<uint32_t>slot, bytes_, size)
                else:
                    self.refer(<uint32_t>slot, shared, 0, size)
        finally:
            if shared != NULL:
                unshare(shared, &self.payloads)
            if self.payloads.unreferenced != NULL:
                release_payloads(&self.payloads)
        self.count_sent(bytes_, size, len(connections) - len(skipped))
        return skipped

    def send_numbered(self, bytes data not None, Py_ssize_t number_at, list receivers not None):
        cdef const uint8_t *bytes_ = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef uint32_t size = message_bytes(data)
        cdef uint32_t rest_at = <uint32_t>number_at + 2
        cdef Shared *shared = NULL
        cdef uint16_t number
        cdef int64_t slot
        cdef uint8_t *copied
        cdef list skipped = []
        self.check_owner()
        if number_at < 0 or number_at + 2 > size:
            raise ValueError(f"no room for a number at byte {number_at} of {size}")
        if size > COPIED_BYTES_MAX and size > rest_at:
            shared = share(data, &self.payloads)
        try:
            for connection, number_ in receivers:
                number = number_
                slot = self.receiver(connection)
                if slot < 0:
                    skipped.append(connection)
                    continue
                copied = self.copy(<uint32_t>slot, bytes_, size if shared == NULL else rest_at)
                copied[number_at] = number >> 8
                copied[number_at + 1] = number & 255
                if shared != NULL:
                    self.refer(<uint32_t>slot, shared, rest_at, size)
        finally:
            if shared != NULL:
                unshare(shared, &self.payloads)
            if self.payloads.unreferenced != NULL:
                release_payloads(&self.payloads)
        self.count_sent(bytes_, size, len(receivers) - len(skipped))
        return skipped

    def close(self, Py_ssize_t connection):
        cdef Connection *c
        self.check_owner()
        if connection < 0 or connection >= self.slots_fresh:
            return
        c = &self.slots[connection]
        if c.state == OPEN and not c.flags & BROKEN:
            self.drop_input(c)
            c.state = LINGERING
            c.last_frame_s = self.now_s
            self.connections_count -= 1
            self.mark_dirty(<uint32_t>connection)  # flush() half-closes once all is sent
            self.ask(<uint32_t>connection)
        elif c.state == OPEN or c.state == CONNECTING:
            self.forget(<uint32_t>connection)
            if self.payloads.unreferenced != NULL:
                release_payloads(&self.payloads)
        elif c.state == DEAD:
            self.rest_slot(<uint32_t>connection)

    def abort(self, Py_ssize_t connection):
        cdef Connection *c
        self.check_owner()
        if connection < 0 or connection >= self.slots_fresh:
            return
        c = &self.slots[connection]
        if c.state == DEAD:
            self.rest_slot(<uint32_t>connection)
        elif c.state == OPEN or c.state == CONNECTING or c.state == LINGERING:
            reset_on_close(c.fd)
            self.forget(<uint32_t>connection)
            if self.payloads.unreferenced != NULL:
                release_payloads(&self.payloads)

    def set_variant(self, Py_ssize_t connection, uint32_t variant):
        cdef Connection *c = self.existing(connection)
        if c != NULL:
            c.variant = variant

    def set_limits(self, Py_ssize_t connection, *, uint32_t frame_bytes_max, uint32_t idle_s_max):
        cdef Connection *c = self.existing(connection)
        cdef int one = 1
        if c != NULL:
            if not idle_s_max:
                setsockopt(c.fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one))
            c.frame_bytes_max = min(frame_bytes_max, <uint32_t>MESSAGE_BYTES_MAX)
            c.idle_s_max = min(idle_s_max, <uint32_t>MESSAGE_BYTES_MAX)
            c.flags &= ~FIRST_FRAME

    def pause(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        if c != NULL and not c.flags & PAUSED:
            c.flags |= PAUSED
            self.ask(<uint32_t>connection)

    def resume(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        if c != NULL and c.flags & PAUSED:
            c.flags &= ~PAUSED
            c.last_frame_s = self.now_s
            self.ask(<uint32_t>connection)

    def peer(self, Py_ssize_t connection):
        if connection < 0 or connection >= self.slots_fresh:
            raise ValueError(f"no connection {connection}")
        return self.address_of(<uint32_t>connection)

    def listener(self, Py_ssize_t connection):
        if connection < 0 or connection >= self.slots_fresh:
            raise ValueError(f"no connection {connection}")
        return <int>self.slots[connection].listener

    def listener_connections(self, uint32_t listener):
        return self.listeners[listener].connections if listener < self.listeners_count else 0

    def identity(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        if c == NULL or not c.flags & CODED or self.coded[connection].codec == NULL:
            return None
        return (<object>self.coded[connection].codec).identity

    def codec_fault(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        if c == NULL or not c.flags & CODED or self.coded[connection].codec == NULL:
            return ""
        return (<object>self.coded[connection].codec).fault

    def observe(self, Py_ssize_t connection, observer):
        cdef Connection *c = self.existing(connection)
        cdef Coded *coded
        cdef object codec = None
        if c == NULL or (c.flags & CODED and self.coded[connection].codec == NULL):
            return False
        if c.flags & CODED:
            codec = <object>self.coded[connection].codec
            if isinstance(codec, Observed):
                codec = codec.codec
        if observer is not None:
            self.make_coded()
            rest = PyBytes_FromStringAndSize(<char *>c.rest, c.rest_bytes) if c.rest_bytes else b""
            observer.begin(rest, c.output.bytes)
            self.set_codec(connection, Observed(codec, observer))
            c.flags |= CODED
        elif codec is not None:
            self.set_codec(connection, codec)
        elif c.flags & CODED:
            coded = &self.coded[connection]
            put_before(&c.output, &coded.wire)
            c.flags &= ~CODED
            self.drop_codec(coded)
        return True

    def output_bytes(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        if c == NULL:
            return 0
        return c.output.bytes + (self.coded[connection].wire.bytes if c.flags & CODED else 0)

    def take_codec_error(self):
        error, self.codec_error = self.codec_error, None
        return error

    def silent_ms(self, Py_ssize_t connection):
        cdef Connection *c = self.existing(connection)
        cdef tcp_info told
        cdef socklen_t size = sizeof(told)
        if c == NULL or getsockopt(c.fd, IPPROTO_TCP, TCP_INFO, &told, &size) != 0:
            return 0
        return told.tcpi_last_data_recv

    def held_bytes(self):
        cdef uint64_t total = 0
        cdef uint32_t slot
        for slot in range(self.slots_fresh):
            total += self.slots[slot].output.allocated + self.slots[slot].rest_room
            if self.slots[slot].flags & CODED:
                total += self.coded[slot].wire.allocated
        return total + self.payloads.bytes

    def holding(self, uint32_t bytes_min):
        cdef uint32_t slot
        cdef uint32_t held
        cdef list found = []
        for slot in range(self.slots_fresh):
            held = self.slots[slot].output.bytes + self.slots[slot].rest_room
            if self.slots[slot].flags & CODED:
                held += self.coded[slot].wire.bytes
            if self.slots[slot].state == OPEN and held >= bytes_min:
                found.append((held, slot))
        return found

    def sweep(self, now_s):
        cdef uint32_t now = <uint32_t>(<int64_t>now_s)
        self.check_usable()
        self.inside = True
        with nogil:
            self.now_s = now
            self.find_overdue()
        self.inside = False
        if self.payloads.unreferenced != NULL:
            release_payloads(&self.payloads)

    def shut_down(self):
        self.check_owner()
        self.end_all()
        for sock in self.sockets:
            sock.close()

    # ------------------------------------------------------------------ checks

    cdef int check_owner(self) except -1:
        if self.inside:
            raise RuntimeError("another thread is inside this reactor")
        return 0

    cdef int check_codecs(self) except -1:
        """Raise an exception that was meant for the process and came during a codec's call."""
        if self.codec_error is not None and not isinstance(self.codec_error, Exception):
            raise self.take_codec_error()
        return 0

    cdef int check_usable(self) except -1:
        self.check_owner()
        if self.epoll_fd < 0:
            raise ValueError("the reactor is shut down")
        return 0

    cdef Connection *existing(self, Py_ssize_t connection) except? NULL:
        cdef Connection *c
        self.check_owner()
        if connection < 0 or connection >= self.slots_fresh:
            return NULL
        c = &self.slots[connection]
        return c if c.state == OPEN or c.state == CONNECTING else NULL

    # ------------------------------------------------------------------ slots

    cdef int64_t take_slot(self) noexcept nogil:
        if self.free_count:
            self.free_count -= 1
            return self.free_slots[self.free_count]
        if self.slots_fresh < self.slots_max:
            self.slots_fresh += 1
            return self.slots_fresh - 1
        return -1

    cdef void give_back(self, uint32_t slot) noexcept nogil:
        self.slots[slot].state = FREE
        self.free_slots[self.free_count] = slot
        self.free_count += 1

    cdef void rest_slot(self, uint32_t slot) noexcept nogil:
        self.slots[slot].state = RESTING
        self.slots[slot].since.resting_until = self.turn + 2
        self.resting[(self.resting_begin + self.resting_count) % self.slots_max] = slot
        self.resting_count += 1

    cdef void wake_slots(self) noexcept nogil:
        cdef uint32_t slot
        while self.resting_count:
            slot = self.resting[self.resting_begin]
            if <int32_t>(self.slots[slot].since.resting_until - self.turn) > 0:
                return
            self.resting_begin = (self.resting_begin + 1) % self.slots_max
            self.resting_count -= 1
            self.give_back(slot)

    cdef void start(
        self,
        uint32_t slot,
        int fd,
        uint8_t state,
        uint8_t framing,
        int listener,
        sockaddr_storage *peer,
    ) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        cdef uint16_t generation = c.generation
        cdef int one = 1
        memset(c, 0, sizeof(Connection))
        c.generation = generation + 1
        c.fd = fd
        c.state = state
        c.framing = framing
        c.listener = listener
        c.last_frame_s = self.now_s
        if listener >= 0:
            self.listeners[listener].connections += 1
        set_peer(c, peer)
        if listener < 0:                     # an accepted socket has it from its listener's
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))

    cdef void drop_input(self, Connection *c) noexcept nogil:
        free(c.rest)
        c.rest = NULL
        c.rest_bytes = 0
        c.rest_room = 0

    cdef void release(self, Connection *c) noexcept nogil:
        """Close the descriptor and free all memory of a connection."""
        if c.state == OPEN:
            self.connections_count -= 1
        if c.listener >= 0:
            self.listeners[c.listener].connections -= 1
        close_descriptor(c.fd)
        c.fd = -1
        self.drop_input(c)
        drop_queued(&c.output, &self.payloads)
        if c.flags & CODED:
            self.drop_codec(&self.coded[c - self.slots])

    cdef void end(self, uint32_t slot, uint8_t reason) noexcept nogil:
        """End a connection, and report that to Python."""
        self.release(&self.slots[slot])
        self.slots[slot].state = DEAD
        self.closed[self.closed_count] = slot
        self.close_kinds[self.closed_count] = reason
        self.closed_count += 1

    cdef void forget(self, uint32_t slot) noexcept nogil:
        """End a connection that Python has closed."""
        self.release(&self.slots[slot])
        self.rest_slot(slot)

    cdef void end_all(self) noexcept:
        cdef uint32_t slot
        cdef Connection *c
        for slot in range(self.slots_fresh):
            c = &self.slots[slot]
            if c.state == OPEN or c.state == LINGERING:
                self.flush_one(slot)
            if c.state == OPEN or c.state == LINGERING or c.state == CONNECTING:
                self.release(c)
            c.state = FREE
        self.slots_fresh = 0
        self.free_count = 0
        self.resting_count = 0
        self.dirty_count = 0
        self.opened_count = 0
        self.faults_count = 0
        self.closed_count = 0
        self.drained_count = 0
        release_payloads(&self.payloads)
        if self.epoll_fd >= 0:
            close_descriptor(self.epoll_fd)
            self.epoll_fd = -1

    # ------------------------------------------------------------------ what epoll is asked for

    cdef bint watch(self, uint32_t slot, int operation, uint32_t events) noexcept nogil:
        cdef epoll_event event
        cdef Connection *c = &self.slots[slot]
        event.events = events
        event.data.u64 = <uint64_t>c.generation << 32 | slot
        c.events = events
        return epoll_ctl(self.epoll_fd, operation, c.fd, &event) == 0

    cdef void ask(self, uint32_t slot) noexcept nogil:
        """Update the events for which epoll waits, if they have changed."""
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t events = 0
        if c.state == OPEN:
            if not c.flags & (PAUSED | FAULTED | FULL):
                events = EPOLLIN
        elif c.state == LINGERING:
            if not c.flags & INPUT_ENDED:
                events = EPOLLIN
        else:
            return
        if c.flags & BLOCKED:
            events |= EPOLLOUT
        if events != c.events:
            self.watch(slot, EPOLL_CTL_MOD, events)

    # ------------------------------------------------------------------ one turn

    cdef void take_turn(self) noexcept nogil:
        cdef uint64_t data
        cdef uint32_t slot
        cdef uint32_t events
        cdef int count
        self.turn += 1
        self.data_bytes = 0
        self.frames = 0
        self.input_ready = False
        self.wake_slots()
        self.flush_dirty()
        if self.listeners_paused:
            self.resume_listeners()
        while self.deferred_count and self.has_turn_room():
            self.deferred_count -= 1
            self.cut_deferred(self.deferred[self.deferred_count])
        if self.deferred_count:
            self.input_ready = True
        if self.ready_begin == self.ready_count:
            count = epoll_wait(self.epoll_fd, self.ready, EVENTS_ROOM, 0)
            self.ready_begin = 0
            self.ready_count = count if count > 0 else 0
            if self.ready_count >= BUSY_EVENTS:
                self.input_ready = True
        # The events that a full turn leaves come first in the next one. Asking epoll again instead
        # would serve the same sockets first each time.
        while self.ready_begin < self.ready_count and self.has_turn_room():
            data = self.ready[self.ready_begin].data.u64
            events = self.ready[self.ready_begin].events
            self.ready_begin += 1
            slot = <uint32_t>data
            if data >> 32 == LISTENER_MARK:
                self.accept(slot)
            elif data >> 32 == self.slots[slot].generation:
                self.serve(slot, events)

    cdef inline bint has_turn_room(self) noexcept nogil:
        return self.data_bytes < TURN_BYTES and self.frames < TURN_FRAMES

    cdef void serve(self, uint32_t slot, uint32_t events) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        if c.state == CONNECTING:
            self.finish_connect(slot)
            return
        if c.state != OPEN and c.state != LINGERING:
            return
        if events & EPOLLOUT and c.flags & BLOCKED:
            c.flags &= ~BLOCKED
            self.flush_one(slot)
        if c.state == LINGERING:
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                self.discard(slot)
        elif c.state == OPEN:
            if not c.flags & (PAUSED | FAULTED | FULL):
                if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    self.receive(slot)
            elif events & (EPOLLERR | EPOLLHUP):
                self.end(slot, CLOSE_RESET)

    cdef void finish_connect(self, uint32_t slot) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        cdef int error = 0
        cdef socklen_t size = sizeof(error)
        if getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 or error:
            self.end(slot, CLOSE_CONNECT_FAILED)
            return
        c.state = OPEN
        c.last_frame_s = self.now_s
        self.connections_count += 1
        self.note_opened(slot)
        self.flush_one(slot)
        self.ask(slot)

    cdef void note_opened(self, uint32_t slot) noexcept nogil:
        self.opened[self.opened_count] = slot
        self.opened_count += 1

    cdef void accept(self, uint32_t listener) noexcept nogil:
        cdef Listener *l = &self.listeners[listener]
        cdef sockaddr_storage peer
        cdef socklen_t size
        cdef int64_t slot
        cdef int fd, failure
        cdef uint32_t i
        for i in range(ACCEPTS_MAX):
            if l.fd < 0 or l.paused:
                return
            if l.connections_max and l.connections >= l.connections_max:
                self.accept_errno = EUSERS
                self.pause_listener(l, listener)
                return
            slot = self.take_slot()
            if slot < 0:
                # No further one may be waiting; if there is one, epoll reports it again.
                if i == 0:
                    self.accept_errno = EUSERS
                    self.pause_listener(l, listener)
                return
            size = sizeof(peer)
            memset(&peer, 0, 4)
            fd = accept4(l.fd, <sockaddr *>&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                failure = errno
                self.give_back(<uint32_t>slot)
                if failure == EAGAIN or failure == EINTR:
                    return
                if failure == ECONNABORTED or failure == EPROTO:
                    continue
                self.accept_errno = failure
                # No descriptor or no memory: the pending connection stays ready, so that trying
                # at once again would spin.
                self.pause_listener(l, listener)
                return
            self.accept_errno = 0
            self.start(<uint32_t>slot, fd, OPEN, l.framing, listener, &peer)
            self.connections_count += 1
            self.slots[slot].frame_bytes_max = l.frame_bytes_max
            self.slots[slot].idle_s_max = l.first_frame_s
            self.slots[slot].flags = FIRST_FRAME | CODED if l.coded else FIRST_FRAME
            if self.watch(<uint32_t>slot, EPOLL_CTL_ADD, EPOLLIN):
                self.note_opened(<uint32_t>slot)
            else:
                self.forget(<uint32_t>slot)
                self.pause_listener(l, listener)
        self.input_ready = True

    cdef void pause_listener(self, Listener *l, uint32_t listener) noexcept nogil:
        cdef epoll_event event
        event.events = 0
        event.data.u64 = <uint64_t>LISTENER_MARK << 32 | listener
        epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, l.fd, &event)
        l.paused = 1
        l.resume_s = self.now_s + ACCEPT_PAUSE_S
        self.listeners_paused += 1

    cdef void resume_listeners(self) noexcept nogil:
        cdef epoll_event event
        cdef Listener *l
        cdef uint32_t i
        for i in range(self.listeners_count):
            l = &self.listeners[i]
            if l.paused and <int32_t>(self.now_s - l.resume_s) >= 0:
                event.events = EPOLLIN
                event.data.u64 = <uint64_t>LISTENER_MARK << 32 | i
                epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, l.fd, &event)
                l.paused = 0
                self.listeners_paused -= 1
                self.accept_errno = 0

    # ------------------------------------------------------------------ input

    cdef void receive(self, uint32_t slot) noexcept nogil:
        """Receive from one socket, at most its share of the turn; cut the bytes into frames."""
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t have = c.rest_bytes
        cdef uint32_t begin = self.data_bytes
        cdef uint32_t end
        cdef ssize_t received
        if c.flags & CODED:
            self.receive_coded(slot)
            return
        if have >= DIRECT_BYTES:
            self.receive_in_place(slot)
            return
        received = recv(c.fd, self.data.bytes + begin + have, RECEIVE_BYTES_MAX, 0)
        if received <= 0:
            self.end_of_input(slot, received)
            return
        if received == RECEIVE_BYTES_MAX:
            self.input_ready = True
        if have:
            memcpy(self.data.bytes + begin, c.rest, have)
        end = begin + have + <uint32_t>received
        begin = self.cut(slot, begin, end)
        if not c.flags & FAULTED and not self.keep(c, self.data.bytes + begin, end - begin):
            self.end(slot, CLOSE_RESET)

    cdef void end_of_input(self, uint32_t slot, ssize_t received) noexcept nogil:
        if received == 0:
            self.end(slot, CLOSE_RESET if self.slots[slot].flags & BROKEN else CLOSE_PEER)
        elif errno != EAGAIN and errno != EINTR:
            self.end(slot, CLOSE_RESET)

    cdef uint32_t cut(self, uint32_t slot, uint32_t begin, uint32_t end) noexcept nogil:
        """Index the whole frames in data[begin:end]; return where the partial tail begins."""
        cdef Connection *c = &self.slots[slot]
        cdef const uint8_t *data = self.data.bytes
        cdef uint32_t *entry
        cdef uint32_t before = self.frames
        cdef int64_t size
        entry = <uint32_t *>self.index.bytes + 4 * self.frames
        while begin < end:
            size = frame_size(c.framing, data + begin, end - begin)
            if size == 0:
                break
            if size < 0 or size > c.frame_bytes_max:
                if size > 0 and c.flags & FIRST_FRAME and self.frames != before:
                    self.defer(slot)
                else:
                    self.note_fault(slot, FAULT_MALFORMED if size < 0 else FAULT_TOO_LARGE)
                break
            if size > end - begin:
                break
            entry[0] = slot
            entry[1] = c.variant
            entry[2] = begin
            begin += <uint32_t>size
            entry[3] = begin
            entry += 4
            self.frames += 1
        self.data_bytes = begin
        if self.frames != before:
            self.note_frame(c)
        return begin

    cdef bint make_room(self, uint32_t begin, uint32_t end) noexcept nogil:
        """Make room for data[begin:end] and the shortest frames in it; False if there is no memory.

The bytes of one receive already have room. A codec may return more than it received.
        """
        return self.data.reserve(end) and self.index.reserve(
            16 * (self.frames + (<size_t>end - begin) // 2 + 1)
        )

    cdef void defer(self, uint32_t slot) noexcept nogil:
        """Judge the next frame by the limits that Python sets when it has seen the first one.

        The bytes received with the first frame wait, at most one share of a turn.
        """
        self.slots[slot].flags |= DEFERRED
        self.deferred[self.deferred_count] = slot
        self.deferred_count += 1
        self.input_ready = True

    cdef void cut_deferred(self, uint32_t slot) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t begin = self.data_bytes
        cdef uint32_t end = begin + c.rest_bytes
        if c.state != OPEN or not c.flags & DEFERRED:
            return
        c.flags &= ~DEFERRED
        if not self.make_room(begin, end):
            self.end(slot, CLOSE_RESET)
            return
        memcpy(self.data.bytes + begin, c.rest, c.rest_bytes)
        begin = self.cut(slot, begin, end)
        if not c.flags & FAULTED and not self.keep(c, self.data.bytes + begin, end - begin):
            self.end(slot, CLOSE_RESET)

    cdef void note_frame(self, Connection *c) noexcept nogil:
        c.last_frame_s = self.now_s
        if c.flags & FIRST_FRAME:
            c.flags &= ~FIRST_FRAME
            c.idle_s_max = 0

    cdef void note_fault(self, uint32_t slot, uint8_t fault) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        c.flags |= FAULTED
        self.drop_input(c)
        self.ask(slot)
        self.faults[self.faults_count] = slot
        self.fault_kinds[self.faults_count] = fault
        self.faults_count += 1

    cdef bint keep(self, Connection *c, const uint8_t *tail, uint32_t size) noexcept nogil:
        """Put a partial tail aside; False if there is no memory for it."""
        cdef uint8_t *rest
        if size == 0:
            if c.rest != NULL:
                self.drop_input(c)
            return True
        # A large block is given back as well: a few bytes may follow a large tail.
        if size > c.rest_room or size < c.rest_room // 4:
            rest = <uint8_t *>realloc(c.rest, size)
            if rest == NULL:
                return False
            c.rest = rest
            c.rest_room = size
        memcpy(c.rest, tail, size)
        c.rest_bytes = size
        return True

    cdef void receive_in_place(self, uint32_t slot) noexcept nogil:
        """Receive up to the end of a large partial frame into its own block.

        The block is at most twice the received bytes: a merely claimed length takes no memory.
        """
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t size = <uint32_t>frame_size(c.framing, c.rest, c.rest_bytes)
        cdef uint32_t wanted
        cdef ssize_t received
        if size > c.frame_bytes_max:         # the limit was lowered meanwhile
            self.note_fault(slot, FAULT_TOO_LARGE)
            return
        if c.rest_bytes == c.rest_room and not grow(c, size):
            self.end(slot, CLOSE_RESET)
            return
        wanted = min(min(size, c.rest_room) - c.rest_bytes, RECEIVE_BYTES_MAX)
        received = recv(c.fd, c.rest + c.rest_bytes, wanted, 0)
        if received <= 0:
            self.end_of_input(slot, received)
            return
        c.rest_bytes += <uint32_t>received
        self.input_ready = True
        if c.rest_bytes == size:
            self.cut_block(slot)

    cdef void cut_block(self, uint32_t slot) noexcept nogil:
        """Take over a large frame that is whole in its own block."""
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t size = c.rest_bytes
        if not self.data.reserve(<size_t>self.data_bytes + size):
            self.end(slot, CLOSE_RESET)
            return
        memcpy(self.data.bytes + self.data_bytes, c.rest, size)
        self.drop_input(c)
        self.cut(slot, self.data_bytes, self.data_bytes + size)

    # ------------------------------------------------------------------ codecs

    cdef int make_coded(self) except -1:
        """Allocate the codecs beside the slots when they are first needed."""
        if self.coded == NULL:
            self.coded = <Coded *>calloc(self.slots_max, sizeof(Coded))
            if self.coded == NULL:
                raise MemoryError
        return 0

    cdef int set_codec(self, Py_ssize_t slot, object codec) except -1:
        cdef PyObject *before = self.coded[slot].codec
        Py_INCREF(codec)
        self.coded[slot].codec = <PyObject *>codec
        if before != NULL:
            Py_DECREF(<object>before)
        return 0

    cdef void receive_coded(self, uint32_t slot) noexcept with gil:
        """Receive from one socket through its codec, whose error ends only this connection."""
        cdef Connection *c = &self.slots[slot]
        cdef uint8_t *received_to = self.data.bytes + self.data_bytes
        cdef ssize_t received = recv(c.fd, received_to, RECEIVE_BYTES_MAX, 0)
        if received <= 0:
            self.end_of_input(slot, received)
            return
        if received == RECEIVE_BYTES_MAX:
            self.input_ready = True
        try:
            self.decode(slot, PyBytes_FromStringAndSize(<char *>received_to, received))
        except BaseException as exc:
            self.codec_error = exc
            if c.state == OPEN:
                self.end(slot, CLOSE_RESET)

    cdef int decode(self, uint32_t slot, bytes received) except -1:
        cdef Connection *c = &self.slots[slot]
        cdef Coded *coded = &self.coded[slot]
        cdef sockaddr_storage peer
        cdef bytes data, answer
        cdef object codec
        cdef int stream
        if coded.codec == NULL:
            self.set_codec(slot, self.codecs[c.listener]())
        codec = <object>coded.codec
        data, answer, stream = codec.receive(received)
        if c.flags & FIRST_FRAME and codec.peer is not None:
            write_address(&peer, codec.peer[0], codec.peer[1])
            set_peer(c, &peer)
        if answer:
            append_copy(
                &coded.wire, <const uint8_t *>PyBytes_AS_STRING(answer), message_bytes(answer)
            )
            self.mark_dirty(slot)
            self.input_ready = True          # the next poll() sends it
            if coded.wire.bytes > self.output_bytes_high:
                reset_on_close(c.fd)
                self.end(slot, CLOSE_OUTPUT_FULL)
                return 0
        if stream == STREAM_PLAIN:
            c.flags &= ~CODED
            self.drop_codec(coded)
        if data:
            self.feed(slot, <const uint8_t *>PyBytes_AS_STRING(data), message_bytes(data))
        if c.state == OPEN and not c.flags & FAULTED:
            if stream == STREAM_FAULTY:
                self.note_fault(slot, FAULT_TRANSPORT)
            elif stream == STREAM_ENDED:
                shutdown(c.fd, SHUT_RD)      # so that the next receive finds the end
        return 0

    cdef void feed(self, uint32_t slot, const uint8_t *p, uint32_t size) noexcept nogil:
        """Cut a codec's bytes into frames, after the existing part of one."""
        cdef Connection *c = &self.slots[slot]
        cdef uint32_t begin = self.data_bytes
        cdef uint32_t end, whole, part
        if c.rest_bytes >= DIRECT_BYTES and not c.flags & DEFERRED:
            whole = <uint32_t>frame_size(c.framing, c.rest, c.rest_bytes)
            if whole > c.frame_bytes_max:    # the limit was lowered meanwhile
                self.note_fault(slot, FAULT_TOO_LARGE)
                return
            while size and c.rest_bytes < whole:
                if c.rest_bytes == c.rest_room and not grow(c, whole):
                    self.end(slot, CLOSE_RESET)
                    return
                part = min(size, min(whole, c.rest_room) - c.rest_bytes)
                memcpy(c.rest + c.rest_bytes, p, part)
                c.rest_bytes += part
                p += part
                size -= part
            if c.rest_bytes < whole:
                return
            self.cut_block(slot)
            if c.state != OPEN or c.flags & FAULTED:
                return
            begin = self.data_bytes
        end = begin + c.rest_bytes + size
        if not self.make_room(begin, end):
            self.end(slot, CLOSE_RESET)
            return
        if c.rest_bytes:                     # else there is no block to copy from
            memcpy(self.data.bytes + begin, c.rest, c.rest_bytes)
        memcpy(self.data.bytes + begin + c.rest_bytes, p, size)
        begin = self.cut(slot, begin, end)
        if not c.flags & FAULTED and not self.keep(c, self.data.bytes + begin, end - begin):
            self.end(slot, CLOSE_RESET)

    cdef void transmit_coded(self, Connection *c) noexcept with gil:
        """Send as far as the socket takes it, through the codec part by part.

        Bytes that the socket does not take yet wait as they were queued. After an error of the
        codec nothing is read or sent: the next turn ends the connection.
        """
        cdef Coded *coded = &self.coded[c - self.slots]
        cdef Sent sent
        cdef bytes data
        while True:
            if coded.wire.head == NULL:
                try:
                    data = self.encode(c, coded)
                    if data:
                        append_copy(
                            &coded.wire,
                            <const uint8_t *>PyBytes_AS_STRING(data),
                            message_bytes(data),
                        )
                    elif c.output.head == NULL:
                        return
                    else:
                        continue
                except BaseException as exc:
                    self.codec_error = exc
                    c.flags |= BROKEN | FAULTED
                    drop_queued(&c.output, &self.payloads)
                    shutdown(c.fd, SHUT_RDWR)
                    return
            sent = send_queued(&coded.wire, c.fd, &self.payloads)
            if sent == SENT_PART:
                c.flags |= BLOCKED
                return
            if sent == SENT_NEVER:
                c.flags |= BROKEN
                drop_queued(&coded.wire, &self.payloads)
                drop_queued(&c.output, &self.payloads)
                return

    cdef bytes encode(self, Connection *c, Coded *coded):
        """Return the next bytes for the socket; none if nothing waits or the peer cannot take it."""
        if coded.codec == NULL:
            drop_queued(&c.output, &self.payloads)
            return b""
        if c.output.head != NULL:
            return (<object>coded.codec).send(
                take_queued(&c.output, CODED_BYTES_MAX, &self.payloads)
            )
        if c.state == LINGERING and not c.flags & HALF_CLOSED:
            return (<object>coded.codec).close()
        return b""

    cdef void drop_codec(self, Coded *coded) noexcept with gil:
        cdef PyObject *codec = coded.codec
        drop_queued(&coded.wire, &self.payloads)
        coded.codec = NULL
        if codec != NULL:
            Py_DECREF(<object>codec)

    cdef void discard(self, uint32_t slot) noexcept nogil:
        """Discard the input of a closed connection; release it when the peer has closed too."""
        cdef Connection *c = &self.slots[slot]
        cdef ssize_t received
        received = recv(c.fd, self.data.bytes + self.data_bytes, RECEIVE_BYTES_MAX, 0)
        if received > 0 or (received < 0 and (errno == EAGAIN or errno == EINTR)):
            return
        if received == 0 and not c.flags & HALF_CLOSED and not c.flags & INPUT_ENDED:
            c.flags |= INPUT_ENDED           # it may still read what is queued
            self.ask(slot)
        else:
            self.forget(slot)

    # ------------------------------------------------------------------ output

    cdef int64_t receiver(self, Py_ssize_t connection) noexcept:
        """Return the slot if it is open and below its high-water mark, else -1."""
        cdef Connection *c
        if connection < 0 or connection >= self.slots_fresh:
            return -1
        c = &self.slots[connection]
        if (c.state != OPEN and c.state != CONNECTING) or c.flags & BROKEN:
            return -1
        if c.output.bytes > self.output_bytes_high:
            if not c.flags & BLOCKED:
                self.flush_one(<uint32_t>connection)
            if c.flags & BROKEN:
                return -1
            if c.output.bytes > self.output_bytes_high:
                c.flags |= FULL
                self.ask(<uint32_t>connection)
                return -1
        return connection

    cdef int send_one(self, Py_ssize_t connection, bytes data, bytes body) except -1:
        cdef uint64_t size = <uint64_t>message_bytes(data) + message_bytes(body)
        cdef Connection *c
        if size > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {size} bytes is more than a connection sends at once")
        if self.receiver(connection) < 0:
            if connection < 0 or connection >= self.slots_fresh:
                return 0
            c = &self.slots[connection]
            if (c.state != OPEN and c.state != CONNECTING) or c.flags & BROKEN:
                return 0
            if c.output.bytes + size > self.output_bytes_max:
                reset_on_close(c.fd)
                self.end(<uint32_t>connection, CLOSE_OUTPUT_FULL)
                return 0
        self.queue(<uint32_t>connection, data)
        if PyBytes_GET_SIZE(body):
            self.queue(<uint32_t>connection, body)
        self.count_sent(<const uint8_t *>PyBytes_AS_STRING(data), <uint32_t>PyBytes_GET_SIZE(data), 1)
        return 0

    cdef void count_sent(self, const uint8_t *data, uint32_t size, uint64_t receivers) noexcept nogil:
        """Count the frames of a message that so many connections have taken."""
        cdef int64_t at = 0
        cdef int64_t frame
        if self.sent_counts == NULL:
            return
        self.sent_counts[SENT_BYTES_AT] += size * receivers
        while at < size:
            frame = frame_size(0, data + at, <uint32_t>(size - at))
            if frame <= 0:
                return
            self.sent_counts[data[at]] += receivers
            at += frame

    cdef int queue(self, uint32_t slot, bytes data) except -1:
        """Queue a message: a small one is copied, a large one referred to."""
        cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(data)
        cdef Shared *shared
        if size <= COPIED_BYTES_MAX:
            self.copy(slot, <const uint8_t *>PyBytes_AS_STRING(data), size)
            return 0
        shared = share(data, &self.payloads)
        try:
            self.refer(slot, shared, 0, size)
        finally:
            unshare(shared, &self.payloads)
        return 0

    cdef uint8_t *copy(self, uint32_t slot, const uint8_t *data, uint32_t size) except NULL:
        """Queue a copy of a message; return where the copy is."""
        cdef uint8_t *copied = append_copy(&self.slots[slot].output, data, size)
        self.mark_dirty(slot)
        return copied

    cdef int refer(self, uint32_t slot, Shared *shared, uint32_t begin, uint32_t end) except -1:
        """Queue data[begin:end] of a shared payload."""
        append_reference(&self.slots[slot].output, shared, begin, end)
        self.mark_dirty(slot)
        return 0

    cdef void mark_dirty(self, uint32_t slot) noexcept nogil:
        cdef Connection *c = &self.slots[slot]
        if not c.flags & DIRTY:
            c.flags |= DIRTY
            self.dirty[self.dirty_count] = slot
            self.dirty_count += 1

    cdef void flush_dirty(self) noexcept nogil:
        cdef uint32_t i
        cdef uint32_t slot
        for i in range(self.dirty_count):
            slot = self.dirty[i]
            self.slots[slot].flags &= ~DIRTY
            self.flush_one(slot)
        self.dirty_count = 0

    cdef void flush_one(self, uint32_t slot) noexcept nogil:
        """Send the queue as far as the socket takes it; half-close if Python closed it."""
        cdef Connection *c = &self.slots[slot]
        if c.state != OPEN and c.state != LINGERING:
            return
        # Judged before sending as well: a sender that held something back waits for ``drained``.
        if c.output.bytes > self.output_bytes_high:
            c.flags |= FULL
        if not c.flags & BLOCKED:
            self.transmit(c)
        if c.flags & BROKEN and c.state == LINGERING:
            self.forget(slot)
            return
        if c.flags & FULL and c.output.bytes <= self.output_bytes_high // 2:
            c.flags &= ~FULL
            c.last_frame_s = self.now_s if c.state == OPEN else c.last_frame_s
            if not c.flags & DRAINED:
                c.flags |= DRAINED
                self.drained[self.drained_count] = slot
                self.drained_count += 1
        if (
            c.state == LINGERING
            and c.output.head == NULL
            and not c.flags & (HALF_CLOSED | BLOCKED)
        ):
            if c.flags & INPUT_ENDED or shutdown(c.fd, SHUT_WR) != 0:
                self.forget(slot)
                return
            c.flags |= HALF_CLOSED
        self.ask(slot)

    cdef void transmit(self, Connection *c) noexcept nogil:
        """Send as far as the socket takes it; sets BLOCKED or BROKEN."""
        cdef Sent sent
        if c.flags & CODED:
            self.transmit_coded(c)
            return
        sent = send_queued(&c.output, c.fd, &self.payloads)
        if sent == SENT_PART:
            c.flags |= BLOCKED
        elif sent == SENT_NEVER:
            # The bytes that the peer sent before it left are still read; that ends it.
            c.flags |= BROKEN
            drop_queued(&c.output, &self.payloads)

    # ------------------------------------------------------------------ time

    cdef void find_overdue(self) noexcept nogil:
        """Find idle connections, lingering ones whose time is over, those that do not open."""
        cdef uint32_t slot
        cdef int32_t waited_s
        cdef Connection *c
        for slot in range(self.slots_fresh):
            c = &self.slots[slot]
            if c.last_frame_s == 0:          # it was opened before the first poll told the time
                c.last_frame_s = self.now_s
            if c.state == OPEN and c.flags & FULL and takes_output(c):
                c.last_frame_s = self.now_s
            waited_s = <int32_t>(self.now_s - c.last_frame_s)
            if c.state == OPEN:
                if (
                    c.idle_s_max
                    and waited_s > 0 and <uint32_t>waited_s > c.idle_s_max
                    and not c.flags & (PAUSED | FAULTED)
                ):
                    self.note_fault(slot, FAULT_IDLE)
            elif c.state == LINGERING:
                if waited_s > LINGER_S:
                    reset_on_close(c.fd)
                    self.forget(slot)
            elif c.state == CONNECTING and waited_s > CONNECT_S_MAX:
                self.end(slot, CLOSE_CONNECT_FAILED)

    # ------------------------------------------------------------------ what Python sees

    cdef int recycle_blocks(self) except -1:
        """Take the last turn's buffers back, or leave them to their holders."""
        cdef Turn last = self.last
        self.last = None
        if last is not None and last.frames:
            for view in (last.data, last.index):
                try:
                    view.release()
                except BufferError:
                    pass                     # in use as a buffer elsewhere; replaced below
        if self.data.exports or self.data.room > DATA_ROOM:
            self.data = Block(DATA_ROOM)
        if self.index.exports or self.index.room > INDEX_ROOM:
            self.index = Block(INDEX_ROOM)
        return 0

    cdef object address_of(self, uint32_t slot):
        cdef Connection *c = &self.slots[slot]
        cdef char text[64]
        if c.family == 0:
            return ("", 0)
        inet_ntop(AF_INET if c.family == 4 else AF_INET6, c.address, text, sizeof(text))
        return ((<bytes>text).decode("ascii"), <int>c.port)

    cdef Turn report(self):
        cdef Turn turn = Turn.__new__(Turn)
        cdef uint32_t i
        cdef uint32_t slot
        cdef Connection *c
        turn.frames = self.frames
        if self.frames:
            self.data.shown = self.data_bytes
            self.index.shown = 16 * <size_t>self.frames
            turn.data = memoryview(self.data)
            turn.index = memoryview(self.index).cast("I")
        else:
            turn.data = EMPTY
            turn.index = EMPTY_INDEX
        turn.opened = []
        turn.faults = []
        turn.closed = []
        turn.drained = []
        # Connections that Python has closed since are left out.
        for i in range(self.opened_count):
            slot = self.opened[i]
            c = &self.slots[slot]
            if c.state == OPEN or c.state == DEAD:
                turn.opened.append((slot, <int>c.listener, self.address_of(slot)))
        for i in range(self.faults_count):
            c = &self.slots[self.faults[i]]
            if c.state == OPEN or c.state == DEAD:
                turn.faults.append((self.faults[i], FAULTS[self.fault_kinds[i]]))
        for i in range(self.drained_count):
            c = &self.slots[self.drained[i]]
            c.flags &= ~DRAINED
            if c.state == OPEN:
                turn.drained.append(self.drained[i])
        for i in range(self.closed_count):
            slot = self.closed[i]
            if self.slots[slot].state == DEAD:
                turn.closed.append((slot, REASONS[self.close_kinds[i]]))
                self.rest_slot(slot)
        self.opened_count = 0
        self.faults_count = 0
        self.drained_count = 0
        self.closed_count = 0
        turn.more = self.input_ready or self.ready_begin < self.ready_count
        self.last = turn
        return turn


cdef bint grow(Connection *c, uint32_t size) noexcept nogil:
    """Make room for more of a large frame: at most twice the received bytes."""
    cdef uint32_t room = size if size // 2 <= c.rest_bytes else 2 * c.rest_bytes
    cdef uint8_t *rest = <uint8_t *>realloc(c.rest, room)
    if rest == NULL:
        return False
    c.rest = rest
    c.rest_room = room
    return True


cdef void set_peer(Connection *c, sockaddr_storage *peer) noexcept nogil:
    if peer.ss_family == AF_INET:
        c.family = 4
        c.port = ntohs((<sockaddr_in *>peer).sin_port)
        memcpy(c.address, &(<sockaddr_in *>peer).sin_addr, 4)
    elif peer.ss_family == AF_INET6:
        c.family = 6
        c.port = ntohs((<sockaddr_in6 *>peer).sin6_port)
        memcpy(c.address, &(<sockaddr_in6 *>peer).sin6_addr, 16)


cdef bint takes_output(Connection *c) noexcept nogil:
    """Return whether a full connection's peer has taken output since the last sweep.

The connection is not read, so its frames cannot show that the peer is alive.
    """
    cdef uint32_t before = c.since.socket_bytes
    cdef int now = 0
    if ioctl(c.fd, TIOCOUTQ, &now) != 0:
        return False
    c.since.socket_bytes = <uint32_t>now
    return c.since.socket_bytes != before


cdef uint32_t message_bytes(bytes data) except? 0xFFFFFFFF:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes is more than a connection sends at once")
    return <uint32_t>size


cdef void reset_on_close(int fd) noexcept nogil:
    """Let closing the descriptor end the connection at once, with its buffered bytes."""
    cdef linger now
    now.l_onoff = 1
    now.l_linger = 0
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now))


cdef socklen_t write_address(sockaddr_storage *storage, str host, uint16_t port) except 0:
    cdef bytes text = host.encode("ascii")
    cdef sockaddr_in *v4 = <sockaddr_in *>storage
    cdef sockaddr_in6 *v6 = <sockaddr_in6 *>storage
    memset(storage, 0, sizeof(sockaddr_storage))
    if inet_pton(AF_INET, text, &v4.sin_addr) == 1:
        v4.sin_family = AF_INET
        v4.sin_port = htons(port)
        return sizeof(sockaddr_in)
    if inet_pton(AF_INET6, text, &v6.sin6_addr) == 1:
        v6.sin6_family = AF_INET6
        v6.sin6_port = htons(port)
        return sizeof(sockaddr_in6)
    raise ValueError(f"{host!r} is not a numeric IPv4 or IPv6 address")
