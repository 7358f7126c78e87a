"""Codecs: the layers between a connection's socket and its frames, such as TLS or WebSocket.

Owns: the Codec and Observer protocols, Stacked, Observed. Must not touch: sockets, frames, clocks.
Invariants: the output does not depend on how the stream is cut. A codec keeps no bytes that it
could hand over, and at most a record or a header of others. It does not call the reactor.

    socket  --receive-->  codec  --bytes of frames-->  reactor
            <--answer---         <--bytes to send----

Several stack, the one beside the socket first: PROXY protocol, TLS, WebSocket.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol


class Stream(IntEnum):
    """The state of the stream after the bytes that a codec received."""

    OPEN = 0
    PLAIN = 1  # the bytes of the frames as they are: the codec has answered nothing, and is done
    ENDED = 2  # the peer has ended it
    FAULTY = 3  # the rest cannot be read


class Decoded(NamedTuple):
    """The result of decoding received bytes: ``data`` for the frames, ``answer`` for the peer."""

    data: bytes
    answer: bytes = b""
    stream: Stream = Stream.OPEN


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a peer's certificate, which was checked; ``names`` are the alternative names.

    Names are kinds and values as in ("DNS", "a.example"). After ``expires_s`` (seconds since 1970)
    it is no longer valid.
    """

    common_name: str | None
    names: tuple[tuple[str, str], ...] = ()
    expires_s: float | None = None

    @property
    def name(self) -> str | None:
        """The name of its owner: the common name, or else the first alternative one."""
        return self.common_name or next((value for _, value in self.names), None)


class Codec(Protocol):
    """The codec of one connection; made when its first bytes have come."""

    @property
    def peer(self) -> tuple[str, int] | None:
        """The peer's numeric address and port, if the stream's differ from the socket's."""
        ...

    @property
    def identity(self) -> Certificate | None:
        """The certificate that the peer has sent."""
        ...

    @property
    def fault(self) -> str:
        """The fault of a faulty stream, in words; empty if another codec found it."""
        ...

    def receive(self, data: bytes) -> Decoded:
        """Decode received bytes; after the end of the stream, or a fault, the result is empty."""
        ...

    def send(self, data: bytes) -> bytes:
        """Return the bytes to send for bytes of frames; none if the peer cannot take any yet."""
        ...

    def close(self) -> bytes:
        """Return the last bytes to send; empty if they have been returned before."""
        ...


class Stacked:
    """Two codecs as one; ``outer`` is beside the socket."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Codec, inner: Codec) -> None:
        self._outer = outer
        self._inner = inner

    @property
    def peer(self) -> tuple[str, int] | None:
        return self._outer.peer or self._inner.peer

    @property
    def identity(self) -> Certificate | None:
        return self._outer.identity or self._inner.identity

    @property
    def fault(self) -> str:
        return self._outer.fault or self._inner.fault

    def receive(self, data: bytes) -> Decoded:
        outer = self._outer.receive(data)
        inner = self._inner.receive(outer.data) if outer.data else Decoded(b"")
        if not (outer.answer or inner.answer or outer.stream or inner.stream):
            return inner  # nearly always; making a new one costs as much as a frame
        answer = outer.answer
        if inner.answer:
            answer += self._outer.send(inner.answer)
        stream = max(outer.stream, inner.stream)
        if stream is Stream.PLAIN and outer.stream is not inner.stream:
            stream = Stream.OPEN
        return Decoded(inner.data, answer, stream)

    def send(self, data: bytes) -> bytes:
        data = self._inner.send(data)
        return self._outer.send(data) if data else b""

    def close(self) -> bytes:
        last = self._inner.close()
        return (self._outer.send(last) if last else b"") + self._outer.close()


class Observer(Protocol):
    """Gets what one connection receives and sends, as bytes of frames; makes no call on it."""

    def begin(self, received: bytes, waiting_bytes: int) -> None:
        """Take the state at the beginning: a partial frame, and the bytes of queued output."""
        ...

    def received(self, data: bytes) -> None: ...

    def sent(self, data: bytes) -> None: ...


class Observed:
    """A codec, or None for plain bytes, with an observer between it and the frames."""

    __slots__ = ("codec", "observer")

    def __init__(self, codec: Codec | None, observer: Observer) -> None:
        self.codec = codec
        self.observer = observer

    @property
    def peer(self) -> tuple[str, int] | None:
        return None if self.codec is None else self.codec.peer

    @property
    def identity(self) -> Certificate | None:
        return None if self.codec is None else self.codec.identity

    @property
    def fault(self) -> str:
        return "" if self.codec is None else self.codec.fault

    def receive(self, data: bytes) -> Decoded:
        decoded = Decoded(data) if self.codec is None else self.codec.receive(data)
        if decoded.data:
            self.observer.received(decoded.data)
        return decoded

    def send(self, data: bytes) -> bytes:
        self.observer.sent(data)
        return data if self.codec is None else self.codec.send(data)

    def close(self) -> bytes:
        return b"" if self.codec is None else self.codec.close()
