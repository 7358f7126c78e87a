"""The reactor's reference: the same interface and answers in plain Python over epoll.

Owns: its sockets, their queued output and partial frames until shut_down(). Must not touch: what
frames mean; policy, clocks (the second enters with poll() and sweep()), logging.
Invariants: an id is given out again at the earliest two polls after its connection ended. A partial
frame takes only as much memory as was received of it. For each connection a turn reports opened,
frames, faults, closed, in this order of time.
Spec: MQTT 5.0 section 2.1.4; RocketMQ's NettyDecoder (LengthFieldBasedFrameDecoder of 4 bytes).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import select
import socket
import struct
import termios
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from motelog.core.net.codec import Certificate, Codec, Observed, Observer, Stream
from motelog.core.net.reactor_types import (
    ACCEPT_PAUSE_S,
    ACCEPTS_MAX,
    BUSY_EVENTS,
    CODED_BYTES_MAX,
    CONNECT_S_MAX,
    EVENTS_MAX,
    LINGER_S,
    LISTENERS_MAX,
    RECEIVE_BYTES_MAX,
    TURN_BYTES,
    TURN_FRAMES,
    CloseReason,
    Fault,
    Framing,
)

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
# The head of Linux' struct tcp_info, up to tcpi_last_data_recv.
_TCP_INFO = struct.Struct("=52xI")
MALFORMED = -1
SENT_COUNTS = 257  # one for each first byte, and one for the bytes
WOULD_BLOCK = (errno.EAGAIN, errno.EINTR)


def frame_size(framing: Framing, data: bytes | bytearray, begin: int) -> int:
    """Whole size of the frame at ``begin``; 0 if more bytes are needed to say, -1 if malformed."""
    if framing is Framing.REMOTING:
        if len(data) - begin < 4:
            return 0
        length = int.from_bytes(data[begin : begin + 4], "big")
        return length + 4 if length >= 4 else MALFORMED
    length = 0
    for i, byte in enumerate(data[begin + 1 : begin + 5]):
        length |= (byte & 127) << (7 * i)
        if byte < 128:
            return length + i + 2
    return MALFORMED if len(data) - begin >= 5 else 0


def _observed_only() -> Codec:
    """Stands for the codec of a listener that has none, while a connection is observed."""
    raise AssertionError("an observed connection has its codec")


def _takes_output(c: _Connection) -> bool:
    """Whether a full connection's peer has taken output since the last sweep.

    The connection is not read, so its frames cannot show that the peer is there.
    """
    before = c.socket_bytes
    [c.socket_bytes] = struct.unpack("i", fcntl.ioctl(c.sock, termios.TIOCOUTQ, bytes(4)))
    return c.socket_bytes != before


class Turn:
    """One batch: what arrived and what happened; its buffers are valid until the next poll().

    ``drained`` has each connection that was above ``output_bytes_high`` when its output was to be
    sent, even if only for a moment, and is now below half of it.
    """

    __slots__ = ("closed", "data", "drained", "faults", "frames", "index", "more", "opened")

    def __init__(
        self,
        data: bytes,
        index: array[int],
        *,
        opened: list[tuple[int, int, tuple[str, int]]],
        faults: list[tuple[int, Fault]],
        closed: list[tuple[int, CloseReason]],
        drained: list[int],
        more: bool,
    ) -> None:
        self.frames = len(index) // 4
        self.data = memoryview(data)
        self.index = memoryview(index).toreadonly()
        self.opened = opened
        self.faults = faults
        self.closed = closed
        self.drained = drained
        self.more = more

    def __bool__(self) -> bool:
        return bool(self.frames or self.opened or self.faults or self.closed or self.drained)


class _Listener:
    __slots__ = (
        "codec",
        "connections",
        "connections_max",
        "first_frame_s",
        "frame_bytes_max",
        "framing",
        "resume_s",
        "sock",
    )

    def __init__(
        self,
        sock: socket.socket,
        framing: Framing,
        *,
        frame_bytes_max: int,
        first_frame_s: int,
        codec: Callable[[], Codec] | None,
        connections_max: int,
    ) -> None:
        self.codec = codec
        self.connections = 0
        self.connections_max = connections_max
        self.sock: socket.socket | None = sock
        self.framing = framing
        self.frame_bytes_max = frame_bytes_max
        self.first_frame_s = first_frame_s
        self.resume_s: int | None = None  # set while accepting is paused


class _Connection:
    __slots__ = (
        "awaits_first_frame",
        "codec",
        "coded_by",
        "events",
        "fault",
        "frame_bytes_max",
        "framing",
        "idle_s_max",
        "is_blocked",
        "is_broken",
        "is_connecting",
        "is_deferred",
        "is_full",
        "is_half_closed",
        "is_input_ended",
        "is_lingering",
        "is_paused",
        "last_frame_s",
        "listener",
        "output",
        "output_bytes",
        "peer",
        "rest",
        "sock",
        "socket_bytes",
        "variant",
        "wire",
    )

    def __init__(
        self,
        sock: socket.socket,
        framing: Framing,
        *,
        frame_bytes_max: int,
        idle_s_max: int,
        listener: int,
        peer: tuple[str, int],
        now_s: int,
    ) -> None:
        self.sock = sock
        self.framing = framing
        self.frame_bytes_max = frame_bytes_max
        self.idle_s_max = idle_s_max
        self.listener = listener
        self.peer = peer
        self.last_frame_s = now_s  # while it connects or lingers: when that began
        self.variant = 0
        self.is_deferred = False  # bytes behind its first frame are cut in the next turn
        self.rest = b""
        self.output: deque[memoryview] = deque()
        self.output_bytes = 0
        self.coded_by: Callable[[], Codec] | None = None
        self.codec: Codec | None = None  # made when the peer sends something
        self.wire = bytearray()  # what the codec has made of the output, or answers itself
        self.events = 0
        self.awaits_first_frame = listener >= 0
        self.fault = False
        self.is_connecting = listener < 0
        self.is_paused = False
        self.is_full = False  # above output_bytes_high; not read until it has drained
        self.socket_bytes = 0  # while it is full: what the peer had yet to take at the last sweep
        self.is_blocked = False  # the socket takes no more; waits for EPOLLOUT
        self.is_broken = False  # sending failed; bytes that the peer sent before are still read
        self.is_lingering = False  # closed by Python: sends what is queued, discards input
        self.is_half_closed = False
        self.is_input_ended = False

    @property
    def is_read(self) -> bool:
        return not (self.is_paused or self.fault or self.is_full)

    @property
    def wanted_events(self) -> int:
        """The events that epoll is asked for."""
        if self.is_connecting:
            return select.EPOLLOUT
        is_read = not self.is_input_ended if self.is_lingering else self.is_read
        return (select.EPOLLIN if is_read else 0) | (select.EPOLLOUT if self.is_blocked else 0)


class Reactor:
    """Sockets in batches: one poll() receives from all of them and cuts the bytes into frames.

    One thread owns it. Ids of connections are slot numbers below ``connections_max``. Calls that
    name an ended connection do nothing: a connection may end before a turn reports it.
    ``sent_counts``, of type "Q", is for a reactor of MQTT: it counts the frames that connections
    have taken, by their first byte, and at the end their bytes.
    """

    def __init__(
        self,
        *,
        connections_max: int = 20_000,
        output_bytes_high: int = 262_144,
        output_bytes_max: int = 1_048_576,
        sent_counts: array[int] | None = None,
    ) -> None:
        if connections_max < 1 or output_bytes_high > output_bytes_max:
            raise ValueError(
                "connections_max is at least 1, output_bytes_high at most output_bytes_max"
            )
        if sent_counts is not None and len(memoryview(sent_counts).cast("B")) != SENT_COUNTS * 8:
            raise ValueError(f"sent_counts of {len(sent_counts)} are not {SENT_COUNTS} u64")
        self._sent_counts = sent_counts
        self._connections_max = connections_max
        self._output_bytes_high = output_bytes_high
        self._output_bytes_max = output_bytes_max
        self._epoll: select.epoll | None = select.epoll()
        self._listeners: list[_Listener] = []
        # Why the last accept failed and paused its listener, 0 if it did not; EUSERS: no free slot.
        self.accept_errno = 0
        self._connections: dict[int, _Connection] = {}
        self._by_descriptor: dict[int, int] = {}
        self._peers: dict[int, tuple[str, int]] = {}
        self._listener_of: dict[int, int] = {}
        self._free: list[int] = []
        self._fresh = 0
        self._resting: deque[tuple[int, int]] = deque()  # (first turn that may use it, id)
        self._turn = 0
        self._now_s = 0
        self._dirty: dict[int, None] = {}
        self._ready: deque[tuple[int, int]] = deque()
        self._input_ready = False
        self._data = bytearray()
        self._index = array("I")
        self._opened: list[tuple[int, int, tuple[str, int]]] = []
        self._deferred: list[int] = []
        self._faults: dict[int, Fault] = {}
        self._closed: dict[int, CloseReason] = {}
        self._drained: dict[int, None] = {}
        self._last: Turn | None = None
        self._codec_error: Exception | None = None

    # ------------------------------------------------------------------ what Python calls

    @property
    def connections_count(self) -> int:
        """Connections that are open: neither being opened nor closed by either side."""
        return sum(not (c.is_connecting or c.is_lingering) for c in self._connections.values())

    def fileno(self) -> int:
        """The epoll descriptor: readable when poll() has something to do; -1 after shut_down()."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def listen(
        self,
        sock: socket.socket,
        framing: Framing,
        *,
        frame_bytes_max: int,
        first_frame_s: int,
        codec: Callable[[], Codec] | None = None,
        connections_max: int = 0,
    ) -> int:
        """Accept from ``sock``, bound and listening, which the reactor now owns; returns its id.

        A connection that has not completed a frame within ``first_frame_s`` gets Fault.IDLE; 0
        means no limit. After the first frame there is no limit until set_limits().
        ``codec`` makes the codec of each connection when its first bytes have come. Above
        ``connections_max``, if it is not 0, accepting rests.
        """
        epoll = self._usable()
        if len(self._listeners) == LISTENERS_MAX:
            raise ValueError(f"a reactor takes at most {LISTENERS_MAX} listeners")
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN)
        listener = len(self._listeners)
        self._listeners.append(
            _Listener(
                sock,
                Framing(framing),
                frame_bytes_max=frame_bytes_max,
                first_frame_s=first_frame_s,
                codec=codec,
                connections_max=connections_max,
            )
        )
        self._by_descriptor[sock.fileno()] = -1 - listener
        return listener

    def stop_listening(self, listener: int) -> None:
        """Close that listener's socket; its connections stay."""
        epoll = self._usable()
        if listener >= len(self._listeners):
            return
        sock = self._listeners[listener].sock
        if sock is not None:
            epoll.unregister(sock)
            del self._by_descriptor[sock.fileno()]
            sock.close()
            self._listeners[listener].sock = None

    def connect(
        self,
        address: tuple[str, int],
        framing: Framing,
        *,
        frame_bytes_max: int,
        source: str | None = None,
    ) -> int:
        """Begin to connect to a numeric address; a turn reports it in ``opened`` or ``closed``.

        Output queued before it is open waits. ``source`` is the local address. OSError when there
        is no descriptor or no slot left.
        """
        self._usable()
        try:
            family = (
                socket.AF_INET if ipaddress.ip_address(address[0]).version == 4 else socket.AF_INET6
            )
        except ValueError:
            raise ValueError(f"{address[0]!r} is not a numeric IPv4 or IPv6 address") from None
        slot = self._take_slot()
        if slot is None:
            raise OSError(errno.EMFILE, "all connection slots of the reactor are taken")
        sock = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if source is not None:
                sock.bind((source, 0))
        except OSError:
            if sock is not None:
                sock.close()
            self._free.append(slot)
            raise
        c = self._start(
            slot,
            _Connection(
                sock,
                Framing(framing),
                frame_bytes_max=frame_bytes_max,
                idle_s_max=0,
                listener=-1,
                peer=(address[0], address[1]),
                now_s=self._now_s,
            ),
        )
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._end(slot, CloseReason.CONNECT_FAILED)
        else:
            self._watch(c)
        return slot

    def poll(self, now_s: int) -> Turn:
        """Send queued output, then take one batch from all sockets that are ready; never waits.

        ``now_s`` is a clock that does not go back. The buffers of the turn before are released.
        """
        self._usable()
        self._now_s = now_s
        self._turn += 1
        if self._last is not None:
            for view in (self._last.data, self._last.index):
                with contextlib.suppress(BufferError):  # in use as a buffer elsewhere
                    view.release()
        self._data = bytearray()
        self._index = array("I")
        self._input_ready = False
        while self._resting and self._resting[0][0] <= self._turn:
            self._free.append(self._resting.popleft()[1])
        self.flush()
        self._resume_listeners()
        while self._deferred and self._has_turn_room():
            self._cut_deferred(self._deferred.pop())
        if self._deferred:
            self._input_ready = True
        if not self._ready:
            assert self._epoll is not None
            self._ready.extend(self._epoll.poll(0, EVENTS_MAX))
            self._input_ready = len(self._ready) >= BUSY_EVENTS
        # Sockets that a full turn leaves over come first in the next one. Asking epoll again
        # instead would serve the same sockets first each time.
        while self._ready and self._has_turn_room():
            descriptor, events = self._ready.popleft()
            slot = self._by_descriptor.get(descriptor)
            if slot is None:
                continue
            if slot < 0:
                self._accept(-1 - slot)
            else:
                self._serve(slot, self._connections[slot], events)
        return self._report()

    def send(self, connection: int, data: bytes, body: bytes = b"") -> None:
        """Queue a message, ``data`` then ``body``; flush() or the next poll() sends it.

        A connection that does not read and would exceed ``output_bytes_max`` is aborted with
        OUTPUT_FULL. While at most ``output_bytes_high`` wait, a message of any size is taken.
        """
        c = self._sendable(connection)
        if c is None:
            return
        size = len(data) + len(body)
        if not self._has_room(connection, c) and (
            c.is_broken or c.output_bytes + size > self._output_bytes_max
        ):
            if not c.is_broken:
                self._reset(c)
                self._end(connection, CloseReason.OUTPUT_FULL)
            return
        self._queue(connection, c, data)
        self._queue(connection, c, body)
        self._count_sent(data, 1)

    def send_many(self, items: list[tuple[int, bytes]]) -> None:
        """send() each (connection, data)."""
        for connection, data in items:
            self.send(connection, data)

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        """Queue one message for many; returns those skipped: closed or above output_bytes_high."""
        skipped = self._fan_out((connection, data) for connection in connections)
        self._count_sent(data, len(connections) - len(skipped))
        return skipped

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        """fan_out(), with a 16-bit number for each receiver put at ``data[number_at]``."""
        if not 0 <= number_at <= len(data) - 2:
            raise ValueError(f"no room for a number at byte {number_at} of {len(data)}")
        before, after = data[:number_at], data[number_at + 2 :]
        skipped = self._fan_out(
            (connection, before + number.to_bytes(2, "big") + after)
            for connection, number in receivers
        )
        self._count_sent(data, len(receivers) - len(skipped))
        return skipped

    def flush(self) -> None:
        """Send queued output: normally one system call per connection that has any."""
        self._usable()
        dirty, self._dirty = self._dirty, {}
        for slot in dirty:
            c = self._connections.get(slot)
            if c is not None:
                self._flush_one(slot, c)

    def close(self, connection: int) -> None:
        """Send queued output, half-close, discard input for LINGER_S; not reported."""
        if self._closed.pop(connection, None) is not None:
            self._rest(connection)
            return
        c = self._connections.get(connection)
        if c is None or c.is_lingering:
            return
        if c.is_connecting or c.is_broken:
            self._forget(connection)
            return
        c.is_lingering = True
        c.last_frame_s = self._now_s
        c.rest = b""
        self._dirty[connection] = None  # flush() half-closes once all is sent
        self._watch(c)

    def abort(self, connection: int) -> None:
        """End it at once and drop its queued output; not reported."""
        if self._closed.pop(connection, None) is not None:
            self._rest(connection)
        elif connection in self._connections:
            self._reset(self._connections[connection])
            self._forget(connection)

    def set_variant(self, connection: int, variant: int) -> None:
        """Set a number that is handed back with each frame cut from now on."""
        c = self._sendable(connection)
        if c is not None:
            c.variant = variant

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        """Set the largest frame, header included, and the seconds without one until Fault.IDLE.

        0 seconds: never, but the system looks after a silent peer by TCP keep-alive. Time in which
        Python has paused the connection does not count. While its output holds reading back, what
        counts is whether the peer takes output.
        """
        c = self._sendable(connection)
        if c is not None:
            if not idle_s_max:
                c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            c.frame_bytes_max = frame_bytes_max
            c.idle_s_max = idle_s_max
            c.awaits_first_frame = False

    def pause(self, connection: int) -> None:
        """Stop reading from it; frames of the current turn stay valid."""
        c = self._sendable(connection)
        if c is not None:
            c.is_paused = True
            self._watch(c)

    def resume(self, connection: int) -> None:
        """Read from it again; its idle time starts from zero."""
        c = self._sendable(connection)
        if c is not None and c.is_paused:
            c.is_paused = False
            c.last_frame_s = self._now_s
            self._watch(c)

    def peer(self, connection: int) -> tuple[str, int]:
        """Address and port of the other side; after the end, too, until the id is used again."""
        if connection not in self._peers:
            raise ValueError(f"no connection {connection}")
        return self._peers[connection]

    def listener(self, connection: int) -> int:
        """The listener that it came by, -1 if it was opened here; after the end as ``peer``."""
        if connection not in self._peers:
            raise ValueError(f"no connection {connection}")
        return self._listener_of[connection]

    def listener_connections(self, listener: int) -> int:
        """Connections that came by it and hold a descriptor."""
        return self._listeners[listener].connections if listener < len(self._listeners) else 0

    def identity(self, connection: int) -> Certificate | None:
        """The certificate that the peer has shown, if its codec asks for one; until the end."""
        c = self._sendable(connection)
        return c.codec.identity if c is not None and c.codec is not None else None

    def codec_fault(self, connection: int) -> str:
        """What is wrong with a connection whose fault is TRANSPORT, in words; until the end."""
        c = self._sendable(connection)
        return c.codec.fault if c is not None and c.codec is not None else ""

    def take_codec_error(self) -> Exception | None:
        """Return what a codec has raised since the last call; it has ended its connection alone."""
        error, self._codec_error = self._codec_error, None
        return error

    def observe(self, connection: int, observer: Observer | None) -> bool:
        """Show an observer what a connection receives and sends from now on; None ends that.

        It takes the place of an earlier one. False: the connection has ended, or its codec has not
        received anything. A connection that is not observed pays nothing for it.
        """
        c = self._sendable(connection)
        if c is None or (c.coded_by is not None and c.codec is None):
            return False
        codec = c.codec.codec if isinstance(c.codec, Observed) else c.codec
        if observer is not None:
            observer.begin(bytes(c.rest), c.output_bytes)
            c.codec = Observed(codec, observer)
            c.coded_by = c.coded_by or _observed_only
            return True
        c.codec = codec
        if codec is None and c.coded_by is not None:
            c.coded_by = None
            if c.wire:
                c.output.appendleft(memoryview(bytes(c.wire)))
                c.output_bytes += len(c.wire)
                c.wire.clear()
        return True

    def output_bytes(self, connection: int) -> int:
        """Bytes queued and not yet taken by the socket."""
        c = self._sendable(connection)
        return 0 if c is None else c.output_bytes + len(c.wire)

    def silent_ms(self, connection: int) -> int:
        """Milliseconds since the peer's last bytes reached the socket, read or not; 0 if unknown.

        What has just been read of a connection has waited at least as long.
        """
        c = self._sendable(connection)
        if c is None:
            return 0
        try:
            told = c.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return 0
        return int(_TCP_INFO.unpack(told)[0])

    def held_bytes(self) -> int:
        """Bytes held for all connections: output that waits, frames that have not come whole.

        About: a message that waits for many counts once, and room that is set aside counts.
        """
        held = self._connections.values()
        payloads = {id(data.obj): memoryview(data.obj).nbytes for c in held for data in c.output}
        return sum(payloads.values()) + sum(len(c.rest) + len(c.wire) for c in held)

    def holding(self, bytes_min: int) -> list[tuple[int, int]]:
        """(bytes, id) of each open connection that has so many to send, or received in part."""
        held = (
            (c.output_bytes + len(c.rest) + len(c.wire), slot)
            for slot, c in self._connections.items()
            if not (c.is_connecting or c.is_lingering)
        )
        return [(size, slot) for size, slot in held if size >= bytes_min]

    def sweep(self, now_s: int) -> None:
        """Find overdue connections: idle ones, lingering ones, those that do not open."""
        self._usable()
        self._now_s = now_s
        for slot, c in list(self._connections.items()):
            if not c.last_frame_s:  # it was opened before the first poll() gave a time
                c.last_frame_s = now_s
            is_open = not (c.is_connecting or c.is_lingering)
            if is_open and c.is_full and _takes_output(c):
                c.last_frame_s = now_s
            waited_s = now_s - c.last_frame_s
            if c.is_connecting:
                if waited_s > CONNECT_S_MAX:
                    self._end(slot, CloseReason.CONNECT_FAILED)
            elif c.is_lingering:
                if waited_s > LINGER_S:
                    self._reset(c)
                    self._forget(slot)
            elif c.idle_s_max and waited_s > c.idle_s_max and not (c.is_paused or c.fault):
                self._note_fault(slot, c, Fault.IDLE)

    def shut_down(self) -> None:
        """Try once to send queued output, then close all sockets; it cannot be used again."""
        for slot, c in list(self._connections.items()):
            if not c.is_connecting:
                self._flush_one(slot, c)
            c.sock.close()
        self._connections.clear()
        for listener in self._listeners:
            if listener.sock is not None:
                listener.sock.close()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    # ------------------------------------------------------------------ slots

    def _usable(self) -> select.epoll:
        if self._epoll is None:
            raise ValueError("the reactor is shut down")
        return self._epoll

    def _sendable(self, connection: int) -> _Connection | None:
        c = self._connections.get(connection)
        return None if c is None or c.is_lingering else c

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._fresh < self._connections_max:
            self._fresh += 1
            return self._fresh - 1
        return None

    def _rest(self, slot: int) -> None:
        self._resting.append((self._turn + 2, slot))

    def _start(self, slot: int, c: _Connection) -> _Connection:
        with contextlib.suppress(OSError):  # not TCP
            c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[slot] = c
        self._by_descriptor[c.sock.fileno()] = slot
        self._peers[slot] = c.peer
        self._listener_of[slot] = c.listener
        if c.listener >= 0:
            self._listeners[c.listener].connections += 1
        return c

    def _release(self, slot: int) -> None:
        c = self._connections.pop(slot)
        if c.listener >= 0:
            self._listeners[c.listener].connections -= 1
        del self._by_descriptor[c.sock.fileno()]
        c.sock.close()

    def _end(self, slot: int, reason: CloseReason) -> None:
        """End a connection, and report that to Python."""
        self._release(slot)
        self._closed[slot] = reason

    def _forget(self, slot: int) -> None:
        """End a connection without a report: Python has closed it."""
        self._release(slot)
        self._rest(slot)

    @staticmethod
    def _reset(c: _Connection) -> None:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)

    def _watch(self, c: _Connection) -> None:
        events = c.wanted_events
        epoll = self._usable()
        try:
            epoll.modify(c.sock, events)
        except FileNotFoundError:
            epoll.register(c.sock, events)

    # ------------------------------------------------------------------ one turn

    def _serve(self, slot: int, c: _Connection, events: int) -> None:
        if c.is_connecting:
            self._finish_connect(slot, c)
            return
        if events & select.EPOLLOUT and c.is_blocked:
            c.is_blocked = False
            self._flush_one(slot, c)
        if slot not in self._connections:
            return
        has_input = events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP)
        if c.is_lingering:
            if has_input:
                self._discard(slot, c)
        elif c.is_read:
            if has_input:
                self._receive(slot, c)
        elif events & (select.EPOLLERR | select.EPOLLHUP):
            self._end(slot, CloseReason.RESET)

    def _finish_connect(self, slot: int, c: _Connection) -> None:
        if c.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(slot, CloseReason.CONNECT_FAILED)
            return
        c.is_connecting = False
        c.last_frame_s = self._now_s
        self._opened.append((slot, c.listener, c.peer))
        self._flush_one(slot, c)

    def _accept(self, number: int) -> None:
        listener = self._listeners[number]
        for i in range(ACCEPTS_MAX):
            if listener.sock is None or listener.resume_s is not None:
                return
            if 0 < listener.connections_max <= listener.connections:
                self.accept_errno = errno.EUSERS
                self._pause_listener(listener)
                return
            slot = self._take_slot()
            if slot is None:
                # Behind an accepted one nobody may wait; if somebody does, epoll says so again.
                if i == 0:
                    self.accept_errno = errno.EUSERS
                    self._pause_listener(listener)
                return
            try:
                sock, peer = listener.sock.accept()
            except OSError as exc:
                self._free.append(slot)
                if exc.errno in WOULD_BLOCK:
                    return
                if exc.errno in (errno.ECONNABORTED, errno.EPROTO):
                    continue
                # No descriptor or no memory: the pending connection stays ready, so trying again
                # at once would spin.
                self.accept_errno = exc.errno or 0
                self._pause_listener(listener)
                return
            self.accept_errno = 0
            sock.setblocking(False)
            c = self._start(
                slot,
                _Connection(
                    sock,
                    listener.framing,
                    frame_bytes_max=listener.frame_bytes_max,
                    idle_s_max=listener.first_frame_s,
                    listener=number,
                    peer=(peer[0], peer[1]) if isinstance(peer, tuple) else ("", 0),
                    now_s=self._now_s,
                ),
            )
            c.coded_by = listener.codec
            self._watch(c)
            self._opened.append((slot, number, c.peer))
        self._input_ready = True

    def _pause_listener(self, listener: _Listener) -> None:
        assert listener.sock is not None
        self._usable().modify(listener.sock, 0)
        listener.resume_s = self._now_s + ACCEPT_PAUSE_S

    def _resume_listeners(self) -> None:
        for listener in self._listeners:
            if (
                listener.sock is not None
                and listener.resume_s is not None
                and self._now_s >= listener.resume_s
            ):
                listener.resume_s = None
                self.accept_errno = 0
                self._usable().modify(listener.sock, select.EPOLLIN)

    # ------------------------------------------------------------------ input

    def _receive(self, slot: int, c: _Connection) -> None:
        """Receive from one socket, at most its share of the turn; cut the bytes into frames."""
        try:
            received = c.sock.recv(RECEIVE_BYTES_MAX)
        except OSError as exc:
            if exc.errno not in WOULD_BLOCK:
                self._end(slot, CloseReason.RESET)
            return
        if not received:
            self._end(slot, CloseReason.RESET if c.is_broken else CloseReason.PEER)
            return
        if len(received) == RECEIVE_BYTES_MAX:
            self._input_ready = True
        if c.coded_by is None:
            self._cut(slot, c, c.rest + received)
        else:
            try:
                self._decode(slot, c, c.coded_by, received)
            except Exception as exc:
                self._codec_error = exc
                if slot in self._connections:
                    self._end(slot, CloseReason.RESET)

    def _decode(
        self, slot: int, c: _Connection, coded_by: Callable[[], Codec], received: bytes
    ) -> None:
        """Take what was received through the connection's codec."""
        if c.codec is None:
            c.codec = coded_by()
        data, answer, stream = c.codec.receive(received)
        if c.awaits_first_frame and c.codec.peer is not None:
            c.peer = self._peers[slot] = c.codec.peer
        if answer:
            c.wire += answer
            self._dirty[slot] = None
            self._input_ready = True  # the next poll() sends it
            if len(c.wire) > self._output_bytes_high:
                self._reset(c)
                self._end(slot, CloseReason.OUTPUT_FULL)
                return
        if stream is Stream.PLAIN:
            c.coded_by = c.codec = None
        if data:
            self._cut(slot, c, c.rest + data)
        if c.fault:
            return
        if stream is Stream.FAULTY:
            self._note_fault(slot, c, Fault.TRANSPORT)
        elif stream is Stream.ENDED:
            with contextlib.suppress(OSError):
                c.sock.shutdown(socket.SHUT_RD)  # so that the next receive finds the end

    def _cut(self, slot: int, c: _Connection, data: bytes) -> None:
        """Index the whole frames in ``data``; the partial tail waits in the connection."""
        begin = 0
        is_first = c.awaits_first_frame
        while begin < len(data):
            size = frame_size(c.framing, data, begin)
            if size == 0:
                break
            if size > c.frame_bytes_max and is_first and begin:
                # Judged by the limits that Python sets when it has seen the first frame.
                c.is_deferred = True
                self._deferred.append(slot)
                self._input_ready = True
                break
            if size < 0 or size > c.frame_bytes_max:
                fault = Fault.MALFORMED_LENGTH if size < 0 else Fault.FRAME_TOO_LARGE
                self._note_fault(slot, c, fault)
                return
            if size > len(data) - begin:
                break
            at = len(self._data)
            self._data += data[begin : begin + size]
            self._index.extend((slot, c.variant, at, at + size))
            begin += size
            c.last_frame_s = self._now_s
            if c.awaits_first_frame:
                c.awaits_first_frame = False
                c.idle_s_max = 0
        c.rest = data[begin:]

    def _has_turn_room(self) -> bool:
        return len(self._data) < TURN_BYTES and len(self._index) < 4 * TURN_FRAMES

    def _cut_deferred(self, slot: int) -> None:
        c = self._connections.get(slot)
        if c is not None and c.is_deferred and not c.is_lingering:
            c.is_deferred = False
            self._cut(slot, c, c.rest)

    def _note_fault(self, slot: int, c: _Connection, fault: Fault) -> None:
        c.fault = True
        c.rest = b""
        self._faults[slot] = fault
        self._watch(c)

    def _discard(self, slot: int, c: _Connection) -> None:
        """Discard what a closed connection still sends; end it when the peer is done too."""
        try:
            received = c.sock.recv(RECEIVE_BYTES_MAX)
        except OSError as exc:
            if exc.errno not in WOULD_BLOCK:
                self._forget(slot)
            return
        if received:
            return
        if c.is_half_closed or c.is_input_ended:
            self._forget(slot)
        else:
            c.is_input_ended = True  # the peer may still read queued output
            self._watch(c)

    # ------------------------------------------------------------------ output

    def _has_room(self, slot: int, c: _Connection) -> bool:
        """Send if the connection is above its high-water mark; return False if it still is."""
        if c.is_broken:
            return False
        if c.output_bytes > self._output_bytes_high:
            if not (c.is_blocked or c.is_connecting):
                self._flush_one(slot, c)
            if c.output_bytes > self._output_bytes_high:
                c.is_full = True
                self._watch(c)
                return False
        return not c.is_broken

    def _fan_out(self, messages: Iterable[tuple[int, bytes]]) -> list[int]:
        skipped = []
        for connection, data in messages:
            c = self._sendable(connection)
            if c is None or not self._has_room(connection, c):
                skipped.append(connection)
            else:
                self._queue(connection, c, data)
        return skipped

    def _count_sent(self, data: bytes, receivers: int) -> None:
        """Count the frames of a message that so many connections have taken."""
        counts = self._sent_counts
        if counts is None:
            return
        counts[-1] += len(data) * receivers
        at = 0
        while at < len(data):
            size = frame_size(Framing.MQTT, data, at)
            if size <= 0:
                return
            counts[data[at]] += receivers
            at += size

    def _queue(self, slot: int, c: _Connection, data: bytes) -> None:
        if data:
            c.output.append(memoryview(data))
            c.output_bytes += len(data)
        self._dirty[slot] = None

    def _flush_one(self, slot: int, c: _Connection) -> None:
        """Send queued output as far as the socket takes it; half-close if Python closed it."""
        if c.is_connecting:
            return
        # Judged before sending too: a sender that held something back waits for ``drained``.
        if c.output_bytes > self._output_bytes_high:
            c.is_full = True
        if not c.is_blocked:
            self._transmit(c)
        if c.is_lingering and c.is_broken:
            self._forget(slot)
            return
        if c.is_full and c.output_bytes <= self._output_bytes_high // 2:
            c.is_full = False
            if not c.is_lingering:
                c.last_frame_s = self._now_s
            self._drained[slot] = None
        if c.is_lingering and not (c.output or c.is_half_closed or c.is_blocked):
            if c.is_input_ended:
                self._forget(slot)
                return
            try:
                c.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._forget(slot)
                return
            c.is_half_closed = True
        self._watch(c)

    def _transmit(self, c: _Connection) -> None:
        if c.coded_by is not None:
            self._transmit_coded(c)
            return
        while c.output:
            try:
                sent = c.sock.send(c.output[0])
            except OSError as exc:
                if exc.errno in WOULD_BLOCK:
                    c.is_blocked = True
                else:
                    # What the peer sent before it went away is still read; that ends it.
                    c.is_broken = True
                    c.output.clear()
                    c.output_bytes = 0
                return
            c.output_bytes -= sent
            if sent < len(c.output[0]):
                c.output[0] = c.output[0][sent:]
            else:
                c.output.popleft()

    def _transmit_coded(self, c: _Connection) -> None:
        """Send through the codec part by part; what the socket does not take waits as queued."""
        while True:
            if not c.wire:
                try:
                    c.wire += self._encode(c)
                except Exception as exc:
                    self._codec_error = exc
                    c.is_broken = c.fault = True
                    c.output.clear()
                    c.output_bytes = 0
                    with contextlib.suppress(OSError):
                        c.sock.shutdown(socket.SHUT_RDWR)
                    return
                if not c.wire:
                    if c.output:
                        continue
                    return
            try:
                sent = c.sock.send(c.wire)
            except OSError as exc:
                if exc.errno in WOULD_BLOCK:
                    c.is_blocked = True
                else:
                    c.is_broken = True
                    c.wire.clear()
                    c.output.clear()
                    c.output_bytes = 0
                return
            del c.wire[:sent]

    @staticmethod
    def _encode(c: _Connection) -> bytes:
        """The next bytes for the socket; none where nothing waits, or the peer cannot take any."""
        if c.codec is None:
            c.output.clear()
            c.output_bytes = 0
            return b""
        if not c.output:
            return c.codec.close() if c.is_lingering and not c.is_half_closed else b""
        data = b""
        while c.output and len(data) < CODED_BYTES_MAX:
            part = c.output.popleft()
            room = CODED_BYTES_MAX - len(data)
            if len(part) > room:
                c.output.appendleft(part[room:])
            data += part[:room]
        c.output_bytes -= len(data)
        return c.codec.send(data)

    # ------------------------------------------------------------------ what Python sees

    def _report(self) -> Turn:
        """The turn, without connections that Python has closed since they were noted."""
        turn = Turn(
            bytes(self._data),
            self._index,
            opened=[item for item in self._opened if self._is_known(item[0])],
            faults=[item for item in self._faults.items() if self._is_known(item[0])],
            closed=list(self._closed.items()),
            drained=[slot for slot in self._drained if self._sendable(slot) is not None],
            more=self._input_ready or bool(self._ready),
        )
        for slot in self._closed:
            self._rest(slot)
        self._opened = []
        self._faults = {}
        self._closed = {}
        self._drained = {}
        self._last = turn
        return turn

    def _is_known(self, slot: int) -> bool:
        return self._sendable(slot) is not None or slot in self._closed
