"""Connections that do not come to a CONNECT: what they cost, and when they are ended.

Usage: python -m tests.fault.half_open [--connections 10000] [--deadline 10] [--json]. A quarter
each say nothing, send a byte of a CONNECT every second, say nothing to a listener with TLS, and
stop in the middle of a handshake. Meanwhile a device publishes at QoS 1, message by message.

Owns: the connections, the device, what is counted. Must not touch: servers but its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.support.certificates import certificates
from tests.support.listeners import ListenerServer

#: Of a CONNECT that never ends: as many bytes as there will be seconds.
CONNECT: Final = bytes.fromhex("10ff0100044d5154540402003c00f0") + b"x" * 240
PUBLISH: Final = bytes.fromhex("320a00047465737400017879")
OPENED_AT_ONCE: Final = 500
#: Beyond the deadline: the server's timers, and a loaded machine.
MARGIN_S: Final = 15.0
SPARE_DESCRIPTORS: Final = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    connections: int
    open_s: float
    ended: int
    first_ended_s: float
    last_ended_s: float
    bytes_each: int
    quiet_p50_ms: float
    quiet_p99_ms: float
    crowd_p50_ms: float
    crowd_p99_ms: float

    @property
    def is_good(self) -> bool:
        return self.ended == self.connections


def client_hello() -> bytes:
    """Return the first half of a handshake's first message."""
    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = out.read()
    return hello[: len(hello) // 2]


def memory_bytes(pid: int) -> int:
    """Return the anonymous memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("there is no RssAnon")


class Device:
    """A device that publishes and waits for each PUBACK."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.sendall(bytes.fromhex("100e00044d5154540402003c0002") + b"ca")
        assert self._socket.recv(4) == b"\x20\x02\x00\x00"

    def exchange(self) -> float:
        """Return in how many seconds a message was acknowledged."""
        started = time.perf_counter()
        self._socket.sendall(PUBLISH)
        answer = b""
        while len(answer) < 4:
            got = self._socket.recv(4 - len(answer))
            assert got, "the device was disconnected"
            answer += got
        assert answer == b"\x40\x02\x00\x01"
        return time.perf_counter() - started

    def close(self) -> None:
        self._socket.close()


class Crowd:
    """The connections; those that the server has ended are counted."""

    def __init__(self, tcp: int, tls: int) -> None:
        hello = client_hello()
        self._kinds = ((tcp, b""), (tcp, CONNECT[:1]), (tls, b""), (tls, hello))
        self._selector = selectors.DefaultSelector()
        self._dribbling: list[socket.socket] = []
        self._sent = 1
        self.opened = 0
        self.ended: list[float] = []

    def open(self, count: int) -> None:
        for _ in range(count):
            kind = self.opened % len(self._kinds)
            port, first = self._kinds[kind]
            sock = socket.create_connection(("127.0.0.1", port), 30)
            sock.setblocking(False)
            if first:
                sock.send(first)
            if kind == 1:
                self._dribbling.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, time.monotonic())
            self.opened += 1

    def dribble(self) -> None:
        """Send one byte more on those that send."""
        for sock in self._dribbling:
            try:
                sock.send(CONNECT[self._sent : self._sent + 1])
            except OSError:
                continue
        self._sent += 1

    def look(self, seconds: float) -> None:
        """Count those whose end has come; each with how long it was open."""
        for key, _ in self._selector.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                if sock.recv(4096):
                    continue  # an alert of TLS goes before the end
            except BlockingIOError:
                continue
            except OSError:
                pass
            self.ended.append(time.monotonic() - key.data)
            self._selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextmanager
def server(folder: Path, deadline_s: int, connections: int) -> Iterator[ListenerServer]:
    files = certificates()
    listener = (
        '[[listener]]\nname = "plain"\naddress = "127.0.0.1:0"\n'
        '[[listener]]\nname = "tls"\naddress = "127.0.0.1:0"\n'
        f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    )
    gateway = f"connect_timeout_s = {deadline_s}\nconnections_max = {connections + 10}"
    with ListenerServer(folder, listener, gateway=gateway) as running:
        yield running


def run(connections: int, deadline_s: int) -> Outcome:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="motelog-half-open-"))
        running = stack.enter_context(server(Path(folder), deadline_s, connections))
        device = Device(running.port("plain"))
        stack.callback(device.close)
        quiet = [device.exchange() for _ in range(500)]
        before = memory_bytes(running.pid)
        crowd = Crowd(running.port("plain"), running.port("tls"))
        stack.callback(crowd.close)
        busy = []
        most, started, dribbled = before, time.monotonic(), time.monotonic()
        opened_s = 0.0
        while len(crowd.ended) < connections:
            if crowd.opened < connections:
                crowd.open(min(OPENED_AT_ONCE, connections - crowd.opened))
                most = max(most, memory_bytes(running.pid))
                opened_s = time.monotonic() - started
            elif time.monotonic() - started > opened_s + deadline_s + MARGIN_S:
                break
            elif time.monotonic() - dribbled >= 1.0:
                dribbled = time.monotonic()
                crowd.dribble()
            busy.append(device.exchange())
            crowd.look(0.01)
    ended = sorted(crowd.ended) or [0.0]
    return Outcome(
        connections,
        opened_s,
        len(crowd.ended),
        ended[0],
        ended[-1],
        (most - before) // connections,
        *(1000 * at for at in _median_and_p99(quiet)),
        *(1000 * at for at in _median_and_p99(busy)),
    )


def _median_and_p99(values: list[float]) -> tuple[float, float]:
    return statistics.median(values), sorted(values)[len(values) * 99 // 100]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--deadline", type=int, default=10, help="connect_timeout_s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and wanted > hard:
        sys.stderr.write(f"{wanted} descriptors are needed, {hard} are allowed\n")
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    outcome = run(options.connections, options.deadline)
    if options.json:
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    else:
        sys.stdout.write(
            f"{outcome.ended} of {outcome.connections} connections were ended, after"
            f" {outcome.first_ended_s:.1f} to {outcome.last_ended_s:.1f} s; opened in"
            f" {outcome.open_s:.1f} s, {outcome.bytes_each} bytes of the server each\n"
            f"a PUBACK took {outcome.quiet_p50_ms:.2f} ms (p99 {outcome.quiet_p99_ms:.2f}) before,"
            f" {outcome.crowd_p50_ms:.2f} ms (p99 {outcome.crowd_p99_ms:.2f}) meanwhile\n"
        )
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
