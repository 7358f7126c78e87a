"""A trio stream whose bytes go through a listener's codec, for servers without a reactor.

Owns: CodedStream. Must not touch: what codecs do, deadlines.
Concurrency: one task receives while another sends. The codec's output is sent in the order in
which it was made, because records of TLS are numbered.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from motelog.core.net.codec import Certificate, Codec, Stream

RECEIVE_BYTES: Final = 65_536
GOODBYE_S: Final = 1.0
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class CodedStream(trio.abc.Stream):
    """One connection; call ``begin`` before anything else."""

    def __init__(self, transport: trio.SocketStream, codec: Codec) -> None:
        self._transport = transport
        self._codec = codec
        self._received = b""
        self._is_ended = False
        self._to_send = bytearray()
        self._sending = trio.Lock()

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._transport.socket

    @property
    def peer(self) -> tuple[str, int] | None:
        """The peer's address and port, if the stream's differ from the socket's."""
        return self._codec.peer

    @property
    def identity(self) -> Certificate | None:
        """The certificate that the peer has sent."""
        return self._codec.identity

    @property
    def fault(self) -> str:
        """The fault in the peer's bytes; empty if there is no fault."""
        return self._codec.fault

    async def begin(self) -> bool:
        """Wait until bytes of the protocol have come; False if none ever will."""
        self._received = await self.receive_some()
        return bool(self._received)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received bytes, and b"" at the end, whether or not the peer announced it."""
        while not (self._received or self._is_ended):
            received = await self._transport.receive_some(RECEIVE_BYTES)
            data, answer, stream = self._codec.receive(received)
            self._received = data
            self._is_ended = not received or stream in (Stream.ENDED, Stream.FAULTY)
            if answer:
                await self._send(answer)
        size = len(self._received) if max_bytes is None else max_bytes
        data, self._received = self._received[:size], self._received[size:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._send(self._codec.send(bytes(data)))

    async def _send(self, coded: bytes) -> None:
        self._to_send += coded
        async with self._sending:
            ready, self._to_send = self._to_send, bytearray()
            await self._transport.send_all(ready)

    async def wait_send_all_might_not_block(self) -> None:
        await self._transport.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Send the codec's last bytes, unless the peer no longer takes any, and close."""
        try:
            with trio.move_on_after(GOODBYE_S), suppress(*_GONE):
                await self._send(self._codec.close())
        finally:
            await self._transport.aclose()
