"""The reactor, over loopback sockets, does what every output of the gateway must."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from motelog.core.net.codec import Codec, Stacked
from motelog.core.net.reactor import CloseReason, Reactor
from motelog.core.net.tls import TlsCodec, TlsContexts
from motelog.core.net.websocket import WebSocketCodec
from tests.support import coded_peers
from tests.support.certificates import certificates
from tests.support.coded_peers import CodedClient, CodedPeer, TlsClient, WebSocketClient
from tests.support.output_check import OUTPUT_BYTES_HIGH, OUTPUT_BYTES_MAX, check_output
from tests.support.reactor_loop import ReactorLoop, reactor_loop


class ReactorStage:
    """Sockets as peers of a reactor that is polled by hand."""

    def __init__(
        self, loop: ReactorLoop, make_client: Callable[[], CodedClient] | None = None
    ) -> None:
        self._make_client = make_client
        self.output = loop.reactor
        self._loop = loop
        self._peers: dict[int, socket.socket | CodedPeer] = {}

    def open(self) -> int:
        connection, peer = self._loop.open()
        make = self._make_client
        self._peers[connection] = peer if make is None else CodedPeer(self._loop, peer, make())
        return connection

    def stop_reading(self, connection: int) -> None:
        """Nothing to do: a peer reads only in ``receive``."""

    def receive(self, connection: int, size: int) -> bytes:
        received = b""
        while len(received) < size:
            self._loop.turn()
            chunk = self._peers[connection].recv(size - len(received))
            assert chunk, f"closed after {len(received)} of {size} bytes"
            received += chunk
        self._loop.settle()
        return received

    def is_at_end(self, connection: int) -> bool:
        return self._peers[connection].recv(1) == b""

    def variant(self, connection: int) -> int:
        known = len(self._loop.variants[connection])
        self._peers[connection].sendall(b"\xc0\x00")
        self._loop.until(lambda: len(self._loop.variants[connection]) > known)
        return self._loop.variants[connection][-1]

    def send_packet(self, connection: int) -> None:
        self._peers[connection].sendall(b"\xc0\x00")

    def send(self, connection: int, data: bytes) -> None:
        self._peers[connection].sendall(data)

    def packets(self, connection: int) -> int:
        self._loop.settle(8)
        return len(self._loop.frames[connection])

    def reported(self) -> list[tuple[int, CloseReason]]:
        self._loop.turn()
        return self._loop.closed


def test_reactor_does_what_every_output_must() -> None:
    reactor = Reactor(output_bytes_high=OUTPUT_BYTES_HIGH, output_bytes_max=OUTPUT_BYTES_MAX)
    with reactor_loop(reactor, buffer_bytes=65_536) as loop:
        check_output(ReactorStage(loop))


def _tls() -> Codec:
    files = certificates()
    return TlsCodec(TlsContexts(files.server, files.server_key).current())


CODECS: dict[str, tuple[Callable[[], Codec], Callable[[], CodedClient]]] = {
    "tls": (_tls, TlsClient),
    "ws": (lambda: WebSocketCodec("/mqtt"), WebSocketClient),
    "wss": (
        lambda: Stacked(_tls(), WebSocketCodec("/mqtt")),
        lambda: coded_peers.Stacked(TlsClient(), WebSocketClient()),
    ),
}


@pytest.mark.parametrize("codec", CODECS)
def test_reactor_with_a_codec_does_what_every_output_must(codec: str) -> None:
    make_codec, make_client = CODECS[codec]
    reactor = Reactor(output_bytes_high=OUTPUT_BYTES_HIGH, output_bytes_max=OUTPUT_BYTES_MAX)
    with reactor_loop(reactor, buffer_bytes=65_536, codec=make_codec) as loop:
        check_output(ReactorStage(loop, make_client))


class Seen:
    """An observer that keeps what it is shown."""

    def __init__(self) -> None:
        self.began: list[tuple[bytes, int]] = []
        self.input = b""
        self.output = b""

    def begin(self, received: bytes, waiting_bytes: int) -> None:
        self.began.append((received, waiting_bytes))

    def received(self, data: bytes) -> None:
        self.input += data

    def sent(self, data: bytes) -> None:
        self.output += data


@pytest.mark.parametrize("codec", [None, "wss"])
def test_an_observer_is_shown_what_a_connection_takes_and_gives(codec: str | None) -> None:
    make_codec, make_client = CODECS[codec] if codec else (None, None)
    reactor = Reactor(output_bytes_high=1 << 20, output_bytes_max=1 << 22)
    with reactor_loop(reactor, buffer_bytes=65_536, codec=make_codec) as loop:
        stage = ReactorStage(loop, make_client)
        if codec:
            silent, _ = loop.open()
            assert not reactor.observe(silent, Seen()), "nothing has come, so there is no codec"
        one = stage.open()
        stage.variant(one)
        reactor.set_limits(one, frame_bytes_max=100_000, idle_s_max=0)
        first, second = Seen(), Seen()
        large = b"\x30\xf0\xa2\x04" + bytes(70_000)
        reactor.send(one, large * 10)  # more than the socket takes
        loop.turn()
        assert reactor.observe(one, first)
        [(partial, waiting)] = first.began
        assert partial == b""
        reactor.send(one, b"\xd0\0")
        assert stage.receive(one, 700_040 + 2).endswith(bytes(70_000) + b"\xd0\0")
        assert first.output[waiting:] == b"\xd0\0"
        # A packet of which the earlier part has come before the observer.
        stage.send(one, large[:30_000])
        loop.until(lambda: len(first.input) == 30_000)
        assert reactor.observe(one, second)
        assert second.began == [(large[:30_000], 0)]
        stage.send(one, large[30_000:] + b"\xc0\0")
        loop.until(lambda: loop.frames[one][-2:] == [large, b"\xc0\0"])
        assert second.input == large[30_000:] + b"\xc0\0"
        assert first.input == large[:30_000]
        assert reactor.identity(one) is None
        # Without it, what waits is sent all the same.
        reactor.send(one, large * 10 + b"\xd0\0")
        loop.turn()
        assert reactor.observe(one, None)
        shown = len(second.output)
        assert stage.receive(one, 700_042).endswith(b"\xd0\0")
        reactor.send(one, b"\xd0\0")
        assert stage.receive(one, 2) == b"\xd0\0"
        assert len(second.output) == shown
        reactor.close(one)
        loop.settle()
        assert stage.is_at_end(one)
        assert not reactor.observe(one, first)
