"""The private line between a server and one of its gateway processes: a pair of sockets.

Owns: the messages, their bytes. Must not touch: what they lead to.
Invariant: no name and no address leads to the line, so nobody else is on it. Whoever ends, however
it ends, the other reads the end of the line.

     0       4
    +-------+---------------------+
    | bytes | one message, msgpack |      byte count big-endian, without itself
    +-------+---------------------+

    server  -> Begin, Question...                     the end of the line: stop
    process -> Ready, State..., Answer...             or Failed, if it cannot start
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
import trio

from motelog.core.net.config import ListenerConfig
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.config import GatewayConfig
from motelog.logs import LogConfig

_HEAD_BYTES: Final = 4
_RECEIVE_BYTES: Final = 65_536

#: The methods of ``AskedGateway``.
Asked: TypeAlias = Literal[
    "list_gateways",
    "reload_certificates",
    "list_retained",
    "get_retained",
    "delete_retained",
    "list_receivers",
    "list_clients",
    "get_client",
    "kick",
    "start_trace",
    "read_trace",
    "end_trace",
    "list_sessions",
    "get_session",
    "end_session",
    "end_away_session",
]


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One of the below; the tag is the name of its class."""


class Begin(_Message, frozen=True):
    """What the process shall be."""

    gateway: GatewayConfig
    access: AccessConfig
    log: LogConfig
    listeners: tuple[ListenerConfig, ...] = ()


class Ready(_Message, frozen=True):
    """The process takes connections."""


class Failed(_Message, frozen=True):
    """The process cannot start, or ends, for a reason that is known; may be one that comes again
    at each start."""

    reason: str
    comes_again: bool = False


class State(_Message, frozen=True):
    """What the process has counted, which brokers are away, why nobody can log in; each second."""

    counters: dict[str, int]
    histograms: dict[str, list[float]]
    outage: str | None
    access_fault: str | None


class Question(_Message, frozen=True):
    """The console asks; ``number`` comes back with the answer."""

    number: int
    name: Asked
    arguments: tuple[Any, ...]


class Answer(_Message, frozen=True):
    """The answer in msgpack, or with a ``status`` of HTTP the reason why there is none."""

    number: int
    answer: msgspec.Raw
    status: int = 0


Message: TypeAlias = Begin | Ready | Failed | State | Question | Answer


class Channel:
    """One end of the line, which it takes over from ``end``; closed with ``close``.

    Used in one task for each direction.
    """

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(
            trio.socket.from_stdlib_socket(socket.socket(fileno=end.detach()))
        )
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)

    async def send(self, message: Message) -> None:
        """Send one message; BrokenResourceError if the other end has gone.

        If it is cancelled, the line ends: no part of a message may be taken for the next.
        """
        body = self._encoder.encode(message)
        try:
            await self._stream.send_all(len(body).to_bytes(_HEAD_BYTES, "big") + body)
        except trio.Cancelled:
            self.close()
            raise

    async def messages(self) -> AsyncIterator[Message]:
        """Give each message that comes, until the end of the line."""
        data = bytearray()
        while True:
            while len(data) >= _HEAD_BYTES:
                end = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "big")
                if len(data) < end:
                    break
                message: Message = self._decoder.decode(data[_HEAD_BYTES:end])
                del data[:end]
                yield message
            try:
                received = await self._stream.receive_some(_RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return  # it has gone with messages unread
            if not received:
                return
            data += received

    def close(self) -> None:
        self._stream.socket.close()
