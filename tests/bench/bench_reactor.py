"""What does the reactor cost per message beside the bare system calls?

Usage: python tests/bench/bench_reactor.py [--connections N] [--window W ...] [--seconds S]
[--runs N] [--floor PROGRAM]. A server process on one core answers each frame with a 4-byte
acknowledgement through send_numbered(); this process, a reactor too, keeps W QoS 1 PUBLISHes of
64 bytes in flight on each connection from another core. Prints the server's CPU per message.
``--floor`` names any server program to run beside it (``PROGRAM PORT``, answers PUBACK), for
example a C loop of recv, frame, send.
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from motelog.core.net.reactor import Framing, Reactor, Turn  # noqa: E402  # after sys.path

PUBLISH = b"\x32\x50\x00\x0ctelemetry/42\x00\x01" + b"x" * 64
PUBACK = b"\x40\x02\x00\x00"
WARM_UP_S = 0.5
FRAME_BYTES_MAX = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--window", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--floor", help="a server program to run beside the reactor")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    print(  # noqa: T201
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"commit {commit}; {options.connections} connections"
    )
    servers = {"kernel": [sys.executable, __file__, "--serve"]}
    if options.floor:
        servers["floor"] = [options.floor]
    for window in options.window:
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(options.runs):  # they take turns, so that a busy machine is busy for all
            for name, command in servers.items():
                results[name].append(measure(command, options.connections, window, options.seconds))
        for name, runs in results.items():
            rate = statistics.median(rate for rate, _ in runs)
            cpu_us = statistics.median(cpu_us for _, cpu_us in runs)
            best = min(cpu_us for _, cpu_us in runs)
            print(  # noqa: T201
                f"{name:9} window {window:3}: {rate:10,.0f} messages/s, "
                f"server CPU {cpu_us:.3f} us per message (best {best:.3f})"
            )


def serve(port: int) -> None:
    """Answer each frame; ends with its process."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(4096)
    reactor = Reactor()
    reactor.listen(sock, Framing.MQTT, frame_bytes_max=FRAME_BYTES_MAX, first_frame_s=0)
    wait = waiter(reactor)
    while True:
        turn = reactor.poll(1)
        if turn.frames:
            reactor.send_numbered(PUBACK, 2, [(c, 1) for c in turn.index[::4].tolist()])
        elif not turn.more:
            wait(1000)


def waiter(reactor: Reactor) -> Callable[[int], object]:

    poll = select.poll()
    poll.register(reactor, select.POLLIN)
    return poll.poll


def measure(
    command: list[str], connections: int, window: int, seconds: float
) -> tuple[float, float]:
    """Return messages a second and the server's CPU microseconds per message."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([*command, str(port)])
    try:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(server.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:])
        wait_for(port)
        client = Client(port, connections, window)
        client.run(WARM_UP_S)
        cpu_s, acknowledged, begun = cpu_seconds(server.pid), client.acknowledged, time.monotonic()
        client.run(seconds)
        elapsed_s = time.monotonic() - begun
        messages = client.acknowledged - acknowledged
        used_s = cpu_seconds(server.pid) - cpu_s
        client.reactor.shut_down()
    finally:
        server.kill()
        server.wait()
        os.sched_setaffinity(0, cores)
    return messages / elapsed_s, used_s * 1e6 / messages


class Client:
    """Keeps a window of publishes in flight on each connection."""

    def __init__(self, port: int, connections: int, window: int) -> None:
        self.reactor = Reactor()
        self.acknowledged = 0
        for _ in range(connections):
            connection = self.reactor.connect(
                ("127.0.0.1", port), Framing.MQTT, frame_bytes_max=FRAME_BYTES_MAX
            )
            self.reactor.send(connection, PUBLISH * window)
        self._wait = waiter(self.reactor)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            turn = self.reactor.poll(1)
            if turn:
                self.handle_turn(turn)
            elif not turn.more:
                self._wait(100)

    def handle_turn(self, turn: Turn) -> None:
        assert not turn.closed, turn.closed
        self.acknowledged += turn.frames
        self.reactor.fan_out(PUBLISH, turn.index[::4].tolist())


def wait_for(port: int) -> None:
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
