"""TLS and WebSocket beside mosquitto, in one run: the cost of handshakes, idle sessions, messages.

Question: what do the codecs of listeners cost, and how does that compare with mosquitto? CPU is the
server's, user and system; the load generator is Python, so rates are often its own limit and the
CPU tells. TLS is 1.3 with a P-256 certificate, without resumption. Servers take turns in every
round; medians count. The last part opens connections that never finish a handshake and measures
another client meanwhile.

    python -m motelog.loadtest.bench.bench_listeners [--seconds 2] [--rounds 3] [--idle 2000]
                                          [--half-open 10000] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from motelog.loadtest.bench.report import Row, machine, markdown, say
from motelog.loadtest.bench_process import anonymous_bytes
from tests.support.certificates import certificates
from tests.support.coded_peers import client_frame, opening_request, server_frames
from tests.support.listeners import ListenerServer

KINDS: Final = ("tcp", "tls", "ws", "wss")
CONNECTIONS: Final = 50
PAYLOAD: Final = bytes(64)
CONNACK_BYTES: Final = 4
PUBACK_BYTES: Final = 4
SERVER_WITHIN_S: Final = 10.0
DEADLINE_S: Final = 30.0
#: As the gateway's connect_timeout_s, and some time to notice it.
HALF_OPEN_S: Final = 10
HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)
DESCRIPTORS_KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test; ``ports`` by kind."""

    name: str
    ports: dict[str, int]
    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Stream(Protocol):
    """The plain bytes of one connection."""

    def send(self, data: bytes) -> None: ...
    def receive(self, size: int) -> None: ...
    def close(self) -> None: ...


class Plain:
    """A TCP or TLS connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self, size: int) -> None:
        """Take so many bytes."""
        while size > 0:
            got = self._sock.recv(size)
            if not got:
                raise ConnectionError("the server has closed")
            size -= len(got)

    def close(self) -> None:
        self._sock.close()


class Framed:
    """A WebSocket on such a connection; output is masked once for all."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._masked: dict[bytes, bytes] = {}
        sock.sendall(opening_request())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        self._rest = b""

    def send(self, data: bytes) -> None:
        if data not in self._masked:
            self._masked[data] = client_frame(data)
        self._sock.sendall(self._masked[data])

    def receive(self, size: int) -> None:
        while size > 0:
            got = self._sock.recv(65_536)
            if not got:
                raise ConnectionError("the server has closed")
            frames, self._rest = server_frames(self._rest + got)
            size -= sum(len(payload) for _, payload in frames)

    def close(self) -> None:
        self._sock.close()


def connect_packet(client_id: str) -> bytes:
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(name)) + name
    return bytes((0x10, len(body))) + body


def publishes(count: int) -> bytes:
    """Return PUBLISH packets of QoS 1 with the packet identifiers 1 to ``count``."""
    topic = b"\x00\x0bbench/codec"
    size = len(topic) + 2 + len(PAYLOAD)
    return b"".join(
        bytes((0x32, size)) + topic + struct.pack(">H", number + 1) + PAYLOAD
        for number in range(count)
    )


_TRUSTING: Final = ssl.create_default_context(cafile=certificates().ca)


