"""What each call of the reactor means.

An id is reused at the earliest two polls after its connection ended. A partial frame takes only
as much memory as its received part. For each connection a turn reports opened, frames, faults,
closed, in this order of time.
Spec: MQTT 5.0 section 2.1.4; RocketMQ's NettyDecoder (LengthFieldBasedFrameDecoder of 4 bytes).
"""

import socket
from array import array
from collections.abc import Callable, Sequence

from motelog.core.net.codec import Certificate, Codec, Observer
from motelog.core.net.reactor_types import CloseReason, Fault, Framing

CONNECTION_BYTES: int

class Turn:
    """One batch: what arrived and what happened; its buffers are valid until the next poll().

    ``drained`` has each connection that was above ``output_bytes_high`` when its output was to be
    sent, even if only for a moment, and is now below half of it.
    """

    @property
    def frames(self) -> int: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def index(self) -> memoryview: ...
    @property
    def opened(self) -> list[tuple[int, int, tuple[str, int]]]: ...
    @property
    def faults(self) -> list[tuple[int, Fault]]: ...
    @property
    def closed(self) -> list[tuple[int, CloseReason]]: ...
    @property
    def drained(self) -> list[int]: ...
    @property
    def more(self) -> bool: ...
    def __bool__(self) -> bool: ...

class Reactor:
    """Sockets in batches: one poll() receives from all of them and cuts the bytes into frames.

    One thread owns it. Ids of connections are slot numbers below ``connections_max``. Calls that
    name an ended connection do nothing: a connection may end before a turn reports it.
    ``sent_counts``, of type "Q", is for a reactor of MQTT: it counts the frames that connections
    have taken, by their first byte, and in its last item their bytes.
    """

    def __init__(
        self,
        *,
        connections_max: int = 20_000,
        output_bytes_high: int = 262_144,
        output_bytes_max: int = 1_048_576,
        sent_counts: array[int] | None = None,
    ) -> None: ...
    @property
    def connections_count(self) -> int:
        """Connections that are open: neither being opened nor closed by either side."""

    @property
    def accept_errno(self) -> int: ...
    def fileno(self) -> int:
        """The epoll descriptor: readable when poll() has something to do; -1 after shut_down()."""

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

    def stop_listening(self, listener: int) -> None:
        """Close that listener's socket; its connections stay."""

    def connect(
        self,
        address: tuple[str, int],
        framing: Framing,
        *,
        frame_bytes_max: int,
        source: str | None = None,
    ) -> int:
        """Begin to connect to a numeric address; a turn reports it in ``opened`` or ``closed``.

        Output queued before it is open waits. ``source`` is the local address. OSError if there
        is no descriptor or no slot left.
        """

    def poll(self, now_s: int) -> Turn:
        """Send queued output, then take one batch from all sockets that are ready; never waits.

        ``now_s`` is a clock that does not go back. The buffers of the previous turn are released.
        """

    def send(self, connection: int, data: bytes, body: bytes = b"") -> None:
        """Queue a message, ``data`` then ``body``; flush() or the next poll() sends it.

        A connection that does not read and would exceed ``output_bytes_max`` is aborted with
        OUTPUT_FULL. While at most ``output_bytes_high`` wait, a message of any size is accepted.
        """

    def send_many(self, items: list[tuple[int, bytes]]) -> None:
        """send() each (connection, data)."""

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        """Queue one message for many; returns those skipped: closed or above output_bytes_high."""

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        """fan_out(), with a 16-bit number for each receiver put at ``data[number_at]``."""

    def flush(self) -> None:
        """Send queued output: normally one system call per connection that has any."""

    def close(self, connection: int) -> None:
        """Send queued output, half-close, discard input for LINGER_S; not reported."""

    def abort(self, connection: int) -> None:
        """End it at once and drop its queued output; not reported."""

    def set_variant(self, connection: int, variant: int) -> None:
        """Set a number that is returned with each frame cut from now on."""

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        """Set the largest frame, header included, and the seconds without one until Fault.IDLE.

        0 seconds: never, but the system checks a silent peer by TCP keep-alive. Time in which
        Python has paused the connection does not count. While its output holds back reading, the
        peer must take output instead.
        """

    def pause(self, connection: int) -> None:
        """Stop reading from it; frames of the current turn stay valid."""

    def resume(self, connection: int) -> None:
        """Read from it again; its idle time starts from zero."""

    def peer(self, connection: int) -> tuple[str, int]:
        """Address and port of the other side; also after the end, until the id is reused."""

    def listener(self, connection: int) -> int:
        """The listener that accepted it, -1 if it was opened here; after the end as ``peer``."""

    def listener_connections(self, listener: int) -> int:
        """Connections that it accepted and that hold a descriptor."""

    def identity(self, connection: int) -> Certificate | None:
        """The certificate that the peer has sent, if its codec requests one; until the end."""

    def codec_fault(self, connection: int) -> str:
        """The fault of a connection whose fault is TRANSPORT, in words; until the end."""

    def observe(self, connection: int, observer: Observer | None) -> bool:
        """Show an observer what a connection receives and sends from now on; None ends that.

        It replaces an earlier one. False: the connection has ended, or its codec has not received
        anything. A connection that is not observed pays nothing for this.
        """

    def output_bytes(self, connection: int) -> int:
        """Bytes queued and not yet taken by the socket."""

    def take_codec_error(self) -> Exception | None:
        """Return an error that a codec raised since the last call; it ended only its connection."""

    def silent_ms(self, connection: int) -> int:
        """Milliseconds since the peer's last bytes reached the socket, read or not; 0 if unknown.

        Bytes that have just been read from it have waited at least as long.
        """

    def held_bytes(self) -> int:
        """Bytes held for all connections: queued output and partial frames.

        Approximate: a message queued for many counts once, and reserved room counts.
        """

    def holding(self, bytes_min: int) -> list[tuple[int, int]]:
        """(bytes, id) of each open connection with so many bytes queued or in a partial frame."""

    def sweep(self, now_s: int) -> None:
        """Find overdue connections: idle, lingering, or not yet open."""

    def shut_down(self) -> None:
        """Try once to send queued output, then close all sockets; it cannot be used again."""
