"""The private channel between a server and one of its gateway processes: a socket pair.

Owns: the messages and their encoding. Must not touch: what they cause.
Invariant: the channel has no name and no address, so no other process can join it. When one side
ends, however it ends, the other reads the end of the stream.

     0       4
    +-------+---------------------+
    | bytes | one message, msgpack |      byte count big-endian, excluding itself
    +-------+---------------------+

    server  -> Begin, Question...                     end of stream: stop
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
    """Base of the messages below; the tag is the class name."""


class Begin(_Message, frozen=True):
    """The configuration of the process."""

    gateway: GatewayConfig
    access: AccessConfig
    log: LogConfig
    listeners: tuple[ListenerConfig, ...] = ()


class Ready(_Message, frozen=True):
    """The process accepts connections."""


class Failed(_Message, frozen=True):
    """The process cannot start, or ends, for a known reason; ``comes_again`` if it would recur at
    each start."""

    reason: str
    comes_again: bool = False


class State(_Message, frozen=True):
    """The process's counters, unreachable brokers, why no client can log in; sent each second."""

    counters: dict[str, int]
    histograms: dict[str, list[float]]
    outage: str | None
    access_fault: str | None


class Question(_Message, frozen=True):
    """A question of the console; the answer has the same ``number``."""

    number: int
    name: Asked
    arguments: tuple[Any, ...]


class Answer(_Message, frozen=True):
    """The answer in msgpack, or with an HTTP ``status`` the reason why there is none."""

    number: int
    answer: msgspec.Raw
    status: int = 0


Message: TypeAlias = Begin | Ready | Failed | State | Question | Answer


class Channel:
    """One end of the channel; it takes over ``end``, and ``close`` closes it.

    Each direction is used by one task.
    """

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(
            trio.socket.from_stdlib_socket(socket.socket(fileno=end.detach()))
        )
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)

    async def send(self, message: Message) -> None:
        """Send one message; BrokenResourceError if the other end is gone.

        If cancelled it closes the channel, since part of a message must not run into the next.
        """
        body = self._encoder.encode(message)
        try:
            await self._stream.send_all(len(body).to_bytes(_HEAD_BYTES, "big") + body)
        except trio.Cancelled:
            self.close()
            raise

    async def messages(self) -> AsyncIterator[Message]:
        """Yield each message until the end of the stream."""
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
                return  # it ended with messages unread
            if not received:
                return
            data += received

    def close(self) -> None:
        self._stream.socket.close()
