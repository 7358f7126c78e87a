"""A reactor polled by hand, and peers that talk to it over loopback.

Owns: ReactorLoop (polls, keeps what the turns said), listening sockets and peers for tests.
Must not touch: anything outside 127.0.0.1, ::1 and abstract Unix sockets.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from motelog.core.net.codec import Codec
from motelog.core.net.reactor import CloseReason, Fault, Framing, Reactor, Turn

DEADLINE_S = 20.0
FRAME_BYTES_MAX = 65_536

_unix_names = count()


def listening(
    host: str = "127.0.0.1", *, backlog: int = 512, buffer_bytes: int = 0
) -> socket.socket:
    """A TCP listener on a free port; ``buffer_bytes`` is the send buffer of what it accepts."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    sock.bind((host, 0))
    sock.listen(backlog)
    return sock


def listening_unix() -> socket.socket:
    """A listener on an abstract Unix socket: nothing to clean up, no ports used."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0motelog-test-{os.getpid()}-{next(_unix_names)}")
    sock.listen(512)
    return sock


class ReactorLoop:
    """Polls a reactor by hand and keeps what its turns said."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        framing: Framing = Framing.MQTT,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        first_frame_s: int = 0,
        sock: socket.socket | None = None,
        buffer_bytes: int = 0,
        codec: Callable[[], Codec] | None = None,
        connections_max: int = 0,
    ) -> None:
        self.reactor = reactor
        self.buffer_bytes = buffer_bytes  # receive buffer of the peers, 0: the system's
        self.now_s = 1000
        self.opened: list[tuple[int, int, tuple[str, int]]] = []
        self.frames: defaultdict[int, list[bytes]] = defaultdict(list)
        self.variants: defaultdict[int, list[int]] = defaultdict(list)
        self.faults: list[tuple[int, Fault]] = []
        self.closed: list[tuple[int, CloseReason]] = []
        self.drained: list[int] = []
        self.turns = 0
        self._peers: list[socket.socket] = []
        sock = sock or listening()
        self.address = sock.getsockname()
        self.family = sock.family
        self.listener = reactor.listen(
            sock,
            framing,
            frame_bytes_max=frame_bytes_max,
            first_frame_s=first_frame_s,
            codec=codec,
            connections_max=connections_max,
        )

    def turn(self) -> Turn:
        turn = self.reactor.poll(self.now_s)
        self.turns += 1
        self.opened += turn.opened
        data, index = turn.data, turn.index
        assert len(index) == 4 * turn.frames
        for i in range(0, len(index), 4):
            connection, variant, begin, end = index[i : i + 4]
            self.frames[connection].append(bytes(data[begin:end]))
            self.variants[connection].append(variant)
        self.faults += turn.faults
        self.closed += turn.closed
        self.drained += turn.drained
        return turn

    def until(self, condition: Callable[[], object]) -> None:
        """Poll until ``condition`` holds; fails after a deadline."""
        give_up = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up, "the reactor did not get there"
            if not self.turn().more and not condition():
                select.select([self.reactor], [], [], 0.05)

    def settle(self, turns: int = 4) -> None:
        """Poll a few times: for what must not happen."""
        for _ in range(turns):
            self.turn()

    def open(self) -> tuple[int, socket.socket]:
        """A new peer; returns its connection and its socket, which gives up after a deadline."""
        before = len(self.opened)
        peer = self.begin()
        self.until(lambda: len(self.opened) > before)
        return self.opened[-1][0], peer

    def begin(self) -> socket.socket:
        """A new peer that the reactor has not accepted yet."""
        peer = self.own(socket.socket(self.family, socket.SOCK_STREAM))
        if self.buffer_bytes:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        peer.connect(self.address)
        return peer

    def own(self, sock: socket.socket) -> socket.socket:
        """Close the socket with this loop; nothing on it waits longer than a deadline."""
        sock.settimeout(DEADLINE_S)
        self._peers.append(sock)
        return sock

    def finish(self) -> None:
        self.reactor.shut_down()
        for peer in self._peers:
            peer.close()


@contextmanager
def reactor_loop(
    reactor: Reactor,
    *,
    framing: Framing = Framing.MQTT,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    first_frame_s: int = 0,
    sock: socket.socket | None = None,
    buffer_bytes: int = 0,
    codec: Callable[[], Codec] | None = None,
    connections_max: int = 0,
) -> Iterator[ReactorLoop]:
    """A loop with one listener, on TCP loopback if none is given; shuts all of it down."""
    loop = ReactorLoop(
        reactor,
        framing=framing,
        frame_bytes_max=frame_bytes_max,
        first_frame_s=first_frame_s,
        sock=sock,
        buffer_bytes=buffer_bytes,
        codec=codec,
        connections_max=connections_max,
    )
    try:
        yield loop
    finally:
        loop.finish()


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes; fails when the peer closes first."""
    received = b""
    while len(received) < size:
        chunk = peer.recv(size - len(received))
        assert chunk, f"closed after {len(received)} of {size} bytes"
        received += chunk
    return received


def mqtt_frame(body: bytes, first_byte: int = 0x30) -> bytes:
    """A frame with the MQTT length rule."""
    length = len(body)
    header = bytearray([first_byte])
    while True:
        header.append((length & 127) | (128 if length > 127 else 0))
        length >>= 7
        if not length:
            return bytes(header) + body
