"""Codecs: what lies between a connection's socket and its frames, such as TLS or WebSocket.

Owns: the Codec and Observer protocols, Stacked, Observed. Must not touch: sockets, frames, clocks.
Invariants: how a stream is cut changes nothing of what comes out. A codec keeps no bytes that it
could hand over, and of what it cannot at most a record or a header. It makes no call on a reactor.

    socket  --receive-->  codec  --bytes of frames-->  reactor
            <--answer---         <--bytes to send----

Several stack, the one beside the socket first: PROXY protocol, TLS, WebSocket.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol


class Stream(IntEnum):
    """What may come after the bytes that a codec was given."""

    OPEN = 0
    PLAIN = 1  # the bytes of the frames as they are: the codec has answered nothing, and is over
    ENDED = 2  # the peer has said so: nothing
    FAULTY = 3  # nothing that can be read


class Decoded(NamedTuple):
    """What a codec makes of received bytes: ``data`` for the frames, ``answer`` for the peer."""

    data: bytes
    answer: bytes = b""
    stream: Stream = Stream.OPEN


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a peer's certificate, which was checked, says of it: ``names`` are the alternative ones.

    Names are kinds and values as in ("DNS", "a.example"). After ``expires_s`` (seconds since 1970)
    it says nothing any more.
    """

    common_name: str | None
    names: tuple[tuple[str, str], ...] = ()
    expires_s: float | None = None

    @property
    def name(self) -> str | None:
        """Whose it is: its common name, or else the first alternative one."""
        return self.common_name or next((value for _, value in self.names), None)


class Codec(Protocol):
    """One connection's; made when its first bytes have come."""

    @property
    def peer(self) -> tuple[str, int] | None:
        """The peer's numeric address and port, if the stream tells another than the socket's."""
        ...

    @property
    def identity(self) -> Certificate | None:
        """The certificate that the peer has shown."""
        ...

    @property
    def fault(self) -> str:
        """What is wrong with a faulty stream, in words; empty if it is another codec's fault."""
        ...

    def receive(self, data: bytes) -> Decoded:
        """Take received bytes; after the end of the stream, or a fault, there is nothing."""
        ...

    def send(self, data: bytes) -> bytes:
        """Return what is sent for bytes of frames; none if the peer cannot take any yet."""
        ...

    def close(self) -> bytes:
        """Return what is sent last; none if that has been sent."""
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
            return inner  # nearly always; putting it together again costs as much as a frame
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
    """Is shown what one connection receives and sends, as bytes of frames; makes no call on it."""

    def begin(self, received: bytes, waiting_bytes: int) -> None:
        """Hear what is there already: a frame received in part, and how much is yet to be sent."""
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
