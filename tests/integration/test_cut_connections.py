"""Connections that end or are reset at every byte: none takes anything but itself along."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.frames import RemotingCommand, encode
from tests.support.certificates import certificates
from tests.support.coded_peers import CodedClient, Stacked, TlsClient, WebSocketClient
from tests.support.listeners import ListenerServer

DEADLINE_S = 20.0
MQTT = (
    b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03cut"  # CONNECT
    b"\x82\x07\x00\x01\x00\x00\x01a\x01"  # SUBSCRIBE
    b"\x34\x07\x00\x01a\x00\x02\x00x\x32\x06\x00\x01a\x00\x03\x00"  # PUBLISH at QoS 2 and 1
    b"\x62\x02\x00\x02\xc0\x00"  # PUBREL, PINGREQ
)
HTTP = (
    b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    b"POST /do/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\ntoken=a"
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\ntok\r\n0\r\n\r\n"
    b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
)
RESET = struct.pack("ii", 1, 0)


def remoting(code: RequestCode) -> bytes:
    return encode(RemotingCommand(code, ext={"topic": "T"}, opaque=1))


class PlainClient:
    """A client whose bytes go as they are."""

    is_open = True

    def begin(self) -> bytes:
        return b""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""


#: Listener -> what its client is, what that sends, what the last answer has in it.
LISTENERS: dict[str, tuple[Callable[[], CodedClient], bytes, bytes]] = {
    "gateway": (PlainClient, MQTT, b"\xd0\x00"),
    "tls": (TlsClient, MQTT, b"\xd0\x00"),
    "ws": (WebSocketClient, MQTT, b"\xd0\x00"),
    "wss": (lambda: Stacked(TlsClient(), WebSocketClient()), MQTT, b"\xd0\x00"),
    "console": (PlainClient, HTTP, b'"version"'),
    "console-tls": (TlsClient, HTTP, b'"version"'),
    "broker": (PlainClient, remoting(RequestCode.GET_BROKER_RUNTIME_INFO), b"table"),
    "broker-tls": (TlsClient, remoting(RequestCode.GET_BROKER_RUNTIME_INFO), b"table"),
    "namesrv": (PlainClient, remoting(RequestCode.GET_ROUTEINFO_BY_TOPIC), b'"code":17'),
    "namesrv-tls": (TlsClient, remoting(RequestCode.GET_ROUTEINFO_BY_TOPIC), b'"code":17'),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerServer]:
    files = certificates()
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    web = 'websocket = "/mqtt"\n'
    tables = {
        "tls": tls,
        "ws": web,
        "wss": tls + web,
        "console-tls": f'for = "admin"\n{tls}',
        "broker-tls": f'for = "broker"\n{tls}',
        "namesrv-tls": f'for = "namesrv"\n{tls}',
    }
    text = "".join(
        f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:0"\n{keys}'
        for name, keys in tables.items()
    )
    with ListenerServer(tmp_path_factory.mktemp("cut"), text) as running:
        yield running


def port_of(server: ListenerServer, name: str) -> int:
    if name in server.listeners:
        return server.port(name)
    return int(server.ready[name].rpartition(":")[2])


class Talk:
    """One client of a listener that sends ``bytes_max`` bytes at most."""

    def __init__(self, port: int, client: CodedClient, bytes_max: int = 1 << 30) -> None:
        self._client = client
        self._left = bytes_max
        self._sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes, expected: bytes) -> bool:
        """Return whether ``request`` was sent whole, and then ``expected`` was in the answer."""
        client = self._client
        if not self._send(client.begin()):
            return False
        while not client.is_open:
            if not self._send(client.decode(self._sock.recv(65_536))[1]):
                return False
        if not self._send(client.encode(request)):
            return False
        answer = b""
        while expected not in answer:
            data = self._sock.recv(65_536)
            assert data, f"the server ended the connection after {answer!r}"
            answer += client.decode(data)[0]
        return True

    def _send(self, data: bytes) -> bool:
        self._sock.sendall(data[: self._left])
        is_whole = len(data) <= self._left
        self._left = max(0, self._left - len(data))
        return is_whole

    def end(self) -> None:
        """End our side, and wait until the server has ended its own."""
        with self._sock:
            self._sock.shutdown(socket.SHUT_WR)
            while self._sock.recv(65_536):
                pass

    def reset(self) -> None:
        with self._sock:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@pytest.mark.parametrize("name", LISTENERS)
def test_an_end_and_a_reset_at_every_byte_end_their_connection_alone(
    server: ListenerServer, name: str
) -> None:
    make_client, request, expected = LISTENERS[name]
    port = port_of(server, name)
    for end in (Talk.end, Talk.reset):
        cut = 0
        is_whole = False
        while not is_whole:
            talk = Talk(port, make_client(), cut)
            is_whole = talk.ask(request, expected)
            end(talk)
            cut += 1
        assert cut > len(request)
    talk = Talk(port, make_client())
    assert talk.ask(request, expected)
    talk.end()
    assert "Traceback" not in server.errors()


def test_requests_whose_bodies_never_come_end_their_connections_alone(
    server: ListenerServer,
) -> None:
    """The answer and the end of the connection must not meet in one socket."""
    head = b" HTTP/1.1\r\nHost: localhost\r\nX-Motelog: 1\r\nContent-Length: 2147483647\r\n\r\n"
    for name in ("console", "console-tls"):
        make_client, _, _ = LISTENERS[name]
        for request in (b"POST /api/v1/clients", b"POST /login", b"POST /nowhere", b"GET /status"):
            for _ in range(20):
                talk = Talk(port_of(server, name), make_client())
                talk.ask(request + head, b"HTTP/1.1 ")
                talk.end()
    talk = Talk(port_of(server, "console"), PlainClient())
    assert talk.ask(*LISTENERS["console"][1:])
    talk.end()
    assert "Traceback" not in server.errors()