def opened(server: Server, kind: str) -> Stream:
    """Return an open stream, its handshakes done."""
    sock = socket.create_connection(("127.0.0.1", server.ports[kind]), DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind in ("tls", "wss"):
        sock = _TRUSTING.wrap_socket(sock, server_hostname="localhost")
    return Framed(sock) if kind in ("ws", "wss") else Plain(sock)


def session(server: Server, kind: str, client_id: str) -> Stream:
    stream = opened(server, kind)
    stream.send(connect_packet(client_id))
    stream.receive(CONNACK_BYTES)
    return stream


def sessions(server: Server, kind: str, names: Iterable[str]) -> list[Stream]:
    """Open sessions, many at once: a server may accept connections only at intervals."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(partial(session, server, kind), names))


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one run: things per second, the server's CPU for each, bytes for each."""

    rate: float = 0.0
    cpu_us: float = 0.0
    size: float = 0.0


def connecting(server: Server, kind: str, seconds: float) -> Figure:
    """Open sessions and end them, as many at once as there are publishers in the other rows."""
    count = 0
    before_s, began_s = server.cpu_s(), time.monotonic()
    while (took_s := time.monotonic() - began_s) < seconds:
        for stream in sessions(server, kind, (f"c{number}" for number in range(CONNECTIONS))):
            stream.close()
        count += CONNECTIONS
    return Figure(count / took_s, (server.cpu_s() - before_s) / count * 1e6)


def publishing(server: Server, kind: str, seconds: float, *, window: int) -> Figure:
    """Publish with QoS 1 from several sessions, ``window`` messages at once from each."""
    streams = sessions(server, kind, (f"p{number}" for number in range(CONNECTIONS)))
    packets = publishes(window)
    count = 0
    before_s, began_s = server.cpu_s(), time.monotonic()
    while (took_s := time.monotonic() - began_s) < seconds:
        for stream in streams:
            stream.send(packets)
        for stream in streams:
            stream.receive(window * PUBACK_BYTES)
        count += window * len(streams)
    figure = Figure(count / took_s, (server.cpu_s() - before_s) / count * 1e6)
    for stream in streams:
        stream.close()
    return figure


def idle(server: Server, kind: str, count: int) -> Figure:
    """Hold idle sessions; memory for each."""
    session(server, kind, "first").close()
    before = anonymous_bytes(server.pid) or 0
    streams = sessions(server, kind, (f"i{number}" for number in range(count)))
    time.sleep(1.0)
    size = ((anonymous_bytes(server.pid) or 0) - before) / count
    for stream in streams:
        stream.close()
    return Figure(size=size)


# --- servers


@contextmanager
def motelog_server() -> Iterator[Server]:
    files = certificates()
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    listeners = {"tls": tls, "ws": 'websocket = "/mqtt"\n'}
    listeners["wss"] = listeners["tls"] + listeners["ws"]
    tables = "".join(
        f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:0"\n{keys}'
        for name, keys in listeners.items()
    )
    with (
        tempfile.TemporaryDirectory(prefix="motelog-bench-") as folder,
        ListenerServer(Path(folder), tables) as server,
    ):
        ports = {name: server.port(name) for name in listeners}
        ports["tcp"] = int(str(server.ready["gateway"]).rpartition(":")[2])
        yield Server("Motelog", ports, server.pid)


@contextmanager
def mosquitto_server() -> Iterator[Server]:
    files = certificates()
    ports = {}
    for kind in KINDS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports[kind] = probe.getsockname()[1]
    lines = ["allow_anonymous true", "persistence false", "set_tcp_nodelay true"]
    if os.geteuid() == 0:
        lines.append("user root")  # so that it can read the key
    for kind, port in ports.items():
        lines.append(f"listener {port} 127.0.0.1")
        if kind in ("tls", "wss"):
            lines += [f"certfile {files.server}", f"keyfile {files.server_key}"]
        if kind in ("ws", "wss"):
            lines.append("protocol websockets")
    with tempfile.TemporaryDirectory(prefix="motelog-bench-") as folder:
        file = Path(folder) / "mosquitto.conf"
        file.write_text("\n".join(lines) + "\n")
        process = subprocess.Popen(
            ["mosquitto", "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            server = Server("mosquitto", ports, process.pid)
            _wait_for(ports)
            yield server
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def mosquitto_version() -> str:
    done = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def _wait_for(ports: dict[str, int]) -> None:
    give_up_s = time.monotonic() + SERVER_WITHIN_S
    for port in ports.values():
        while True:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if time.monotonic() > give_up_s:
                raise TimeoutError("the server does not listen")
            time.sleep(0.05)


SERVERS: Final = (motelog_server, mosquitto_server)


# --- the table


def measured(
    name: str, measure: Callable[[Server, str], Figure], rounds: int, text: Callable[[Figure], str]
) -> Iterator[Row]:
    """Yield a row for each kind of listener: both servers, and mosquitto's cost over ours."""
    found: dict[tuple[str, str], list[Figure]] = {}
    for number in range(rounds):
        for serve in SERVERS if number % 2 == 0 else reversed(SERVERS):
            for kind in KINDS:
                with serve() as server:
                    _pin(server.pid)
                    found.setdefault((kind, server.name), []).append(measure(server, kind))
    for kind in KINDS:
        ours, theirs = (_median(found[kind, name]) for name in ("Motelog", "mosquitto"))
        cost, other = (ours.cpu_us, theirs.cpu_us) if ours.cpu_us else (ours.size, theirs.size)
        yield f"{name}, {kind}", text(ours), text(theirs), f"{other / cost:.2f}"


def _pin(pid: int) -> None:
    """Give the server one processor and the load another, if there are two."""
    if (os.cpu_count() or 1) >= 2:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {0})
        os.sched_setaffinity(0, {1})


def _median(figures: Sequence[Figure]) -> Figure:
    return Figure(
        statistics.median(one.rate for one in figures),
        statistics.median(one.cpu_us for one in figures),
        statistics.median(one.size for one in figures),
    )


def rate_text(figure: Figure) -> str:
    return f"{figure.rate:,.0f}/s, {figure.cpu_us:,.1f} us CPU"


def size_text(figure: Figure) -> str:
    return f"{figure.size:,.0f} B"


# --- half-open connections


def half_open(count: int) -> Iterator[Row]:
    """Yield latencies of a TLS client, before and while many others never finish a handshake."""
    with motelog_server() as server:
        _pin(server.pid)
        client = session(server, "tls", "beside")
        yield "publishes alone", _latency(client, 2.0, lambda: None)
        others = [
            socket.create_connection(("127.0.0.1", server.ports["tls"])) for _ in range(count)
        ]
        began_s = time.monotonic()
        for number, sock in enumerate(others):
            # A third is silent, a third stops within its first record, a third sends single bytes.
            if number % 3:
                sock.sendall(HELLO[: 60 * (number % 3)])
        dripping = others[2::3]

        def drip() -> None:
            for sock in dripping[:200]:
                with suppress(OSError):
                    sock.send(b"\0")

        text = _latency(client, HALF_OPEN_S - 4, drip)
        yield f"publishes beside {count:,} half-open connections", text
        fresh_s = time.monotonic()
        session(server, "tls", "fresh").close()
        yield "a new session beside them", f"{(time.monotonic() - fresh_s) * 1e3:.0f} ms"
        last_s = 0.0
        for sock in others:
            sock.settimeout(DEADLINE_S)
            with suppress(ConnectionError):
                while sock.recv(4096):
                    pass
            last_s = time.monotonic() - began_s
            sock.close()
        yield "the last of them was ended after", f"{last_s:.1f} s"
        yield "publishes after them", _latency(client, 2.0, lambda: None)
        client.close()


def _latency(client: Stream, seconds: float, between: Callable[[], None]) -> str:
    packet, times = publishes(1), []
    ends_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < ends_s:
        client.send(packet)
        client.receive(PUBACK_BYTES)
        times.append((time.monotonic() - began_s) * 1e3)
        between()
        time.sleep(0.005)
    p99 = statistics.quantiles(times, n=100)[98]
    return f"p50 {statistics.median(times):.2f} ms, p99 {p99:.1f} ms, at most {max(times):.1f} ms"


def main() -> None:
    arguments = _arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about = machine()
    say(f"{about}; {mosquitto_version()}\n")
    seconds, rounds = arguments.seconds, arguments.rounds
    head = ("case", "Motelog", "mosquitto", "mosquitto's cost over Motelog's")
    rows: list[Row] = [head]
    cases: list[Iterator[Row]] = [
        measured("session opened", partial(connecting, seconds=seconds), rounds, rate_text),
        *(
            measured(
                f"QoS 1 publish, {window} at once",
                partial(publishing, seconds=seconds, window=window),
                rounds,
                rate_text,
            )
            for window in (1, 20)
        ),
        measured("idle session", partial(idle, count=arguments.idle), 1, size_text),
    ]
    for case in cases:
        for row in case:
            rows.append(row)
            say(" | ".join(row))
    others: list[Row] = [("beside half-open TLS connections", "")]
    if arguments.half_open:
        room = hard - DESCRIPTORS_KEPT
        for row in half_open(min(arguments.half_open, room)):
            others.append(row)
            say(" | ".join(row))
    text = "\n".join(
        (
            f"# TLS and WebSocket beside mosquitto, {time.strftime('%Y-%m-%d')}",
            "",
            "Made by `python -m motelog.loadtest.bench.bench_listeners`. Ratios count, not rates.",
            "",
            f"{about}; {mosquitto_version()}",
            "",
            f"{CONNECTIONS} connections at once, {len(PAYLOAD)} B payloads. Rounds: {rounds}, of "
            f"{seconds:g} s, medians; servers in turn, the server on one processor and the load "
            "(Python, one thread) on another, which limits many of the rates. mosquitto stores "
            "nothing; Motelog appends each message to its log first. TLS is 1.3, each handshake a "
            "whole one; a session opened is TCP, TLS, WebSocket and CONNECT. The ratio is of CPU "
            "or bytes: above 1, Motelog is ahead. Memory is of the process without pages of "
            f"files, for {arguments.idle:,} sessions.",
            "",
            *markdown(rows),
            "",
            *markdown(others),
            "",
        )
    )
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="TLS and WebSocket beside mosquitto")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--half-open", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
