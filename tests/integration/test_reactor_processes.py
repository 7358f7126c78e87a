"""Processes that share one port with SO_REUSEPORT, each with a reactor of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import os, select, socket, sys
from motelog.core.net.reactor import Framing, Reactor

sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sock.bind(("127.0.0.1", int(sys.argv[1])))
sock.listen(100)
reactor = Reactor()
reactor.listen(sock, Framing.MQTT, frame_bytes_max=100, first_frame_s=10)
print("ready", flush=True)
while True:
    select.select([reactor, sys.stdin], [], [])
    if select.select([sys.stdin], [], [], 0)[0]:
        break
    turn = reactor.poll(1)
    for i in range(0, 4 * turn.frames, 4):
        reactor.send(turn.index[i], os.getpid().to_bytes(4, "big"))
    reactor.flush()
reactor.shut_down()
"""


def test_two_processes_share_a_port() -> None:
    with ExitStack() as stack:
        reserved = stack.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))  # not listening: it gets no connections
        port = reserved.getsockname()[1]
        workers = []
        for _ in range(2):
            worker = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, str(port)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            workers.append(worker)
            stack.callback(worker.stdin.close)  # type: ignore[union-attr]  # it is a pipe
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        served = set()
        for _ in range(64):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
                peer.sendall(b"\xc0\x00")
                served.add(int.from_bytes(peer.recv(4), "big"))
        assert served == {worker.pid for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
