"""The reactor when descriptors run out, lengths are claimed, peers vanish or do not read."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from motelog.core.net.reactor import CloseReason, Framing, Reactor
from tests.support.reactor_loop import (
    listening,
    mqtt_frame,
    reactor_loop,
    receive_exactly,
)

ROOT = Path(__file__).resolve().parents[2]


def run_apart(script: str) -> str:
    """Run a script in a process of its own, with its own limits; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", f"from motelog.core.net.reactor import Reactor\n{script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DESCRIPTORS_RUN_OUT = """
import resource, select, socket
from motelog.core.net.reactor_types import Framing
from tests.support.reactor_loop import listening, reactor_loop

with reactor_loop(Reactor()) as loop:
    first, first_peer = loop.open()
    waiting = [loop.begin() for _ in range(5)]
    top = max(peer.fileno() for peer in waiting)
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, top + 1))
    loop.settle()
    assert len(loop.opened) == 1, loop.opened
    # It does not spin: nothing is ready although connections wait.
    assert not select.select([loop.reactor], [], [], 0.05)[0]
    # The open connection is served meanwhile.
    first_peer.sendall(b"\\xc0\\x00")
    loop.until(lambda: loop.frames[first])
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, top + 1))
    gone = waiting.pop(0)
    gone.close()
    loop.settle()
    assert len(loop.opened) == 1, loop.opened
    loop.now_s += 1
    loop.until(lambda: len(loop.opened) == 2)
    # Outgoing connections say so at once.
    try:
        loop.reactor.connect(loop.address, Framing.MQTT, frame_bytes_max=100)
    except OSError as exc:
        print(exc.strerror)
"""


def test_without_descriptors_accepting_rests_and_goes_on_later() -> None:
    assert run_apart(DESCRIPTORS_RUN_OUT) == "Too many open files"


CLAIMED_LENGTHS = """
import resource
from motelog.core.net.reactor_types import Framing
from tests.support.reactor_loop import reactor_loop

def peak_kb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

with reactor_loop(Reactor(), frame_bytes_max=1 << 28) as loop:
    peers = [loop.open() for _ in range(200)]
    before_kb = peak_kb()
    for _, peer in peers:
        peer.sendall(b"\\x30\\xff\\xff\\xff\\x7e" + b"x" * 5_000)
    loop.settle()
    for _ in range(3):
        for _, peer in peers:
            peer.sendall(b"x" * 100)
        loop.settle()
    assert not loop.faults and not loop.frames
    print(peak_kb() - before_kb)
"""


def test_a_claimed_length_takes_no_memory() -> None:
    # 200 peers claim 254 MB each and send 5 kB: 2 MB with doubling, 50 GB if they were believed.
    assert int(run_apart(CLAIMED_LENGTHS)) < 8_000


def test_a_reset_in_the_middle_of_a_frame_harms_nobody_else() -> None:
    with reactor_loop(Reactor()) as loop:
        victim, victim_peer = loop.open()
        others = [loop.open() for _ in range(5)]
        for _, peer in others:
            peer.sendall(mqtt_frame(b"x" * 50_000)[:40_000])
            loop.turn()
        for _, peer in others:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
        victim_peer.sendall(mqtt_frame(b"still here"))
        loop.until(lambda: len(loop.closed) == 5 and loop.frames[victim])
        assert sorted(loop.closed) == [(c, CloseReason.RESET) for c, _ in others]
        assert loop.frames == {victim: [mqtt_frame(b"still here")]}


def test_one_peer_that_does_not_read_delays_nobody() -> None:
    reactor = Reactor(output_bytes_high=5_000, output_bytes_max=50_000)
    with reactor_loop(reactor, sock=listening(buffer_bytes=4_096), buffer_bytes=4_096) as loop:
        stuck, _stuck_peer = loop.open()
        reader, reader_peer = loop.open()
        skipped: list[int] = []
        for _ in range(200):
            skipped += reactor.fan_out(b"y" * 1_000, [stuck, reader])
            reactor.flush()
            receive_exactly(reader_peer, 1_000)
            loop.turn()
        assert set(skipped) == {stuck}
        assert len(skipped) > 100
        assert reactor.output_bytes(stuck) <= 6_000
        assert not loop.closed


def test_a_full_peer_that_closes_is_noticed() -> None:
    reactor = Reactor(output_bytes_high=5_000, output_bytes_max=50_000)
    with reactor_loop(reactor, sock=listening(buffer_bytes=4_096), buffer_bytes=4_096) as loop:
        stuck, peer = loop.open()
        while not reactor.fan_out(b"y" * 1_000, [stuck]):
            reactor.flush()
        peer.close()  # with unread input: the peer's system answers with a reset
        loop.until(lambda: loop.closed)
        assert loop.closed == [(stuck, CloseReason.RESET)]


def test_closing_a_full_peer_ends_within_the_linger_time() -> None:
    reactor = Reactor(connections_max=1, output_bytes_high=5_000, output_bytes_max=50_000)
    with reactor_loop(reactor, sock=listening(buffer_bytes=4_096), buffer_bytes=4_096) as loop:
        stuck, _peer = loop.open()
        while not reactor.fan_out(b"y" * 1_000, [stuck]):
            reactor.flush()
        reactor.close(stuck)
        loop.begin()
        loop.settle()
        assert len(loop.opened) == 1
        loop.now_s += 2
        reactor.sweep(loop.now_s)
        loop.settle()
        loop.now_s += 1
        loop.until(lambda: len(loop.opened) == 2)
        assert not loop.closed


def test_many_connections_come_and_go() -> None:
    with reactor_loop(Reactor(connections_max=50)) as loop:
        for _ in range(8):
            peers = [loop.begin() for _ in range(50)]
            loop.now_s += 1
            loop.until(lambda: loop.reactor.connections_count == 50)
            for peer in peers:
                peer.close()
            loop.until(lambda: loop.reactor.connections_count == 0)
            loop.settle(2)
        assert len(loop.opened) == len(loop.closed) == 400
        assert {connection for connection, _, _ in loop.opened} == set(range(50))


def test_framing_of_both_kinds_survives_a_flood_of_garbage() -> None:
    for framing in Framing:
        with reactor_loop(Reactor(), framing=framing, frame_bytes_max=1_000) as loop:
            good, good_peer = loop.open()
            frame = (
                b"\x00\x00\x00\x05hello" if framing is Framing.REMOTING else mqtt_frame(b"hello")
            )
            for i in range(50):
                garbage, peer = loop.open()
                peer.sendall(bytes((i * j + 37) % 256 for j in range(3_000)))
                good_peer.sendall(frame)
                loop.turn()
                loop.reactor.abort(garbage)
            loop.until(lambda: len(loop.frames[good]) == 50)  # noqa: B023  # called in this round
            assert loop.frames[good] == [frame] * 50
