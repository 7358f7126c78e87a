"""A line between clients and a server that can be cut and held.

Owns: one listening socket, the connections through it and a thread for each direction of one; a
copy of what clients sent. Must not touch: what goes over it.

A connection that is made while the line is held is accepted, but nothing comes of it until the line
is released: whoever waits longer before a second attempt than before the first does not have to.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class CutLine:
    """Forwards connections to ``server``; ``port`` is where it listens on loopback.

    ``sent`` has what went to the server, a stream for each connection, in their order.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.sent: list[bytearray] = []
        self._is_open = threading.Event()
        self._is_open.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._bytes_left: int | None = None
        self._is_cut = threading.Event()
        self._is_ended = False
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            self._is_ended = True
        self.cut()
        self.release()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """End all connections, on both sides."""
        with self._lock:
            for end in self._sockets:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def cut_and_hold_after(self, sent_bytes: int) -> None:
        """Cut and hold the line when clients have sent so many more bytes."""
        with self._lock:
            self._is_cut.clear()
            self._bytes_left = sent_bytes

    def wait_cut(self, within_s: float) -> bool:
        """Wait for that cut; return whether it was made."""
        return self._is_cut.wait(within_s)

    def hold(self) -> None:
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]  # any of ours
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            self._is_open.wait()
            with suppress(OSError), socket.create_connection(self._server) as server:
                with self._lock:
                    if self._is_ended:
                        return
                    self._sockets |= {client, server}
                sent = bytearray()
                self.sent.append(sent)
                back = threading.Thread(target=self._forward, args=(server, client))
                back.start()
                self._forward(client, server, sent)
                back.join()
                with self._lock:
                    self._sockets -= {client, server}

    def _forward(
        self, source: socket.socket, sink: socket.socket, sent: bytearray | None = None
    ) -> None:
        """Forward until either ends; with ``sent``, what a client sends, which is counted."""
        with suppress(OSError):
            while data := self._receive(source, is_sent=sent is not None):
                if sent is not None:
                    data = self._before_cut(data)
                    sent += data
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _receive(self, source: socket.socket, *, is_sent: bool) -> bytes:
        """Return what is to be forwarded next; ``is_sent``: to the server."""
        return source.recv(65_536)

    def _before_cut(self, data: bytes) -> bytes:
        """Return what of ``data`` is before the cut; cut the line if that is not all."""
        with self._lock:
            if self._bytes_left is None:
                return data
            data = data[: self._bytes_left]
            self._bytes_left -= len(data)
            if self._bytes_left:
                return data
            self._bytes_left = None
        self.hold()
        self.cut()
        self._is_cut.set()
        return data
